"""Manifests are held to the schemas of Kubernetes itself, which a package brings along: no cluster."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
import yaml

from fleetsieve_airflow.deployment.kubernetes import manifests, render_kubernetes
from fleetsieve_airflow.deployment.options import ExportOptions
from fleetsieve_airflow.errors import DeploymentError
from tests.deployment.plans import make_kind, make_plan, paper_plan

VERSIONS = ("1.31", "1.34", "1.37")
EVERYTHING = ExportOptions(
    image="registry.example.com:5000/vllm:v0.31.1",
    namespace="llm",
    hf_token_secret="hf:token",
    model_volume="weights:/models",
)


def everything() -> str:
    """Return manifests of a plan that uses every option, two kinds of GPU, and hostile names."""
    args = (("max-num-seqs", "256"), ("enable-prefix-caching", "false"), ("override", "$(X) 'y' \"z\"\n: #"))
    return render_kubernetes(
        make_plan(
            make_kind(config={"engine_args": args}, model={"source": "/models/m"}),
            make_kind(workload="no: \n---\n*&x", label="TP8", gpu="NVIDIA L40S", config={"label": "yes"}),
            engine_env=(("VLLM_X", "1e3"), ("VLLM_Y", "true")),
            fleet="123 fleet " * 12,
        ),
        EVERYTHING,
    )


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_schemas_accept_the_manifests_strictly(version: str) -> None:
    for text in (render_kubernetes(paper_plan(), ExportOptions()), everything()):
        found = documents(text)
        assert [document["kind"] for document in found] == ["Deployment", "Service"] * 2
        for document in found:
            kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_do_refuse_what_is_wrong() -> None:
    document = documents(render_kubernetes(paper_plan(), ExportOptions()))[0]
    document["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


def test_a_deployment_has_the_plans_replicas_and_gpus_and_its_service_finds_it() -> None:
    for kind, (deployment, service) in zip(
        paper_plan().kinds, manifests(paper_plan(), ExportOptions()), strict=True
    ):
        pod = deployment["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        assert deployment["spec"]["replicas"] == kind.replicas == 2
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
        assert deployment["metadata"]["name"] == service["metadata"]["name"]
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    names = [pair[0]["metadata"]["name"] for pair in manifests(paper_plan(), ExportOptions())]
    assert names == ["chat-and-code-h100-chat-tp4", "chat-and-code-h100-code-tp4"]


def test_a_server_may_take_its_time_to_start_and_is_found_dead_by_its_health() -> None:
    ((deployment, _),) = manifests(make_plan(ready_s=900.0), ExportOptions())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    probes = [container[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert {probe["httpGet"]["path"] for probe in probes} == {"/health"}
    assert probes[0]["failureThreshold"] * probes[0]["periodSeconds"] == 900
    assert deployment["spec"]["progressDeadlineSeconds"] > 900


def test_a_rollout_needs_no_gpu_that_the_plan_does_not_have() -> None:
    ((deployment, _),) = manifests(make_plan(), ExportOptions())
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_a_token_is_only_ever_named() -> None:
    ((deployment, _),) = manifests(make_plan(), ExportOptions(hf_token_secret="hf:token"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    ]
    ((deployment, _),) = manifests(make_plan(), ExportOptions())
    assert "env" not in deployment["spec"]["template"]["spec"]["containers"][0]


def test_names_and_values_that_mean_something_to_yaml_come_back_as_they_were() -> None:
    first, _, second, _ = documents(everything())
    (container,) = first["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == "--override=$(X) 'y' \"z\"\n: #"
    assert container["env"][:2] == [{"name": "VLLM_X", "value": "1e3"}, {"name": "VLLM_Y", "value": "true"}]
    assert second["metadata"]["labels"]["fleetsieve/engine-config"] == "yes"


def test_replicas_find_their_gpus_where_there_are_several_kinds() -> None:
    first, _, second, _ = documents(everything())
    selectors = [document["spec"]["template"]["spec"]["nodeSelector"] for document in (first, second)]
    assert selectors == [
        {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        {"nvidia.com/gpu.product": "NVIDIA-L40S"},
    ]
    ((deployment, _),) = manifests(make_plan(), ExportOptions())
    assert "nodeSelector" not in deployment["spec"]["template"]["spec"]


def test_a_replica_of_several_nodes_is_refused() -> None:
    kind = make_kind(label="TP8", config={"pipeline_parallel": 2, "multi_node": True})
    with pytest.raises(DeploymentError, match="chat TP8: a replica of 16 GPUs spans nodes of 8") as error:
        render_kubernetes(make_plan(kind), ExportOptions())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("volume", ["", "weights:/mod", "weights:/models/m/deep"])
def test_weights_that_no_volume_brings_are_refused(volume: str) -> None:
    plan = make_plan(make_kind(model={"source": "/models/m"}))
    with pytest.raises(DeploymentError, match="source /models/m is a path that no volume brings"):
        render_kubernetes(plan, ExportOptions(model_volume=volume))
