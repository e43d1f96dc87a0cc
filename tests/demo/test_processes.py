"""Servers are found, ended and reported by their pid files."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fleetsieve_airflow.demo import processes
from fleetsieve_airflow.demo.processes import DemoError, Service

#: Starts a child of its own and says so; `stubborn` ignores the request to end.
PARENT = """
import signal, subprocess, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
time.sleep(600)
"""


def service(folder: Path, *arguments: str, code: str = PARENT) -> Service:
    return Service(
        name="server",
        command=(sys.executable, "-c", code, *arguments),
        environment=dict(os.environ),
        log=folder / "server.log",
        pid_file=folder / "server.pid",
    )


def started(folder: Path, *arguments: str) -> tuple[Service, list[psutil.Process]]:
    server = service(folder, *arguments)
    processes.start(server)
    processes.wait_until(lambda: "child" in server.log.read_text(), "the child", [server], timeout_s=60.0)
    leader = processes.find(server.pid_file)
    assert leader is not None
    return server, processes.group_of(leader)


def alive(group: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in group if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_a_server_and_its_children_are_ended(tmp_path: Path) -> None:
    server, group = started(tmp_path)
    assert len(group) == 2
    assert processes.stop([server.pid_file]) == ["server"]
    assert alive(group) == []
    assert not server.pid_file.exists()


def test_a_server_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    server, group = started(tmp_path, "stubborn")
    processes.stop([server.pid_file], grace_s=0.5)
    assert alive(group) == []


def test_a_kill_takes_the_children_too(tmp_path: Path) -> None:
    server, group = started(tmp_path, "stubborn")
    processes.kill(server.pid_file)
    assert alive(group) == []


def test_starting_twice_starts_once(tmp_path: Path) -> None:
    server, group = started(tmp_path)
    try:
        processes.start(server)
        assert processes.find(server.pid_file) == group[0]
    finally:
        processes.stop([server.pid_file])


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Hear interruptions also where the tests run in the background, whose shell tells them not to."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_waits_until_the_pid_file_is_written() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt):
        with processes.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("written")
        done.append("went on")
    assert done == ["written"]


def test_a_pid_that_is_another_program_by_now_is_left_alone(tmp_path: Path) -> None:
    pid_file = tmp_path / "server.pid"
    pid_file.write_text(json.dumps({"pid": os.getpid(), "born": 1.0}))
    assert processes.find(pid_file) is None
    assert processes.stop([pid_file]) == []


def test_stopping_what_never_ran_is_no_error(tmp_path: Path) -> None:
    assert processes.stop([tmp_path / "server.pid"]) == []


def test_a_server_that_dies_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    server = service(tmp_path, code="print('no such table: fleet'); raise SystemExit(3)")
    processes.start(server)
    with pytest.raises(DemoError, match=r"server ended while waiting for it[\s\S]*no such table: fleet"):
        processes.wait_until(lambda: False, "it", [server], timeout_s=60.0)


def test_waiting_in_vain_says_for_what_and_for_how_long(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="Waited 0 s for the moon in vain"):
        processes.wait_until(lambda: False, "the moon", [], timeout_s=0.0)


def test_a_program_that_fails_is_reported_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"exited with code 4[\s\S]*disk is full"):
        command = [sys.executable, "-c", "print('disk is full'); raise SystemExit(4)"]
        processes.run(command, os.environ, tmp_path / "run.log")


def test_only_the_end_of_a_long_log_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    shown = processes.tail(log)
    assert "line 999" in shown
    assert "line 900" not in shown


def test_an_address_without_a_server_does_not_answer() -> None:
    assert not processes.answers("http://127.0.0.1:9/health")
