"""Small frozen records that point at things kept in MLflow.

They travel through XCom by :func:`~fleetsieve_airflow.serialization.to_plain` and ``from_plain``: flat on
purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fleetsieve_airflow.reporting.layout import Verdict

ClaimState = Literal["finished", "ours", "theirs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRef:
    """A fleet and the ids of its two experiments."""

    fleet: str
    plans_id: str
    measurements_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignRef:
    """A campaign: its run in MLflow and what decides which measurements it may use.

    :param key: the tag by which its run and its measurements are found.
    :param name: its name in lists, e.g. ``2026-11-30-weekly``.
    :param plans_id: experiment of its run ``run_id``; ``measurements_id`` that of its measurements.
    :param started_ms: when it was opened, milliseconds since 1970; the age of measurements counts from here,
        so that the same measurements are usable in every round.
    :param reuse_max_age_s: age above which another campaign's measurement is not used; None is no limit.
    """

    campaign_id: str
    key: str
    name: str
    fleet: str
    plans_id: str
    measurements_id: str
    run_id: str
    started_ms: int
    reuse_max_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSummary:
    """One line of a fleet's history. Numbers are those of the last round; None before the first.

    :param dag_id: the DAG that opened it; empty where Airflow did not.
    """

    campaign: CampaignRef
    verdict: Verdict
    status: str
    plan: str
    trigger: str
    dag_id: str
    round: int
    ended_ms: int | None
    fulfilment_conservative: float | None
    fulfilment_optimistic: float | None
    gap: float | None
    regret: float | None
    gpus: int | None
    points_measured: int | None
    points_reused: int | None
    gpu_seconds_window: float | None
    gpu_seconds_window_saved: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The answer to "may I measure this point?".

    ``finished``: it is measured, ``run_id`` holds it. ``ours``: measure it and write to ``run_id``.
    ``theirs``: another campaign is measuring it in ``run_id``; ask again later.
    """

    state: ClaimState
    run_id: str
