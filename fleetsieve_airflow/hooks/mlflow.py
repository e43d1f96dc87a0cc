"""The hook for MLflow, where a fleet's evidence and history live.

Methods are verbs on records and may each be called twice: a retried, cleared or doubled task finds what is
there instead of writing it again. What is measured is found by the point's key, never by Airflow's run ids.
Nothing of MLflow is imported before the first call, because DAG files are parsed all the time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseHook

from fleetsieve_airflow.errors import EvidenceError, FleetsieveError
from fleetsieve_airflow.evidence import (
    Decision,
    DecisionState,
    Evidence,
    Measurement,
    MeasurementPoint,
    PointFailure,
)
from fleetsieve_airflow.hooks.claims import ClaimDesk, ClaimRequest
from fleetsieve_airflow.hooks.mlflow_campaigns import CampaignStore
from fleetsieve_airflow.hooks.mlflow_client import RETRY_FOR_S, TrackingClient, server_at, server_of
from fleetsieve_airflow.hooks.mlflow_evidence import EvidenceReader
from fleetsieve_airflow.hooks.mlflow_files import find_text, read_text, write_files
from fleetsieve_airflow.hooks.mlflow_fleets import FleetStore
from fleetsieve_airflow.hooks.mlflow_measurements import MeasurementStore
from fleetsieve_airflow.hooks.mlflow_refs import CampaignRef, CampaignSummary, Claim, FleetRef
from fleetsieve_airflow.hooks.mlflow_registry import ModelRegistry
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting import layout
from fleetsieve_airflow.serialization import from_document

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["CampaignRef", "CampaignSummary", "Claim", "FleetRef", "MlflowHook"]

#: How long a claim lives without being renewed, beyond the time its window takes.
LEASE_S = 1800.0


class MlflowHook(BaseHook):
    """Keep and find plans, measurements and reports in MLflow.

    Example::

        hook = MlflowHook()
        campaign = hook.open_campaign(spec, "weekly-2026-11-30", reason="weekly")
        evidence = hook.load_evidence(spec, campaign, rounds_done=0)

    :param mlflow_conn_id: Airflow connection whose host is the tracking server, ``https://mlflow.example.com``,
        or ``sqlite:////absolute/path.db``; login and password, or ``{"token": "..."}`` in extra, let us in.
    :param tracking_uri: the server itself, for use without an Airflow connection.
    :param retry_for_s: seconds for which a call is tried again while MLflow does not answer.
    :param clock: seconds since 1970; leases and names of campaigns go by it.
    """

    conn_name_attr = "mlflow_conn_id"
    default_conn_name = "mlflow_default"
    conn_type = "mlflow"
    hook_name = "MLflow"

    #: Facts of an Airflow task that a run may keep, as tags ``airflow.dag_id`` and so on.
    airflow_facts: ClassVar[tuple[str, ...]] = (
        "dag_id",
        "run_id",
        "task_id",
        "map_index",
        "try_number",
        "url",
    )

    def __init__(
        self,
        mlflow_conn_id: str = default_conn_name,
        *,
        tracking_uri: str = "",
        retry_for_s: float = RETRY_FOR_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.mlflow_conn_id = mlflow_conn_id
        self._tracking_uri = tracking_uri
        self._retry_for_s = retry_for_s
        self._clock = clock
        self._cached_client: TrackingClient | None = None

    @property
    def client(self) -> TrackingClient:
        """The client every call goes through; the connection is read at its first use."""
        if self._cached_client is None:
            connection = None if self._tracking_uri else self.get_connection(self.mlflow_conn_id)
            server = server_of(connection) if connection else server_at(self._tracking_uri)
            self._cached_client = TrackingClient(server, retry_for_s=self._retry_for_s, log=self.log)
        return self._cached_client

    @property
    def registry(self) -> ModelRegistry:
        """The model registry of the server."""
        return ModelRegistry(self.client)

    def get_conn(self) -> MlflowClient:
        """Return MLflow's own client, for what this hook does not do.

        Its calls are not retried, and log in only by what the process environment holds.
        """
        return self.client.connected()

    def test_connection(self) -> tuple[bool, str]:
        """Ask the server for one experiment; used by Airflow's connection form."""
        try:
            impatient = TrackingClient(self.client.server, retry_for_s=0.0, log=self.log)
            impatient.call("answer", lambda client: client.search_experiments(max_results=1))
        except FleetsieveError as error:
            return False, str(error)
        return True, f"MLflow at {self.client.server.shown_uri} answers."

    def ensure_fleet(self, fleet: str) -> FleetRef:
        """Return a fleet's two experiments; made, described and given views where they are not yet.

        :raises SpecError: MLflow could not hold the name.
        :raises TrackingError: an experiment was deleted, or written by a later release.
        """
        return self._fleets.ensure(fleet)

    def list_fleets(self) -> tuple[str, ...]:
        """Return the names of all fleets that were ever planned, sorted."""
        return tuple(fleet.fleet for fleet in self._fleets.all())

    def open_campaign(
        self,
        spec: FleetSpec,
        campaign_id: str,
        *,
        reason: str = "manual",
        spec_text: str = "",
        airflow: Mapping[str, Any] | None = None,
    ) -> CampaignRef:
        """Find the campaign of that id, or begin it; one that was broken off goes on.

        :param reason: why the fleet is planned, part of the run's name, e.g. ``weekly``.
        :param spec_text: the fleet file as it was written, kept beside the spec it means.
        :param airflow: facts of the task, of :attr:`airflow_facts`.
        :raises SpecError: a name that MLflow cannot hold, or a campaign that was opened with another spec.
        """
        layout.check_names(spec)
        return self._campaigns.open(
            spec,
            self.ensure_fleet(spec.fleet),
            campaign_id,
            reason=reason,
            tags=self._airflow_tags(airflow),
            spec_text=spec_text,
        )

    def find_campaign(self, fleet: str, campaign_id: str) -> CampaignRef | None:
        """Return the campaign of that id, or None."""
        found = self._fleets.find(fleet)
        return self._campaigns.find(found, campaign_id) if found else None

    def list_campaigns(self, fleet: str, *, limit: int = 200) -> tuple[CampaignSummary, ...]:
        """Return a fleet's campaigns with their verdicts and numbers, newest first."""
        found = self._fleets.find(fleet)
        return self._campaigns.list(found, limit) if found else ()

    def newest_campaigns(self, *, before_ms: int | None = None) -> Iterator[CampaignSummary]:
        """Yield the campaigns of all fleets, newest first; read from the server as far as they are taken.

        :param before_ms: leave out those that began then or later, milliseconds since 1970.
        """
        return self._campaigns.newest(self._fleets.all(), before_ms)

    def rounds_done(self, campaign: CampaignRef) -> int:
        """Return how many rounds of measuring the campaign has asked for so far."""
        run = self.client.call(f"read {campaign.name}", lambda client: client.get_run(campaign.run_id))
        return int(run.data.tags.get(layout.TAG_ROUNDS_DONE, "0"))

    def load_evidence(
        self, spec: FleetSpec, campaign: CampaignRef, *, rounds_done: int | None = None
    ) -> Evidence:
        """Return what the campaign knows after some rounds, in the order in which it became known.

        Own measurements carry the round that asked for them. Those finished before the campaign began are
        reused with round 0, those of a campaign at the same time with the round that waited for them.

        :param rounds_done: rounds of measuring to count; a task that may be retried gives it. None: all so
            far.
        :raises EvidenceError: a stored measurement does not match its digest or its point.
        """
        number = self.rounds_done(campaign) if rounds_done is None else rounds_done
        return EvidenceReader(self.client).load(spec, campaign, number)

    def claim_measurement(
        self,
        point: MeasurementPoint,
        campaign: CampaignRef,
        round: int,
        *,
        lease_s: float | None = None,
        airflow: Mapping[str, Any] | None = None,
    ) -> Claim:
        """Ask to measure a point: it is finished already, or ours to measure, or another campaign is at it.

        Never do two campaigns get ``ours`` for one point while both renew their claims in time. After a crash
        the same campaign gets it again, with the same run.

        :param lease_s: how long the claim lives without :meth:`renew_lease`; by default the window and half
            an hour more.
        """
        tags = self._airflow_tags(airflow) | {
            layout.TAG_SCHEMA: layout.SCHEMA,
            layout.TAG_KIND: layout.KIND_MEASUREMENT,
            layout.TAG_PLANS_ID: campaign.plans_id,
            layout.TAG_PLAN_RUN_ID: campaign.run_id,
            layout.TAG_PLAN_NAME: campaign.name,
            layout.TAG_SOURCE_TYPE: layout.SOURCE_TYPE,
        }
        request = ClaimRequest(
            point=point,
            campaign=campaign,
            round=round,
            lease_s=point.duration_s + LEASE_S if lease_s is None else lease_s,
            tags=tags,
        )
        return self._desk.claim(request)

    def renew_lease(self, run_id: str, *, lease_s: float = LEASE_S) -> None:
        """Let the claim on a point live on for ``lease_s`` from now.

        :raises TrackingError: the run has ended or its claim was taken over: stop measuring.
        """
        self._measurements.renew(run_id, self._desk.held(lease_s))

    def finish_measurement(
        self,
        run_id: str,
        measurement: Measurement,
        spec: FleetSpec,
        *,
        files: Mapping[str, str | bytes] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Write a measurement to the run of its claim and end it.

        :param files: further artifacts by path, e.g. ``logs/vllm.log``.
        :param folder: a local folder whose files become artifacts, e.g. per-request records.
        :raises EvidenceError: the run already holds another result, or was claimed for another point.
        """
        self._measurements.finish(run_id, measurement, spec, files or {}, folder)

    def fail_measurement(self, run_id: str, failure: PointFailure) -> None:
        """Note why a point was not measured and end its run as failed; it may be claimed again.

        :raises EvidenceError: the run holds a finished measurement.
        """
        self._measurements.fail(run_id, failure)

    def kill_measurement(self, run_id: str, reason: str = "cancelled") -> None:
        """End a run whose measuring was cancelled; its point may be claimed again at once."""
        self._measurements.kill(run_id, reason, self._desk.released())

    def sweep(self, campaign: CampaignRef) -> tuple[str, ...]:
        """End what the campaign has left running, and return those runs."""
        left = self._measurements.left_running(campaign)
        for run_id in left:
            self.kill_measurement(run_id, "left running by its campaign")
        return tuple(left)

    def log_round(
        self,
        campaign: CampaignRef,
        spec: FleetSpec,
        decision: Decision,
        evidence: Evidence,
        *,
        verdicts: Mapping[str, str] | None = None,
    ) -> None:
        """Write what a round decided: metrics at step = round, its JSON files, both tables, the description.

        :param verdicts: point key -> verdict on it, for the table of measurements.
        """
        self._campaigns.log_round(campaign, spec, decision, evidence, verdicts or {})

    def log_report(
        self, campaign: CampaignRef, html: str, *, files: Mapping[str, str | bytes] | None = None
    ) -> None:
        """Store the report, replacing that of an earlier round.

        :param files: further artifacts by path, e.g. a picture of the bounds.
        """
        write_files(self.client, campaign.run_id, {layout.REPORT_FILE: html, **(files or {})})

    def finish_campaign(
        self, campaign: CampaignRef, certificate: Mapping[str, Any] | None, state: DecisionState
    ) -> None:
        """End a campaign with its verdict and certificate; its run ends FINISHED, whatever the verdict.

        :raises TrackingError: the state is ``measure``.
        """
        self._campaigns.finish(campaign, certificate, state)

    def stop_campaign(self, campaign: CampaignRef, reason: str, *, failed: bool = True) -> None:
        """End a campaign that was broken off, as failed or as cancelled; opening it again goes on with it."""
        self._campaigns.stop(campaign, reason, "FAILED" if failed else "KILLED")

    def load_round(self, campaign: CampaignRef, round: int) -> Decision:
        """Return what a round decided.

        :raises EvidenceError: the round was not logged.
        """
        path = f"{layout.round_folder(round)}/decision.json"
        return from_document(Decision, json.loads(read_text(self.client, campaign.run_id, path)))

    def load_rounds(self, campaign: CampaignRef) -> tuple[Decision, ...]:
        """Return what all rounds decided, in order; empty before the first."""
        run = self.client.call(f"read {campaign.name}", lambda client: client.get_run(campaign.run_id))
        last = int(run.data.tags.get(layout.TAG_ROUND, "0"))
        return tuple(self.load_round(campaign, number) for number in range(1, last + 1))

    def load_spec(self, campaign: CampaignRef) -> FleetSpec:
        """Return the spec a campaign was opened with.

        :raises EvidenceError: it is not there or cannot be read.
        """
        return from_document(FleetSpec, json.loads(read_text(self.client, campaign.run_id, layout.SPEC_FILE)))

    def load_certificate(self, campaign: CampaignRef) -> dict[str, Any] | None:
        """Return the campaign's certificate, or None while it has none.

        :raises EvidenceError: what is stored is not a certificate document.
        """
        text = find_text(self.client, campaign.run_id, layout.CERTIFICATE_FILE)
        if text is None:
            return None
        document = json.loads(text)
        if not isinstance(document, dict):
            raise EvidenceError(f"The certificate of {campaign.name} is not a JSON object.")
        return document

    def run_url(self, experiment_id: str, run_id: str, *, artifact: str = "") -> str:
        """Return the address of a run, or of one of its artifacts; empty where MLflow has no pages."""
        base = self.client.server.ui_url
        return layout.run_url(base, experiment_id, run_id, artifact) if base else ""

    def campaign_url(self, campaign: CampaignRef, *, artifact: str = "") -> str:
        """Return the address of a campaign's run, or of one of its artifacts."""
        return self.run_url(campaign.plans_id, campaign.run_id, artifact=artifact)

    def measurement_url(self, campaign: CampaignRef, run_id: str) -> str:
        """Return the address of the run of one of a campaign's points."""
        return self.run_url(campaign.measurements_id, run_id)

    def experiment_url(
        self, fleet: FleetRef, kind: layout.Kind = layout.PLANS, *, charts: bool = False
    ) -> str:
        """Return the address of a fleet's plans or measurements, opened in their saved view."""
        base = self.client.server.ui_url
        chosen = fleet.plans_id if kind == layout.PLANS else fleet.measurements_id
        return layout.experiment_url(base, chosen, kind, charts=charts) if base else ""

    @property
    def _fleets(self) -> FleetStore:
        return FleetStore(self.client, clock=self._clock, log=self.log)

    @property
    def _campaigns(self) -> CampaignStore:
        return CampaignStore(self.client, clock=self._clock, sleep=time.sleep)

    @property
    def _measurements(self) -> MeasurementStore:
        return MeasurementStore(self.client)

    @property
    def _desk(self) -> ClaimDesk:
        return ClaimDesk(self.client, clock=self._clock, sleep=time.sleep)

    def _airflow_tags(self, facts: Mapping[str, Any] | None) -> dict[str, str]:
        known = {name: (facts or {}).get(name) for name in self.airflow_facts}
        tags = {
            layout.TAG_AIRFLOW_PREFIX + name: str(value)
            for name, value in known.items()
            # Airflow gives tasks that are not mapped the index -1.
            if value not in (None, "", -1)
        }
        if known["dag_id"]:
            tags[layout.TAG_SOURCE_NAME] = str(known["dag_id"])
        return tags
