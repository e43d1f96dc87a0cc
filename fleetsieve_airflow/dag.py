"""``fleet_plan(...)``: one campaign as a DAG, for users to import in a DAG file of three lines.

A round is one task group: fit -> allocate -> decide -> profile (mapped) -> close_round. Where Airflow has
task loops (3.4), the whole campaign is one DAG run. Before that (3.3) a DAG run is one round and its last
task triggers the run of the next round, under a run id made of the campaign and the round. So nothing is
keyed by the DAG run: the campaign and the round say where things belong, and a task that is retried or
cleared finds what it did before.

Wiring only: DAG files import this module, so nothing heavy may be imported here or by the operators' modules.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import airflow.sdk
from airflow.sdk import DAG, Asset, Param, task, task_group

from fleetsieve_airflow.operators.allocate import DualAllocationOperator
from fleetsieve_airflow.operators.campaign import OpenCampaignOperator
from fleetsieve_airflow.operators.decide import DecideOperator
from fleetsieve_airflow.operators.fit import FitIntervalsOperator
from fleetsieve_airflow.operators.profile import ProfileOperator
from fleetsieve_airflow.operators.publish import NoCertificateOperator, PublishPlanOperator
from fleetsieve_airflow.operators.rounds import CloseRoundOperator
from fleetsieve_airflow.records import ROUNDS_MAX

HAS_TASK_LOOPS = hasattr(airflow.sdk, "LoopDecision")
#: How a task learns its round, from 1: the loop's iteration, or what the run before passed on.
ROUND = "{{ loop.index + 1 }}" if HAS_TASK_LOOPS else "{{ params.round }}"
CAMPAIGN = "{{ params.campaign_id or (dag.dag_id ~ '__' ~ run_id) }}"
#: MLflow may restart, a worker may vanish: nothing is paid twice, so trying again is always right.
RETRIES = {"retries": 3, "retry_delay": timedelta(seconds=20)}
LOOP_REASON_BYTES = 500

DOC = """\
Measures only what can still change the decision and ends with a certificate, or fails saying why there is
none.

- **fleet**: the fleet file, relative to the folder of this DAG file.
- **campaign_id**: empty for a new campaign, or the id of an earlier one to go on with. Either way a point
  that is measured already is reused, whichever campaign paid for it.

The certificate, the report and the measurements are in MLflow: follow *MLflow run* on a task.
"""


def plan_asset(dag_id: str = "fleet_plan") -> Asset:
    """Return the asset that a certified plan updates, for DAGs that act on it.

    The event's ``extra`` names the fleet, the campaign, the state, the plan and the certificate::

        DAG("deploy_fleet", schedule=[plan_asset("fleet_plan")])
    """
    return Asset(name=f"fleetsieve_plan_{dag_id}", uri=f"fleetsieve://plan/{dag_id}")


def fleet_plan(
    *,
    fleet: str | Path,
    dag_id: str = "fleet_plan",
    mlflow_conn_id: str = "mlflow_default",
    schedule: Any = None,
    pool: str = "default_pool",
    max_rounds: int = ROUNDS_MAX,
    planned_alias: str = "",
    profile_args: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """Build the DAG that plans a fleet to its certificate.

    A whole DAG file::

        from fleetsieve_airflow.dag import fleet_plan

        dag = fleet_plan(fleet="fleets/chat_and_code_h100.yaml")

    :param fleet: the fleet file; a relative path starts at the folder of the calling DAG file. It is the
        default of the trigger form, where any other file below the same folder may be named.
    :param dag_id: id of the DAG.
    :param mlflow_conn_id: Airflow connection of the MLflow server that keeps the evidence.
    :param schedule: when to plan anew, as Airflow's ``DAG`` takes it; None: on demand.
    :param pool: Airflow pool of the measuring tasks; a point takes one slot.
    :param max_rounds: rounds that may measure at most; the trigger form may lower it, and the fleet file's
        own budget holds besides. With the default, a fleet has one spec with and without Airflow.
    :param planned_alias: alias that a version in MLflow's model registry gets once its plan meets the demand;
        empty: none. A deployment may act on it, as on :func:`plan_asset`.
    :param profile_args: further arguments of the measuring tasks, e.g. ``{"max_active_tis_per_dagrun": 4}``.
    :param dag_kwargs: passed on to Airflow's ``DAG``.
    """
    frame = inspect.currentframe()
    file = Path(frame.f_back.f_code.co_filename if frame and frame.f_back else __file__).resolve()
    folder, default = _fleet_folder(file.parent, fleet)
    defaults: dict[str, Any] = {
        "catchup": False,
        "tags": ["fleetsieve"],
        "doc_md": DOC,
        "description": "Plan an LLM fleet by measuring only what can still change the decision",
    }
    params = {**_params(default, max_rounds), **dag_kwargs.pop("params", {})}
    default_args = {**RETRIES, **dag_kwargs.pop("default_args", {})}
    settings = {**defaults, **dag_kwargs, "params": params, "default_args": default_args}
    with DAG(dag_id=dag_id, schedule=schedule, **settings) as dag:
        # Airflow takes the file that calls DAG(...) for the DAG file, which would be this module.
        dag.fileloc = str(file)
        opened = OpenCampaignOperator(
            task_id="open_campaign",
            fleet="{{ params.fleet }}",
            fleet_folder=str(folder),
            campaign_id=CAMPAIGN,
            demand_scale="{{ params.demand_scale }}",
            max_rounds="{{ params.max_rounds }}",
            reason="{{ params.reason or dag_run.run_type }}",
            revisions="{{ params.revisions | tojson }}",
            round=1 if HAS_TASK_LOOPS else ROUND,
            mlflow_conn_id=mlflow_conn_id,
        )
        here = {"campaign": opened.output, "mlflow_conn_id": mlflow_conn_id}
        one_round = _round_of(here, {"pool": pool, **(profile_args or {})})
        route = _route()
        end = {**here, "round": route["round"]}
        publish = PublishPlanOperator(
            task_id="publish_plan", outlets=[plan_asset(dag_id)], planned_alias=planned_alias, **end
        )
        refuse = NoCertificateOperator(task_id="no_certificate", **end)
        if HAS_TASK_LOOPS:
            # One iteration more than rounds that measure: the last one only decides on what they found.
            one_round.loop(max_iterations=max_rounds + 1, until=settled) >> route >> [publish, refuse]
        else:
            one_round() >> route >> [publish, refuse, _next_round(route)]
    return dag


def _fleet_folder(dag_folder: Path, fleet: str | Path) -> tuple[Path, str]:
    """Return the folder that fleet files are taken from, and the default file relative to it.

    The default is relative so that every worker finds the file in its own copy of the DAG folder.
    """
    path = (dag_folder / fleet).resolve()
    folder = dag_folder if path.is_relative_to(dag_folder) else path.parent
    return folder, path.relative_to(folder).as_posix()


def _params(fleet: str, max_rounds: int) -> dict[str, Param]:
    params = {
        "fleet": Param(fleet, type="string", title="Fleet file", description="Relative to the DAG's folder."),
        "campaign_id": Param(
            "",
            type="string",
            pattern=r"^[A-Za-z0-9_.~+-]{0,200}$",
            title="Campaign",
            description="Empty: a new campaign. The id of an earlier campaign: go on with it.",
        ),
        "demand_scale": Param(
            1.0,
            type="number",
            exclusiveMinimum=0,
            title="Demand scale",
            description="Multiplies every demand.",
        ),
        "reason": Param(
            "",
            type="string",
            maxLength=60,
            title="Reason",
            description="Part of the campaign's name in MLflow.",
        ),
        "revisions": Param(
            {},
            type="object",
            additionalProperties={"type": "string", "minLength": 1},
            title="Revisions",
            description='Models at another revision than the fleet file says, e.g. {"chat-31b": "v7"}.',
        ),
        "max_rounds": Param(
            max_rounds, type="integer", minimum=1, maximum=max_rounds, title="Most rounds that may measure"
        ),
    }
    if not HAS_TASK_LOOPS:
        params["round"] = Param(
            1,
            type="integer",
            minimum=1,
            title="Round",
            description="Set by the DAG itself; a campaign starts at 1.",
        )
    return params


def _round_of(here: Mapping[str, Any], profile_args: Mapping[str, Any]) -> Any:
    @task_group(group_id="round")
    def one_round() -> None:
        """Fit intervals, solve both allocations, decide, measure what can still change the decision."""
        where = {**here, "round": ROUND}
        fit = FitIntervalsOperator(task_id="fit", **where)
        allocate = DualAllocationOperator(task_id="allocate", fitted=fit.output, **where)
        decide = DecideOperator(task_id="decide", fitted=fit.output, allocation=allocate.output, **where)
        profile = ProfileOperator.partial(
            task_id="profile", map_index_template="{{ point_label }}", **profile_args, **where
        ).expand(point=decide.output)
        # all_done: a round closes also when there was nothing to measure, or when points failed for good.
        CloseRoundOperator(
            task_id="close_round",
            points=decide.output,
            rows=profile.output,
            trigger_rule="all_done",
            **where,
        )

    return one_round


def _route() -> Any:
    @task.branch(task_id="route")
    def route(params: Any = None, ti: Any = None) -> str:
        """Publish the plan, fail without a certificate, or go on to the next round."""
        found = ti.xcom_pull(task_ids="round.close_round")
        # From outside a loop, Airflow returns one value per iteration.
        result = found if isinstance(found, dict) else found[-1]
        ti.xcom_push(key="round", value=result["round"])
        if result["state"].startswith("certified"):
            return "publish_plan"
        if HAS_TASK_LOOPS or result["state"] != "measure" or result["round"] > params["max_rounds"]:
            return "no_certificate"
        campaign_id, following = result["campaign_id"], result["round"] + 1
        ti.xcom_push(key="run_id", value=f"{campaign_id}__r{following:02d}")
        ti.xcom_push(key="conf", value={**params, "campaign_id": campaign_id, "round": following})
        return "next_round"

    return route()


def _next_round(route: Any) -> Any:
    from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

    return TriggerDagRunOperator(
        task_id="next_round",
        trigger_dag_id="{{ dag.dag_id }}",
        trigger_run_id=route["run_id"],
        conf=route["conf"],
        logical_date=None,
        # Clearing this task runs the next round again; without it, it would fail because that run exists.
        reset_dag_run=True,
        note="next round of the campaign",
    )


def settled(*, loop: Any) -> Any:
    """Stop when the decision is settled: certified, infeasible, or the budget is used up."""
    from airflow.sdk import LoopDecision  # type: ignore[attr-defined]

    result = loop.result
    reason = f"round {result['round']}: {result['reason']}"
    return LoopDecision(
        stop=result["state"] != "measure", reason=reason.encode()[:LOOP_REASON_BYTES].decode(errors="ignore")
    )
