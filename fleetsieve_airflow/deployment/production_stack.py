"""A plan as values for the Helm chart of the vLLM production stack."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fleetsieve_airflow.deployment.commands import headline, replica_command, words_of
from fleetsieve_airflow.deployment.kubernetes import (
    CPUS_PER_GPU,
    GPU_LABEL,
    MEMORY_GIB_PER_GPU,
    PROBE_PERIOD_S,
    dump_yaml,
    environment,
    gpu_products,
    startup_failures,
)
from fleetsieve_airflow.deployment.options import ExportOptions, dns_names, one_line, require_deployable
from fleetsieve_airflow.deployment.plan import FleetPlan, ReplicaKind
from fleetsieve_airflow.serving.engine import option_name

#: The chart makes a host name of release, this name and its own: 63 characters in all.
_NAME_MAX = 30
#: Options that the chart writes itself, from other values than ``extraArgs``.
_OF_THE_CHART = ("--host=", "--port=", "--served-model-name=", "--tensor-parallel-size=")
_PREFIX_CACHING = ("--enable-prefix-caching", "--no-enable-prefix-caching")


def render_values(plan: FleetPlan, options: ExportOptions) -> str:
    """Return the values file.

    :raises DeploymentError: what the chart's Deployments cannot hold, or another engine than vLLM.
    """
    lines = [
        *headline(plan),
        "Values for the chart vllm-stack of the vLLM production stack.",
        *(one_line(words_of(kind)) for kind in plan.kinds),
    ]
    if shared := _shared_models(plan):
        models = one_line(", ".join(shared))
        lines.append(f"The router tells workloads of one model ({models}) apart by the name they ask for:")
        lines.append("requests name the workload as their model.")
    return "".join(f"# {line}\n" for line in lines) + dump_yaml(values(plan, options))


def values(plan: FleetPlan, options: ExportOptions) -> dict[str, Any]:
    """Return the chart's values.

    :raises DeploymentError: as :func:`render_values`.
    """
    require_deployable(plan, options)
    names = dns_names([kind.label for kind in plan.kinds], length=_NAME_MAX)
    return {
        "servingEngineSpec": {
            # The plan uses the pool's GPUs: there are none for a pod more while another is replaced
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "startupProbe": {
                "initialDelaySeconds": 15,
                "periodSeconds": PROBE_PERIOD_S,
                "failureThreshold": startup_failures(plan),
            },
            "modelSpec": [
                _model_spec(plan, kind, name, options) for kind, name in zip(plan.kinds, names, strict=True)
            ],
        }
    }


def _shared_models(plan: FleetPlan) -> list[str]:
    """Return models that several workloads of the plan are served by."""
    pairs = {(kind.model.name, kind.workload) for kind in plan.kinds}
    return sorted(model for model, workloads in Counter(model for model, _ in pairs).items() if workloads > 1)


def _model_spec(plan: FleetPlan, kind: ReplicaKind, name: str, options: ExportOptions) -> dict[str, Any]:
    config = kind.config
    repository, tag = options.image_of(kind)
    served = kind.workload if kind.model.name in _shared_models(plan) else kind.model.name
    command = [part for part in replica_command(kind)[3:] if not part.startswith(_OF_THE_CHART)]
    extra = [f"--served-model-name={served}", *(part for part in command if part not in _PREFIX_CACHING)]
    spec: dict[str, Any] = {
        "name": name,
        "repository": repository,
        "tag": tag,
        "modelURL": kind.model.source or kind.model.name,
        "replicaCount": kind.replicas,
        "requestCPU": CPUS_PER_GPU * config.gpus,
        "requestMemory": f"{MEMORY_GIB_PER_GPU * config.gpus}Gi",
        "requestGPU": config.gpus,
        "podAnnotations": {
            "fleetsieve/certificate-sha256": plan.certificate_sha256,
            "fleetsieve/model-revision": kind.model.revision,
            "fleetsieve/replica-capacity-rps": f"{kind.capacity_rps:.6g}",
        },
        "vllmConfig": {
            "tensorParallelSize": config.tensor_parallel,
            # The chart turns it off where this says nothing; vLLM, as it was measured, has it on
            "enablePrefixCaching": _prefix_caching(kind),
            "extraArgs": extra,
        },
    }
    engine_env = [variable for variable in environment(plan, options) if "value" in variable]
    if engine_env:
        spec["env"] = engine_env
    if options.secret:
        spec["hf_token"] = {"secretName": options.secret[0], "secretKey": options.secret[1]}
    if options.volume:
        claim, path = options.volume
        spec["extraVolumes"] = [
            {"name": "models", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        ]
        spec["extraVolumeMounts"] = [{"name": "models", "mountPath": path, "readOnly": True}]
    if products := gpu_products(plan):
        term = {"key": GPU_LABEL, "operator": "In", "values": [products[kind.gpu]]}
        spec["nodeSelectorTerms"] = [{"matchExpressions": [term]}]
    return spec


def _prefix_caching(kind: ReplicaKind) -> bool:
    said = {option_name(name): value for name, value in kind.config.engine_args}
    if "no-enable-prefix-caching" in said:
        return said["no-enable-prefix-caching"].lower() == "false"
    return said.get("enable-prefix-caching", "true").lower() == "true"
