"""Find the fleets that a released model concerns, and start the campaigns that plan them anew."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.releases import (
    Release,
    campaign_id_of,
    read_release,
    revision_of,
    versions_in_force,
)
from fleetsieve_airflow.spec_yaml import read_yaml

if TYPE_CHECKING:
    from airflow.sdk import Context

SUFFIXES = (".yaml", ".yml")
REASON_LENGTH = 60
#: How far back a run looks for releases that no run was told of.
LOOK_BACK = timedelta(days=1)
#: How many events say which version each model was released at last.
HISTORY = 1000


class PlanReleasedFleetsOperator(BaseOperator):
    """Start one campaign for every fleet file that serves a model which was just released.

    Airflow may start one run for several events, and may forget to name one that arrives while it starts
    that run. So this reads the asset's own history: every release of the last day counts, whichever run it
    was meant for, and since a campaign's id follows from what it plans, counting a release twice changes
    nothing.

    A fleet is planned at the last released version of each of its models, in one campaign: two models
    released together are one plan. What was never released through the alias stays at the file's revision.

    All in one task: on a busy Airflow every further task between a release and its plan takes seconds.

    Example::

        PlanReleasedFleetsOperator(
            task_id="plan_fleets",
            asset=release_asset(),
            fleet_folder="/opt/airflow/dags/fleets",
            plan_dag_id="fleet_plan",
        )

    :param asset: the asset whose events are releases.
    :param fleet_folder: folder whose fleet files, at any depth, are looked at.
    :param plan_dag_id: the DAG made with ``fleet_plan`` that plans them.
    :param relative_to: folder that the planning DAG names fleet files from; by default ``fleet_folder``.
    :return: run ids of the campaigns that were started; with none, the task is skipped.
    """

    def __init__(
        self, *, asset: Asset, fleet_folder: str, plan_dag_id: str, relative_to: str = "", **kwargs: Any
    ) -> None:
        super().__init__(inlets=[asset], **kwargs)
        self.asset = asset
        self.fleet_folder = fleet_folder
        self.plan_dag_id = plan_dag_id
        self.relative_to = relative_to or fleet_folder

    def execute(self, context: Context) -> list[str]:
        """Read events, read fleet files, start what they ask for together."""
        since = datetime.now(UTC) - LOOK_BACK
        triggering = context["triggering_asset_events"]
        told = list(triggering[self.asset]) if self.asset in triggering else []
        history = list(context["inlet_events"][self.asset].ascending(False).limit(HISTORY))
        due = {release.model for release in _releases([*told, *(e for e in history if e.timestamp >= since)])}
        in_force = versions_in_force(_releases([*history, *told]))
        started = []
        for conf in self._campaigns(due, in_force):
            # As every round's, so that the rounds of a campaign are found together.
            run_id = f"{conf['campaign_id']}__r01"
            is_new = self.start(run_id, conf)
            words = "started" if is_new else "is there already"
            self.log.info("%s, %s: %s %s", conf["fleet"], conf["reason"], run_id, words)
            started += [run_id] if is_new else []
        if not started:
            raise AirflowSkipException(
                f"No campaign to start: no fleet file below {self.fleet_folder} serves {_listed(due)} "
                "at a version that is not planned already."
            )
        return started

    def start(self, run_id: str, conf: Mapping[str, Any]) -> bool:
        """Start a run of the planning DAG, as ``TriggerDagRunOperator`` does for the one that it can start.

        :return: whether there was none of that id before.
        """
        from airflow.sdk.exceptions import ErrorType
        from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

        note = "A model of this fleet was released."
        answer = SUPERVISOR_COMMS.send(
            TriggerDagRun(dag_id=self.plan_dag_id, run_id=run_id, conf=dict(conf), note=note)
        )
        return not (isinstance(answer, ErrorResponse) and answer.error == ErrorType.DAGRUN_ALREADY_EXISTS)

    def _campaigns(self, due: set[str], in_force: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        folder = Path(self.fleet_folder)
        for path in sorted(folder.rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            served = self._served(path, due)
            concerned = sorted(set(served.values()) & due)
            if not concerned:
                continue
            versions = {name: in_force[name] for name in set(served.values()) if name in in_force}
            campaign_id = campaign_id_of(path.relative_to(folder).as_posix(), versions)
            words = " and ".join(f"{name} {revision_of(versions[name])}" for name in concerned)
            yield {
                "fleet": path.relative_to(self.relative_to).as_posix(),
                "campaign_id": campaign_id,
                "reason": f"release {words}"[:REASON_LENGTH],
                "revisions": {
                    model: revision_of(versions[name])
                    for model, name in sorted(served.items())
                    if name in versions
                },
            }

    def _served(self, path: Path, due: set[str]) -> dict[str, str]:
        """Return model -> its name in the registry, of a file that may be wrong elsewhere.

        A file that cannot be read and names a released model counts: its campaign fails and says where the
        mistake is, instead of a fleet that is silently not planned.
        """
        try:
            data = read_yaml(path).data
        except SpecError as error:
            self.log.warning("%s cannot be read: %s", path, error)
            text = path.read_bytes() if os.access(path, os.R_OK) else b""
            return {name: name for name in due if name.encode() in text}
        models = data.get("models") if isinstance(data, dict) else None
        if not isinstance(models, dict):
            return {}
        sections = {str(name): section for name, section in models.items()}
        return {
            name: str((section.get("registered_model") if isinstance(section, dict) else None) or name)
            for name, section in sections.items()
        }


def _releases(events: Iterable[Any]) -> Iterator[Release]:
    for event in events:
        release = read_release(event.extra)
        if release is not None:
            # Who records an event by hand need not say when.
            yield replace(release, at=release.at or event.timestamp.timestamp())


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "a released model"
