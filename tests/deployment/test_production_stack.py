"""The chart is no package that could be installed here: the values are held to its field names and types."""

from __future__ import annotations

import pytest
import yaml

from fleetsieve_airflow.deployment.commands import replica_command
from fleetsieve_airflow.deployment.options import ExportOptions
from fleetsieve_airflow.deployment.production_stack import render_values, values
from fleetsieve_airflow.errors import DeploymentError
from tests.deployment.plans import make_kind, make_plan, paper_plan

#: Fields of ``servingEngineSpec.modelSpec`` and their types in chart vllm-stack 0.1.12.
MODEL_SPEC = {
    "name": str, "repository": str, "tag": str, "modelURL": str, "replicaCount": int, "requestCPU": int,
    "requestMemory": str, "requestGPU": int, "podAnnotations": dict, "vllmConfig": dict, "env": list,
    "hf_token": dict, "extraVolumes": list, "extraVolumeMounts": list, "nodeSelectorTerms": list,
}  # fmt: skip
REQUIRED = {
    "name",
    "repository",
    "tag",
    "modelURL",
    "replicaCount",
    "requestCPU",
    "requestMemory",
    "requestGPU",
}


def test_the_values_hold_a_model_spec_for_each_kind_of_replica() -> None:
    document = yaml.safe_load(render_values(paper_plan(), ExportOptions()))
    specs = document["servingEngineSpec"]["modelSpec"]
    assert [(spec["name"], spec["replicaCount"], spec["requestGPU"]) for spec in specs] == [
        ("chat-tp4", 2, 4),
        ("code-tp4", 2, 4),
    ]
    assert document == values(paper_plan(), ExportOptions())


def test_every_field_is_one_of_the_chart() -> None:
    options = ExportOptions(hf_token_secret="hf:token", model_volume="weights:/models")
    plan = make_plan(make_kind(), make_kind("code", gpu="NVIDIA L40S"), engine_env=(("VLLM_X", "1"),))
    for spec in values(plan, options)["servingEngineSpec"]["modelSpec"]:
        assert REQUIRED <= spec.keys() <= MODEL_SPEC.keys()
        assert all(isinstance(value, MODEL_SPEC[name]) for name, value in spec.items())
        assert spec["vllmConfig"].keys() == {"tensorParallelSize", "enablePrefixCaching", "extraArgs"}
        assert spec["hf_token"] == {"secretName": "hf", "secretKey": "token"}
        assert spec["env"] == [{"name": "VLLM_X", "value": "1"}]


@pytest.mark.parametrize(
    ("argument", "caching"),
    [(None, True), (("enable-prefix-caching", "false"), False), (("enable_prefix_caching", "true"), True),
     (("no-enable-prefix-caching", "true"), False)],
)  # fmt: skip
def test_the_chart_starts_what_was_measured(argument: tuple[str, str] | None, caching: bool) -> None:
    args = (("max-num-seqs", "256"), *([argument] if argument else []))
    kind = make_kind(config={"data_parallel": 2, "engine_args": args})
    (spec,) = values(make_plan(kind), ExportOptions())["servingEngineSpec"]["modelSpec"]
    config = spec["vllmConfig"]
    assert config["enablePrefixCaching"] is caching
    assert config["tensorParallelSize"] == 4
    left = [part for part in replica_command(kind)[3:] if "prefix-caching" not in part]
    chart = ("--host=0.0.0.0", "--port=8000", "--tensor-parallel-size=4")
    assert config["extraArgs"] == [part for part in left if part not in chart]


def test_workloads_of_one_model_are_told_apart_and_one_alone_keeps_its_models_name() -> None:
    several, alone = make_plan(make_kind(), make_kind("code")), make_plan(make_kind(), make_kind(label="TP8"))
    served = [
        [spec["vllmConfig"]["extraArgs"][0] for spec in document["servingEngineSpec"]["modelSpec"]]
        for document in (values(several, ExportOptions()), values(alone, ExportOptions()))
    ]
    assert served == [
        ["--served-model-name=chat", "--served-model-name=code"],
        ["--served-model-name=m", "--served-model-name=m"],
    ]
    assert "requests name the workload as their model." in render_values(paper_plan(), ExportOptions())


def test_names_leave_room_for_what_the_chart_adds() -> None:
    plan = make_plan(make_kind(workload="a-workload-with-a-very-long-name-indeed"))
    (spec,) = values(plan, ExportOptions())["servingEngineSpec"]["modelSpec"]
    assert len(f"release-of-20-letters-{spec['name']}-vllm-stack") <= 63


def test_a_replica_of_several_nodes_is_refused() -> None:
    kind = make_kind(label="TP8", config={"pipeline_parallel": 2, "multi_node": True})
    with pytest.raises(DeploymentError, match="spans nodes of 8"):
        render_values(make_plan(kind), ExportOptions())
