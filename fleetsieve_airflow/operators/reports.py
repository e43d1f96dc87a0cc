"""The report of a campaign, live between rounds and final at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetsieve_airflow.evidence import Evidence
    from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
    from fleetsieve_airflow.records import FleetSpec


def log_report(
    hook: MlflowHook,
    campaign: CampaignRef,
    spec: FleetSpec,
    evidence: Evidence,
    number: int,
    certificate: Mapping[str, Any] | None = None,
    *,
    changes: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> None:
    """Write the campaign's report as of one round, which must be logged already.

    :param changes: what changes against the plan in force, a line for each workload.
    :param files: further artifacts by path.
    """
    from fleetsieve_airflow.campaign import verdicts_of
    from fleetsieve_airflow.reporting.report import RUN_LINK, render_report

    # A round that is carried out again must not show what came after it the first time.
    rounds = [decision for decision in hook.load_rounds(campaign) if decision.round <= number]
    links = {
        "Campaign in MLflow": hook.campaign_url(campaign),
        RUN_LINK: hook.measurement_url(campaign, "{run_id}"),
    }
    html = render_report(
        spec,
        rounds,
        evidence,
        certificate,
        verdicts=verdicts_of(spec, evidence),
        links={name: url for name, url in links.items() if url},
        generated_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        changes=changes,
    )
    hook.log_report(campaign, html, files=files)
