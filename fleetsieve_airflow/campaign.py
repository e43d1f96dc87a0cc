"""A whole campaign without Airflow: decide, measure, decide again, until the decision is settled.

The same pure ``decide`` that the DAG carries, with one backend in one process. Evidence is kept in memory
and handed out after every round; a point that fails is recorded and left to the next decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from fleetsieve_airflow.backends.base import Backend
from fleetsieve_airflow.core.certificate import build_certificate
from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.core.verdict import judge
from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.evidence import (
    Decision,
    Evidence,
    EvidenceItem,
    FailureKind,
    MeasurementPoint,
    PointFailure,
    PriorCapacity,
)
from fleetsieve_airflow.records import FleetSpec

#: Called with each decision and what was known when it was made.
RoundCallback = Callable[[Decision, Evidence], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignResult:
    """A finished campaign: its decisions by round, all it came to know, its certificate as JSON-able data."""

    decisions: tuple[Decision, ...]
    evidence: Evidence
    certificate: dict[str, Any]

    @property
    def decision(self) -> Decision:
        """The decision that ended the campaign."""
        return self.decisions[-1]


def run_campaign(
    spec: FleetSpec,
    backend: Backend,
    *,
    priors: Sequence[PriorCapacity] = (),
    on_round: RoundCallback | None = None,
    campaign_id: str = "",
) -> CampaignResult:
    """Plan a fleet to its end with one backend.

    :param priors: what is believed of capacities before anything is measured.
    :param on_round: called with every decision, before its points are measured.
    :raises FleetsieveError: the backend cannot measure this spec; nothing was paid for then.
    """
    backend.check(spec)
    evidence, decisions = Evidence(priors=tuple(priors)), []
    while True:
        decision = decide(spec, evidence)
        decisions.append(decision)
        if on_round:
            on_round(decision, evidence)
        if decision.state != "measure":
            certificate = build_certificate(spec, evidence, decision, campaign_id=campaign_id)
            return CampaignResult(decisions=tuple(decisions), evidence=evidence, certificate=certificate)
        evidence = _measured(spec, backend, decision, evidence)


def replay_campaign(spec: FleetSpec, evidence: Evidence) -> list[Decision]:
    """Decide a campaign again, round by round, from only what each round had revealed.

    :return: the decisions a campaign that knew these measurements made, in order; the same to the byte.
    """
    return [decide(spec, known_after(evidence, rounds)) for rounds in range(evidence.rounds_done + 1)]


def known_after(evidence: Evidence, rounds: int) -> Evidence:
    """Return what a campaign knew after so many rounds; round 0 is what it knew from the start."""
    return replace(
        evidence,
        items=tuple(item for item in evidence.items if item.round <= rounds),
        failures=tuple(failure for failure in evidence.failures if failure.round <= rounds),
        rounds_done=rounds,
    )


def verdicts_of(spec: FleetSpec, evidence: Evidence) -> dict[str, str]:
    """Return the verdict of each measurement on its own by point key, for reports."""
    settings = replace(spec.decision, confidence=spec.bound_confidence)
    return {
        item.measurement.point.key: judge(
            item.measurement, spec.workload(item.measurement.point.workload).slo, settings
        )
        for item in evidence.items
    }


def _measured(spec: FleetSpec, backend: Backend, decision: Decision, evidence: Evidence) -> Evidence:
    # Measured as planned, but remembered by key: the order that a history kept elsewhere has too.
    measured = _outcomes(spec, backend, [planned.point for planned in decision.points], decision.round)
    outcomes = sorted(measured, key=_key_of)
    return replace(
        evidence,
        items=evidence.items + tuple(item for item in outcomes if isinstance(item, EvidenceItem)),
        failures=evidence.failures + tuple(item for item in outcomes if isinstance(item, PointFailure)),
        rounds_done=decision.round,
    )


def _key_of(outcome: EvidenceItem | PointFailure) -> str:
    return outcome.key if isinstance(outcome, PointFailure) else outcome.measurement.point.key


def _outcomes(
    spec: FleetSpec, backend: Backend, points: Sequence[MeasurementPoint], number: int
) -> Iterator[EvidenceItem | PointFailure]:
    for point in points:
        try:
            yield EvidenceItem(measurement=backend.measure(spec, point), round=number)
        except MeasurementError as error:
            yield PointFailure(
                key=point.key,
                label=point.label,
                round=number,
                kind=cast(FailureKind, error.kind),
                message=str(error),
                gpu_seconds_billed=error.gpu_seconds_billed,
            )
