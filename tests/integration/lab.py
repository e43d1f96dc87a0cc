"""A real Airflow and a real MLflow, and campaigns in them that tests disturb."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from fleetsieve_airflow.backends.replay import ReplayBackend
from fleetsieve_airflow.campaign import CampaignResult, run_campaign
from fleetsieve_airflow.core.certificate import verify_certificate
from fleetsieve_airflow.demo import processes
from fleetsieve_airflow.demo.campaign import DAG_ID, Outcome, follow_campaign, runs_of, start_campaign
from fleetsieve_airflow.demo.rest import AirflowApi
from fleetsieve_airflow.demo.stack import Stack
from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint
from fleetsieve_airflow.hooks.mlflow import MlflowHook
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting import layout
from fleetsieve_airflow.spec import load_spec

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "dags" / "fleets" / "chat_and_code_h100.yaml"
GRID = REPOSITORY / "fleetsieve_airflow" / "data" / "paper_grid.csv"
PATIENCE_S = 1800.0
WEBHOOK_SECRET = "only-for-tests-of-the-webhook"
#: How long deaths go unnoticed; with Airflow's defaults it is five minutes.
IMPATIENT = {
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "45",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "30",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet of one test: its file, its spec, and the folder that controls its measuring."""

    name: str
    file: str
    spec: FleetSpec
    control: Path

    def attempts(self) -> list[str]:
        """Keys of all attempts to measure that began, in order."""
        return self._keys("attempts")

    def measured(self) -> list[str]:
        """Keys of all attempts that ended with a measurement, in order."""
        return self._keys("measured")

    def fail(self, label: str, *, times: int) -> None:
        """Let the tasks that measure a point crash the next ``times``."""
        (self.control / "fail").mkdir(exist_ok=True)
        (self.control / "fail" / label.replace("/", "-")).write_text(str(times))

    def _keys(self, name: str) -> list[str]:
        file = self.control / name
        return [line.split()[0] for line in file.read_text().splitlines()] if file.is_file() else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """The servers, and what tests do with them."""

    stack: Stack
    api: AirflowApi
    control: Path

    @property
    def hook(self) -> MlflowHook:
        """A hook on the lab's MLflow."""
        return MlflowHook(tracking_uri=self.stack.settings.mlflow_url)

    def fleet(
        self,
        name: str,
        *,
        delay_s: float = 0.0,
        copies: int = 1,
        demand_scale: float = 1.0,
        registered_model: str = "",
    ) -> Fleet:
        """Write a fleet of the shipped example's workloads.

        :param copies: how often each workload is there, with GPUs to measure and to serve them all.
        :param demand_scale: multiplies the demands; more than can be served takes more rounds.
        :param registered_model: what its model is called in MLflow's registry.
        """
        folder = self.stack.dags_folder / "fleets"
        document = yaml.safe_load(EXAMPLE.read_text())
        document["fleet"] = name
        document["measurement"] |= {"profiling_gpus": 8 * copies, "grid": f"{name}.csv"}
        document["pools"]["h100"]["gpus"] *= copies
        # As most fleets: without a limit of rounds, which must not differ with and without Airflow.
        del document["budget"]
        if registered_model:
            (model,) = document["models"].values()
            model["registered_model"] = registered_model
        document["workloads"] = {
            f"{workload}-{copy}": {
                **asked,
                "demand_rps": asked["demand_rps"] * demand_scale,
                "trace": {"name": f"{workload}-{copy}"},
            }
            for workload, asked in document["workloads"].items()
            for copy in range(1, copies + 1)
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
        (folder / f"{name}.csv").write_text(grid_with_copies(copies))
        control = self.control / name
        control.mkdir()
        (control / "delay_s").write_text(str(delay_s))
        spec = load_spec(folder / f"{name}.yaml")
        return Fleet(name=name, file=f"fleets/{name}.yaml", spec=spec, control=control)

    def start(self, fleet: Fleet, campaign_id: str) -> None:
        """Trigger a campaign."""
        start_campaign(self.api, campaign_id, fleet_file=fleet.file)

    def follow(self, fleet: Fleet, campaign_id: str) -> Outcome:
        """Wait for a campaign's end, and hold its certificate to its evidence."""
        outcome = follow_campaign(
            self.stack, self.api, fleet=fleet.name, campaign_id=campaign_id, timeout_s=PATIENCE_S
        )
        assert verify_certificate(outcome.certificate) == ()
        return outcome

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something to happen."""
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up, f"{what} did not happen"
            time.sleep(0.2)

    def kill(self, server: str) -> None:
        """End a server as a power cut would."""
        processes.kill(self.stack.service(server).pid_file)

    def restart(self, server: str) -> None:
        """Start a server again and wait until everything is healthy."""
        processes.start(self.stack.service(server))
        self.stack.wait_until_healthy(self.stack.services())

    def clear(self, task: dict[str, Any]) -> None:
        """Clear a task instance with all that follows it, as a user does in the grid."""
        self.api.post(
            f"dags/{DAG_ID}/clearTaskInstances",
            {
                "dry_run": False,
                "dag_run_id": task["dag_run_id"],
                "task_ids": [[task["task_id"], task["map_index"]]],
                "include_downstream": True,
                "only_failed": False,
                "reset_dag_runs": True,
            },
        )

    def task(self, campaign_id: str, round_number: int, task_id: str) -> list[dict[str, Any]]:
        """Return the instances of a round's task, on either kind of loop."""
        runs = runs_of(self.api, campaign_id)
        if len(runs) == 1:
            tasks = self.api.task_instances(DAG_ID, runs[0]["dag_run_id"])
            return [
                task
                for task in tasks
                if task["task_id"] == task_id
                and (task.get("loop_iteration") or {}).get("iteration", 0) == round_number - 1
            ]
        run_id = f"{campaign_id}__r{round_number:02d}"
        return [task for task in self.api.task_instances(DAG_ID, run_id) if task["task_id"] == task_id]

    def finished_runs(self, fleet: Fleet) -> list[str]:
        """Keys of all measurement runs in MLflow that ended well, one entry for each run."""
        reference = self.hook.ensure_fleet(fleet.name)
        runs = self.hook.get_conn().search_runs(
            [reference.measurements_id], "attributes.status = 'FINISHED'", max_results=1000
        )
        return [run.data.tags[layout.TAG_KEY] for run in runs]


def grid_with_copies(copies: int) -> str:
    """Return the shipped grid with each workload recorded under several names."""
    head, *rows = GRID.read_text().splitlines()
    column = head.split(",").index("workload")
    lines = [head]
    for row in rows:
        for copy in range(1, copies + 1):
            cells = row.split(",")
            cells[column] += f"-{copy}"
            lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def undisturbed(fleet: Fleet) -> CampaignResult:
    """Return the campaign of the fleet when nothing goes wrong, planned without Airflow and MLflow."""
    return run_campaign(fleet.spec, ReplayBackend())


def make_lab(
    root: Path,
    *,
    base_path: str = "",
    airflow_database: str = "",
    mlflow_database: str = "",
    options: Mapping[str, str] | None = None,
) -> Lab:
    """Start the servers in a folder of their own.

    :param base_path: path below which browsers reach Airflow, as behind a proxy, e.g. ``/airflow``.
    :param airflow_database: SQLAlchemy address of an empty database, as ``mlflow_database``; empty: SQLite.
    :param options: further environment variables of all servers.
    """
    dags = root / "dags"
    shutil.copytree(Path(__file__).parent / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
    (dags / "fleets").mkdir()
    shutil.copy(EXAMPLE, dags / "fleets" / "base.yaml")
    control = root / "control"
    control.mkdir()
    extra = {
        "FLEETSIEVE_TEST_CONTROL": str(control),
        **IMPATIENT,
        # MLflow sends webhooks to public https addresses only, and looks for new ones once a minute.
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
        "MLFLOW_WEBHOOK_CACHE_TTL": "1",
        **(options or {}),
    }
    stack = Stack.at(root / "home", dags, extra)
    stack = replace(
        stack,
        settings=replace(stack.settings, base_path=base_path),
        airflow_database=airflow_database,
        mlflow_database=mlflow_database,
    )
    connection = {
        "conn_type": "mlflow",
        "host": stack.settings.mlflow_url,
        "extra": {"webhook_secret": WEBHOOK_SECRET},
    }
    secrets = {
        "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": stack.settings.fernet_key,
        "AIRFLOW_CONN_MLFLOW_DEFAULT": json.dumps(connection),
    }
    stack = replace(stack, extra={**extra, **secrets})
    try:
        stack.start()
        return Lab(stack=stack, api=stack.api(), control=control)
    except BaseException:
        stack.stop()
        raise


class _FailsOnce(ReplayBackend):
    """Replay that cannot measure one point at the first attempt."""

    def __init__(self, victim: MeasurementPoint) -> None:
        super().__init__()
        self._due = {victim.key}

    def measure(self, spec: FleetSpec, point: MeasurementPoint) -> Measurement:
        if point.key in self._due:
            self._due.remove(point.key)
            raise MeasurementError(f"{point.label} was told to fail.")
        return super().measure(spec, point)


def disturbed(fleet: Fleet, victim: MeasurementPoint) -> CampaignResult:
    """Return the campaign in which a point fails in the round that asks for it first."""
    return run_campaign(fleet.spec, _FailsOnce(victim))


def is_asked_for_again(fleet: Fleet, victim: MeasurementPoint) -> bool:
    """Whether a point that failed is measured later: another may have made it needless meanwhile."""
    return any(item.measurement.point == victim for item in disturbed(fleet, victim).evidence.items)
