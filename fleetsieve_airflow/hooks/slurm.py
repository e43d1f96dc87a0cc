"""Slurm on a login node: submit once, ask for many jobs at a time, cancel, fetch. See :class:`SlurmHook`."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow.sdk import BaseHook

from fleetsieve_airflow.errors import MeasurementError, SpecError
from fleetsieve_airflow.hooks.slurm_transport import Answer, LocalTransport, SlurmTransport, SshTransport
from fleetsieve_airflow.serving import slurm_text
from fleetsieve_airflow.serving.slurm_state import JobFiles, JobRow, JobStatus, JobWatch, Observation

CHUNK = 100
SUBMIT_ATTEMPTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHandle:
    """A job's identity. An id alone can be given twice, so cluster, name and submit time belong to it."""

    conn_id: str
    job_id: int
    name: str
    submitted_s: float
    run_folder: str

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON, for XCom, triggers and task state."""
        return asdict(self)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> JobHandle:
        """Read what :meth:`document` wrote."""
        return cls(**document)


class SlurmHook(BaseHook):
    """Talks to Slurm by its command-line tools, on this machine or over SSH.

    The connection has the fields of an SSH connection, and in its extra: ``transport`` (``ssh`` or
    ``local``), ``run_root`` (a folder that login and compute nodes share), ``slurm_bin`` and ``setup`` (where
    the commands are not on the PATH of a non-login shell).

    :param slurm_conn_id: Airflow connection of type ``slurm`` (or ``ssh``).
    :param transport: another transport, for tests.
    """

    conn_name_attr = "slurm_conn_id"
    default_conn_name = "slurm_default"
    conn_type = "slurm"
    hook_name = "Slurm"

    def __init__(
        self, slurm_conn_id: str = default_conn_name, transport: SlurmTransport | None = None
    ) -> None:
        super().__init__()
        self.slurm_conn_id = slurm_conn_id
        self._transport = transport
        self._extra: dict[str, Any] | None = None
        self._watches: dict[str, JobWatch] = {}

    def get_conn(self) -> SlurmTransport:
        """Return the transport, made from the connection when it is first used."""
        if self._transport is None:
            kind = str(self.extra.get("transport") or "ssh")
            if kind not in ("ssh", "local"):
                raise SpecError(
                    f"Connection {self.slurm_conn_id!r}: transport {kind!r} is neither ssh nor local.",
                    hint="Edit the connection's extra.",
                )
            self._transport = LocalTransport() if kind == "local" else SshTransport(self.slurm_conn_id)
        return self._transport

    @property
    def extra(self) -> dict[str, Any]:
        """The connection's extra fields."""
        if self._extra is None:
            self._extra = dict(self.get_connection(self.slurm_conn_id).extra_dejson)
        return self._extra

    async def aload(self) -> None:
        """Read the connection on the event loop of a triggerer, where the blocking way is not allowed."""
        if self._extra is None:
            from airflow.providers.common.compat.connection import get_async_connection

            self._extra = dict((await get_async_connection(self.slurm_conn_id)).extra_dejson)

    @property
    def run_root(self) -> str:
        """Folder of the run folders, shared by login and compute nodes."""
        return str(self.extra.get("run_root") or "~/fleetsieve")

    def close(self) -> None:
        """Close the connection to the login node."""
        if self._transport is not None:
            self._transport.close()

    def test_connection(self) -> tuple[bool, str]:
        """Answer Airflow's test button: commands found, controller up, run folder writable."""
        try:
            answer = self._run(slurm_text.DOCTOR, [self.run_root])
        except (MeasurementError, SpecError) as error:
            return False, str(error)
        finally:
            self.close()
        return True, " ".join(answer.output.decode(errors="replace").split())[:200]

    def submit(
        self,
        base_name: str,
        script: str,
        files: Mapping[str, str],
        options: Sequence[str],
        *,
        deadline_s: float = 300.0,
    ) -> JobHandle:
        """Submit a job once: the same base name always leads to the same job until its attempt is closed.

        Found before paid for, on the login node and under a lock: by the run folder, then by the queue. So it
        may be called again after a cut connection, a time-out of sbatch or a crash of this process.

        :param files: contents of the run folder by relative path.
        :param options: sbatch options without name, output and folder.
        :param deadline_s: how long a controller or login node that does not answer is tried again.
        :raises MeasurementError: Slurm refused the job (``hint`` says so), or nothing answered in time.
        """
        slurm_text.check_arguments([base_name, *options])  # trying again would not mend it
        data, end = _packed({"script": script, **files}), time.monotonic() + deadline_s
        for attempt in range(1, 1000):
            try:
                answer = self._run(slurm_text.SUBMIT, [self.run_root, base_name, *options], data)
                return self._handle(answer.output.decode(errors="replace"))
            except SlurmCommandError as error:
                if not error.passing or time.monotonic() > end:
                    raise
                self.log.warning("%s Trying again.", error)
            except MeasurementError as error:
                if time.monotonic() > end:
                    raise
                self.log.warning("%s Trying again.", error)
            time.sleep(min(30.0, 2.0 * attempt))
        raise AssertionError("unreachable")

    def statuses(self, handles: Sequence[JobHandle]) -> dict[str, JobStatus]:
        """Return the states of jobs by name, asked for together.

        A login node that does not answer, or answers nonsense, makes every state ``unknown``: it raises
        nothing.
        """
        found: dict[str, JobStatus] = {}
        for chunk in _chunks(handles):
            try:
                text = self._run(*_status_command(chunk)).output.decode(errors="replace")
                missing = self._missing(chunk, text)
                books = self._books(missing) if missing else ()
            except MeasurementError as error:
                found.update(
                    {handle.name: JobStatus(state="unknown", message=str(error)) for handle in chunk}
                )
                continue
            found.update(self._judge(chunk, text, books))
        return found

    async def astatuses(self, handles: Sequence[JobHandle]) -> dict[str, JobStatus]:
        """Return the states of jobs by name; see :meth:`statuses`."""
        await self.aload()
        found: dict[str, JobStatus] = {}
        for chunk in _chunks(handles):
            try:
                text = (await self._arun(*_status_command(chunk))).output.decode(errors="replace")
                missing = self._missing(chunk, text)
                books = (
                    _read_books(await self._arun(*_books_command(missing), accept=(1,))) if missing else ()
                )
            except MeasurementError as error:
                found.update(
                    {handle.name: JobStatus(state="unknown", message=str(error)) for handle in chunk}
                )
                continue
            found.update(self._judge(chunk, text, books))
        return found

    def wait(self, handle: JobHandle, *, poll_s: float, queue_deadline_s: float) -> JobStatus:
        """Wait for a job's end, blocking. A job that waits in the queue for too long is cancelled."""
        while True:
            status = self.statuses([handle])[handle.name]
            if status.ended:
                return status
            if status.state == "queued" and time.time() - handle.submitted_s > queue_deadline_s:
                self.cancel([handle])
                return queue_deadline_passed(status, queue_deadline_s)
            self.close()
            time.sleep(poll_s)

    def cancel(self, handles: Sequence[JobHandle], *, wait_s: int = 30) -> None:
        """Cancel jobs by name and look until they are gone.

        :raises MeasurementError: the controller did not answer, or a job is still active after ``wait_s``.
        """
        for chunk in _chunks(handles, 50):
            _require_gone(self._run(*_cancel_command(chunk, wait_s)))

    async def acancel(self, handles: Sequence[JobHandle], *, wait_s: int = 20) -> None:
        """Cancel jobs; see :meth:`cancel`."""
        await self.aload()
        for chunk in _chunks(handles, 50):
            _require_gone(await self._arun(*_cancel_command(chunk, wait_s)))

    def fetch(self, handle: JobHandle) -> dict[str, bytes]:
        """Return a job's results and the ends of its logs by relative path.

        :raises MeasurementError: its run folder cannot be read.
        """
        answer = self._run(slurm_text.FETCH, [handle.run_folder])
        return _unpacked(answer.output)

    def close_attempt(self, handle: JobHandle, *, avoid_node: str = "") -> None:
        """Let the same work be submitted anew; the next attempt stays away from ``avoid_node``."""
        self._run(slurm_text.CLOSE, [handle.run_folder, avoid_node])

    def withdraw(self, handle: JobHandle, *, wait_s: int = 30) -> None:
        """Cancel a job, look until it is gone, and let the same work be submitted anew, in one step.

        :raises MeasurementError: as :meth:`cancel`; the attempt stays open, so that its job is found again.
        """
        _require_gone(self._run(slurm_text.WITHDRAW, [handle.run_folder, str(wait_s)]))

    async def awithdraw(self, handle: JobHandle, *, wait_s: int = 20) -> None:
        """Do the same on an event loop."""
        await self.aload()
        _require_gone(await self._arun(slurm_text.WITHDRAW, [handle.run_folder, str(wait_s)]))

    def _run(self, program: str, arguments: Sequence[str], data: bytes = b"") -> Answer:
        command = slurm_text.command_line(program, arguments, **self._shell())
        return _checked(self.get_conn().run(command, data), ())

    async def _arun(self, program: str, arguments: Sequence[str], accept: tuple[int, ...] = ()) -> Answer:
        command = slurm_text.command_line(program, arguments, **self._shell())
        return _checked(await self.get_conn().run_async(command), accept)

    def _shell(self) -> dict[str, str]:
        return {"setup": str(self.extra.get("setup") or ""), "path": str(self.extra.get("slurm_bin") or "")}

    def _handle(self, text: str) -> JobHandle:
        line = next((line for line in reversed(text.splitlines()) if line.count("|") == 3), "")  # noqa: PLR2004
        if not line:
            raise MeasurementError(f"The login node's answer to a submission cannot be read: {text[:200]!r}.")
        job_id, name, submitted, folder = line.split("|")
        return JobHandle(
            conn_id=self.slurm_conn_id,
            job_id=int(job_id),
            name=name,
            submitted_s=float(submitted or time.time()),
            run_folder=folder,
        )

    def _books(self, handles: Sequence[JobHandle]) -> tuple[JobRow, ...]:
        command = slurm_text.command_line(*_books_command(handles), **self._shell())
        return _read_books(_checked(self.get_conn().run(command), (1,)))

    def _missing(self, handles: Sequence[JobHandle], text: str) -> list[JobHandle]:
        """Return the jobs that the queue, which answered, does not know."""
        _, _, queue, _ = slurm_text.read_status(text)
        if queue is None:
            return []
        known = {(row.job_id, row.name) for row in queue}
        return [handle for handle in handles if (handle.job_id, handle.name) not in known]

    def _judge(
        self, handles: Sequence[JobHandle], text: str, books: tuple[JobRow, ...]
    ) -> dict[str, JobStatus]:
        now_s, up, queue, files = slurm_text.read_status(text)
        states = {}
        for handle in handles:
            watch = self._watches.setdefault(handle.name, JobWatch(handle.job_id, handle.name))
            seen = Observation(
                now_s=now_s,
                controller_up=up,
                queue=queue,
                books=books,
                files=files.get(handle.name, JobFiles()),
            )
            states[handle.name] = watch.judge(seen)
        return states


class SlurmCommandError(MeasurementError):
    """A command on the login node failed; ``passing`` when the same command may succeed later."""

    def __init__(self, message: str, *, passing: bool, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.passing = passing


def queue_deadline_passed(status: JobStatus, limit_s: float) -> JobStatus:
    """Return the status of a job that was cancelled since it waited too long."""
    words = f"it waited in the queue for more than {limit_s:g} s ({status.message}) and was cancelled"
    return JobStatus(state="failed", kind="queue_deadline", message=words)


def _unknown(handles: Sequence[JobHandle], error: MeasurementError) -> dict[str, JobStatus]:
    return {handle.name: JobStatus(state="unknown", message=str(error)) for handle in handles}


def _status_command(handles: Sequence[JobHandle]) -> tuple[str, list[str]]:
    names = ",".join(handle.name for handle in handles)
    return slurm_text.STATUS, [names, *(handle.run_folder for handle in handles)]


def _books_command(handles: Sequence[JobHandle]) -> tuple[str, list[str]]:
    # Without a start sacct looks from midnight on; an hour more covers clocks that differ
    age_s = time.time() - min(handle.submitted_s for handle in handles)
    return slurm_text.BOOKS, [
        f"{max(0.0, age_s) // 60 + 60:.0f}",
        ",".join(handle.name for handle in handles),
    ]


def _cancel_command(handles: Sequence[JobHandle], wait_s: int) -> tuple[str, list[str]]:
    return slurm_text.CANCEL, [",".join(handle.name for handle in handles), str(wait_s)]


def _read_books(answer: Answer) -> tuple[JobRow, ...]:
    """Read accounting; a site without it answers with status 1, which is no evidence of anything."""
    return slurm_text.read_books(answer.output.decode(errors="replace")) if answer.status == 0 else ()


def _require_gone(answer: Answer) -> None:
    left = answer.output.decode(errors="replace").split()
    if left:
        raise MeasurementError(f"Jobs {', '.join(left)} were cancelled and are still active.")


def _checked(answer: Answer, accept: tuple[int, ...]) -> Answer:
    """Cut the answer to what the program said.

    :raises SlurmCommandError: with what failed, in words.
    """
    output = slurm_text.after_mark(answer.output)
    if answer.status == 0 or answer.status in accept:
        return Answer(answer.status, output, answer.errors)
    words = slurm_text.MEANINGS.get(answer.status, f"a command ended with status {answer.status}")
    said = (answer.errors.strip() or output.decode(errors="replace").strip())[-500:]
    hint = "Change the spec's sbatch options, or the job's size." if answer.status == 77 else ""  # noqa: PLR2004
    raise SlurmCommandError(
        f"On the login node {words}: {said}.", passing=answer.status in (75, 76), hint=hint
    )


def _chunks(handles: Sequence[JobHandle], size: int = CHUNK) -> list[Sequence[JobHandle]]:
    return [handles[start : start + size] for start in range(0, len(handles), size)]


def _packed(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode()
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _unpacked(data: bytes) -> dict[str, bytes]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            members = [member for member in archive.getmembers() if member.isfile()]
            return {member.name: archive.extractfile(member).read() for member in members}  # type: ignore[union-attr]
    except (tarfile.TarError, EOFError, OSError) as error:
        raise MeasurementError(f"A job's results came back broken: {error}.") from error
