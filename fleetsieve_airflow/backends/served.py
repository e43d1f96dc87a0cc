"""From the files of a finished job to measurements: shared by every backend that starts a real server."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fleetsieve_airflow.backends.base import Collected
from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serving.job import GENERATOR, build_job, rows_of
from fleetsieve_airflow.serving.judge import Gates, gates_for, judge
from fleetsieve_airflow.serving.options import job_options
from fleetsieve_airflow.serving.samples import Sample
from fleetsieve_airflow.serving.slurm_state import JobStatus

HEAD_ROWS = 200
#: What must never leave a node with a log: keys by their form, and whatever is said to be one.
_SECRETS = re.compile(r"hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}")
_NAMED_SECRETS = re.compile(
    r"((?:TOKEN|SECRET|PASSWORD|API_?KEY)['\"]?[=:]\s*|api-key[= ]|bearer )\S+", re.IGNORECASE
)


class JobFailedError(MeasurementError):
    """A job ended without a result for a point; ``retryable`` when another attempt may succeed."""

    def __init__(self, message: str, *, hint: str, retryable: bool, kind: str = "infrastructure") -> None:
        super().__init__(message, hint=hint, kind=kind)
        self.retryable = retryable


def check_served(spec: FleetSpec) -> None:
    """Refuse a spec that cannot be measured on a real server, before anything is paid for.

    Builds the job of every candidate's lowest load, the one with the fewest requests.

    :raises FleetsieveError: the first candidate's problem.
    """
    from fleetsieve_airflow.serialization import point_of

    for candidate in spec.candidates:
        if not candidate.excluded:
            for load in {candidate.loads[0], candidate.loads[-1]}:
                build_job(spec, [point_of(spec, candidate, load)], name="check")


def collect_point(
    spec: FleetSpec, point: MeasurementPoint, job_points: int, status: JobStatus, files: Mapping[str, bytes]
) -> Collected:
    """Judge one point of a finished job.

    :param job_points: how many points share the job's start, and so its price.
    :raises MeasurementError: the job failed before this point was measured, or its run is invalid.
    """
    facts = _json(files, "facts.json")
    result = _json(files, f"points/{point.key}/result.json")
    versions = tuple(
        (name, str(facts[name])) for name in ("engine_version", "gpu", "driver") if facts.get(name)
    )
    if status.kind == "engine_refused":
        refused = Measurement(point=point, served_rps=0.0, refused=status.message, versions=versions)
        return Collected(measurement=refused, files=_artifacts(point, files, result, ()))
    if not result or result.get("failed"):
        raise failure_of(point, status)
    _require_asked_for(spec, point, facts)
    slo, rows = spec.workload(point.workload).slo, rows_of(spec, point)
    records = files.get(f"points/{point.key}/out/{GENERATOR.records_file}", b"").decode()
    samples = GENERATOR.samples(records.splitlines(), rows)
    curtailed_after_s = result["curtailed_after_s"]
    start_s = float(facts["warm_s"]) - float(facts["began_s"])
    window_s = point.duration_s if curtailed_after_s is None else curtailed_after_s
    around_s = max(0.0, float(result["ended_s"]) - float(result["began_s"]) - window_s)
    limit_s = job_options(spec.measurement).lateness_p99_s
    measurement = judge(
        point,
        slo,
        rows,
        samples,
        gates=gates_for(slo) if limit_s is None else Gates(lateness_p99_s=limit_s),
        curtailed_after_s=curtailed_after_s,
        overhead_gpu_seconds=point.gpus * (start_s / job_points + around_s),
        versions=versions,
    )
    return Collected(measurement=measurement, files=_artifacts(point, files, result, samples))


def failure_of(point: MeasurementPoint, status: JobStatus) -> JobFailedError:
    """Return a job's failure as the error of one of its points."""
    ended = status.state + (f" ({status.kind})" if status.kind else "")
    where = f" on {status.node}" if status.node else ""
    hint = "Another attempt may succeed." if status.retryable else "Another attempt would end the same way."
    return JobFailedError(
        f"{point.label}: its job ended as {ended}{where}: {status.message or 'it left no result'}.",
        hint=hint,
        retryable=status.retryable,
    )


def _require_asked_for(spec: FleetSpec, point: MeasurementPoint, facts: Mapping[str, Any]) -> None:
    """Refuse evidence about another engine version, GPU or driver than the spec names."""
    config = spec.config(point.config)
    pool = spec.pool(config.pool)
    asked = {"engine_version": config.engine_version, "gpu": pool.gpu, "driver": pool.driver}
    for name, wanted in asked.items():
        found = str(facts.get(name) or "")
        if wanted and found and wanted.lower() not in found.lower():
            raise MeasurementError(
                f"{point.label}: the spec names {name} {wanted!r}, the node has {found!r}.",
                hint="Correct the spec, or choose nodes by options.constraint.",
                kind="invalid_run",
            )


def _artifacts(
    point: MeasurementPoint, files: Mapping[str, bytes], result: Mapping[str, Any], samples: Sequence[Sample]
) -> dict[str, str | bytes]:
    prefix = f"points/{point.key}/"
    texts = {
        "logs/vllm.log": files.get("server.tail", b""),
        "logs/slurm.log": files.get("slurm.tail", b""),
        "logs/load_generator.log": files.get(f"{prefix}generator.log", b"")[-50_000:],
        "node/facts.json": files.get("facts.json", b""),
        "node/job.json": files.get("job.json", b""),
    }
    kept: dict[str, str | bytes] = {
        name: masked(data.decode(errors="replace")) for name, data in texts.items() if data
    }
    if result:
        kept["node/window.json"] = json.dumps(result, indent=2, sort_keys=True)
    if samples:
        kept["requests/requests.parquet"] = parquet(samples)
        kept["requests/head.csv"] = csv_head(samples)
    return kept


def masked(text: str) -> str:
    """Return a log without what looks like a secret."""
    return _NAMED_SECRETS.sub(r"\1***", _SECRETS.sub("***", text))


def parquet(samples: Sequence[Sample]) -> bytes:
    """Return per-request records as a parquet file."""
    import pyarrow
    import pyarrow.parquet

    columns = {name: [getattr(sample, name) for sample in sorted(samples)] for name in Sample._fields}
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return sink.getvalue()


def csv_head(samples: Sequence[Sample]) -> str:
    """Return the first rows of per-request records, for reading in a browser."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Sample._fields)
    writer.writerows(sorted(samples)[:HEAD_ROWS])
    return text.getvalue()


def _json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(files[name]) if name in files else {}
    except ValueError as error:
        raise MeasurementError(f"{name} of the job cannot be read: {error}.") from error
    return found
