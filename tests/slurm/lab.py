"""A real Slurm cluster on this machine for tests, and jobs whose two programs are stand-ins."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow.models.connection import Connection

from fleetsieve_airflow.evidence import MeasurementPoint
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serving.slurm_state import JobStatus
from tests.serving.jobs import served_spec

CLUSTER = Path(__file__).parent / "cluster"
FAKE = Path(__file__).parent.parent / "serving" / "fake_engine.py"
CONN_ID = "slurm_lab"


def free_port_base() -> int:
    """Return the first of some free ports below those that the system gives out by itself."""
    for base in range(20010 + os.getpid() % 400 * 20, 32000, 20):
        try:
            for port in range(base, base + 16):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise RuntimeError("No 16 free ports in a row.")


class Lab:
    """One cluster under one folder; ``settings`` become ``FLEET_SLURM_*`` variables of its scripts."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.run_root = f"~/fleetsieve-runs/{folder.parent.name}"
        self.environment = {
            **os.environ,
            "FLEET_SLURM_PORT_BASE": str(free_port_base()),
            **{f"FLEET_SLURM_{name.upper()}": value for name, value in settings.items()},
        }

    def start(self) -> None:
        """Start it, and make the connection that Airflow reaches it by."""
        self._script("start.sh", "--clean")
        self.facts: dict[str, Any] = json.loads((self.folder / "cluster.json").read_text())
        os.environ[f"AIRFLOW_CONN_{CONN_ID.upper()}"] = self.connection().as_json()
        program = self.folder / "program"
        shutil.copy(FAKE, self.folder / "fake_engine.py")
        program.write_text(f'#!/bin/bash\nexec /usr/bin/python3 "{self.folder}/fake_engine.py" "$@"\n')
        program.chmod(0o755)
        (self.folder / "fake_engine.py").chmod(0o644)

    def stop(self) -> None:
        """End every process of it and remove what its jobs left."""
        self._script("stop.sh")
        if hasattr(self, "facts"):
            home = Path(f"~{self.facts['ssh']['user']}").expanduser()
            shutil.rmtree(home / self.run_root.removeprefix("~/"), ignore_errors=True)

    def fault(self, verb: str, subject: str = "") -> None:
        """Make one part of it fail, or bring it back; see ``cluster/fault.sh``."""
        self._script("fault.sh", verb, *([subject] if subject else []))

    def connection(self, **extra: Any) -> Connection:
        """Return an Airflow connection to its login node."""
        ssh = self.facts["ssh"]
        host_key = Path(ssh["known_hosts"]).read_text().split(maxsplit=1)[1].strip()
        fields = {"key_file": ssh["key"], "host_key": host_key, "run_root": self.run_root, **extra}
        return Connection(
            conn_id=CONN_ID,
            conn_type="slurm",
            host=ssh["host"],
            port=ssh["port"],
            login=ssh["user"],
            extra=json.dumps(fields),
        )

    def slurm(self, *command: str) -> str:
        """Run one of Slurm's commands as root and return what it says."""
        environment = {**os.environ, "SLURM_CONF": self.facts["slurm_conf"]}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout + done.stderr

    def active(self) -> list[str]:
        """Return the names of jobs that wait or run."""
        return self.slurm("squeue", "-h", "-o", "%j").split()

    def submissions(self) -> int:
        """Return how many jobs the controller has ever accepted, from its log."""
        return self.log("slurmctld").count("_slurm_rpc_submit_batch_job: JobId=")

    def log(self, name: str) -> str:
        """Return a daemon's log."""
        return (self.folder / "log" / f"{name}.log").read_text(errors="replace")

    def spec(self, *, behaviour: str = "", **options: str) -> FleetSpec:
        """Return a fleet that this cluster can measure with the stand-ins."""
        chosen = {
            "conn_id": CONN_ID,
            "vllm": str(self.folder / "program"),
            "aiperf": str(self.folder / "program"),
            "python": "/usr/bin/python3",
            "ready_s": "60",
            "mem": "1000M",
            "cpus": "2",
            "poll_s": "1",
            "exclusive": "false",
        }
        arguments = (("behaviour", behaviour),) if behaviour else ()
        return served_spec(options={**chosen, **options}, engine_args=arguments)

    def _script(self, name: str, *arguments: str) -> None:
        # Output to a file: the daemons inherit it, and a pipe would stay open for as long as they live
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            subprocess.run(
                ["bash", str(CLUSTER / name), str(self.folder), *arguments],
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                check=True,
                timeout=120,
            )


def until(condition: Callable[[], object], what: str, limit_s: float = 90.0, step_s: float = 0.5) -> None:
    """Wait for a condition.

    :raises AssertionError: it did not come true in time.
    """
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {limit_s:g} s")
        time.sleep(step_s)


def label(statuses: Sequence[JobStatus]) -> list[str]:
    """Return states in words, for messages."""
    return [f"{status.state} {status.kind} {status.message}".strip() for status in statuses]


def keys(points: Sequence[MeasurementPoint]) -> list[str]:
    """Return the keys of points."""
    return [point.key for point in points]
