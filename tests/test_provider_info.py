from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from importlib import resources

import jsonschema
import pytest

from fleetsieve_airflow import __version__
from fleetsieve_airflow.provider_info import get_provider_info

INFO = get_provider_info()


def named_modules() -> Iterator[str]:
    for part in ("operators", "hooks", "triggers"):
        for entry in INFO[part]:
            yield from entry["python-modules"]


def named_classes() -> Iterator[str]:
    yield from INFO["extra-links"]
    yield from (entry["hook-class-name"] for entry in INFO["connection-types"])


def test_airflow_accepts_the_description() -> None:
    schema = json.loads(resources.files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)
    assert INFO["versions"] == [__version__]


@pytest.mark.parametrize("module", sorted(named_modules()))
def test_a_named_module_is_there(module: str) -> None:
    assert importlib.import_module(module).__doc__


@pytest.mark.parametrize("path", sorted(named_classes()))
def test_a_named_class_is_there(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), type)


def test_every_module_with_an_operator_or_a_trigger_is_named() -> None:
    inside = {
        f"fleetsieve_airflow.{room}.{file.name.removesuffix('.py')}"
        for room in ("operators", "triggers")
        for file in resources.files(f"fleetsieve_airflow.{room}").iterdir()
        if file.name.endswith(".py") and not file.name.startswith(("__", "base"))
    }
    assert {module for module in inside if has_operator_or_trigger(module)} == {
        module for module in named_modules() if ".hooks." not in module
    }


def has_operator_or_trigger(module: str) -> bool:
    own = [item for item in vars(importlib.import_module(module)).values() if isinstance(item, type)]
    return any(item.__name__.endswith(("Operator", "Trigger")) for item in own if item.__module__ == module)


def test_a_connection_type_has_no_underscore_because_it_becomes_a_scheme() -> None:
    types = [entry["connection-type"] for entry in INFO["connection-types"]]
    assert all("_" not in name for name in types)
    assert len(set(types)) == len(types)


def test_settings_have_defaults_as_text_and_say_what_they_do() -> None:
    for section in INFO["config"].values():
        for option in section["options"].values():
            assert isinstance(option["default"], str)
            assert option["description"]
