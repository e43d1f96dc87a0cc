"""A measuring job as one frozen record: one server start, several windows.

Script, options and files of the job are pure functions of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.evidence import MeasurementPoint
from fleetsieve_airflow.records import FleetSpec, Slo
from fleetsieve_airflow.serialization import canonical_json, sha256, to_plain
from fleetsieve_airflow.serving.engine import engine_command
from fleetsieve_airflow.serving.judge import allowed_failures, node_limits, require_enough_requests
from fleetsieve_airflow.serving.load import Aiperf, LoadGenerator, LoadJob
from fleetsieve_airflow.serving.options import JobOptions, job_options
from fleetsieve_airflow.serving.trace import TraceRow, mooncake_jsonl, window

#: Time for warm-up, the generator's own start and end, and stopping the server; added to every job's limit.
WARM_UP_S, WINDOW_SLACK_S, STOP_S = 180.0, 180.0, 60.0
DEFAULT_TIMEOUT_S = 60.0
_NODE_FILES = ("agent.py", "node_server.py", "samples.py")
GENERATOR: LoadGenerator = Aiperf()
#: Other names are shown by squeue and lost by sacct.
JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePoint:
    """One window as the node needs it. ``limits`` are (metric, seconds, allowed misses)."""

    key: str
    command: tuple[str, ...]
    duration_s: float
    timeout_s: float
    curtail: bool
    limits: tuple[tuple[str, float, int], ...]
    allowed_failures: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Everything a job depends on. ``@PORT@`` and ``@RUN@`` in commands are filled in on the node."""

    name: str
    gpus: int
    model: str
    engine: tuple[str, ...]
    options: JobOptions
    generator_env: tuple[tuple[str, str], ...]
    records_file: str
    warm_up: tuple[tuple[int, int], ...]
    points: tuple[NodePoint, ...]

    @property
    def time_limit_s(self) -> float:
        """The longest the job may take: start, warm-up, every window with its last time-out, stop."""
        windows = sum(point.duration_s + point.timeout_s + WINDOW_SLACK_S for point in self.points)
        return self.options.ready_s + WARM_UP_S + windows + STOP_S


def rows_of(spec: FleetSpec, point: MeasurementPoint) -> tuple[TraceRow, ...]:
    """Return the requests of a point's window; the same on every machine that has the trace.

    :raises SpecError: the trace cannot be read or is too short.
    """
    trace = spec.workload(point.workload).trace
    return window(trace, rate_rps=point.load, duration_s=point.duration_s, seed=point.seed)


def request_timeout_s(slo: Slo, options: JobOptions) -> float:
    """Return after how long a request is given up: late enough that a time-out is always a miss."""
    if options.request_timeout_s is not None:
        return options.request_timeout_s
    whole = [limit.limit_s for limit in slo.limits if limit.metric == "e2e"]
    first = [4 * limit.limit_s for limit in slo.limits if limit.metric == "ttft"]
    return max([2 * limit for limit in whole] + first + [DEFAULT_TIMEOUT_S])


def build_job(
    spec: FleetSpec, points: Sequence[MeasurementPoint], *, name: str, generator: LoadGenerator = GENERATOR
) -> JobRecord:
    """Build the job that measures points of one engine config and one model.

    :param name: name of the work; see :func:`job_base_name`.
    :raises SpecError: points of several configs or models, a load that is no rate, or an argument that is
        refused.
    :raises MeasurementError: a window too short for its SLO's percentiles.
    """
    if not JOB_NAME.fullmatch(name):
        raise SpecError(f"Job name {name!r} must be 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    options = job_options(spec.measurement)
    configs = {point.config for point in points}
    models = {spec.workload(point.workload).model for point in points}
    if len(configs) != 1 or len(models) != 1:
        raise SpecError(
            f"One job serves one config and one model, got {sorted(configs)} and {sorted(models)}."
        )
    config, model = spec.config(points[0].config), spec.model(models.pop())
    windows = [(point, rows_of(spec, point)) for point in points]
    shapes = [
        (row.input_tokens, row.output_tokens)
        for _, rows in windows
        for row in rows[: options.warm_up_requests]
    ]
    return JobRecord(
        name=name,
        gpus=config.gpus,
        model=model.name,
        engine=engine_command(options.vllm, model, config),
        options=options,
        generator_env=generator.environment,
        records_file=generator.records_file,
        warm_up=tuple(shapes),
        points=tuple(_node_point(spec, point, rows, options, generator) for point, rows in windows),
    )


def job_base_name(scope: str, points: Sequence[MeasurementPoint]) -> str:
    """Return the name of some work: the same points in the same scope always have the same.

    A job's own name is this and the number of its attempt, which the login node counts.
    """
    return f"fleetsieve-{sha256([scope, *(point.key for point in points)])[:24]}"


def node_files(spec: FleetSpec, points: Sequence[MeasurementPoint], record: JobRecord) -> dict[str, str]:
    """Return the files of a job's run folder by relative path: the record, the programs, the traces."""
    files = {name: (Path(__file__).parent / name).read_text(encoding="utf-8") for name in _NODE_FILES}
    files["job.json"] = node_job(record)
    for point in points:
        files[f"points/{point.key}/trace.jsonl"] = mooncake_jsonl(rows_of(spec, point))
    return files


def node_job(record: JobRecord) -> str:
    """Return ``job.json``: what the program on the node reads."""
    options = record.options
    return canonical_json(
        {
            "name": record.name,
            "model": record.model,
            "engine": list(record.engine),
            "engine_env": dict(options.engine_env),
            "tools": [options.vllm, options.aiperf],
            "ports": list(options.ports),
            "ready_s": options.ready_s,
            "token_s": options.token_s,
            "generator_env": dict(record.generator_env),
            "records_file": record.records_file,
            "warm_up": to_plain(record.warm_up),
            "points": to_plain(record.points),
        }
    )


def slurm_minutes(seconds: float) -> int:
    """Return a time limit in whole minutes, rounded up."""
    return max(1, math.ceil(seconds / 60.0))


def _node_point(
    spec: FleetSpec,
    point: MeasurementPoint,
    rows: tuple[TraceRow, ...],
    options: JobOptions,
    generator: LoadGenerator,
) -> NodePoint:
    workload, confidence = spec.workload(point.workload), spec.bound_confidence
    if point.load_kind != "offered_load_rps":
        raise SpecError(
            f"{point.label}: a real server is measured open loop, at a rate; a concurrency cannot be.",
            hint="Give the candidate a ladder of offered_load_rps.",
        )
    require_enough_requests(point.label, workload.slo, len(rows))
    model, timeout_s = spec.model(workload.model), request_timeout_s(workload.slo, options)
    job = LoadJob(
        url="http://127.0.0.1:@PORT@",
        model=model.name,
        tokenizer=options.tokenizer or model.source or model.name,
        trace_path=f"@RUN@/points/{point.key}/trace.jsonl",
        output_folder=f"@RUN@/points/{point.key}/out",
        request_timeout_s=timeout_s,
        # Of the point alone: two windows with the same prompts on one server would measure its prefix cache
        seed=int(point.key[:7], 16),
        workers=options.workers,
    )
    return NodePoint(
        key=point.key,
        command=generator.command(options.aiperf, job),
        duration_s=point.duration_s,
        timeout_s=timeout_s,
        curtail=options.curtail,
        limits=tuple(
            (limit.metric, limit.limit_s, limit.allowed_misses)
            for limit in node_limits(workload.slo, len(rows), confidence)
        ),
        allowed_failures=allowed_failures(workload.slo, len(rows), confidence),
    )
