"""How a long history feels: ``python -m benchmarks.history`` fills MLflow and times three uses of it.

One campaign of each fleet is played and written as the DAG's tasks write it; the others are copies of it in
MLflow's own database, with ids, names and dates of their own. Every campaign measured its points itself, all
for the same release of the model: no history of that length has more that a decision must look through.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fleetsieve_airflow.backends.replay import ReplayBackend
from fleetsieve_airflow.campaign import known_after, run_campaign, verdicts_of
from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.demo import processes
from fleetsieve_airflow.demo.home import Home
from fleetsieve_airflow.demo.stack import Stack
from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from fleetsieve_airflow.operators.reports import log_report
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting import layout, views
from fleetsieve_airflow.spec import load_spec

EXAMPLE = Path(__file__).resolve().parents[1] / "dags" / "fleets" / "chat_and_code_h100.yaml"
CAMPAIGNS, FLEETS, TIMES = 200, 20, 7
LIMIT_S = 2.0
DAG_ID = "fleet_plan"
_DAY_MS = 86_400_000
#: MLflow's tables that hold a run, beside ``runs`` itself.
_TABLES = ("tags", "params", "metrics", "latest_metrics")


def write_campaign(
    hook: MlflowHook, spec: FleetSpec, campaign_id: str, *, reason: str = "weekly", dag_id: str = DAG_ID
) -> CampaignRef:
    """Play a campaign on a recorded grid and write it as the DAG's tasks do."""
    campaign = hook.open_campaign(spec, campaign_id, reason=reason, airflow={"dag_id": dag_id})
    result = run_campaign(spec, ReplayBackend(), campaign_id=campaign_id)
    for item in result.evidence.items:
        claim = hook.claim_measurement(item.measurement.point, campaign, item.round)
        hook.finish_measurement(claim.run_id, item.measurement, spec)
    evidence = hook.load_evidence(spec, campaign, rounds_done=result.evidence.rounds_done)
    for decision in result.decisions:
        known = known_after(evidence, decision.round - 1)
        hook.log_round(campaign, spec, decision, known, verdicts=verdicts_of(spec, known))
    last = result.decision
    log_report(hook, campaign, spec, evidence, last.round, result.certificate)
    hook.finish_campaign(campaign, result.certificate, last.state)
    return campaign


@dataclass(frozen=True, slots=True)
class Store:
    """MLflow's SQLite database, while no server has it open for writing."""

    path: Path

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """Write in one transaction."""
        connection = sqlite3.connect(self.path, timeout=60)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    def backdate(self, campaign: CampaignRef, days: int) -> None:
        """Let a campaign and what it measured have been ``days`` ago."""
        with self.open() as connection:
            ids = [campaign.run_id, *_measured_by(connection, campaign)]
            began = datetime.fromtimestamp(campaign.started_ms / 1000, UTC) - timedelta(days=days)
            _move(connection, ids, days * _DAY_MS)
            name = layout.plan_run_name(began.date().isoformat(), campaign.name.split("-", 3)[-1])
            _rename(connection, campaign.run_id, ids, name)

    def copy(self, campaign: CampaignRef, number: int, days: int) -> None:
        """Write a campaign again under ids of its own, ``days`` before the one it is a copy of."""
        with self.open() as connection:
            measured = _measured_by(connection, campaign)
            new = {run_id: _shifted(run_id, number) for run_id in (campaign.run_id, *measured)}
            key = layout.plan_key(f"{campaign.campaign_id}-{number}")
            for old_id, new_id in new.items():
                _copy_run(connection, old_id, new_id)
            ids = list(new.values())
            marks = ",".join("?" * len(ids))
            for old, fresh in {campaign.key: key, campaign.run_id: new[campaign.run_id]}.items():
                change = f"UPDATE tags SET value = ? WHERE value = ? AND run_uuid IN ({marks})"  # noqa: S608
                connection.execute(change, (fresh, old, *ids))
            owned = (
                "UPDATE tags SET value = substr(?, 1, 16) || substr(value, 17) WHERE key = ? AND run_uuid IN"
            )
            connection.execute(f"{owned} ({marks})", (key, layout.TAG_OWNER, *ids))
            named = "UPDATE tags SET value = ? WHERE key = ? AND run_uuid = ?"
            connection.execute(
                named, (f"{campaign.campaign_id}-{number}", layout.TAG_CAMPAIGN_ID, new[campaign.run_id])
            )
            _move(connection, ids, days * _DAY_MS)
            began = datetime.fromtimestamp(campaign.started_ms / 1000, UTC) - timedelta(days=days)
            name = layout.plan_run_name(began.date().isoformat(), campaign.name.split("-", 3)[-1])
            _rename(connection, new[campaign.run_id], ids, name)


def _measured_by(connection: sqlite3.Connection, campaign: CampaignRef) -> list[str]:
    # Campaigns of different fleets may have one id.
    query = (
        "SELECT run_uuid FROM tags JOIN runs USING (run_uuid) "
        "WHERE key = ? AND value = ? AND experiment_id = ?"
    )
    found = connection.execute(query, (layout.TAG_CAMPAIGN, campaign.key, campaign.measurements_id))
    return [row[0] for row in found]


def _shifted(run_id: str, number: int) -> str:
    return f"{(int(run_id, 16) + number) % 16**32:032x}"


def _copy_run(connection: sqlite3.Connection, old_id: str, new_id: str) -> None:
    for table in ("runs", *_TABLES):
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        chosen = ["?" if column == "run_uuid" else f'"{column}"' for column in columns]
        copy = f"INSERT INTO {table} SELECT {', '.join(chosen)} FROM {table} WHERE run_uuid = ?"  # noqa: S608
        connection.execute(copy, (new_id, old_id))
    (uri,) = connection.execute("SELECT artifact_uri FROM runs WHERE run_uuid = ?", (old_id,)).fetchone()
    target = uri.replace(old_id, new_id)
    connection.execute("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", (target, new_id))
    source = Path(uri.removeprefix("file://"))
    if source.is_dir():
        # Nobody writes to the artifacts of campaigns that have ended.
        shutil.copytree(source, target.removeprefix("file://"), copy_function=os.link)


def _move(connection: sqlite3.Connection, ids: Sequence[str], by_ms: int) -> None:
    marks = ",".join("?" * len(ids))
    moved = {"runs": ("start_time", "end_time"), "metrics": ("timestamp",), "latest_metrics": ("timestamp",)}
    for table, columns in moved.items():
        earlier = ", ".join(f"{column} = {column} - {by_ms}" for column in columns)
        connection.execute(f"UPDATE {table} SET {earlier} WHERE run_uuid IN ({marks})", tuple(ids))  # noqa: S608


def _rename(connection: sqlite3.Connection, run_id: str, ids: Sequence[str], name: str) -> None:
    marks = ",".join("?" * len(ids))
    connection.execute("UPDATE runs SET name = ? WHERE run_uuid = ?", (name, run_id))
    tagged = "UPDATE tags SET value = ? WHERE key = ? AND run_uuid IN"
    connection.execute(f"{tagged} (?)", (name, "mlflow.runName", run_id))
    connection.execute(f"{tagged} ({marks})", (name, layout.TAG_PLAN_NAME, *ids))


@dataclass(frozen=True, slots=True)
class Timing:
    """How long something took, seconds: the first time, when nothing was read before, and later times."""

    what: str
    first_s: float
    median_s: float
    worst_s: float

    def row(self) -> str:
        """Return a line of the printed table."""
        return f"| {self.what} | {self.first_s:.2f} | {self.median_s:.2f} | {self.worst_s:.2f} |"


def timed(what: str, function: Callable[[], object]) -> Timing:
    """Do something several times and say how long it took."""
    took = []
    for _ in range(1 + TIMES):
        began = time.perf_counter()
        function()
        took.append(time.perf_counter() - began)
    later = took[1:]
    return Timing(what=what, first_s=took[0], median_s=statistics.median(later), worst_s=max(later))


def fill(home: Home, campaigns: int, fleets: int) -> tuple[FleetSpec, CampaignRef]:
    """Write a history: one fleet with all the campaigns, which is returned, and the others with some."""
    database = home.mlflow / "mlflow.db"
    hook, store = MlflowHook(tracking_uri=f"sqlite:///{database}"), Store(database)
    spec = load_spec(EXAMPLE)
    for number in reversed(range(fleets)):
        one = replace(spec, fleet=f"fleet-{number:02d}")
        campaign = write_campaign(hook, one, "weekly")
        copies = campaigns if number == 0 else campaigns // fleets
        for copy in range(1, copies):
            store.copy(campaign, copy, days=copy)
    return one, campaign


def search_as_the_browser(url: str, experiment_id: str) -> list[dict[str, Any]]:
    """Search the first page of campaigns as MLflow's browser does when a plans view is opened."""
    state = views.plans_state()
    asked = {
        "experiment_ids": [experiment_id],
        "filter": state["searchFilter"],
        "order_by": [f"{state['orderByKey']} DESC"],
        "run_view_type": "ACTIVE_ONLY",
        "max_results": 100,
    }
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{url}/ajax-api/2.0/mlflow/runs/search",
        data=json.dumps(asked).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - loopback
        found: list[dict[str, Any]] = json.load(answer)["runs"]
        return found


def read_page(url: str, token: str) -> str:
    """Return a page of Airflow."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - loopback
        return str(answer.read().decode())


def next_decision(hook: MlflowHook, spec: FleetSpec, number: int) -> None:
    """Begin a campaign and decide its first round: what is known is all that was ever measured."""
    campaign = hook.open_campaign(spec, f"next-{number}")
    evidence = hook.load_evidence(spec, campaign, rounds_done=0)
    if decide(spec, evidence).state != "certified_feasible":
        raise RuntimeError("The history does not settle the decision it is made of.")
    hook.stop_campaign(campaign, "only timed")


def measure(stack: Stack, spec: FleetSpec, campaign: CampaignRef) -> list[Timing]:
    """Time the three uses against running servers."""
    settings, hook = stack.settings, MlflowHook(tracking_uri=stack.settings.mlflow_url)
    token = stack.api().token
    numbers = iter(range(1 + TIMES))

    def browse() -> None:
        if len(search_as_the_browser(settings.mlflow_url, campaign.plans_id)) < 50:
            raise RuntimeError("MLflow lists too few campaigns.")

    def look() -> None:
        if read_page(f"{settings.airflow_url}/fleetsieve/plans", token).count("certified") < 25:
            raise RuntimeError("The page lists too few campaigns.")

    return [
        timed("MLflow's plans view: the search", browse),
        timed("Airflow's page *Fleet plans*", look),
        timed("open a campaign, read the evidence, decide", lambda: next_decision(hook, spec, next(numbers))),
    ]


def start(stack: Stack) -> None:
    """Start MLflow and Airflow's API server: nothing is run, so nothing else is needed."""
    environment = stack.environment()
    for command in (("db", "migrate"), ("dags", "reserialize")):
        program = str(Path(sys.executable).with_name("airflow"))
        processes.run([program, *command], environment, stack.home.logs / "airflow-migrate.log")
    services = [stack.service("mlflow"), stack.service("api-server")]
    for service in services:
        processes.start(service)
    pages = (f"{stack.settings.airflow_url}/api/v2/version", f"{stack.settings.mlflow_url}/health")
    processes.wait_until(
        lambda: all(processes.answers(page) for page in pages), "both servers", services, timeout_s=600.0
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Fill, time, print; the exit code says whether everything stayed under the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history", description=__doc__)
    parser.add_argument("--campaigns", type=int, default=CAMPAIGNS, help="campaigns of one fleet")
    parser.add_argument(
        "--fleets", type=int, default=FLEETS, help="fleets; the others share as many campaigns"
    )
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="fleetsieve-history-") as folder:
        stack = Stack.at(Path(folder), EXAMPLE.parents[1])
        try:
            began = time.perf_counter()
            spec, campaign = fill(stack.home, arguments.campaigns, arguments.fleets)
            print(f"Filled in {time.perf_counter() - began:.0f} s", file=sys.stderr)
            start(stack)
            timings = measure(stack, spec, campaign)
        finally:
            stack.stop()
    print(
        f"{arguments.campaigns} campaigns of one fleet, {arguments.fleets} fleets; seconds, {TIMES} times:\n"
    )
    print("| what | first | median | worst |\n|---|---|---|---|")
    print("\n".join(timing.row() for timing in timings))
    return int(any(timing.worst_s > LIMIT_S for timing in timings))


if __name__ == "__main__":
    sys.exit(main())
