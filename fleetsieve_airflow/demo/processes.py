"""Start servers, wait until they answer, end them: each in a process group of its own, found by pid file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from fleetsieve_airflow.errors import FleetsieveError

POLL_S = 0.25
TAIL_LINES = 25
#: A cancelled job and a closed terminal end us as Ctrl-C does.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ANSWER_TIMEOUT_S = 20.0


class DemoError(FleetsieveError):
    """A local server did not start, died or refused: the message ends with what it printed last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A server program: how it is started, where it writes, where its pid is kept."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    pid_file: Path


def start(service: Service) -> None:
    """Start a server unless it is running already; what it prints is appended to its log."""
    if find(service.pid_file) is not None:
        return
    with service.log.open("ab") as log, uninterrupted():
        process = subprocess.Popen(
            service.command,
            env=dict(service.environment),
            cwd=service.log.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Its own group: Ctrl-C reaches us alone, and one signal reaches the server with all its workers.
            start_new_session=True,
        )
        born = psutil.Process(process.pid).create_time()
        service.pid_file.write_text(json.dumps({"pid": process.pid, "born": born}))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let ending signals wait: between a server's start and its pid file nobody could end it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: arrived.append(number))
        for number in ENDING_SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for late in arrived:
        signal.raise_signal(late)


def find(pid_file: Path) -> psutil.Process | None:
    """Return the live process of a pid file; None where it ended, also if another has its number by now."""
    try:
        kept = json.loads(pid_file.read_text())
        process = psutil.Process(kept["pid"])
        if process.create_time() != kept["born"] or process.status() == psutil.STATUS_ZOMBIE:
            return None
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None
    return process


def stop(pid_files: Sequence[Path], *, grace_s: float = 15.0) -> list[str]:
    """End servers with everything they started: ask first, then insist. Return the names of those running."""
    members: dict[Path, list[psutil.Process]] = {}
    for pid_file in pid_files:
        leader = find(pid_file)
        if leader is not None:
            members[pid_file] = group_of(leader)
            _signal(leader, signal.SIGTERM)
    everyone = [process for group in members.values() for process in group]
    _, alive = psutil.wait_procs(everyone, timeout=grace_s)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=5.0)
    for pid_file in pid_files:
        pid_file.unlink(missing_ok=True)
    return [pid_file.stem for pid_file in members]


def kill(pid_file: Path) -> None:
    """End one server at once (SIGKILL), its workers too, as a power cut would."""
    leader = find(pid_file)
    if leader is not None:
        group = group_of(leader)
        for process in group:
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(group, timeout=10.0)
    pid_file.unlink(missing_ok=True)


def group_of(leader: psutil.Process) -> list[psutil.Process]:
    """Return a server and all its descendants, the server first."""
    try:
        return [leader, *leader.children(recursive=True)]
    except psutil.NoSuchProcess:
        return [leader]


def wait_until(
    ready: Callable[[], bool], what: str, services: Sequence[Service], *, timeout_s: float
) -> None:
    """Wait until ``ready()``.

    :raises DemoError: a server ended meanwhile, or the time is over; with the end of the server's log.
    """
    deadline = time.monotonic() + timeout_s
    while not ready():
        for service in services:
            if find(service.pid_file) is None:
                raise DemoError(f"{service.name} ended while waiting for {what}.\n{tail(service.log)}")
        if time.monotonic() > deadline:
            ends = "\n".join(f"--- {service.name}: {tail(service.log)}" for service in services)
            raise DemoError(f"Waited {timeout_s:.0f} s for {what} in vain.\n{ends}")
        time.sleep(POLL_S)


def run(command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """Run a program to its end.

    :raises DemoError: it exited with another code than 0; with the end of its log.
    """
    with log.open("ab") as output:
        code = subprocess.run(
            list(command),
            env=dict(environment),
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code != 0:
        raise DemoError(f"{' '.join(command[:3])} exited with code {code}.\n{tail(log)}")


def tail(log: Path) -> str:
    """Return the last lines of a log under its name."""
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if log.is_file() else []
    return "\n".join([f"The end of {log}:", *(f"  {line}" for line in lines or ["(it printed nothing)"])])


def answers(url: str) -> bool:
    """Return whether a GET of the address is answered with success before its timeout."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_S) as response:  # noqa: S310 - loopback http only
            return bool(response.status == 200)  # noqa: PLR2004
    except (urllib.error.URLError, OSError):
        return False


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        os.kill(process.pid, number) if process.is_running() else None
    except ProcessLookupError:
        return
