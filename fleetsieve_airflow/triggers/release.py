"""Watch aliases of MLflow's model registry: an alias that moves is a release."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from fleetsieve_airflow.errors import TrackingError
from fleetsieve_airflow.releases import Release, Seen

if TYPE_CHECKING:
    from fleetsieve_airflow.hooks.mlflow import MlflowHook

#: Seconds between two looks: with the scheduler's own few, a campaign runs well within a minute.
POLL_S = 15.0
#: Seconds in which an event gets from the trigger to Airflow's database; it takes about one.
ARRIVAL_S = 5.0


class MlflowAliasTrigger(BaseEventTrigger):
    """Fire whenever an alias of a registered model names another version, for an ``AssetWatcher``.

    What was seen is kept in the asset's state store in Airflow's database: it outlives the triggerer, Airflow
    never expires it, and nobody needs to let this trigger write to the registry. It is written only when the
    event has had the time to get there too. So a move during downtime fires afterwards, and a triggerer that
    dies at the wrong moment fires twice rather than never; the campaign's id makes one campaign of it.

    Use one trigger for one asset: its state is that asset's.

    :param mlflow_conn_id: Airflow connection of the MLflow server.
    :param alias: the alias whose moves are releases.
    :param models: names of registered models, or patterns such as ``chat-*``.
    :param poll_s: seconds between two looks.
    :param fire_on_first_sight: fire also for aliases that are there when a model is looked at first.
    """

    def __init__(
        self,
        *,
        mlflow_conn_id: str = "mlflow_default",
        alias: str = "production",
        models: Sequence[str] = ("*",),
        poll_s: float = POLL_S,
        fire_on_first_sight: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mlflow_conn_id = mlflow_conn_id
        self.alias = alias
        self.models = [models] if isinstance(models, str) else list(models)
        self.poll_s = poll_s
        self.fire_on_first_sight = fire_on_first_sight
        self.clock: Callable[[], float] = time.time
        self._hook: MlflowHook | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what another triggerer needs to go on watching."""
        names = ("mlflow_conn_id", "alias", "models", "poll_s", "fire_on_first_sight")
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, fire, wait, remember, look again."""
        seen = await self._remembered()
        while True:
            found = await self._look()
            moved: tuple[str, ...] = ()
            before = seen
            if found is not None:
                moved = seen.moved(found, fire_on_first_sight=self.fire_on_first_sight)
                seen = seen.after(self.models, found)
                if not moved and seen != before:
                    await self._remember(seen)
            for model in moved:
                release = self._release(model, seen.versions[model], before.versions.get(model))
                self.log.info("Alias %s of model %s names version %s now", *_words(release))
                yield TriggerEvent(release.as_event())  # type: ignore[no-untyped-call]
            arrival_s = min(ARRIVAL_S, self.poll_s)
            await asyncio.sleep(arrival_s)
            if moved:
                await self._remember(seen)
            await asyncio.sleep(self.poll_s - arrival_s)

    def _release(self, model: str, version: str, previous: str | None) -> Release:
        return Release(
            model=model,
            version=version,
            previous_version=previous,
            alias=self.alias,
            server=self._hook.client.server.shown_uri if self._hook else "",
            at=self.clock(),
        )

    async def _look(self) -> dict[str, str] | None:
        """Return the version of each model, or None while MLflow or its connection is away."""
        try:
            # MLflow's client blocks, and so may reading the connection: neither belongs on the triggerer's
            # loop.
            return await asyncio.to_thread(self._versions)
        except (TrackingError, AirflowNotFoundException) as error:
            self.log.warning("Cannot look for releases, trying again in %g s: %s", self.poll_s, error)
            self._hook = None
            return None

    def _versions(self) -> dict[str, str]:
        from fleetsieve_airflow.hooks.mlflow import MlflowHook

        if self._hook is None:
            self._hook = MlflowHook(self.mlflow_conn_id, retry_for_s=0.0)
        return self._hook.registry.versions_with_alias(self.alias, self.models)

    @property
    def _key(self) -> str:
        return f"fleetsieve.seen/{self.mlflow_conn_id}/{self.alias}"

    async def _remembered(self) -> Seen:
        store = self.asset_state_store
        return Seen.from_json(await store.aget(self._key) if store is not None else None)

    async def _remember(self, seen: Seen) -> None:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(self._key, seen.to_json())


def _words(release: Release) -> tuple[str, str, str]:
    return release.alias, release.model, release.version
