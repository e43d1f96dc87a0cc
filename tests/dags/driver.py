"""Run a campaign to its end in this process: one DAG run where Airflow has task loops, else one per round."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from fleetsieve_airflow.dag import HAS_TASK_LOOPS
from tests.builders import REPOSITORY

FORBIDDEN_AT_PARSE = ("mlflow", "scipy", "pulp", "pandas", "numpy", "fleetsieve_airflow.core")


@dataclass(frozen=True)
class Run:
    """One DAG run that has ended."""

    run_id: str
    state: str
    tasks: dict[str, list[str]]
    names: tuple[str, ...]
    published: dict[str, Any] | None


def load_dag(folder: Path, dag_id: str = "fleet_plan") -> DAG:
    """Return a DAG that ships, as Airflow finds it in a folder."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(folder))
    assert bag.import_errors == {}
    found = bag.get_dag(dag_id)
    assert found is not None
    return found


def run_campaign(folder: Path, conf: dict[str, Any]) -> list[Run]:
    """Run the DAG, and again with what it passes to its next round, until it passes nothing on."""
    runs = []
    following: dict[str, Any] | None = conf
    while following is not None:
        # Loaded anew as every worker does: a run leaves its parameters behind in the DAG's.
        dag = load_dag(folder)
        # The task that would trigger the next round has no scheduler to trigger it in.
        ended = dag.test(run_conf=following, mark_success_pattern="next_round")
        runs.append(_read(dag, ended))
        following = None if HAS_TASK_LOOPS else xcom(dag, ended.run_id, "route", "conf")
    return runs


def xcom(dag: DAG, run_id: str, task_id: str, key: str = "return_value") -> Any:
    """Return what a task of a run passed on."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    # Inside a task loop every iteration is a region of its own; None looks into all of them.
    everywhere: dict[str, Any] = {"region_id": None} if HAS_TASK_LOOPS else {}
    query = XComModel.get_many(run_id=run_id, dag_ids=[dag.dag_id], task_ids=[task_id], key=key, **everywhere)
    with create_session() as session:
        row = session.scalars(query).first()
        return None if row is None else XComModel.deserialize_value(row)


def _read(dag: DAG, ended: Any) -> Run:
    tasks: dict[str, list[str]] = {}
    names = []
    for instance in ended.get_task_instances():
        tasks.setdefault(instance.task_id, []).append(str(instance.state))
        if instance.task_id == "round.profile" and instance.rendered_map_index is not None:
            names.append(instance.rendered_map_index)
    return Run(
        run_id=ended.run_id,
        state=str(ended.state),
        tasks=tasks,
        names=tuple(sorted(names)),
        published=xcom(dag, ended.run_id, "publish_plan"),
    )


def heavy_imports_of(dag_file: str) -> tuple[str, list[str]]:
    """Parse a DAG file in a new interpreter; its DAG's id, and what of the heavy modules that imported."""
    code = (
        f"import runpy, sys; dag = runpy.run_path({dag_file!r})['dag']; "
        f"print(dag.dag_id, *(name for name in {FORBIDDEN_AT_PARSE!r} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    dag_id, *heavy = done.stdout.strip().splitlines()[-1].split()
    return dag_id, heavy
