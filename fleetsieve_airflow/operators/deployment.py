"""What a published plan is used for: the files to deploy it, and what changes against the plan in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fleetsieve_airflow.errors import DeploymentError, EvidenceError

if TYPE_CHECKING:
    from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook

FOLDER = "deployment"


def deployment_artifacts(certificate: Mapping[str, Any]) -> dict[str, str]:
    """Return every form of a certified plan by its path in the campaign's run; nothing of any other plan."""
    from fleetsieve_airflow.deployment.files import deployment_files
    from fleetsieve_airflow.deployment.plan import plan_of_certificate

    plan = plan_of_certificate(certificate)
    files = deployment_files(plan) if plan.certified else {}
    return {f"{FOLDER}/{name}": text for name, text in files.items()}


def changes_against_plan_in_force(
    hook: MlflowHook, campaign: CampaignRef, certificate: Mapping[str, Any]
) -> tuple[str, ...]:
    """Say what changes by a plan; nothing where it is the fleet's first.

    In force is the plan of the fleet's latest campaign that began before this one and was certified to meet
    the demand. One that can no longer be read never keeps its successor from being published.
    """
    from fleetsieve_airflow.deployment.difference import differences
    from fleetsieve_airflow.deployment.plan import plan_of_certificate

    earlier = [
        summary.campaign
        for summary in hook.list_campaigns(campaign.fleet)
        if summary.verdict == "certified" and summary.campaign.started_ms < campaign.started_ms
    ]
    if not earlier:
        return ()
    try:
        in_force = hook.load_certificate(earlier[0])
        if in_force is None:
            return ()
        return differences(plan_of_certificate(in_force), plan_of_certificate(certificate))
    except (DeploymentError, EvidenceError, ValueError) as error:
        return (f"The plan in force, of {earlier[0].name}, cannot be compared: {error}",)
