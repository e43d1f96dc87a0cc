from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from mlflow import MlflowClient

from fleetsieve_airflow.triggers.release import MlflowAliasTrigger
from tests.servers import MlflowServer

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mlflow-server")]

SOURCE = "s3://models/release"


class Store:
    """The asset's state store: what it holds outlives every trigger, and is JSON."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}

    async def aget(self, key: str, default: Any = None) -> Any:
        return json.loads(self.rows[key]) if key in self.rows else default

    async def aset(self, key: str, value: Any) -> None:
        self.rows[key] = json.dumps(value)


class EnoughError(Exception):
    """The test has seen what it wanted to see."""


class Watching(MlflowAliasTrigger):
    """A trigger that looks without waiting and stops after some looks, as a triggerer may do at any time."""

    looks = 1

    async def _look(self) -> dict[str, str] | None:
        if self.looks == 0:
            raise EnoughError
        self.looks -= 1
        return await super()._look()


class Registry:
    """Models of one test in a registry that all tests share, and a watcher of them."""

    def __init__(self, client: MlflowClient, prefix: str) -> None:
        self.client, self.prefix, self.store = client, prefix, Store()

    def name(self, model: str) -> str:
        return f"{self.prefix}{model}"

    def release(self, model: str, alias: str = "production") -> str:
        """Register another version of a model and let the alias name it."""
        name = self.name(model)
        if not self.client.search_registered_models(f"name = '{name}'"):
            self.client.create_registered_model(name)
        version = self.client.create_model_version(name, SOURCE).version
        self.client.set_registered_model_alias(name, alias, version)
        return str(version)

    def trigger(self, **fields: Any) -> Watching:
        trigger = Watching(models=fields.pop("models", [f"{self.prefix}*"]), poll_s=0.0, **fields)
        trigger.asset_state_store = self.store
        return trigger

    def events(self, trigger: Watching, looks: int = 1) -> list[tuple[str, str, str | None]]:
        """Run a trigger for some looks; model, version and previous version of what it fired."""
        trigger.looks = looks
        return asyncio.run(collect(trigger))

    def fired(self, looks: int = 1, **fields: Any) -> list[tuple[str, str, str | None]]:
        """Run a new trigger, as after a restart of the triggerer."""
        return self.events(self.trigger(**fields), looks)


async def collect(trigger: Watching) -> list[tuple[str, str, str | None]]:
    found = []
    try:
        async for event in trigger.run():
            found.append(event.payload)
    except EnoughError:
        pass
    return [(item["model"], item["version"], item["previous_version"]) for item in found]


@pytest.fixture
def registry(
    mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Registry]:
    connection = {"conn_type": "mlflow", "host": mlflow_server.url}
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_DEFAULT", json.dumps(connection))
    yield Registry(MlflowClient(mlflow_server.url), f"{abs(hash(request.node.name)):x}-")


def test_it_goes_on_watching_in_another_triggerer() -> None:
    trigger = MlflowAliasTrigger(mlflow_conn_id="ml", alias="live", models=("a", "b-*"), poll_s=3.0)
    path, kwargs = trigger.serialize()
    assert path == "fleetsieve_airflow.triggers.release.MlflowAliasTrigger"
    assert MlflowAliasTrigger(**json.loads(json.dumps(kwargs))).serialize() == (path, kwargs)
    assert kwargs["models"] == ["a", "b-*"]


def test_a_moved_alias_fires_once_with_the_version_before(registry: Registry) -> None:
    registry.release("chat")
    trigger = registry.trigger()
    assert registry.events(trigger) == []
    registry.release("chat")
    assert registry.events(trigger, looks=3) == [(registry.name("chat"), "2", "1")]


def test_an_event_says_which_alias_of_which_server(registry: Registry, mlflow_server: MlflowServer) -> None:
    registry.fired()
    registry.release("chat")

    async def first() -> dict[str, Any]:
        return (await anext(registry.trigger().run())).payload

    event = asyncio.run(first())
    assert (event["alias"], event["server"]) == ("production", mlflow_server.url)
    assert event["at"] > 0


def test_what_is_there_at_the_first_look_fires_only_if_asked_for(registry: Registry) -> None:
    registry.release("chat")
    assert registry.fired(fire_on_first_sight=True) == [(registry.name("chat"), "1", None)]
    registry.store = Store()
    assert registry.fired(looks=3) == []


def test_a_move_while_no_triggerer_runs_fires_afterwards_and_once(registry: Registry) -> None:
    registry.release("chat")
    registry.fired()
    registry.release("chat")
    registry.release("chat")
    assert registry.fired(looks=2) == [(registry.name("chat"), "3", "1")]
    assert registry.fired(looks=2) == []


def test_a_triggerer_that_dies_right_after_the_event_fires_again_rather_than_never(
    registry: Registry,
) -> None:
    registry.fired()
    registry.release("chat")

    async def dies_after_its_event() -> None:
        running = registry.trigger().run()
        await anext(running)
        await running.aclose()

    asyncio.run(dies_after_its_event())
    assert registry.fired() == [(registry.name("chat"), "1", None)]


def test_two_models_released_together_fire_both(registry: Registry) -> None:
    registry.fired()
    registry.release("chat")
    registry.release("code")
    assert [model for model, _, _ in registry.fired()] == [registry.name("chat"), registry.name("code")]


def test_other_aliases_and_other_models_are_not_news(registry: Registry) -> None:
    registry.fired(models=[registry.name("chat")])
    registry.release("chat", alias="challenger")
    registry.release("chatty")
    assert registry.fired(models=[registry.name("chat")], looks=2) == []


def test_more_models_than_a_page_are_all_looked_at(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetsieve_airflow.hooks.mlflow_registry.PAGE", 2)
    registry.fired()
    for model in "abcde":
        registry.release(model)
    assert len(registry.fired()) == 5


def test_a_server_that_is_away_is_looked_for_again(registry: Registry, mlflow_server: MlflowServer) -> None:
    registry.release("chat")
    registry.fired()
    registry.release("chat")
    trigger = registry.trigger()
    mlflow_server.stop()
    try:
        assert registry.events(trigger, looks=2) == []
    finally:
        mlflow_server.start()
    assert registry.events(trigger, looks=2) == [(registry.name("chat"), "2", "1")]


def test_a_connection_that_is_missing_is_waited_for(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_MLFLOW_DEFAULT")
    assert registry.fired(looks=2) == []
    assert registry.store.rows == {}


def test_looking_does_not_hold_up_the_other_triggers() -> None:
    answered = threading.Event()

    class Slow(MlflowAliasTrigger):
        def _versions(self) -> dict[str, str]:
            assert answered.wait(timeout=60)
            return {"chat": "1"}

    async def another_trigger_works_meanwhile() -> dict[str, Any]:
        trigger = Slow(fire_on_first_sight=True)
        waiting = asyncio.create_task(anext(trigger.run()))
        await asyncio.sleep(0)
        answered.set()
        return (await waiting).payload

    assert asyncio.run(another_trigger_works_meanwhile())["model"] == "chat"
