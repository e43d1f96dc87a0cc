"""vLLM itself knows every option that exported plans start it with."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from fleetsieve_airflow.deployment.commands import replica_command
from fleetsieve_airflow.deployment.options import ExportOptions
from fleetsieve_airflow.deployment.plan import FleetPlan
from fleetsieve_airflow.deployment.production_stack import values
from tests.builders import REPOSITORY
from tests.deployment.plans import make_kind, make_plan, paper_plan

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
SERVE = Path(__file__).parent / "serve_cpu.sh"
#: Options that the production stack's chart writes for the values it is given.
OF_THE_CHART = {
    "--host",
    "--port",
    "--tensor-parallel-size",
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
}


@pytest.fixture(scope="module")
def known_options(vllm_lab: Path) -> set[str]:
    done = subprocess.run(
        [str(SERVE), "serve", "--help=all"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "FLEETSIEVE_VLLM_LAB": str(vllm_lab)},
    )
    return set(re.findall(r"(?<![\w-])--[a-z0-9][a-z0-9-]*", done.stdout))


def every_option() -> FleetPlan:
    """Return a plan that uses every option this project writes, and the arguments of its fleet files."""
    text = (REPOSITORY / "tests" / "vllm" / "fleet.yaml").read_text(encoding="utf-8")
    args = yaml.safe_load(text)["engine_configs"]["TP1"]["engine_args"]
    written = tuple((name, str(value).lower()) for name, value in args.items())
    wide = {
        "tensor_parallel": 2,
        "pipeline_parallel": 2,
        "data_parallel": 2,
        "expert_parallel": True,
        "engine_args": written,
    }
    return make_plan(
        make_kind(label="wide", config=wide, model={"revision": "0123456789abcdef" * 2 + "01234567"})
    )


@pytest.mark.parametrize("plan", [every_option(), paper_plan()], ids=["every option", "the shipped fleet"])
def test_vllm_knows_every_option_of_a_command(plan: FleetPlan, known_options: set[str]) -> None:
    used = {
        part.partition("=")[0] for kind in plan.kinds for part in replica_command(kind) if part[:2] == "--"
    }
    assert {"--served-model-name", "--tensor-parallel-size"} <= used
    assert used <= known_options


def test_vllm_knows_every_option_of_the_charts_values(known_options: set[str]) -> None:
    for spec in values(every_option(), ExportOptions())["servingEngineSpec"]["modelSpec"]:
        used = {part.partition("=")[0] for part in spec["vllmConfig"]["extraArgs"]}
        assert "--revision" in used
        assert used | OF_THE_CHART <= known_options
