"""An Airflow of the session's own, set up before anything imports airflow: it reads its settings once."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import mlflow_database, mlflow_server

#: Fixtures of servers, here so that a session makes each of them once.
__all__ = ["mlflow_database", "mlflow_server"]

REPOSITORY = Path(__file__).resolve().parent.parent
_HOME = Path(tempfile.mkdtemp(prefix="fleetsieve-tests-"))

os.environ.update(
    AIRFLOW_HOME=str(_HOME),
    AIRFLOW__CORE__DAGS_FOLDER=str(_HOME / "dags"),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME}/airflow.db",
    AIRFLOW__LOGGING__BASE_LOG_FOLDER=str(_HOME / "logs"),
    AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
    AIRFLOW__API_AUTH__JWT_SECRET="only-for-tests-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    AIRFLOW__USAGE_DATA_COLLECTION__ENABLED="False",
    MLFLOW_DISABLE_TELEMETRY="true",
)

# How long an example takes says more about the machine than about the code.
# A change is judged on the same examples wherever it is tested; `make explore` draws new ones.
settings.register_profile(
    "fleetsieve", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", settings.get_profile("fleetsieve"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fleetsieve"))


@pytest.fixture(scope="session")
def airflow_db() -> Path:
    """A migrated SQLite metadata database; returns Airflow's home folder."""
    from airflow.utils.db import initdb

    initdb()
    return _HOME


@pytest.fixture(scope="session")
def dags_folder(airflow_db: Path) -> Path:
    """Airflow's DAG folder: a copy of the one that ships, to which tests may add files."""
    return Path(shutil.copytree(REPOSITORY / "dags", airflow_db / "dags", dirs_exist_ok=True))


def pytest_unconfigure() -> None:
    """Take the session's Airflow away."""
    shutil.rmtree(_HOME, ignore_errors=True)
