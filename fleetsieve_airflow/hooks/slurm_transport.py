"""How commands reach a login node: over Airflow's own SSH hooks, or as processes of this machine.

One protocol, so that a REST transport can stand beside them. A transport carries bytes and knows nothing of
Slurm.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fleetsieve_airflow.errors import MeasurementError

#: Slurm's own clients give up on a dead controller after 9 s; twice that with a backup controller.
COMMAND_TIMEOUT_S = 120.0
CONNECT_ATTEMPTS = 6
#: Simultaneous connections of one machine to one login node: sshd drops the eleventh that has not logged in
#: yet.
SLOTS = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command left: its exit status and its output."""

    status: int
    output: bytes
    errors: str


class SlurmTransport(Protocol):
    """Carries one command line to where Slurm's commands are."""

    def run(self, command: str, data: bytes = b"", timeout_s: float = COMMAND_TIMEOUT_S) -> Answer:
        """Run a command line.

        :raises MeasurementError: the login node cannot be reached, or it did not answer in time; the command
            may have run all the same.
        """
        ...

    async def run_async(
        self, command: str, data: bytes = b"", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Answer:
        """Do the same without blocking the event loop."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...


class LocalTransport:
    """Runs commands on this machine: a worker on the login node itself."""

    def run(self, command: str, data: bytes = b"", timeout_s: float = COMMAND_TIMEOUT_S) -> Answer:
        """Run a command line; see :class:`SlurmTransport`."""
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", command], input=data, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise MeasurementError(
                f"A command on this machine did not end within {timeout_s:g} s."
            ) from error
        return Answer(done.returncode, done.stdout, done.stderr.decode(errors="replace"))

    async def run_async(
        self, command: str, data: bytes = b"", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Answer:
        """Run a command line in a thread; see :class:`SlurmTransport`."""
        return await asyncio.to_thread(self.run, command, data, timeout_s)

    def close(self) -> None:
        """Nothing is held."""


class SshTransport:
    """Runs commands over one SSH connection, opened when it is first needed and reused until :meth:`close`.

    Host keys are checked as the connection says; Airflow's hooks check them by default.

    :param conn_id: an Airflow connection with the fields of the SSH provider.
    """

    def __init__(self, conn_id: str) -> None:
        self.conn_id = conn_id
        self._client: Any = None
        self._held: contextlib.ExitStack = contextlib.ExitStack()
        self._async_conn: Any = None
        self._async_lock = asyncio.Lock()

    def run(self, command: str, data: bytes = b"", timeout_s: float = COMMAND_TIMEOUT_S) -> Answer:
        """Run a command line; see :class:`SlurmTransport`."""
        import paramiko

        try:
            channel = self._connected().get_transport().open_session(timeout=timeout_s)
            with contextlib.closing(channel):
                channel.settimeout(timeout_s)
                channel.exec_command(command)
                return _conversation(channel, data, time.monotonic() + timeout_s)
        except (OSError, EOFError, paramiko.SSHException) as error:
            self.close()
            raise MeasurementError(f"SSH connection {self.conn_id!r} broke off: {_said(error)}.") from error

    async def run_async(
        self, command: str, data: bytes = b"", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Answer:
        """Run a command line over the event loop's own connection; see :class:`SlurmTransport`."""
        import asyncssh

        try:
            async with self._async_lock:
                if self._async_conn is None or self._async_conn.is_closed():
                    from airflow.providers.ssh.hooks.ssh import SSHHookAsync

                    asyncssh.set_log_level("WARNING")
                    hook: Any = SSHHookAsync(ssh_conn_id=self.conn_id)  # typed in some releases only
                    self._async_conn = await asyncio.wait_for(hook.get_conn(), timeout_s)
            done = await self._async_conn.run(command, input=data, encoding=None, timeout=timeout_s)
        except (OSError, asyncssh.Error, TimeoutError) as error:
            self._drop_async()
            raise MeasurementError(f"SSH connection {self.conn_id!r} broke off: {_said(error)}.") from error
        status = 255 if done.exit_status is None else done.exit_status
        return Answer(status, bytes(done.stdout or b""), bytes(done.stderr or b"").decode(errors="replace"))

    def close(self) -> None:
        """Close what is open."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._held.close()
        self._drop_async()

    def _drop_async(self) -> None:
        if self._async_conn is not None:
            self._async_conn.close()
            self._async_conn = None

    def _connected(self) -> Any:
        if (
            self._client is not None
            and self._client.get_transport()
            and self._client.get_transport().is_active()
        ):
            return self._client
        from airflow.providers.ssh.hooks.ssh import SSHHook

        self._held.close()
        hook = SSHHook(ssh_conn_id=self.conn_id, cmd_timeout=COMMAND_TIMEOUT_S, conn_retry_attempts=1)
        self._held.enter_context(connection_slot(f"{hook.username}@{hook.remote_host}:{hook.port}"))
        self._client = _connect(hook, self.conn_id)
        return self._client


def _connect(hook: Any, conn_id: str) -> Any:
    """Open a connection, again with jitter where the login node is busy; never where it is not the right one.

    :raises MeasurementError: it cannot be opened.
    """
    import paramiko

    refused = (paramiko.AuthenticationException, paramiko.BadHostKeyException)
    for attempt in range(1, CONNECT_ATTEMPTS + 1):
        try:
            return hook.get_conn()
        except refused as error:
            hint = "Check the connection's user, key and host_key."
            raise MeasurementError(
                f"SSH connection {conn_id!r} is refused: {_said(error)}.", hint=hint
            ) from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            unknown = "not found in known_hosts" in str(error)
            if unknown or attempt == CONNECT_ATTEMPTS:
                hint = "Put the login node's host key into the connection's host_key." if unknown else ""
                text = f"SSH connection {conn_id!r} cannot be opened: {_said(error)}."
                raise MeasurementError(text, hint=hint) from error
            time.sleep(random.uniform(0.5, 2.0**attempt))  # noqa: S311 - jitter, so that clients do not retry in step
    raise AssertionError("unreachable")


def _conversation(channel: Any, data: bytes, end_s: float) -> Answer:
    """Send the input while reading both outputs: a command may answer before it has read everything."""
    output, errors, sent = bytearray(), bytearray(), 0
    if not data:
        channel.shutdown_write()
    while True:
        moved = False
        while channel.recv_ready():
            output += channel.recv(65536)
            moved = True
        while channel.recv_stderr_ready():
            errors += channel.recv_stderr(65536)
            moved = True
        if sent < len(data) and channel.send_ready():
            sent += channel.send(data[sent : sent + 32768])
            moved = True
            if sent == len(data):
                channel.shutdown_write()
        ended = channel.exit_status_ready() and not (channel.recv_ready() or channel.recv_stderr_ready())
        if ended and (channel.eof_received or channel.closed):
            return Answer(channel.recv_exit_status(), bytes(output), errors.decode(errors="replace"))
        if time.monotonic() > end_s:
            raise OSError("the command did not end in time")
        if not moved:
            if channel.closed and not channel.exit_status_ready():
                raise OSError("the connection was cut while the command ran")
            time.sleep(0.02)


@contextlib.contextmanager
def connection_slot(host: str, slots: int = SLOTS) -> Iterator[None]:
    """Hold one of a machine's few connections to a host; wait for one where all are taken.

    Airflow runs every task in a process of its own, so the limit is kept by file locks, which end with their
    process.
    """
    name = hashlib.sha256(f"{os.getuid()}:{host}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"fleetsieve-ssh-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    first = random.randrange(slots)  # noqa: S311 - spreads the waiting
    while True:
        for place in range(slots):
            with (folder / f"{name}.{(first + place) % slots}").open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield
                return
        time.sleep(random.uniform(0.05, 0.3))  # noqa: S311 - jitter


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
