"""Seven states of a Slurm job, from positive evidence only.

An empty or failed answer never means that a job has ended. Text comes from ``squeue``, ``sacct`` and the
job's own files (see :mod:`.slurm_text`); the scheduler's state decides success or the kind of failure, and
the exit file proves that the script ran to its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fleetsieve_airflow.serving.node_server import EXIT_KINDS

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled", "lost", "unknown"]

#: States in which a job waits or runs, and those that end it. Any other word is "unknown" and is said so.
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
ACTIVE = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
ENDINGS = {
    "TIMEOUT": "timeout",
    "OUT_OF_MEMORY": "out_of_memory",
    "NODE_FAIL": "node_fail",
    "PREEMPTED": "preempted",
    "BOOT_FAIL": "boot_fail",
    "DEADLINE": "deadline",
}
#: Reasons for which a pending job waits for ever.
NEVER = (
    "DependencyNeverSatisfied",
    "PartitionTimeLimit",
    "PartitionNodeLimit",
    "PartitionConfig",
    "PartitionDown",
    "BadConstraints",
    "AccountNotAllowed",
    "launch failed requeued held",
    "JobHeldAdmin",
)
#: Another node may do better, the same node would not.
ELSEWHERE = frozenset({"node_fail", "boot_fail", "dirty_node", "launch_failure", "hung_node"})
#: The same submission may succeed another time.
RETRYABLE = ELSEWHERE | {
    "preempted", "lost", "no_free_port", "wrong_server", "load_generator", "server_died", "server_not_ready",
    "no_results", "invalid_run", "unreachable", "withdrawn",
}  # fmt: skip
#: Job files on a shared file system may appear late; so may the end of a job in its scheduler's books.
GRACE_S = 60.0
MIN_ABSENCES = 3
STALE_HEARTBEAT_S = 900.0

_ADVICE = {
    "timeout": "it reached its time limit; lengthen ready_s if the server was slow to start",
    "out_of_memory": "it used more host memory than it asked for; raise options.mem",
    "node_fail": "its node failed; another attempt leaves that node out",
    "preempted": "it was preempted; choose a partition or QOS that is not",
    "launch_failure": "it could not start on its node, often since its log or folder is not visible there",
    "boot_fail": "its node did not boot",
    "deadline": "its deadline passed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One line of squeue or sacct about a job. Times in seconds since the epoch, None where unknown."""

    job_id: int
    name: str
    state: str
    reason: str = ""
    node: str = ""
    exit_code: str = ""
    submitted_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    """What a job's run folder says; empty where a file is not there."""

    exit: str = ""
    reason: str = ""
    started: str = ""
    heartbeat_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look at one job. ``queue`` and ``books`` (accounting) are None where they did not answer."""

    now_s: float
    controller_up: bool
    queue: tuple[JobRow, ...] | None
    books: tuple[JobRow, ...] | None
    files: JobFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job's state, the kind of its failure, and the reason in words."""

    state: JobState
    kind: str = ""
    message: str = ""
    node: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to the job."""
        return self.state in ("succeeded", "failed", "cancelled", "lost")

    @property
    def retryable(self) -> bool:
        """Whether another attempt may succeed."""
        return self.kind in RETRYABLE


class JobWatch:
    """Judges one job from look to look; remembers only how long something has been missing."""

    def __init__(self, job_id: int, name: str) -> None:
        self.job_id, self.name = job_id, name
        self.absences = 0
        self.missing_since_s: float | None = None

    def judge(self, seen: Observation) -> JobStatus:
        """Return the job's state as far as this look and the earlier ones prove it."""
        if seen.queue is None:
            return JobStatus(state="unknown", message="the controller does not answer")
        # Keyed by name and id: after a crash the controller gives an id twice, and the second is a stranger's
        rows = [
            row
            for row in (*seen.queue, *(seen.books or ()))
            if (row.job_id, row.name) == (self.job_id, self.name)
        ]
        if not rows:
            return self._absent(seen)
        self.absences = 0
        row = rows[0]
        if row.state in WAITING:
            return self._waiting(row)
        if row.state in ACTIVE:
            return self._active(row, seen)
        return self._ended(row, seen)

    def _waiting(self, row: JobRow) -> JobStatus:
        never = next((reason for reason in NEVER if reason.lower() in row.reason.lower()), "")
        if never:
            return JobStatus(
                state="failed", kind="never_runnable", message=f"it will never start: {row.reason}"
            )
        return JobStatus(state="queued", message=row.reason)

    def _active(self, row: JobRow, seen: Observation) -> JobStatus:
        beat = seen.files.heartbeat_s
        if seen.files.exit and self._waited(seen, GRACE_S):
            return status_of_exit(seen.files, row.node)
        if beat is not None and seen.now_s - beat > STALE_HEARTBEAT_S:
            silent = f"{row.state} on {row.node}, but silent for {seen.now_s - beat:.0f} s"
            return JobStatus(state="failed", kind="hung_node", message=silent, node=row.node)
        if not seen.files.exit:
            self.missing_since_s = None
        return JobStatus(state="running", message=row.state, node=row.node)

    def _ended(self, row: JobRow, seen: Observation) -> JobStatus:
        if row.state == "CANCELLED":
            return JobStatus(state="cancelled", kind="cancelled", message="it was cancelled", node=row.node)
        if kind := ENDINGS.get(row.state):
            return JobStatus(state="failed", kind=kind, message=_ADVICE[kind], node=row.node)
        if row.state not in ("COMPLETED", "FAILED"):
            return JobStatus(
                state="unknown", message=f"Slurm says {row.state!r}, which is no state known here"
            )
        if seen.files.exit:
            return status_of_exit(seen.files, row.node)
        kind, words = self._unfinished(row, seen)
        if not kind:
            return JobStatus(state="running", message=words, node=row.node)
        return JobStatus(state="failed", kind=kind, message=words, node=row.node)

    def _unfinished(self, row: JobRow, seen: Observation) -> tuple[str, str]:
        """Explain a completed or failed job without an exit file; no kind while the file may still appear."""
        launch = row.reason.startswith(("JobLaunchFailure", "RaisedSignal:53")) or row.exit_code == "0:53"
        if row.state == "FAILED" and launch and not seen.files.started:
            return "launch_failure", _ADVICE["launch_failure"]
        if not self._waited(seen, GRACE_S):
            return "", f"{row.state}, its exit file is not visible yet"
        words = f"{row.state} {row.exit_code} {row.reason}".strip()
        return "no_results", f"{words}, and it left no exit file"

    def _absent(self, seen: Observation) -> JobStatus:
        if seen.files.exit:
            return status_of_exit(seen.files)
        if not seen.controller_up:
            return JobStatus(state="unknown", message="the controller is not up")
        self.absences += 1
        if self._waited(seen, GRACE_S) and self.absences >= MIN_ABSENCES:
            words = (
                "the scheduler knows it no more and it left no exit file; a controller crash forgets new jobs"
            )
            return JobStatus(state="lost", kind="lost", message=words)
        return JobStatus(state="unknown", message="not in the queue, not in the books, no exit file yet")

    def _waited(self, seen: Observation, limit_s: float) -> bool:
        if self.missing_since_s is None:
            self.missing_since_s = seen.now_s
        return seen.now_s - self.missing_since_s >= limit_s


def status_of_exit(files: JobFiles, node: str = "") -> JobStatus:
    """Return the state of a job whose script ran to its end, from what it wrote."""
    words = dict(part.partition("=")[::2] for part in files.exit.split())
    status = int(words.get("rc", "-1"))
    if status == 0:
        return JobStatus(state="succeeded", node=node)
    started = files.started.split()
    where = node or (started[1] if len(started) > 1 else "")
    if words.get("signal", "none") != "none" and status > 128:  # noqa: PLR2004 - the shell's signal statuses
        return JobStatus(state="cancelled", kind="cancelled", message="it was told to end", node=where)
    kind = EXIT_KINDS.get(status, "exit_code")
    reason = files.reason or f"the job script ended with status {status}"
    return JobStatus(state="failed", kind=kind, message=reason, node=where)
