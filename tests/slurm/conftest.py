"""Tests against a real Slurm cluster of this machine: `make test-slurm` installs it and asks for them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.lab import Lab

# Collected on request only: the default suite must not need root
collect_ignore_glob = [] if os.environ.get("FLEETSIEVE_TEST_SLURM") else ["test_*.py"]


def _lab(**settings: str) -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="fleetsieve-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    lab = Lab(folder / "state", **settings)
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A cluster without accounting that forgets a job 5 s after its end."""
    yield from _lab(min_job_age="5")


@pytest.fixture(scope="session")
def booked_lab() -> Iterator[Lab]:
    """A cluster with accounting."""
    yield from _lab(dbd="1")
