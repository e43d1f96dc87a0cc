"""Campaigns in a real Airflow whose points are Slurm jobs: what dies meanwhile must not be paid for twice."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetsieve_airflow.core.certificate import verify_certificate
from fleetsieve_airflow.demo import processes
from fleetsieve_airflow.demo.campaign import Outcome, follow_campaign, start_campaign, wait_for_dag
from fleetsieve_airflow.demo.stack import Stack
from tests.integration.lab import IMPATIENT
from tests.integration.lab import Lab as AirflowLab
from tests.slurm.lab import CONN_ID, Lab, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def fleet_file(lab: Lab, name: str) -> dict[str, Any]:
    """Return a fleet of one workload and two configs, measured by jobs whose servers take their time."""
    program = str(lab.folder / "program")
    return {
        "fleet": name,
        "pools": {"node": {"gpu": "H100", "gpus": 8, "gpus_per_node": 4}},
        "models": {"base": {"revision": "r1", "source": "/models/tiny"}},
        "engine_configs": {
            f"TP{degree}": {
                "pool": "node",
                "tensor_parallel": degree,
                "engine_version": "0.0.fake",
                "engine_args": {"behaviour": "slow-start"},
            }
            for degree in (1, 2)
        },
        "workloads": {
            "chat": {
                "model": "base",
                "demand_rps": 8,
                "slo": {"success_rate": 0.9, "ttft_p90_s": 2.0},
                "trace": {"name": name, "format": "poisson", "isl_mean_tokens": 64, "osl_mean_tokens": 16},
                "engine_configs": ["TP1", "TP2"],
                "loads": {"offered_load_rps": [2, 4]},
            }
        },
        "measurement": {
            "backend": "slurm",
            "duration_s": 50,
            "profiling_gpus": 4,
            "options": {
                "conn_id": CONN_ID,
                "vllm": program,
                "aiperf": program,
                "python": "/usr/bin/python3",
                "ready_s": 90,
                "mem": "1000M",
                "cpus": 2,
                "poll_s": 1,
                "exclusive": False,
            },
        },
    }


DAG_FILE = """
from datetime import timedelta

from fleetsieve_airflow.dag import fleet_plan

dag = fleet_plan(
    fleet="fleets/base.yaml",
    default_args={"retries": 3, "retry_delay": timedelta(seconds=2)},
    profile_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
)
"""


class Campaigns:
    """A running Airflow in front of a running cluster."""

    def __init__(self, slurm: Lab, airflow: AirflowLab) -> None:
        self.slurm, self.airflow = slurm, airflow

    def start(self, name: str) -> None:
        """Start a campaign of a fleet of its own and wait until its first job runs."""
        self.before, self.name = self.slurm.submissions(), name
        path = self.airflow.stack.dags_folder / "fleets" / f"{name}.yaml"
        path.write_text(yaml.safe_dump(fleet_file(self.slurm, name)))
        start_campaign(self.airflow.api, name, fleet_file=f"fleets/{name}.yaml")
        until(self.slurm.active, "the first job", 180)

    def wait_until_deferred(self) -> dict[str, Any]:
        """Wait until a measuring task has left its worker, and return it."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = [
                task
                for task in self.airflow.task(self.name, 1, "round.profile")
                if task["state"] == "deferred" and task["map_index"] >= 0
            ]
            return bool(found)

        until(look, "a deferred measuring task", 120)
        return found[0]

    def end(self) -> Outcome:
        """Wait for the certificate, hold it to its evidence, and check that no job is left."""
        outcome = follow_campaign(
            self.airflow.stack, self.airflow.api, fleet=self.name, campaign_id=self.name, timeout_s=600
        )
        assert verify_certificate(outcome.certificate) == ()
        assert str(outcome.certificate["state"]).startswith("certified")
        assert outcome.certificate["failures"] == []
        keys = Counter(row["measurement"]["point"]["key"] for row in outcome.certificate["evidence"])
        assert keys
        assert set(keys.values()) == {1}
        until(lambda: self.slurm.active() == [], "an empty queue", 60)
        self.measured = len(keys)
        return outcome

    def paid(self) -> int:
        """Return how many jobs Slurm accepted since the start."""
        return self.slurm.submissions() - self.before


@pytest.fixture(scope="module")
def campaigns(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaigns]:
    """Servers for all campaigns of this file."""
    root: Path = tmp_path_factory.mktemp("airflow")
    dags = root / "dags"
    (dags / "fleets").mkdir(parents=True)
    (dags / "fleets" / "base.yaml").write_text(yaml.safe_dump(fleet_file(lab, "base")))
    (dags / "plan.py").write_text(DAG_FILE)
    stack = Stack.at(
        root / "home", dags, {**IMPATIENT, f"AIRFLOW_CONN_{CONN_ID.upper()}": lab.connection().as_json()}
    )
    try:
        stack.start()
        airflow = AirflowLab(stack=stack, api=stack.api(), control=root)
        wait_for_dag(stack, airflow.api)
        yield Campaigns(lab, airflow)
    finally:
        stack.stop()


def test_a_killed_triggerer_costs_nothing(campaigns: Campaigns) -> None:
    campaigns.start("triggerer")
    campaigns.wait_until_deferred()
    campaigns.airflow.kill("triggerer")
    until(lambda: campaigns.slurm.active() == [], "the end of the jobs", 120)  # while nobody watches
    campaigns.airflow.restart("triggerer")
    campaigns.end()
    assert campaigns.paid() == campaigns.measured


def test_killed_workers_find_their_jobs_again(campaigns: Campaigns) -> None:
    campaigns.start("worker")
    scheduler = processes.find(campaigns.airflow.stack.service("scheduler").pid_file)
    assert scheduler is not None
    for pid in children(scheduler):
        os.kill(pid, signal.SIGKILL)
    campaigns.end()
    assert campaigns.paid() == campaigns.measured


def test_a_task_that_is_cleared_while_its_job_runs_leaves_no_job_behind(campaigns: Campaigns) -> None:
    campaigns.start("cleared")
    campaigns.airflow.clear(campaigns.wait_until_deferred())
    campaigns.end()
    assert campaigns.paid() == campaigns.measured + 1  # the job of the cleared task was cancelled


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and their own, which are an executor's workers."""
    done = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    found, parents = [], {pid}
    while parents:
        parents = {child for child, parent in pairs if parent in parents}
        found += sorted(parents)
    return found
