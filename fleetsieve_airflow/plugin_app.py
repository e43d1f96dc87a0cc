"""Pages in Airflow's UI: the history of campaigns, and a tab with the report on every DAG run.

Read-only: what is shown comes from MLflow through the configured connections, and who may see it is Airflow's
to say. Each route asks Airflow for the user and for the right to read the DAG that a campaign belongs to,
because a mounted application is otherwise open to everyone. Links are relative, so that the pages work below
any base path. Reports are files that others may have written: they are shown without scripts and without our
origin.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast
from urllib.parse import urlencode

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from airflow.configuration import conf
from airflow.sdk.exceptions import AirflowNotFoundException
from fastapi import Depends, FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse

from fleetsieve_airflow import plugin_pages as pages
from fleetsieve_airflow.errors import FleetsieveError

if TYPE_CHECKING:
    from fleetsieve_airflow.hooks.mlflow import CampaignRef, CampaignSummary, MlflowHook

PREFIX = "/fleetsieve"
#: Seconds a page waits for an MLflow that does not answer: somebody is looking at it.
PATIENCE_S = 4.0
#: No campaign began after the year 5138.
MILLISECONDS_MAX = 10**14
#: Campaigns on one page of the list.
CAMPAIGNS_SHOWN = 25
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": POLICY,
}
REPORT_HEADERS = {**HEADERS, "Content-Security-Policy": f"{POLICY}; sandbox allow-popups"}

app = FastAPI(title="FleetSieve", docs_url=None, redoc_url=None, openapi_url=None)


@dataclass(frozen=True)
class Reader:
    """Who is asking, and which campaigns Airflow lets them see."""

    dag_ids: frozenset[str]
    reads_every_dag: bool

    def may_see(self, campaign: CampaignSummary) -> bool:
        """Return whether they may read its DAG; a campaign that no DAG opened takes the right to read all."""
        return campaign.dag_id in self.dag_ids or (not campaign.dag_id and self.reads_every_dag)


def reader(user: Annotated[Any, Depends(get_user)]) -> Reader:
    """Return what the user may read.

    :raises HTTPException: 401 without credentials, 403 without the right to read any DAG.
    """
    manager = get_auth_manager()
    found = Reader(
        dag_ids=frozenset(manager.get_authorized_dag_ids(user=user, method="GET")),
        reads_every_dag=manager.is_authorized_dag(method="GET", user=user),
    )
    if not found.dag_ids and not found.reads_every_dag:
        raise HTTPException(403, "You may not read any DAG.")
    return found


def connections() -> tuple[str, ...]:
    """Return the ids of the MLflow connections that the pages may use."""
    ids = conf.get("fleetsieve", "mlflow_conn_ids", fallback="mlflow_default")
    return tuple(dict.fromkeys(name.strip() for name in ids.split(",") if name.strip()))


def hook_for(conn_id: str) -> MlflowHook:
    """Return the hook of a connection, with little patience."""
    from fleetsieve_airflow.hooks.mlflow import MlflowHook

    return MlflowHook(conn_id, retry_for_s=PATIENCE_S)


@app.get("/plans", response_class=HTMLResponse)
def plans(
    who: Annotated[Reader, Depends(reader)],
    conn_id: str = "",
    before: Annotated[int | None, Query(ge=0, le=MILLISECONDS_MAX)] = None,
) -> HTMLResponse:
    """List the newest campaigns of every configured MLflow, or those of one that began before some time.

    :param before: milliseconds since 1970.
    """
    listed = [name for name in connections() if conn_id in ("", name)]
    sections = [_section(name, who, before) for name in listed]
    return HTMLResponse(pages.plans_page(sections), headers=HEADERS)


@app.get("/report", response_class=HTMLResponse)
def report(
    conn_id: str, fleet: str, campaign_id: str, who: Annotated[Reader, Depends(reader)]
) -> HTMLResponse:
    """Show the report of one campaign."""
    if conn_id not in connections():
        raise HTTPException(404, "No such campaign.")
    hook = hook_for(conn_id)
    try:
        listed = hook.list_campaigns(fleet)
    except FleetsieveError as error:
        return HTMLResponse(pages.message_page(str(error)), headers=HEADERS)
    found = next(
        (item for item in listed if item.campaign.campaign_id == campaign_id and who.may_see(item)), None
    )
    if found is None:
        raise HTTPException(404, "No such campaign.")
    return _report(hook, found.campaign)


@app.get("/dag-run", response_class=HTMLResponse, dependencies=[Depends(get_user)])
def dag_run(
    dag_id: str,
    run_id: str,
    _: Annotated[None, Depends(requires_access_dag("GET", DagAccessEntity.RUN))],
) -> HTMLResponse:
    """Show the report of the campaign that a DAG run is, or is a round of."""
    opened = opened_campaign(dag_id, run_id)
    if opened is None:
        return HTMLResponse(pages.message_page(pages.NO_CAMPAIGN), headers=HEADERS)
    problems: list[str] = []
    for conn_id in connections():
        hook = hook_for(conn_id)
        try:
            found = hook.find_campaign(opened["fleet"], opened["campaign_id"])
        except FleetsieveError as error:
            problems.append(str(error))
            continue
        if found is not None and found.run_id == opened["run_id"]:
            return _report(hook, found)
    return HTMLResponse(pages.message_page(*(problems or [pages.NOT_FOUND])), headers=HEADERS)


def opened_campaign(dag_id: str, run_id: str) -> dict[str, Any] | None:
    """Return what the open_campaign task of a DAG run returned, or None where nothing did."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    query = XComModel.get_many(
        run_id=run_id, dag_ids=[dag_id], task_ids=["open_campaign"], key="return_value"
    )
    with create_session() as session:
        row = session.scalars(query).first()
        value = None if row is None else XComModel.deserialize_value(row)
    wanted = {"fleet", "campaign_id", "run_id"}
    return cast(dict[str, Any], value) if isinstance(value, dict) and wanted <= set(value) else None


def _report(hook: MlflowHook, campaign: CampaignRef) -> HTMLResponse:
    from fleetsieve_airflow.hooks.mlflow_files import find_text
    from fleetsieve_airflow.reporting.layout import REPORT_FILE

    try:
        html = find_text(hook.client, campaign.run_id, REPORT_FILE)
    except FleetsieveError as error:
        return HTMLResponse(pages.message_page(str(error)), headers=HEADERS)
    if html is None:
        return HTMLResponse(pages.message_page(pages.NO_REPORT_YET), headers=HEADERS)
    return HTMLResponse(html, headers=REPORT_HEADERS)


def _section(conn_id: str, who: Reader, before_ms: int | None) -> pages.Section:
    try:
        hook = hook_for(conn_id)
        shown, more = _first(filter(who.may_see, hook.newest_campaigns(before_ms=before_ms)))
        rows = tuple(_row(hook, conn_id, item) for item in shown)
    except FleetsieveError as error:
        return pages.Section(title=conn_id, problem=str(error))
    except AirflowNotFoundException:
        return pages.Section(title=conn_id, problem=f"Airflow has no connection {conn_id!r}.")
    older = urlencode({"conn_id": conn_id, "before": shown[-1].campaign.started_ms}) if more else ""
    return pages.Section(
        title=conn_id,
        rows=rows,
        older_url=f"plans?{older}" if more else "",
        newest_url="" if before_ms is None else "plans",
    )


def _first(campaigns: Iterable[CampaignSummary]) -> tuple[list[CampaignSummary], bool]:
    """Return one page of campaigns, and whether there are older ones.

    Those that began in the same millisecond stay together: the next page begins before it.
    """
    shown: list[CampaignSummary] = []
    for item in campaigns:
        if len(shown) >= CAMPAIGNS_SHOWN and item.campaign.started_ms < shown[-1].campaign.started_ms:
            return shown, True
        shown.append(item)
    return shown, False


def _row(hook: MlflowHook, conn_id: str, item: CampaignSummary) -> pages.Row:
    campaign = item.campaign
    query = urlencode({"conn_id": conn_id, "fleet": campaign.fleet, "campaign_id": campaign.campaign_id})
    return pages.Row(item, report_url=f"report?{query}", mlflow_url=hook.campaign_url(campaign))
