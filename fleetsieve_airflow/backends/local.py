"""Measure on the worker's own machine: the same job as on a cluster, run by bash instead of a scheduler.

For a single GPU box and for development. Two jobs of one machine never run at once: they would measure each
other.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleetsieve_airflow.backends.base import Collected
from fleetsieve_airflow.backends.served import check_served, collect_point
from fleetsieve_airflow.errors import MeasurementError, SpecError
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serving.job import build_job, job_base_name, node_files
from fleetsieve_airflow.serving.job_script import script
from fleetsieve_airflow.serving.options import job_options
from fleetsieve_airflow.serving.slurm_state import JobFiles, status_of_exit

TAIL_BYTES = 200_000


class LocalBackend:
    """Measures points with a server on this machine."""

    def check(self, spec: FleetSpec) -> None:
        """Refuse a spec that cannot be measured, and a machine that lacks a program.

        :raises FleetsieveError: what is wrong and the remedy.
        """
        check_served(spec)
        options = job_options(spec.measurement)
        for name in ("vllm", "aiperf", "python"):
            if not shutil.which(program := getattr(options, name)):
                raise SpecError(
                    f"measurement.options.{name}: {program!r} is not found on this machine.",
                    hint="Install it in an environment of its own and give its path.",
                )

    def measure(self, spec: FleetSpec, point: MeasurementPoint) -> Measurement:
        """Measure one point.

        :raises MeasurementError: the point could not be measured this time.
        """
        return self.measure_with_files(spec, point).measurement

    def measure_with_files(self, spec: FleetSpec, point: MeasurementPoint) -> Collected:
        """Measure one point and return it with its artifacts.

        :raises MeasurementError: the point could not be measured this time.
        """
        record = build_job(spec, [point], name=job_base_name("local", [point]))
        run = Path(tempfile.mkdtemp(prefix="fleetsieve-"))
        try:
            for name, text in {"script": script(record), **node_files(spec, [point], record)}.items():
                path = run / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            with alone():
                _run(run, record.time_limit_s)
            status = status_of_exit(JobFiles(exit=_text(run / "exit"), reason=_text(run / "reason")))
            return collect_point(spec, point, 1, status, _files(run, [point]))
        finally:
            shutil.rmtree(run, ignore_errors=True)


class alone:  # noqa: N801 - used as a context
    """Hold this machine for one measurement; wait for it where another process holds it."""

    def __enter__(self) -> None:
        place = Path(tempfile.gettempdir()) / f"fleetsieve-local-{os.getuid()}.lock"
        self._lock = place.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._lock.close()


def _run(run: Path, limit_s: float) -> None:
    """Run the job's script to its end; end it, and with it the server, when this process is told to end."""
    with (run / "slurm.tail").open("wb") as log:
        process = subprocess.Popen(
            ["bash", str(run / "script"), str(run)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)

    def end(number: int, _: object) -> None:
        process.terminate()
        process.wait(30)
        raise SystemExit(128 + number)

    try:
        if in_main:
            signal.signal(signal.SIGTERM, end)
        process.wait(limit_s)
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(f"The job did not end within {limit_s:g} s.") from error
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
        if in_main:
            signal.signal(signal.SIGTERM, before)


def _files(run: Path, points: Sequence[MeasurementPoint]) -> Mapping[str, bytes]:
    """Return a job's results by relative path, as they come back from a cluster."""
    names = ["exit", "reason", "facts.json", "job.json", "slurm.tail"]
    for point in points:
        names += [
            f"points/{point.key}/{name}"
            for name in ("result.json", "generator.log", "out/profile_export.jsonl")
        ]
    files = {name: (run / name).read_bytes() for name in names if (run / name).exists()}
    if (run / "server.log").exists():
        files["server.tail"] = (run / "server.log").read_bytes()[-TAIL_BYTES:]
    return files


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""
