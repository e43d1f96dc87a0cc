"""Settle, once and before anything is measured, what steers a campaign's first measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetsieve_airflow.records import FleetSpec

if TYPE_CHECKING:
    from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook


def settle_priors(hook: MlflowHook, campaign: CampaignRef, spec: FleetSpec) -> str:
    """Keep what the campaign believes before it measures, unless that is settled already.

    :return: where it comes from in words; empty where it was settled before, or measuring has begun.
    """
    from fleetsieve_airflow.hooks.mlflow_priors import find_earlier_release, read_priors, write_priors
    from fleetsieve_airflow.prior import origin_of, priors_for

    if read_priors(hook.client, campaign) is not None or hook.rounds_done(campaign):
        return ""
    earlier = find_earlier_release(hook.client, spec, campaign) if spec.prior.earlier_release else None
    priors = priors_for(spec, hook.load_certificate(earlier) if earlier else None)
    origin = origin_of(priors, earlier.campaign_id if earlier else "")
    write_priors(hook.client, campaign, priors, origin)
    return origin
