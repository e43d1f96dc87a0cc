from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fleetsieve_airflow.errors import TrackingError
from fleetsieve_airflow.hooks.mlflow import MlflowHook
from fleetsieve_airflow.hooks.mlflow_registry import ModelRegistry
from fleetsieve_airflow.operators.announce import tag_versions
from fleetsieve_airflow.records import FleetSpec, Model
from tests.builders import make_spec

SUMMARY = {
    "campaign_id": "c1",
    "run_id": "r1",
    "state": "certified_feasible",
    "certificate_sha256": "abc",
    "certificate": "https://mlflow.example.com/#/c1",
    "plan": {"chat": {"TP4": 2}, "code": {"TP2": 1}},
}


def fleet(revision: str = "v1", registered_model: str = "") -> FleetSpec:
    """A fleet whose workload ``chat`` is served by a model of the registry, ``code`` by another."""
    spec = make_spec(demand={"chat": 12.0, "code": 3.0})
    workloads = (spec.workloads[0], replace(spec.workloads[1], model="other"))
    models = (
        Model(name="base", revision=revision, registered_model=registered_model),
        Model(name="other", revision="2026-11"),
    )
    return replace(spec, models=models, workloads=workloads)


def register(hook: MlflowHook, name: str) -> None:
    client = hook.get_conn()
    client.create_registered_model(name)
    client.create_model_version(name, "s3://models/base")


def tags_of(hook: MlflowHook, name: str) -> dict[str, Any]:
    return hook.get_conn().get_model_version(name, "1").tags


@pytest.mark.parametrize("registered_model", ["", "Base 31B"])
def test_a_registered_version_gets_the_plan_of_the_workloads_it_serves(
    hook: MlflowHook, registered_model: str
) -> None:
    name = registered_model or "base"
    register(hook, name)
    (words,) = tag_versions(hook, fleet(registered_model=registered_model), SUMMARY, "")
    assert words == f"Version 1 of model {name} has its plan."
    told = json.loads(tags_of(hook, name)["fleetsieve.plan.test"])
    assert told.pop("plan") == {"chat": {"TP4": 2}}
    assert told == {key: value for key, value in SUMMARY.items() if key != "plan"}
    assert hook.get_conn().get_registered_model(name).aliases == {}


def test_the_alias_that_was_asked_for_names_the_version(hook: MlflowHook) -> None:
    register(hook, "base")
    list(tag_versions(hook, fleet(), SUMMARY, "planned"))
    list(tag_versions(hook, fleet(), SUMMARY, "planned"))
    assert str(hook.get_conn().get_registered_model("base").aliases["planned"]) == "1"


@pytest.mark.parametrize("revision", ["v2", "v1"])
def test_a_version_that_the_registry_does_not_have_is_said_and_left(hook: MlflowHook, revision: str) -> None:
    if revision == "v2":
        register(hook, "base")
    (words,) = tag_versions(hook, fleet(revision), SUMMARY, "planned")
    assert words == f"Version {revision[1:]} of model base is not in the registry."


def test_a_revision_that_is_no_version_is_not_looked_for(hook: MlflowHook) -> None:
    assert list(tag_versions(hook, fleet("fp8-2026-08"), SUMMARY, "planned")) == []


def test_a_registry_that_refuses_takes_nothing_from_the_plan(
    hook: MlflowHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **fields: Any) -> bool:
        raise TrackingError("PERMISSION_DENIED")

    monkeypatch.setattr(ModelRegistry, "tag_version", refuse)
    (words,) = tag_versions(hook, fleet(), SUMMARY, "")
    assert words == "The plan is not written to version 1 of model base: PERMISSION_DENIED"
