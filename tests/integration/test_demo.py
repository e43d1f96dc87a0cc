"""The programs behind `make demo`, `make up` and `make down`, as a newcomer runs them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fleetsieve_airflow.core.certificate import verify_certificate
from fleetsieve_airflow.demo.processes import answers
from fleetsieve_airflow.demo.rest import AirflowApi

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 1200.0

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("airflow"), pytest.mark.timeout(2400)]


def command(verb: str, home: Path) -> list[str]:
    return [sys.executable, "-m", "fleetsieve_airflow.demo", verb, "--home", str(home)]


def said(verb: str, home: Path) -> str:
    """Run one command to its end; what it printed."""
    done = subprocess.run(
        command(verb, home), cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def left_running(home: Path) -> list[str]:
    """Names of the servers of a home that still live, by the folder their environment names."""
    alive = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("AIRFLOW_HOME") == str(home / "airflow"):
                alive.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return alive


def test_the_demo_plans_the_fleet_and_ends_everything_it_started(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    shown = said("run", home)
    summary = json.loads((home / "summary.json").read_text())
    assert summary["state"] == "certified_feasible"
    assert summary["plan"] == {"chat": {"TP4": 2}, "code": {"TP4": 2}}
    assert summary["gpu_seconds_window"] <= 7200
    certificate = json.loads(Path(summary["certificate"]).read_text())
    assert verify_certificate(certificate) == ()
    assert "<html" in Path(summary["report"]).read_text()
    rounds = re.findall(r"^ +round (\d+):", shown, flags=re.MULTILINE)
    assert [int(number) for number in rounds] == list(range(1, summary["rounds"] + 1))
    assert "chat 2 x TP4; code 2 x TP4" in shown
    assert summary["report"] in shown
    assert left_running(home) == []


def test_up_may_be_said_twice_and_down_ends_both_servers(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    try:
        first = said("up", home)
        second = said("up", home)
        airflow, mlflow = re.findall(r"http://127\.0\.0\.1:\d+", first)
        user, password = re.findall(r"user (\S+), password (\S+)", first)[0]
        assert re.findall(r"http://127\.0\.0\.1:\d+", second) == [airflow, mlflow]
        assert AirflowApi.login(airflow, user, password).knows_dag("fleet_plan")
        assert answers(f"{mlflow}/health")
    finally:
        ended = said("down", home)
    assert "mlflow" in ended
    assert left_running(home) == []
    assert "Nothing was running" in said("down", home)


def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    demo = subprocess.Popen(
        command("run", home), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    give_up = time.monotonic() + PATIENCE_S
    while not (home / "pids" / "scheduler.pid").exists():
        assert demo.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.2)
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 130
    assert left_running(home) == []


def test_a_demo_outside_the_repository_says_where_to_run_it(tmp_path: Path) -> None:
    done = subprocess.run(
        command("run", tmp_path / "demo"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Run this in a checkout of the repository" in done.stderr
