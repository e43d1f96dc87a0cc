"""A real MLflow on a SQLite file of the test's own, reached through the Airflow connection."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from fleetsieve_airflow.records import FleetSpec
from tests.builders import make_spec
from tests.fakes import FAKE


@pytest.fixture
def hook(tmp_path: Path, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowHook:
    """The hook of connection ``mlflow_default``."""
    database = shutil.copy(mlflow_database, tmp_path / "mlflow.db")
    connection = {"conn_type": "mlflow", "host": f"sqlite:///{database}"}
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_DEFAULT", json.dumps(connection))
    return MlflowHook()


@pytest.fixture
def spec() -> FleetSpec:
    """The smallest fleet with a choice, measured by the fake backend."""
    return make_spec(measurement={"backend": FAKE})


@pytest.fixture
def campaign(hook: MlflowHook, spec: FleetSpec) -> CampaignRef:
    """An open campaign of that fleet."""
    return hook.open_campaign(spec, "c1")
