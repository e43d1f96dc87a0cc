"""What steers a campaign's first measurements, kept as one artifact of its run, and where it is taken from.

It is written once, before the first round: every round of a campaign, and every retry, believes the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fleetsieve_airflow.evidence import Evidence, PriorCapacity
from fleetsieve_airflow.hooks.mlflow_campaigns import campaign_of
from fleetsieve_airflow.hooks.mlflow_client import TrackingClient
from fleetsieve_airflow.hooks.mlflow_files import find_text, json_text, write_files
from fleetsieve_airflow.hooks.mlflow_refs import CampaignRef, FleetRef
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting import layout
from fleetsieve_airflow.serialization import from_document, to_document

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

#: Certified campaigns of a fleet that are looked through for one of an earlier release, newest first.
MOST_CAMPAIGNS = 100


def read_priors(client: TrackingClient, campaign: CampaignRef) -> tuple[PriorCapacity, ...] | None:
    """Return what a campaign believed before it measured, or None where that was never settled."""
    text = find_text(client, campaign.run_id, layout.PRIOR_FILE)
    return None if text is None else from_document(Evidence, json.loads(text)).priors


def write_priors(
    client: TrackingClient, campaign: CampaignRef, priors: Sequence[PriorCapacity], origin: str
) -> None:
    """Keep what a campaign believes before it measures, also where that is nothing.

    :param origin: in words, where it comes from; shown in the campaign's list.
    """
    # The tag first: only the artifact says that priors are settled.
    client.call(
        f"name the prior of {campaign.name}",
        lambda mlflow: mlflow.set_tag(campaign.run_id, layout.TAG_PRIOR, origin[: layout.TAG_VALUE_MAX]),
    )
    document = json_text(to_document(Evidence(priors=tuple(priors))))
    write_files(client, campaign.run_id, {layout.PRIOR_FILE: document})


def find_earlier_release(
    client: TrackingClient, spec: FleetSpec, campaign: CampaignRef
) -> CampaignRef | None:
    """Return the fleet's newest certified campaign before this one whose models had other revisions.

    :return: None where this is the first release that is planned.
    """
    fleet = FleetRef(
        fleet=campaign.fleet, plans_id=campaign.plans_id, measurements_id=campaign.measurements_id
    )
    revisions = {
        f"workload.{workload.name}/model_revision": spec.model(workload.model).revision
        for workload in spec.workloads
    }

    def search(mlflow: MlflowClient) -> Run | None:
        runs: list[Run] = []
        for state in ("certified_feasible", "certified_infeasible"):
            query = f"tags.`{layout.TAG_VERDICT}` = '{layout.VERDICTS[state]}'"
            order = ["start_time DESC"]
            runs += mlflow.search_runs([campaign.plans_id], query, max_results=MOST_CAMPAIGNS, order_by=order)
        other = [run for run in runs if _is_earlier(run, campaign) and _differs(run, revisions)]
        return max(other, key=lambda run: (run.info.start_time, run.info.run_id), default=None)

    run = client.call(f"find the release before {campaign.name}", search)
    return campaign_of(run, fleet) if run else None


def _is_earlier(run: Run, campaign: CampaignRef) -> bool:
    return bool(run.info.run_id != campaign.run_id and run.info.start_time <= campaign.started_ms)


def _differs(run: Run, revisions: dict[str, str]) -> bool:
    """Tell whether a campaign served one of these workloads with another revision of its model."""
    known = run.data.params
    return any(name in known and known[name] != revision for name, revision in revisions.items())
