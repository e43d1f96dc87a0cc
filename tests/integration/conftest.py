"""One Airflow and one MLflow for all integration tests: starting them takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetsieve_airflow.demo.campaign import wait_for_dag
from tests.integration.lab import Lab, make_lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Running servers; every test plans fleets of its own."""
    lab = make_lab(tmp_path_factory.mktemp("lab"))
    try:
        wait_for_dag(lab.stack, lab.api)
        yield lab
    finally:
        lab.stack.stop()
