"""Close a round: count what came of its points, so that nothing that is missing goes unnoticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from fleetsieve_airflow.evidence import MeasurementPoint, PointFailure
from fleetsieve_airflow.operators.base import CampaignOperator, no_use_retrying
from fleetsieve_airflow.serialization import from_document

if TYPE_CHECKING:
    from airflow.sdk import Context

    from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook


class CloseRoundOperator(CampaignOperator):
    """End a round, whatever became of its points, and say where the campaign stands.

    It has to run on ``all_done``: a settled round has no points to map over, and in others some points may
    have failed. A point whose task ended without a word is noted as failed, so that it is neither taken for
    measured nor asked for without end.

    Example::

        CloseRoundOperator(
            task_id="close_round", points=decide.output, rows=profile.output, trigger_rule="all_done",
            campaign=opened.output, round="{{ params.round }}",
        )

    :param points: what the decide task returned (templated).
    :param rows: what the mapped profile tasks returned (templated).
    :return: the campaign's id, the round, its state, reason, gap and regret, and how many points were
        measured, reused and failed.
    """

    template_fields: Sequence[str] = (*CampaignOperator.template_fields, "points", "rows")

    def __init__(self, *, points: Any, rows: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.points = points
        self.rows = rows

    def execute(self, context: Context) -> dict[str, Any]:
        """Count, note, summarise."""
        if self.points is None:
            raise AirflowFailException(
                f"Round {self.number} has no decision: its fit, allocate or decide task failed. "
                "Clear that task to go on."
            )
        with no_use_retrying():
            hook, campaign = self.enter()
            decision = hook.load_round(campaign, self.number)
            points = {point.key: point for point in map(read_point, self.points)}
            outcomes = {row["key"]: row["outcome"] for row in self._returned()}
            if silent := [point for key, point in points.items() if key not in outcomes]:
                outcomes |= self._outcomes_of(hook, campaign, silent)
        counts = Counter(outcomes.values())
        self.log.info(
            "Round %d: %s; measured %d, reused %d, failed %d of %d points.",
            self.number,
            decision.state,
            counts["measured"],
            counts["reused"],
            counts["failed"],
            len(self.points),
        )
        return {
            "campaign_id": campaign.campaign_id,
            "round": self.number,
            "state": decision.state,
            "reason": decision.reason,
            "gap": decision.gap,
            "regret": decision.regret,
            **{name: counts[name] for name in ("measured", "reused", "failed")},
        }

    def _returned(self) -> list[dict[str, Any]]:
        # A slice is one request; iterating asks until "not found", which Airflow logs as an error.
        return [row for row in self.rows[:] if row] if self.rows is not None else []

    def _outcomes_of(
        self, hook: MlflowHook, campaign: CampaignRef, silent: Sequence[MeasurementPoint]
    ) -> dict[str, str]:
        """Look up what became of points whose tasks returned nothing; note the failures nobody noted."""
        evidence = hook.load_evidence(hook.load_spec(campaign), campaign, rounds_done=self.number)
        measured = {item.measurement.point.key for item in evidence.items}
        noted = {failure.key for failure in evidence.failures if failure.round == self.number}
        for point in silent:
            if point.key in measured | noted:
                continue
            claim = hook.claim_measurement(point, campaign, self.number)
            if claim.state == "ours":
                message = "Its task ended without a result: see the task's log."
                failure = PointFailure(
                    key=point.key,
                    label=point.label,
                    round=self.number,
                    kind="infrastructure",
                    message=message,
                )
                hook.fail_measurement(claim.run_id, failure)
        return {point.key: "measured" if point.key in measured else "failed" for point in silent}


def read_point(document: Any) -> MeasurementPoint:
    """Return the point of a document."""
    return from_document(MeasurementPoint, document)
