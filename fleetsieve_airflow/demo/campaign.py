"""Run one campaign on local servers: trigger the DAG over REST, follow it in MLflow, fetch its results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetsieve_airflow.demo import processes
from fleetsieve_airflow.demo.processes import DemoError
from fleetsieve_airflow.demo.rest import AirflowApi
from fleetsieve_airflow.demo.stack import Stack
from fleetsieve_airflow.errors import EvidenceError
from fleetsieve_airflow.evidence import Decision
from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from fleetsieve_airflow.records import FleetSpec

DAG_ID = "fleet_plan"
POLL_S = 2.0
ENDED = ("success", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A campaign that came to its end, with everything it left in MLflow."""

    spec: FleetSpec
    decisions: tuple[Decision, ...]
    certificate: dict[str, Any]
    report: str
    url: str


class Follower:
    """Tells each decided round of a campaign once, in order, as they appear in MLflow."""

    def __init__(
        self, hook: MlflowHook, fleet: str, campaign_id: str, on_round: Callable[[Decision], None]
    ) -> None:
        self.hook = hook
        self._named = (fleet, campaign_id)
        self._on_round = on_round
        self._campaign: CampaignRef | None = None
        self._told = 0

    def look(self) -> None:
        """Tell the rounds that were decided since the last look."""
        self._campaign = self._campaign or self.hook.find_campaign(*self._named)
        while self._campaign is not None:
            try:
                decision = self.hook.load_round(self._campaign, self._told + 1)
            except EvidenceError:
                return
            self._told += 1
            self._on_round(decision)


def wait_for_dag(stack: Stack, api: AirflowApi, dag_id: str = DAG_ID, *, timeout_s: float = 120.0) -> None:
    """Wait until Airflow has read the DAG file, then let the DAG run."""
    processes.wait_until(
        lambda: api.knows_dag(dag_id), f"the DAG {dag_id}", stack.services(), timeout_s=timeout_s
    )
    api.unpause(dag_id)


def start_campaign(api: AirflowApi, campaign_id: str, *, fleet_file: str = "") -> None:
    """Trigger a campaign of a fleet file, or of the DAG's own one."""
    conf = {"campaign_id": campaign_id, "reason": "demo"} | ({"fleet": fleet_file} if fleet_file else {})
    api.trigger(DAG_ID, conf, run_id=f"{campaign_id}__r01")


def follow_campaign(
    stack: Stack,
    api: AirflowApi,
    *,
    fleet: str,
    campaign_id: str,
    on_round: Callable[[Decision], None] = lambda decision: None,
    timeout_s: float = 900.0,
) -> Outcome:
    """Wait for the end of a campaign that was started, and fetch its results.

    :param fleet: the fleet's name, as its file says it.
    :param on_round: called once for each decided round, in order.
    :raises DemoError: a run failed, a server died, or the time is over.
    """
    follower = Follower(MlflowHook(tracking_uri=stack.settings.mlflow_url), fleet, campaign_id, on_round)
    deadline = time.monotonic() + timeout_s
    while not has_ended(runs_of(api, campaign_id)):
        follower.look()
        for service in stack.services():
            if processes.find(service.pid_file) is None:
                raise DemoError(f"{service.name} ended during the campaign.\n{processes.tail(service.log)}")
        if time.monotonic() > deadline:
            raise DemoError(f"No end within {timeout_s:.0f} s.\n{trouble(stack, api, campaign_id)}")
        time.sleep(POLL_S)
    follower.look()
    if any(run["state"] == "failed" for run in runs_of(api, campaign_id)):
        raise DemoError(f"The campaign failed.\n{trouble(stack, api, campaign_id)}")
    return fetch_outcome(follower.hook, fleet, campaign_id)


def runs_of(api: AirflowApi, campaign_id: str) -> list[dict[str, Any]]:
    """Return the DAG runs of a campaign: one on Airflow 3.4, one for each round on 3.3."""
    return [run for run in api.dag_runs(DAG_ID) if run["dag_run_id"].startswith(f"{campaign_id}__r")]


def has_ended(runs: Sequence[dict[str, Any]]) -> bool:
    """Return whether no run is left: a round triggers the next one before it ends itself."""
    return bool(runs) and all(run["state"] in ENDED for run in runs)


def fetch_outcome(hook: MlflowHook, fleet: str, campaign_id: str) -> Outcome:
    """Read spec, rounds, certificate and report of a finished campaign.

    :raises DemoError: the campaign has no certificate.
    """
    from fleetsieve_airflow.hooks.mlflow_files import read_text
    from fleetsieve_airflow.reporting.layout import REPORT_FILE

    campaign = hook.find_campaign(fleet, campaign_id)
    certificate = hook.load_certificate(campaign) if campaign else None
    if campaign is None or certificate is None:
        raise DemoError(f"Campaign {campaign_id!r} of fleet {fleet!r} has no certificate in MLflow.")
    return Outcome(
        spec=hook.load_spec(campaign),
        decisions=hook.load_rounds(campaign),
        certificate=certificate,
        report=read_text(hook.client, campaign.run_id, REPORT_FILE),
        url=hook.campaign_url(campaign),
    )


def trouble(stack: Stack, api: AirflowApi, campaign_id: str) -> str:
    """Say which tasks did not succeed, with the end of the first failed task's log."""
    lines: list[str] = []
    logs: list[Path] = []
    for run in runs_of(api, campaign_id):
        run_id = run["dag_run_id"]
        for task in api.task_instances(DAG_ID, run_id):
            if task["state"] not in ("success", "skipped"):
                lines.append(f"  {run_id}: {task['task_id']} is {task['state']}")
            if task["state"] == "failed":
                folder = stack.home.airflow / "logs" / f"dag_id={DAG_ID}" / f"run_id={run_id}"
                logs += sorted(folder.glob(f"task_id={task['task_id']}/**/*.log"))[-1:]
    return "\n".join([*lines, *(processes.tail(log) for log in logs[:1])])


def write_results(folder: Path, outcome: Outcome, wall_s: float) -> dict[str, Any]:
    """Write ``certificate.json``, ``report.html`` and ``summary.json`` and return the summary.

    :param wall_s: seconds that everything took, from the command to the certificate.
    """
    last = outcome.decisions[-1]
    certificate, report = folder / "certificate.json", folder / "report.html"
    certificate.write_text(json.dumps(outcome.certificate, indent=2) + "\n")
    report.write_text(outcome.report)
    summary = {
        "state": last.state,
        "plan": last.conservative.replicas(),
        "gpu_seconds_window": last.spend.gpu_seconds_window,
        "rounds": last.round,
        "wall_s": round(wall_s, 1),
        "certificate": str(certificate),
        "report": str(report),
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return summary
