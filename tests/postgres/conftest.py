"""MLflow on PostgreSQL: `make test-postgres` installs it and asks for these tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

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
