"""Tests against the CPU build of vLLM and aiperf: `make test-vllm` installs both and asks for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent

# Collected on request only: the default suite must not need 4 GB of packages
collect_ignore_glob = [] if os.environ.get("FLEETSIEVE_TEST_VLLM") else ["test_*.py"]


@pytest.fixture(scope="session")
def vllm_lab() -> Path:
    """Where ``install.sh`` has put vLLM, aiperf and the tiny model."""
    return Path(os.environ.get("FLEETSIEVE_VLLM_LAB") or REPOSITORY / ".local" / "vllm-lab")
