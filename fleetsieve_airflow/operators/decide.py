"""Settle the decision, or say what to measure next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import conf

from fleetsieve_airflow.errors import CertificateError, SpecError
from fleetsieve_airflow.operators.base import CampaignOperator, no_use_retrying, read_evidence
from fleetsieve_airflow.operators.reports import log_report
from fleetsieve_airflow.serialization import to_document, to_plain

if TYPE_CHECKING:
    from airflow.sdk import Context

    from fleetsieve_airflow.evidence import Decision


class DecideOperator(CampaignOperator):
    """Decide on the round's evidence, log round and report to MLflow, return the points to measure.

    Example::

        DecideOperator(
            task_id="decide", fitted=fit.output, allocation=allocate.output, campaign=opened.output,
            round="{{ params.round }}",
        )

    :param fitted: what the fit task returned (templated).
    :param allocation: what the allocation task returned (templated). A decision that rests on other intervals
        or plans than these is refused: then the tasks of one round did not run the same code on the same
        evidence.
    :return: the points to measure, to be mapped over; empty when the decision is settled.
    """

    template_fields: Sequence[str] = (*CampaignOperator.template_fields, "fitted", "allocation")

    def __init__(self, *, fitted: Any, allocation: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fitted = fitted
        self.allocation = allocation

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Decide, check, log."""
        from fleetsieve_airflow.campaign import verdicts_of
        from fleetsieve_airflow.core.decision import decide

        with no_use_retrying():
            hook, campaign = self.enter()
            spec, evidence = hook.load_spec(campaign), read_evidence(hook, campaign, self.number)
            decision = decide(spec, evidence)
            self._check(decision)
            hook.log_round(campaign, spec, decision, evidence, verdicts=verdicts_of(spec, evidence))
            log_report(hook, campaign, spec, evidence, self.number)
        self.log.info("Round %d: %s. %s", self.number, decision.state, decision.reason)
        for warning in decision.warnings:
            self.log.warning("%s", warning)
        if decision.state != "measure":
            return []
        for planned in decision.points:
            self.log.info("Measure %s: %s", planned.point.label, planned.reason)
        return [to_document(planned.point) for planned in decision.points]

    def _check(self, decision: Decision) -> None:
        if decision.round != self.number:
            raise CertificateError(
                f"Round {self.number}: its evidence is that of round {decision.round}.",
                hint="Clear the fit task.",
            )
        parts = {
            "intervals": (to_plain(decision.intervals), self.fitted["intervals"]),
            "conservative plan": (to_plain(decision.conservative), self.allocation["conservative"]),
            "optimistic plan": (to_plain(decision.optimistic), self.allocation["optimistic"]),
        }
        if other := [name for name, (decided, given) in parts.items() if decided != given]:
            raise CertificateError(
                f"Round {self.number}: decide found other {', '.join(other)} than the tasks before it.",
                hint="Run the same release on all workers and clear the round's fit task.",
            )
        if len(decision.points) > (most := conf.getint("core", "max_map_length")):
            raise SpecError(
                f"Round {self.number} asks for {len(decision.points)} points, Airflow maps over {most}.",
                hint="Lower measurement.profiling_gpus in the fleet file, or raise [core] max_map_length.",
            )
