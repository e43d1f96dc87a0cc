"""A point's run after its claim: renewed while it is measured, then finished, failed or killed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fleetsieve_airflow.errors import EvidenceError, TrackingError
from fleetsieve_airflow.evidence import Measurement, PointFailure
from fleetsieve_airflow.hooks.claims import set_tags
from fleetsieve_airflow.hooks.mlflow_client import TrackingClient
from fleetsieve_airflow.hooks.mlflow_evidence import (
    digest,
    failure_tags,
    measurement_tags,
    measurement_text,
)
from fleetsieve_airflow.hooks.mlflow_files import write_files
from fleetsieve_airflow.hooks.mlflow_refs import CampaignRef
from fleetsieve_airflow.records import FleetSpec, Trace
from fleetsieve_airflow.reporting import layout, tables

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_DIGEST_LENGTH = 32


class MeasurementStore:
    """Ends the runs of points."""

    def __init__(self, client: TrackingClient) -> None:
        self._client = client

    def renew(self, run_id: str, lease: Mapping[str, str]) -> None:
        """Let a claim live on.

        :param lease: the tags of the renewed lease.
        :raises TrackingError: the run has ended, or its claim was taken over: stop measuring.
        """

        def renew(client: MlflowClient) -> str:
            status = str(client.get_run(run_id).info.status)
            if status == "RUNNING":
                set_tags(client, run_id, lease)
            return status

        status = self._client.call(f"renew claim {run_id}", renew)
        if status != "RUNNING":
            raise TrackingError(
                f"Claim {run_id} cannot be renewed: its run is {status}.",
                hint="It expired and was taken over, or the campaign was stopped: cancel the measurement.",
            )

    def finish(
        self,
        run_id: str,
        measurement: Measurement,
        spec: FleetSpec,
        files: Mapping[str, str | bytes],
        folder: Path | None,
    ) -> None:
        """Write a measurement and end its run; the end comes last, so that no reader sees half of it.

        :raises EvidenceError: the run already holds another result, or belongs to another point.
        """
        run = self._run(run_id)
        text = measurement_text(measurement)
        if run.info.status == "FINISHED":
            _check_same(run, digest(text))
            return
        if run.data.tags.get(layout.TAG_KEY) != measurement.point.key:
            raise EvidenceError(
                f"MLflow run {run_id} was claimed for another point than {measurement.point.label}.",
                hint="Finish the run that the claim named.",
            )
        write_files(self._client, run_id, {layout.MEASUREMENT_FILE: text, **files})
        if folder is not None:
            self._client.call(f"store {folder}", lambda client: client.log_artifacts(run_id, str(folder)))
        self._write_result(run, measurement, spec)
        self._end(run_id, "FINISHED")

    def _write_result(self, run: Run, measurement: Measurement, spec: FleetSpec) -> None:
        from mlflow.entities import Metric, Param, RunTag

        point, tags = measurement.point, run.data.tags
        note = tables.measurement_note(
            measurement,
            round=int(tags.get(layout.TAG_ROUND, "0")),
            plan_name=tags.get(layout.TAG_PLAN_NAME, ""),
            plan_ids=(tags.get(layout.TAG_PLANS_ID, ""), tags.get(layout.TAG_PLAN_RUN_ID, "")),
        )
        workload = spec.workload(point.workload)
        written = measurement_tags(measurement) | {
            layout.TAG_FAMILY: layout.family(spec, workload),
            layout.TAG_COLOR: layout.run_color(spec, point),
            layout.TAG_NOTE: note[: layout.TAG_VALUE_MAX],
        }
        # The run's own start: a retry of this call writes the same rows, not more of them.
        at = run.info.start_time
        metrics = [
            Metric(name, value, at, 0) for name, value in layout.measurement_metrics(measurement).items()
        ]
        params = [
            Param(name, value)
            for name, value in layout.point_params(spec, point).items()
            if name not in run.data.params
        ]

        def write(client: MlflowClient) -> None:
            client.log_batch(
                run.info.run_id, metrics, params, [RunTag(name, value) for name, value in written.items()]
            )
            if workload.trace.digest:
                _log_trace(client, run.info.run_id, workload.trace)

        self._client.call(f"log {point.label}", write)

    def fail(self, run_id: str, failure: PointFailure) -> None:
        """Note why a point was not measured and end its run as failed."""
        if self._run(run_id).info.status == "FINISHED":
            raise EvidenceError(
                f"MLflow run {run_id} holds a finished measurement of {failure.label}: it cannot fail."
            )
        tags = failure_tags(failure) | {
            layout.TAG_NOTE: f"**Not measured.** {failure.message}"[: layout.TAG_VALUE_MAX]
        }
        self._client.call(f"log failure of {failure.label}", lambda client: set_tags(client, run_id, tags))
        self._end(run_id, "FAILED")

    def kill(self, run_id: str, reason: str, released: Mapping[str, str]) -> None:
        """End a run that will not be finished; its point may be claimed again at once."""

        def kill(client: MlflowClient) -> None:
            if str(client.get_run(run_id).info.status) == "RUNNING":
                set_tags(client, run_id, {**released, layout.TAG_STOPPED: reason[:500]})
                client.set_terminated(run_id, "KILLED")

        self._client.call(f"kill run {run_id}", kill)

    def left_running(self, campaign: CampaignRef) -> list[str]:
        """Return the runs of a campaign's points that nobody has ended."""
        query = f"attributes.status = 'RUNNING' AND tags.`{layout.TAG_CAMPAIGN}` = '{campaign.key}'"
        found = self._client.call(
            f"sweep {campaign.name}",
            lambda client: client.search_runs([campaign.measurements_id], query, max_results=1000),
        )
        return [str(run.info.run_id) for run in found]

    def _run(self, run_id: str) -> Run:
        return self._client.call(f"read run {run_id}", lambda client: client.get_run(run_id))

    def _end(self, run_id: str, status: str) -> None:
        def end(client: MlflowClient) -> None:
            client.set_terminated(run_id, status)

        def end_if_needed(client: MlflowClient) -> None:
            # Ending it twice would move its end time, by which evidence is ordered.
            if str(client.get_run(run_id).info.status) != status:
                end(client)

        self._client.call(f"end run {run_id}", end, again=end_if_needed)


def _check_same(run: Run, sha256: str) -> None:
    stored = run.data.tags.get(layout.TAG_MEASUREMENT_SHA256, "")
    if stored != sha256:
        raise EvidenceError(
            f"MLflow run {run.info.run_id} ({run.info.run_name}) already holds measurement {stored[:16]}, "
            f"not {sha256[:16]}.",
            hint="A measurement is never changed: measure the point with another seed.",
        )


def _log_trace(client: MlflowClient, run_id: str, trace: Trace) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(
        name=f"trace:{trace.name}",
        digest=trace.digest[:_DIGEST_LENGTH],
        source_type=trace.format or "trace",
        source=trace.name,
    )
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "workload")])])
