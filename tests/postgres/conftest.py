"""Airflow and MLflow on PostgreSQL: `make test-postgres` installs it and asks for these tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fleetsieve_airflow.demo.campaign import wait_for_dag
from tests.integration.lab import Lab, make_lab
from tests.postgres.server import PostgresServer

# Collected on request only: the default suite must not need root
collect_ignore_glob = [] if os.environ.get("FLEETSIEVE_TEST_POSTGRES") else ["test_*.py"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def lab(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Airflow and MLflow, both on PostgreSQL."""
    lab = make_lab(
        tmp_path_factory.mktemp("lab"),
        airflow_database=postgres.database("airflow"),
        mlflow_database=postgres.database("mlflow"),
    )
    try:
        wait_for_dag(lab.stack, lab.api)
        yield lab
    finally:
        lab.stack.stop()
