"""``replan_on_release(...)``: plan every fleet anew that serves a model which was just released.

Wiring only: DAG files import this module, so nothing heavy may be imported here.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher

from fleetsieve_airflow.operators.release import PlanReleasedFleetsOperator
from fleetsieve_airflow.releases import asset_names
from fleetsieve_airflow.triggers.release import POLL_S, MlflowAliasTrigger

DOC = """\
Starts a campaign for every fleet file that serves a model whose alias was moved in MLflow. A campaign that
exists already is not started again: each release is planned once, however often it is told.

Trigger it by hand to look for releases of the last day that have no campaign yet.
"""


def release_asset(
    mlflow_conn_id: str = "mlflow_default", alias: str = "production", watchers: Sequence[AssetWatcher] = ()
) -> Asset:
    """Return the asset whose events are the releases of an alias: recorded by the watcher and the webhook.

    Schedule a DAG of your own on ``Asset.ref(uri=release_asset().uri)``: Airflow stops watching an asset when
    another DAG defines it without watchers.
    """
    name, uri = asset_names(mlflow_conn_id, alias)
    return Asset(name=name, uri=uri, watchers=list(watchers))


def replan_on_release(
    *,
    fleets: str | Path = "fleets",
    dag_id: str = "replan_on_release",
    plan_dag_id: str = "fleet_plan",
    mlflow_conn_id: str = "mlflow_default",
    alias: str = "production",
    models: Sequence[str] = ("*",),
    watch: bool = True,
    poll_s: float = POLL_S,
    **dag_kwargs: Any,
) -> DAG:
    """Build the DAG that plans fleets anew when a model is released; one for each alias of an MLflow server.

    A whole DAG file::

        from fleetsieve_airflow.dag_release import replan_on_release

        dag = replan_on_release(fleets="fleets")

    :param fleets: folder of fleet files; a relative path starts at the folder of the calling DAG file. As in
        ``fleet_plan``, files are named from the DAG file's folder if they are below it, else from this one.
    :param plan_dag_id: the DAG made with ``fleet_plan`` that plans them.
    :param mlflow_conn_id: Airflow connection of the MLflow server with the model registry.
    :param alias: the alias whose moves are releases.
    :param models: names of registered models to watch, or patterns such as ``chat-*``.
    :param watch: look at the registry from the triggerer; False where only the webhook shall tell.
    :param poll_s: seconds between two looks.
    :param dag_kwargs: passed on to Airflow's ``DAG``.
    """
    frame = inspect.currentframe()
    file = Path(frame.f_back.f_code.co_filename if frame and frame.f_back else __file__).resolve()
    folder = (file.parent / fleets).resolve()
    root = file.parent if folder.is_relative_to(file.parent) else folder
    trigger = MlflowAliasTrigger(mlflow_conn_id=mlflow_conn_id, alias=alias, models=models, poll_s=poll_s)
    watchers = [AssetWatcher(name=f"mlflow_{alias}", trigger=trigger)] if watch else []
    asset = release_asset(mlflow_conn_id, alias, watchers)
    settings: dict[str, Any] = {
        "catchup": False,
        "max_active_runs": 1,
        "tags": ["fleetsieve"],
        "doc_md": DOC,
        "description": "Plan fleets anew when a model of theirs is released in MLflow",
        "default_args": {"retries": 3, "retry_delay": timedelta(seconds=20)},
        **dag_kwargs,
    }
    with DAG(dag_id=dag_id, schedule=[asset], **settings) as dag:
        # Airflow takes the file that calls DAG(...) for the DAG file, which would be this module.
        dag.fileloc = str(file)
        PlanReleasedFleetsOperator(
            task_id="plan_fleets",
            asset=asset,
            fleet_folder=str(folder),
            plan_dag_id=plan_dag_id,
            relative_to=str(root),
        )
    return dag
