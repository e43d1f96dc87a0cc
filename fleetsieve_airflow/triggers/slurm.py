"""Wait for Slurm jobs in the triggerer: one connection and one question a login node for all jobs."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from fleetsieve_airflow.errors import FleetsieveError

if TYPE_CHECKING:
    from fleetsieve_airflow.hooks.slurm import JobHandle, SlurmHook
    from fleetsieve_airflow.serving.slurm_state import JobStatus

#: While nothing answers, looks are this far apart at most.
MAX_PAUSE_S = 120.0


class SlurmPoller:
    """Looks after all jobs of one connection for every trigger of this event loop."""

    _pollers: ClassVar[dict[tuple[int, str], SlurmPoller]] = {}

    def __init__(self, hook: SlurmHook, poll_s: float) -> None:
        self.hook, self.poll_s = hook, poll_s
        self._handles: dict[str, JobHandle] = {}
        self._latest: dict[str, JobStatus] = {}
        self._looked = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self.looks = 0

    @classmethod
    def shared(cls, conn_id: str, poll_s: float) -> SlurmPoller:
        """Return the poller of a connection on the running event loop."""
        from fleetsieve_airflow.hooks.slurm import SlurmHook

        place = (id(asyncio.get_running_loop()), conn_id)
        if place not in cls._pollers:
            cls._pollers[place] = cls(SlurmHook(conn_id), poll_s)
        poller = cls._pollers[place]
        poller.poll_s = min(poller.poll_s, poll_s)
        return poller

    async def next_status(self, handle: JobHandle) -> JobStatus:
        """Return a job's status from the next look."""
        self._handles[handle.name] = handle
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        async with self._looked:
            self._latest.pop(handle.name, None)
            await self._looked.wait_for(lambda: handle.name in self._latest)
            return self._latest[handle.name]

    def forget(self, handle: JobHandle) -> None:
        """Ask no more about a job."""
        self._handles.pop(handle.name, None)

    async def _look(self) -> None:
        """Ask about all jobs, rest, ask again; end, and close the connection, when there are none left."""
        failures = 0
        while self._handles:
            # Triggers start together: one question is asked for all of them
            await asyncio.sleep(0.2)
            try:
                found = await self.hook.astatuses(list(self._handles.values()))
            except FleetsieveError as error:
                self.hook.log.warning("%s", error)
                found = {}
            self.looks += 1
            silent = all(status.state == "unknown" for status in found.values())
            failures = failures + 1 if silent else 0
            async with self._looked:
                self._latest.update(found)
                self._looked.notify_all()
            pause = min(self.poll_s * 2.0 ** min(failures, 6), max(self.poll_s, MAX_PAUSE_S))
            await asyncio.sleep(pause * random.uniform(0.7, 1.3))  # noqa: S311 - no lockstep
        self.hook.close()


class SlurmJobTrigger(BaseTrigger):
    """Fire when a job has ended, with its state, kind of failure and reason.

    ``unknown`` never fires: a login node or a controller that is away is waited for. A job that waits in the
    queue for longer than ``queue_deadline_s`` is cancelled. If a person ends the task, the job is cancelled
    too.

    :param job: a :class:`~fleetsieve_airflow.hooks.slurm.JobHandle` as a document.
    :param poll_s: seconds between two looks.
    :param queue_deadline_s: longest time in the queue.
    """

    def __init__(
        self, *, job: dict[str, Any], poll_s: float = 15.0, queue_deadline_s: float = 86400.0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = job
        self.poll_s = poll_s
        self.queue_deadline_s = queue_deadline_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what another triggerer needs to go on waiting; no secret is in it."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"job": self.job, "poll_s": self.poll_s, "queue_deadline_s": self.queue_deadline_s},
        )

    def handle(self) -> JobHandle:
        """Return the job's identity."""
        from fleetsieve_airflow.hooks.slurm import JobHandle

        return JobHandle.read(self.job)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the job has ended."""
        from fleetsieve_airflow.hooks.slurm import queue_deadline_passed

        handle = self.handle()
        poller = SlurmPoller.shared(handle.conn_id, self.poll_s)
        said = ""
        try:
            while True:
                status = await poller.next_status(handle)
                if (words := f"{status.state} {status.message}".strip()) != said:
                    self.log.info("Slurm job %s (%s): %s", handle.job_id, handle.name, words)
                    said = words
                late = time.time() - handle.submitted_s > self.queue_deadline_s
                if status.state == "queued" and late:
                    await poller.hook.acancel([handle])
                    status = queue_deadline_passed(status, self.queue_deadline_s)
                if status.ended:
                    break
        finally:
            poller.forget(handle)
        # A job that will never start, or whose node is silent, is still in the queue
        if status.kind in ("never_runnable", "hung_node"):
            await poller.hook.acancel([handle])
        yield TriggerEvent(  # type: ignore[no-untyped-call]
            {
                "job": self.job,
                "state": status.state,
                "kind": status.kind,
                "message": status.message,
                "node": status.node,
            }
        )

    async def on_kill(self) -> None:
        """Cancel the job of a task that a person has ended; its next run gets a new one."""
        from fleetsieve_airflow.hooks.slurm import SlurmHook

        handle = self.handle()
        hook = SlurmHook(handle.conn_id)
        try:
            await hook.awithdraw(handle)
        except FleetsieveError as error:
            self.log.warning("Slurm job %s may still run: %s", handle.job_id, error)
        finally:
            hook.close()
