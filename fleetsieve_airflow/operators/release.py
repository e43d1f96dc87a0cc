"""Find the fleets that a released model concerns, and the campaigns that plan them anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperator

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


class FindReleasedFleetsOperator(BaseOperator):
    """Return one campaign for every fleet file that serves a model which was just released.

    Airflow may start one run for several events, and may forget to name one that arrives while it starts
    that run. So this reads the asset's own history: every release of the last day counts, whichever run it
    was meant for, and since a campaign's id follows from what it plans, counting a release twice changes
    nothing.

    A fleet is planned at the last released version of each of its models, in one campaign: two models
    released together are one plan. What was never released through the alias stays at the file's revision.

    Example::

        FindReleasedFleetsOperator(task_id="find_fleets", asset=release_asset(), fleet_folder="/dags/fleets")

    :param asset: the asset whose events are releases.
    :param fleet_folder: folder whose fleet files, at any depth, are looked at.
    :param relative_to: folder that the planning DAG names fleet files from; by default ``fleet_folder``.
    :return: for each campaign the run id and the conf of the DAG that plans.
    """

    def __init__(self, *, asset: Asset, fleet_folder: str, relative_to: str = "", **kwargs: Any) -> None:
        super().__init__(inlets=[asset], **kwargs)
        self.asset = asset
        self.fleet_folder = fleet_folder
        self.relative_to = relative_to or fleet_folder

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Read events, read fleet files, bring them together."""
        since = datetime.now(UTC) - LOOK_BACK
        triggering = context["triggering_asset_events"]
        told = list(triggering[self.asset]) if self.asset in triggering else []
        history = list(context["inlet_events"][self.asset].ascending(False).limit(HISTORY))
        due = {release.model for release in _releases([*told, *(e for e in history if e.timestamp >= since)])}
        in_force = versions_in_force(_releases([*history, *told]))
        campaigns = list(self._campaigns(due, in_force))
        if not campaigns:
            self.log.info("No fleet file below %s serves %s.", self.fleet_folder, _listed(due))
        for campaign in campaigns:
            conf = campaign["conf"]
            self.log.info("%s: %s, %s", conf["fleet"], conf["reason"], campaign["trigger_run_id"])
        return campaigns

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
                # As every round's, so that the rounds of a campaign are found together.
                "trigger_run_id": f"{campaign_id}__r01",
                "conf": {
                    "fleet": path.relative_to(self.relative_to).as_posix(),
                    "campaign_id": campaign_id,
                    "reason": f"release {words}"[:REASON_LENGTH],
                    "revisions": {
                        model: revision_of(versions[name])
                        for model, name in sorted(served.items())
                        if name in versions
                    },
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
            text = path.read_text(encoding="utf-8", errors="replace")
            self.log.warning("%s cannot be read: %s", path, error)
            return {name: name for name in due if name in text}
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
