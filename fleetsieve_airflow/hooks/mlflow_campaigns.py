"""Campaigns as MLflow runs: found by key or opened, written round by round, ended with a verdict.

A run's status says whether the campaign came to its own end; the tag ``fleetsieve.verdict`` says what it
concluded. An ``undetermined`` campaign therefore ends FINISHED; FAILED and KILLED are campaigns that were
broken off and can go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fleetsieve_airflow.errors import SpecError, TrackingError
from fleetsieve_airflow.evidence import Decision, DecisionState, Evidence
from fleetsieve_airflow.hooks.mlflow_client import TrackingClient
from fleetsieve_airflow.hooks.mlflow_files import json_text, write_files, write_tables
from fleetsieve_airflow.hooks.mlflow_opening import find_opened, find_or_open
from fleetsieve_airflow.hooks.mlflow_refs import CampaignRef, CampaignSummary, FleetRef
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting import layout, tables
from fleetsieve_airflow.serialization import sha256, spec_digest, to_document, to_plain

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.store.entities import PagedList

#: Campaigns that are read in one call: each takes MLflow some ten milliseconds.
_PAGE = 26


class CampaignStore:
    """Writes and finds campaigns.

    :param clock: seconds since 1970; names new campaigns by their date.
    :param sleep: waits that many seconds, while several tasks open one campaign.
    """

    def __init__(
        self, client: TrackingClient, *, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._client = client
        self._clock = clock
        self._sleep = sleep

    def open(
        self,
        spec: FleetSpec,
        fleet: FleetRef,
        campaign_id: str,
        *,
        reason: str,
        tags: Mapping[str, str],
        spec_text: str,
    ) -> CampaignRef:
        """Find the campaign by its id, or begin it; one that was broken off goes on.

        :raises SpecError: the campaign was opened with another spec.
        """
        key = layout.plan_key(campaign_id)
        date = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
        wanted = dict(tags) | {
            layout.TAG_SCHEMA: layout.SCHEMA,
            layout.TAG_KIND: layout.KIND_PLAN,
            layout.TAG_PLAN_KEY: key,
            layout.TAG_CAMPAIGN_ID: campaign_id[: layout.TAG_VALUE_MAX],
            layout.TAG_SPEC_SHA256: spec_digest(spec),
            layout.TAG_VERDICT: "running",
            layout.TAG_TRIGGER: reason,
            layout.TAG_SOURCE_TYPE: layout.SOURCE_TYPE,
        }
        if spec.measurement.reuse_max_age_s is not None:
            wanted[layout.TAG_REUSE_MAX_AGE_S] = str(spec.measurement.reuse_max_age_s)
        name = layout.plan_run_name(date, reason)
        run = find_or_open(
            self._client, fleet.plans_id, key, name=name, tags=wanted, clock=self._clock, sleep=self._sleep
        )
        campaign = campaign_of(run, fleet)
        if run.data.tags.get(layout.TAG_SPEC_SHA256) != spec_digest(spec):
            raise SpecError(
                f"Campaign {campaign_id!r} of fleet {spec.fleet!r} was opened with another fleet spec "
                f"(run {run.info.run_id}).",
                hint="A campaign keeps the spec it began with: start a new one.",
            )
        if layout.TAG_ROUNDS_DONE not in run.data.tags:
            self._describe(campaign, spec, spec_text)
        if run.info.status != "RUNNING" and run.data.tags.get(layout.TAG_VERDICT) == "running":
            self._client.call(
                f"resume campaign {campaign_id}",
                lambda client: client.update_run(campaign.run_id, status="RUNNING"),
            )
        return campaign

    def _describe(self, campaign: CampaignRef, spec: FleetSpec, spec_text: str) -> None:
        files = {layout.SPEC_FILE: json_text(to_document(spec))}
        if spec_text:
            files[layout.SPEC_TEXT_FILE] = spec_text
        write_files(self._client, campaign.run_id, files)
        # The tag says that the description is complete; a run that was begun and no more has none.
        tags = {layout.TAG_ROUNDS_DONE: "0"}
        self._write(campaign, "describe", tags=tags, params=layout.plan_params(spec))

    def find(self, fleet: FleetRef, campaign_id: str) -> CampaignRef | None:
        """Return the campaign of that id, or None."""
        key = layout.plan_key(campaign_id)
        run = find_opened(self._client, fleet.plans_id, key)
        return campaign_of(run, fleet) if run else None

    def list(self, fleet: FleetRef, limit: int) -> tuple[CampaignSummary, ...]:
        """Return a fleet's campaigns, newest first."""
        page = self._page([fleet.plans_id], limit, None)
        return tuple(_summary(run, fleet) for run in page)

    def newest(self, fleets: Sequence[FleetRef], before_ms: int | None) -> Iterator[CampaignSummary]:
        """Yield the campaigns of several fleets, newest first, reading on as long as somebody asks."""
        known, token = {fleet.plans_id: fleet for fleet in fleets}, None
        while known:
            page = self._page(list(known), _PAGE, token, before_ms)
            yield from (_summary(run, known[run.info.experiment_id]) for run in page)
            token = page.token
            if not token:
                return

    def _page(
        self, experiment_ids: Sequence[str], limit: int, token: str | None, before_ms: int | None = None
    ) -> PagedList[Run]:
        query = f"tags.`{layout.TAG_KIND}` = '{layout.KIND_PLAN}'"
        if before_ms is not None:
            query += f" AND attributes.start_time < {before_ms:d}"
        return self._client.call(
            "list campaigns",
            lambda client: client.search_runs(
                list(experiment_ids),
                query,
                max_results=limit,
                order_by=["start_time DESC"],
                page_token=token,
            ),
        )

    def log_round(
        self,
        campaign: CampaignRef,
        spec: FleetSpec,
        decision: Decision,
        evidence: Evidence,
        verdicts: Mapping[str, str],
    ) -> None:
        """Write what a round decided and on what; writing it again changes nothing."""
        folder = layout.round_folder(decision.round)
        files = {
            "decision": to_document(decision),
            "intervals": to_plain(decision.intervals),
            "allocation_conservative": to_document(decision.conservative),
            "allocation_optimistic": to_document(decision.optimistic),
            "next_points": to_plain(decision.points),
        }
        write_files(
            self._client,
            campaign.run_id,
            {f"{folder}/{name}.json": json_text(content) for name, content in files.items()},
        )
        tags: dict[str, str] = {}
        # A round that is carried out again must not turn the campaign's page back to where it was then.
        if decision.round >= self._last_round(campaign):
            asked = decision.round if decision.state == "measure" else decision.round - 1
            tags = {
                layout.TAG_ROUND: str(decision.round),
                layout.TAG_ROUNDS_DONE: str(asked),
                layout.TAG_PLAN: tables.plan_words(decision.conservative)[: layout.TAG_VALUE_MAX],
                layout.TAG_NOTE: tables.plan_note(spec, decision, _links(campaign, decision))[
                    : layout.TAG_VALUE_MAX
                ],
            }
            known = tables.measurements_table(evidence, verdicts)
            skipped = tables.skipped_table(spec, decision)
            write_tables(
                self._client,
                campaign.run_id,
                {tables.MEASUREMENTS_TABLE: known, tables.SKIPPED_TABLE: skipped},
            )
        self._write(
            campaign,
            f"log round {decision.round} of",
            tags=tags,
            metrics=layout.plan_metrics(spec, decision),
            step=decision.round,
            timestamp_ms=_known_at_ms(campaign, evidence),
        )

    def _last_round(self, campaign: CampaignRef) -> int:
        run = self._client.call(f"read {campaign.name}", lambda client: client.get_run(campaign.run_id))
        return int(run.data.tags.get(layout.TAG_ROUND, "0"))

    def finish(
        self, campaign: CampaignRef, certificate: Mapping[str, Any] | None, state: DecisionState
    ) -> None:
        """End a campaign with its verdict and certificate.

        :raises TrackingError: the state is ``measure``: there is something left to do.
        """
        if state == "measure":
            raise TrackingError(
                f"Campaign {campaign.name} cannot end while points are to be measured.",
                hint="Use stop_campaign to break it off.",
            )
        tags = {layout.TAG_VERDICT: str(layout.VERDICTS[state])}
        if certificate is not None:
            write_files(self._client, campaign.run_id, {layout.CERTIFICATE_FILE: json_text(certificate)})
            tags[layout.TAG_CERTIFICATE_SHA256] = sha256(certificate)
        self._write(campaign, "end", tags=tags)
        self._end(campaign, "FINISHED")

    def stop(self, campaign: CampaignRef, reason: str, status: str) -> None:
        """End a campaign that was broken off; opening it again goes on with it."""
        self._write(campaign, "stop", tags={layout.TAG_STOPPED: reason[:500]})
        self._end(campaign, status)

    def _end(self, campaign: CampaignRef, status: str) -> None:
        def end(client: MlflowClient) -> None:
            # Ending it twice would move its end time.
            if client.get_run(campaign.run_id).info.status != status:
                client.set_terminated(campaign.run_id, status)

        self._client.call(f"end campaign {campaign.name}", end)

    def _write(
        self,
        campaign: CampaignRef,
        what: str,
        *,
        tags: Mapping[str, str],
        params: Mapping[str, str] | None = None,
        metrics: Mapping[str, float] | None = None,
        step: int = 0,
        timestamp_ms: int = 0,
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        rows = [Metric(name, value, timestamp_ms, step) for name, value in (metrics or {}).items()]
        self._client.call(
            f"{what} campaign {campaign.name}",
            lambda client: client.log_batch(
                campaign.run_id,
                metrics=rows,
                params=[Param(name, value) for name, value in (params or {}).items()],
                tags=[RunTag(name, value) for name, value in tags.items()],
            ),
        )


def campaign_of(run: Run, fleet: FleetRef) -> CampaignRef:
    """Return the campaign that a run is."""
    age = run.data.tags.get(layout.TAG_REUSE_MAX_AGE_S)
    return CampaignRef(
        campaign_id=run.data.tags.get(layout.TAG_CAMPAIGN_ID, ""),
        key=run.data.tags.get(layout.TAG_PLAN_KEY, ""),
        name=run.info.run_name,
        fleet=fleet.fleet,
        plans_id=fleet.plans_id,
        measurements_id=fleet.measurements_id,
        run_id=run.info.run_id,
        started_ms=run.info.start_time,
        reuse_max_age_s=float(age) if age else None,
    )


def _summary(run: Run, fleet: FleetRef) -> CampaignSummary:
    metrics, tags = run.data.metrics, run.data.tags

    def whole(name: str) -> int | None:
        return int(metrics[name]) if name in metrics else None

    verdict = tags.get(layout.TAG_VERDICT, "")
    return CampaignSummary(
        campaign=campaign_of(run, fleet),
        verdict=next((known for known in layout.VERDICTS.values() if known == verdict), "running"),
        status=run.info.status,
        plan=tags.get(layout.TAG_PLAN, ""),
        trigger=tags.get(layout.TAG_TRIGGER, ""),
        dag_id=tags.get(layout.TAG_AIRFLOW_PREFIX + "dag_id", ""),
        round=int(tags.get(layout.TAG_ROUND, "0")),
        ended_ms=run.info.end_time,
        fulfilment_conservative=metrics.get("fleet/fulfilment_conservative"),
        fulfilment_optimistic=metrics.get("fleet/fulfilment_optimistic"),
        gap=metrics.get("fleet/gap"),
        regret=metrics.get("fleet/regret"),
        gpus=whole("fleet/gpus_conservative"),
        points_measured=whole("fleet/points_measured"),
        points_reused=whole("fleet/points_reused"),
        gpu_seconds_window=metrics.get("fleet/gpu_seconds_window"),
        gpu_seconds_window_saved=metrics.get("fleet/gpu_seconds_window_saved"),
    )


def _links(campaign: CampaignRef, decision: Decision) -> dict[str, str]:
    """Return links within MLflow from a campaign's description to what it rests on."""
    files = {"report": layout.REPORT_FILE}
    if decision.state != "measure":
        files["certificate"] = layout.CERTIFICATE_FILE
    links = {
        text: layout.run_url("", campaign.plans_id, campaign.run_id, file) for text, file in files.items()
    }
    shown = layout.experiment_url("", campaign.measurements_id, layout.MEASUREMENTS)
    return links | {"all measurements": shown}


def _known_at_ms(campaign: CampaignRef, evidence: Evidence) -> int:
    """Return when the last measurement a round rests on ended: the same for every retry of the round."""
    ends = [
        round(1000 * datetime.fromisoformat(item.measured_at).timestamp())
        for item in evidence.items
        if item.measured_at and not item.reused
    ]
    return max([campaign.started_ms, *ends])
