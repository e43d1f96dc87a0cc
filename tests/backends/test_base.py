"""The registry of measuring devices."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fleetsieve_airflow.backends.base import BACKENDS, backend_for, installed_backends
from fleetsieve_airflow.backends.replay import ReplayBackend
from fleetsieve_airflow.errors import SpecError
from tests.builders import make_spec, paper_spec


def test_a_backend_is_found_by_the_name_in_the_spec() -> None:
    assert isinstance(backend_for(paper_spec()), ReplayBackend)


def test_an_unknown_backend_is_refused_with_those_that_are_installed() -> None:
    with pytest.raises(SpecError, match=r"measurement\.backend: must be one of .*replay.*, got 'guess'"):
        backend_for(make_spec(measurement={"backend": "guess"}))


@pytest.mark.parametrize("name", installed_backends())
def test_every_installed_backend_can_be_made(name: str) -> None:
    backend = backend_for(make_spec(measurement={"backend": name}))
    assert callable(backend.check)
    assert callable(backend.measure)
    assert name in BACKENDS


def test_naming_a_backend_imports_none() -> None:
    code = (
        "import sys; from fleetsieve_airflow.backends.base import installed_backends; installed_backends();"
        "print([name for name in sys.modules if name.startswith('fleetsieve_airflow.backends.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['fleetsieve_airflow.backends.base']"
