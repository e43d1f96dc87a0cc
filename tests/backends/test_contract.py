from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fleetsieve_airflow.backends.base import backend_for
from fleetsieve_airflow.spec import load_spec
from tests.backends.contract import keeps_its_promises
from tests.builders import PAPER_FLEET
from tests.serving.jobs import served_spec

FAKE = Path(__file__).parent.parent / "serving" / "fake_engine.py"


def test_replay_keeps_the_contract() -> None:
    spec = load_spec(PAPER_FLEET)
    other_windows = replace(spec.measurement, duration_s=spec.measurement.duration_s + 1)
    keeps_its_promises(backend_for(spec), spec, bad=replace(spec, measurement=other_windows))


@pytest.mark.integration
def test_local_keeps_the_contract(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f'#!/bin/bash\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    program.chmod(0o755)
    options = {"vllm": str(program), "aiperf": str(program), "python": sys.executable, "ready_s": "60"}
    spec = served_spec(backend="local", options=options)
    bad = served_spec(backend="local", options={**options, "vllm": "/nowhere/vllm"})
    keeps_its_promises(backend_for(spec), spec, bad=bad)
