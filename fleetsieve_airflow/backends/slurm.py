"""Measure on a Slurm cluster: one job, one server, one or more windows.

:meth:`SlurmBackend.measure` blocks until the job has ended. An operator that must not hold a worker uses
    ``submit``,
``trigger`` and ``collect`` instead: see :class:`~fleetsieve_airflow.backends.base.DeferrableBackend`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fleetsieve_airflow.backends.base import Collected
from fleetsieve_airflow.backends.served import check_served, collect_point
from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serving.job import build_job, job_base_name, node_files
from fleetsieve_airflow.serving.job_script import sbatch_options, script
from fleetsieve_airflow.serving.options import job_options
from fleetsieve_airflow.serving.slurm_state import ELSEWHERE, JobStatus

if TYPE_CHECKING:
    from fleetsieve_airflow.hooks.slurm import SlurmHook
    from fleetsieve_airflow.triggers.slurm import SlurmJobTrigger


class SlurmBackend:
    """Measures points as Slurm jobs, reached as the connection ``measurement.options.conn_id`` says."""

    def __init__(self) -> None:
        self._hooks: dict[str, SlurmHook] = {}

    def hook(self, conn_id: str) -> SlurmHook:
        """Return the hook of a connection; its module is imported only now."""
        if conn_id not in self._hooks:
            from fleetsieve_airflow.hooks.slurm import SlurmHook

            self._hooks[conn_id] = SlurmHook(conn_id)
        return self._hooks[conn_id]

    @contextmanager
    def connected(self, conn_id: str) -> Iterator[SlurmHook]:
        """Lend the hook, and give the connection back after it: a machine has few to one login node."""
        hook = self.hook(conn_id)
        try:
            yield hook
        finally:
            hook.close()

    def check(self, spec: FleetSpec) -> None:
        """Refuse a spec that cannot be measured, and a cluster that cannot be reached.

        :raises FleetsieveError: what is wrong and the remedy.
        """
        check_served(spec)
        conn_id = job_options(spec.measurement).conn_id
        reached, words = self.hook(conn_id).test_connection()
        if not reached:
            raise MeasurementError(f"Slurm connection {conn_id!r}: {words}")

    def lease_s(self, spec: FleetSpec, points: Sequence[MeasurementPoint]) -> float:
        """Return how long the points may take in all: the wait in the queue and the job's time limit."""
        record = build_job(spec, points, name="lease")
        return record.options.queue_deadline_s + record.time_limit_s

    def submit(self, spec: FleetSpec, points: Sequence[MeasurementPoint], *, scope: str) -> dict[str, Any]:
        """Submit the job of some points once and return its identity as plain JSON.

        :param scope: who asks, such as a campaign's id: in one scope the same points have the same job.
        :raises MeasurementError: Slurm refused it or did not answer.
        """
        base = job_base_name(scope, points)
        record = build_job(spec, points, name=base)
        with self.connected(record.options.conn_id) as hook:
            handle = hook.submit(
                base, script(record), node_files(spec, points, record), sbatch_options(record)
            )
        return handle.document()

    def trigger(self, spec: FleetSpec, job: Mapping[str, Any]) -> SlurmJobTrigger:
        """Return what waits for a job's end."""
        from fleetsieve_airflow.triggers.slurm import SlurmJobTrigger

        options = job_options(spec.measurement)
        return SlurmJobTrigger(
            job=dict(job), poll_s=options.poll_s, queue_deadline_s=options.queue_deadline_s
        )

    def collect(
        self,
        spec: FleetSpec,
        points: Sequence[MeasurementPoint],
        job: Mapping[str, Any],
        event: Mapping[str, Any] | None = None,
    ) -> dict[str, Collected | MeasurementError]:
        """Fetch and judge a job that has ended: for each point, by key, its measurement or why there is none.

        An attempt without a result for every point is closed, so that the next submission is a new one, away
        from a node that failed.

        :param event: what the trigger said; without it the job is waited for.
        :raises MeasurementError: the results cannot be fetched now; the attempt stays open.
        """
        from fleetsieve_airflow.hooks.slurm import JobHandle

        handle, options = JobHandle.read(job), job_options(spec.measurement)
        with self.connected(options.conn_id) as hook:
            if event is None:
                status = hook.wait(handle, poll_s=options.poll_s, queue_deadline_s=options.queue_deadline_s)
            else:
                status = JobStatus(**{name: event[name] for name in ("state", "kind", "message", "node")})
            if status.kind in ("never_runnable", "hung_node"):
                hook.cancel([handle])
            files = hook.fetch(handle)
            if status.state == "cancelled" and "withdrawn" in files:
                # An earlier run of the task was ended, and its job with it, after this one had found that job
                status = replace(status, kind="withdrawn")
            found: dict[str, Collected | MeasurementError] = {}
            for point in points:
                try:
                    found[point.key] = collect_point(spec, point, len(points), status, files)
                except MeasurementError as error:
                    found[point.key] = error
            if any(isinstance(item, MeasurementError) for item in found.values()):
                hook.close_attempt(handle, avoid_node=status.node if status.kind in ELSEWHERE else "")
        return found

    def cancel(self, spec: FleetSpec, job: Mapping[str, Any]) -> None:
        """Cancel a job, look until it is gone, and let the next submission be a new one.

        :raises MeasurementError: it is still active.
        """
        from fleetsieve_airflow.hooks.slurm import JobHandle

        handle = JobHandle.read(job)
        with self.connected(job_options(spec.measurement).conn_id) as hook:
            hook.withdraw(handle)

    def measure(self, spec: FleetSpec, point: MeasurementPoint) -> Measurement:
        """Measure one point and wait for it.

        :raises MeasurementError: the point could not be measured this time.
        """
        return self.measure_with_files(spec, point).measurement

    def measure_with_files(self, spec: FleetSpec, point: MeasurementPoint) -> Collected:
        """Measure one point, wait for it, and return it with its artifacts.

        :raises MeasurementError: the point could not be measured this time.
        """
        job = self.submit(spec, [point], scope=spec.fleet)
        found = self.collect(spec, [point], job)[point.key]
        if isinstance(found, MeasurementError):
            raise found
        return found
