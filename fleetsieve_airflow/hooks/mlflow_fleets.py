"""A fleet's two MLflow experiments: made once, described, with views that open where they should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from fleetsieve_airflow.errors import TrackingError
from fleetsieve_airflow.hooks.mlflow_client import Log, TrackingClient
from fleetsieve_airflow.hooks.mlflow_refs import FleetRef
from fleetsieve_airflow.reporting import layout, views

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment
    from mlflow.store.entities import PagedList

_SQLITE = "sqlite:///"


class FleetStore:
    """Makes and finds fleets.

    :param clock: seconds since 1970; dates the saved views.
    """

    def __init__(self, client: TrackingClient, *, clock: Callable[[], float], log: Log) -> None:
        self._client = client
        self._clock = clock
        self._log = log

    def ensure(self, fleet: str) -> FleetRef:
        """Return the fleet's experiments; made, described and given views where they are not yet.

        :raises SpecError: the fleet's name cannot name an experiment.
        :raises TrackingError: an experiment was deleted, or written by a later release.
        """
        layout.check_name("fleet", fleet)
        plans, measurements = self._ensure(fleet, layout.PLANS), self._ensure(fleet, layout.MEASUREMENTS)
        self._describe(fleet, layout.PLANS, plans, measurements.experiment_id)
        self._describe(fleet, layout.MEASUREMENTS, measurements, plans.experiment_id)
        return FleetRef(
            fleet=fleet, plans_id=str(plans.experiment_id), measurements_id=str(measurements.experiment_id)
        )

    def find(self, fleet: str) -> FleetRef | None:
        """Return the fleet's experiments, or None where it was never planned."""
        layout.check_name("fleet", fleet)
        found = [self._find(fleet, kind) for kind in (layout.PLANS, layout.MEASUREMENTS)]
        if any(experiment is None or experiment.lifecycle_stage == "deleted" for experiment in found):
            return None
        ids = [str(experiment.experiment_id) for experiment in found if experiment]
        return FleetRef(fleet=fleet, plans_id=ids[0], measurements_id=ids[1])

    def all(self) -> tuple[FleetRef, ...]:
        """Return all fleets that were ever planned, sorted by name; one call for up to 500 of them."""
        ids: dict[str, dict[str, str]] = {layout.PLANS: {}, layout.MEASUREMENTS: {}}
        for experiment in self._experiments():
            kind, fleet = experiment.tags.get(layout.TAG_KIND), experiment.tags.get(layout.TAG_FLEET)
            if kind in ids and fleet:
                ids[kind][fleet] = str(experiment.experiment_id)
        plans, measurements = ids[layout.PLANS], ids[layout.MEASUREMENTS]
        return tuple(
            FleetRef(fleet=fleet, plans_id=plans[fleet], measurements_id=measurements[fleet])
            for fleet in sorted(plans.keys() & measurements.keys())
        )

    def _experiments(self) -> Iterator[Experiment]:
        query, token = f"name LIKE '{layout.EXPERIMENT_PREFIX}%'", None
        while True:
            page = self._client.call("list fleets", partial(_page, query, token))
            yield from page
            token = page.token
            if not token:
                return

    def _find(self, fleet: str, kind: layout.Kind) -> Experiment | None:
        name = layout.experiment_name(fleet, kind)
        return self._client.call(f"find {name}", lambda client: client.get_experiment_by_name(name))

    def _ensure(self, fleet: str, kind: layout.Kind) -> Experiment:
        name = layout.experiment_name(fleet, kind)
        folder, tags = artifact_folder(self._client.server.uri, name), _tags(fleet, kind)

        def find_or_create(client: MlflowClient) -> Experiment:
            found = client.get_experiment_by_name(name)
            return found or client.get_experiment(_create(client, name, folder, tags))

        experiment = self._client.call(f"open experiment {name}", find_or_create)
        if experiment.lifecycle_stage == "deleted":
            raise TrackingError(
                f"Experiment {name!r} (id {experiment.experiment_id}) was deleted in MLflow.",
                hint="Restore it with 'mlflow experiments restore', or remove it for good with 'mlflow gc'.",
            )
        return experiment

    def _describe(self, fleet: str, kind: layout.Kind, experiment: Experiment, other_id: str) -> None:
        own_id = str(experiment.experiment_id)
        wanted = _tags(fleet, kind) | {layout.TAG_NOTE: layout.experiment_note(fleet, kind, own_id, other_id)}
        schema = experiment.tags.get(layout.TAG_SCHEMA, layout.SCHEMA)
        if schema != layout.SCHEMA:
            raise TrackingError(
                f"Experiment {experiment.name!r} has layout {schema}, this release writes {layout.SCHEMA}.",
                hint="Upgrade fleetsieve-airflow on this worker.",
            )
        for name, value in wanted.items():
            # A description that somebody has rewritten stays.
            if name not in experiment.tags:
                self._set_tag(experiment, name, value)
        if experiment.tags.get(layout.TAG_VIEWS) != views.VIEWS_VERSION:
            self._save_view(experiment, kind)

    def _save_view(self, experiment: Experiment, kind: layout.Kind) -> None:
        try:
            self._set_tag(experiment, *views.view_tag(kind, round(1000 * self._clock())))
            self._set_tag(experiment, layout.TAG_VIEWS, views.VIEWS_VERSION)
        except TrackingError as error:
            self._log.warning("Saved view %r of %s was not written: %s", kind, experiment.name, error)

    def _set_tag(self, experiment: Experiment, name: str, value: str) -> None:
        self._client.call(
            f"describe {experiment.name}",
            lambda client: client.set_experiment_tag(experiment.experiment_id, name, value),
        )


def _page(query: str, token: str | None, client: MlflowClient) -> PagedList[Experiment]:
    return client.search_experiments(filter_string=query, max_results=1000, page_token=token)


def _tags(fleet: str, kind: layout.Kind) -> dict[str, str]:
    return {
        layout.TAG_SCHEMA: layout.SCHEMA,
        layout.TAG_KIND: kind,
        layout.TAG_FLEET: fleet,
        layout.TAG_EXPERIMENT_KIND: layout.EXPERIMENT_KIND,
    }


def _create(client: MlflowClient, name: str, folder: str | None, tags: dict[str, str]) -> str:
    from mlflow.exceptions import MlflowException

    try:
        return client.create_experiment(name, artifact_location=folder, tags=tags)
    except MlflowException as error:
        # Another campaign of this fleet was faster.
        found = client.get_experiment_by_name(name) if error.error_code == "RESOURCE_ALREADY_EXISTS" else None
        if found is None:
            raise
        return str(found.experiment_id)


def artifact_folder(tracking_uri: str, name: str) -> str | None:
    """Return where an experiment's artifacts go: beside a SQLite file; a server knows its own place.

    MLflow's own default for a SQLite URI is a folder below wherever the process happens to run.
    """
    if not tracking_uri.startswith(_SQLITE):
        return None
    database = Path(tracking_uri.removeprefix(_SQLITE).partition("?")[0]).absolute()
    return f"file://{quote(str(database.parent / 'mlartifacts' / name))}"
