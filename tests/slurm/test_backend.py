"""The backend `slurm` on a real cluster, held to what every backend must keep."""

from __future__ import annotations

import pytest

from fleetsieve_airflow.backends.base import backend_for
from tests.backends.contract import keeps_its_promises
from tests.slurm.lab import CONN_ID, Lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


def test_slurm_keeps_the_contract(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", lab.connection().as_json())
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", lab.connection(host_key=None).as_json())
    spec = lab.spec()
    keeps_its_promises(backend_for(spec), spec, bad=lab.spec(conn_id="nowhere"))
