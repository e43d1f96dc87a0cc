"""The two ends of a campaign: a certificate, or a failed run that says why there is none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from fleetsieve_airflow.errors import CertificateError
from fleetsieve_airflow.operators.announce import tag_versions
from fleetsieve_airflow.operators.base import CampaignOperator, no_use_retrying, read_evidence
from fleetsieve_airflow.operators.deployment import changes_against_plan_in_force, deployment_artifacts
from fleetsieve_airflow.operators.reports import log_report

if TYPE_CHECKING:
    from airflow.sdk import Context

    from fleetsieve_airflow.evidence import Decision
    from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook


class PublishPlanOperator(CampaignOperator):
    """Issue the certificate and the report of a settled campaign, and announce the plan on the outlets.

    "The demand cannot be met" is a certified answer too: the event's ``state`` tells it from a plan that
    meets it. A model's version in MLflow's registry gets the plan as a tag, see :mod:`.announce`.

    Example::

        PublishPlanOperator(
            task_id="publish_plan", campaign=opened.output, round=3, outlets=[Asset("fleet-plan")],
        )

    The campaign's run also gets the plan as files to deploy it with, below ``deployment/``.

    :param planned_alias: alias that such a version gets when its plan meets the demand; empty: none.
    :return: fleet, campaign, state, models (model -> revision), plan (workload -> engine config -> replicas),
        gap, regret, spend, where the certificate is, and what changes against the plan in force; the outlets'
        events carry the same.
    """

    def __init__(self, *, planned_alias: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.planned_alias = planned_alias

    def execute(self, context: Context) -> dict[str, Any]:
        """Certify, check, publish."""
        with no_use_retrying():
            hook, campaign = self.enter()
            decision = hook.load_round(campaign, self.number)
            if not decision.state.startswith("certified"):
                raise CertificateError(
                    f"Round {self.number} is {decision.state}: there is nothing to publish."
                )
            certificate, changes = finish(hook, campaign, decision)
            spec = hook.load_spec(campaign)
        summary = {
            "fleet": campaign.fleet,
            "campaign_id": campaign.campaign_id,
            "run_id": campaign.run_id,
            "round": self.number,
            "state": decision.state,
            "models": {model.name: model.revision for model in spec.models},
            "plan": decision.conservative.replicas(),
            "gap": decision.gap,
            "regret": decision.regret,
            "gpu_seconds_window": decision.spend.gpu_seconds_window,
            "certificate_sha256": certificate["certificate_sha256"],
            "certificate": hook.campaign_url(campaign, artifact="certificate.json"),
            "changes": list(changes),
        }
        alias = self.planned_alias if decision.state == "certified_feasible" else ""
        for words in tag_versions(hook, spec, summary, alias):
            self.log.info(words)
        for outlet in self.outlets:
            context["outlet_events"][outlet].extra = summary
        self.log.info("Fleet %s is %s: %s", campaign.fleet, decision.state, decision.reason)
        for change in changes:
            self.log.info("Against the plan in force: %s", change)
        return summary


class NoCertificateOperator(CampaignOperator):
    """Fail the run of a campaign that cannot be certified, after keeping both plans and what would settle it.

    Example::

        NoCertificateOperator(task_id="no_certificate", campaign=opened.output, round="{{ params.round }}")
    """

    def execute(self, context: Context) -> None:
        """Keep, then fail."""
        with no_use_retrying():
            hook, campaign = self.enter()
            decision = hook.load_round(campaign, self.number)
            if decision.state == "undetermined":
                finish(hook, campaign, decision)
            else:
                hook.stop_campaign(campaign, f"stopped after round {self.number}: {decision.reason}")
        raise AirflowFailException(words_of(campaign.fleet, decision))


def finish(
    hook: MlflowHook, campaign: CampaignRef, decision: Decision
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Issue the certificate of a decision that stopped, write the final report and end the campaign.

    :return: the certificate, and what changes by a certified plan against the plan in force.
    :raises CertificateError: the certificate does not follow from its own evidence.
    """
    from fleetsieve_airflow.core.certificate import build_certificate, verify_certificate

    spec, evidence = hook.load_spec(campaign), read_evidence(hook, campaign, decision.round)
    issued_at = datetime.now(UTC).isoformat(timespec="seconds")
    certificate = build_certificate(
        spec, evidence, decision, campaign_id=campaign.campaign_id, issued_at=issued_at
    )
    if differences := verify_certificate(certificate):
        raise CertificateError(
            f"The certificate does not hold: {' '.join(differences)}", hint="Clear the last round."
        )
    certified = decision.state.startswith("certified")
    changes = changes_against_plan_in_force(hook, campaign, certificate) if certified else ()
    log_report(
        hook,
        campaign,
        spec,
        evidence,
        decision.round,
        certificate,
        changes=changes,
        files=deployment_artifacts(certificate),
    )
    hook.finish_campaign(campaign, certificate, decision.state)
    return certificate, changes


def words_of(fleet: str, decision: Decision) -> str:
    """Say in a few lines why there is no certificate and what would settle it."""
    from fleetsieve_airflow.reporting.tables import plan_words

    lines = [
        f"No certificate for fleet {fleet}: {decision.state} in round {decision.round}. {decision.reason}",
        f"Plan at the lowest proved capacities: {plan_words(decision.conservative)}.",
        f"Plan at the highest possible capacities: {plan_words(decision.optimistic)}.",
        f"Gap {decision.gap:.4g}, regret {decision.regret:.4g}.",
    ]
    if decision.points:
        price = sum(planned.gpu_seconds_billed for planned in decision.points)
        labels = ", ".join(planned.point.label for planned in decision.points)
        lines.append(
            f"Measuring {labels} could settle it, for {price:,.0f} billed GPU-seconds: raise the budget."
        )
    return "\n".join(lines)
