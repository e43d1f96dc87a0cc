from __future__ import annotations

import shlex
import subprocess

import pytest

from fleetsieve_airflow.deployment.commands import render_commands, replica_command
from fleetsieve_airflow.errors import DeploymentError
from fleetsieve_airflow.serving.engine import engine_command
from tests.deployment.plans import make_kind, make_plan, paper_plan


def commands_of(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in text.splitlines() if line and not line.startswith("#")]


def test_each_kind_of_replica_has_one_command_below_what_it_is() -> None:
    lines = render_commands(paper_plan()).splitlines()
    assert lines[0].startswith("# Fleet chat-and-code-h100: 16 GPUs, certified feasible, certificate ")
    assert lines[3:] == [
        "# chat: 2 replicas TP4 of 4 GPUs (NVIDIA H100 80GB HBM3), each for 6.6 req/s at most",
        "vllm serve open-weight-31b --served-model-name=open-weight-31b --host=0.0.0.0 --port=8000 "
        "--tensor-parallel-size=4",
        "",
        "# code: 2 replicas TP4 of 4 GPUs (NVIDIA H100 80GB HBM3), each for 3.6 req/s at most",
        "vllm serve open-weight-31b --served-model-name=open-weight-31b --host=0.0.0.0 --port=8000 "
        "--tensor-parallel-size=4",
    ]


def test_a_replica_is_deployed_with_the_arguments_it_was_measured_with() -> None:
    kind = make_kind(
        config={
            "pipeline_parallel": 2,
            "expert_parallel": True,
            "engine_args": (("max_num_seqs", "256"), ("enable-prefix-caching", "false")),
        }
    )
    measured = engine_command("vllm", kind.model, kind.config)
    differ = ("--host=", "--port=")
    assert [part for part in replica_command(kind) if not part.startswith(differ)] == [
        part for part in measured if not part.startswith(differ)
    ]


def test_variables_of_the_measured_server_are_set() -> None:
    text = render_commands(make_plan(make_kind(), engine_env=(("VLLM_X", "a b"),)))
    assert commands_of(text)[0][:4] == ["env", "VLLM_X=a b", "vllm", "serve"]


@pytest.mark.parametrize(
    "hostile", ["a b", "it's", "$(touch pwned)", "`touch pwned`", "x; touch pwned", "a\nb"]
)
def test_no_value_of_a_plan_is_anything_but_an_argument(hostile: str) -> None:
    kind = make_kind(
        workload=hostile,
        config={"label": hostile, "engine_args": (("quantization", hostile),)},
        model={"source": f"org/{hostile}"},
        gpu=hostile,
    )
    text = render_commands(make_plan(kind, fleet=hostile))
    shown = text.replace("vllm serve", 'printf "%s\\0"')
    done = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[0] == f"org/{hostile}"
    assert done.stdout.split("\0")[-2] == f"--quantization={hostile}"
    assert done.stderr == ""


def test_a_plan_without_a_certificate_says_so_first() -> None:
    plan = make_plan(state="undetermined", certificate_sha256="")
    assert render_commands(plan).splitlines()[:2] == [
        "# Fleet chat-and-code-h100: 8 GPUs, undetermined, no certificate.",
        "# NOT CERTIFIED: another plan may serve more, or these replicas less.",
    ]


def test_a_plan_that_cannot_meet_the_demand_says_how_much_of_it_is_served() -> None:
    text = render_commands(make_plan(state="certified_infeasible", min_fulfilment=0.83))
    assert "# The demand cannot be met: the worst-served workload gets 83% of its demand." in text


def test_a_replica_of_several_nodes_is_told_to_be_one() -> None:
    kind = make_kind(label="TP8", config={"pipeline_parallel": 2, "multi_node": True})
    assert "# A replica spans nodes of 8 GPUs: start it on a Ray cluster." in render_commands(make_plan(kind))


def test_another_engine_has_no_command() -> None:
    with pytest.raises(DeploymentError, match="chat TP4: engine 'sglang' cannot be exported; known: vllm"):
        render_commands(make_plan(make_kind(config={"engine": "sglang"})))
