"""A plan as Kubernetes manifests: a Deployment and a Service for each workload on each engine config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from fleetsieve_airflow.deployment.commands import headline, replica_command, words_of
from fleetsieve_airflow.deployment.options import (
    PORT,
    ExportOptions,
    dns_names,
    label_value,
    one_line,
    require_deployable,
)
from fleetsieve_airflow.deployment.plan import FleetPlan, ReplicaKind

#: GPU feature discovery labels nodes with it: the product's name, with dashes for blanks.
GPU_LABEL = "nvidia.com/gpu.product"
CPUS_PER_GPU, MEMORY_GIB_PER_GPU = 4, 16
PROBE_PERIOD_S = 10


def render_kubernetes(plan: FleetPlan, options: ExportOptions) -> str:
    """Return the manifests as YAML documents.

    :raises DeploymentError: what plain Deployments cannot hold, or another engine than vLLM.
    """
    head = "".join(f"# {line}\n" for line in headline(plan))
    documents = [
        f"# {one_line(words_of(kind))}\n" + dump_yaml(manifest)
        for kind, pair in zip(plan.kinds, manifests(plan, options), strict=True)
        for manifest in pair
    ]
    return head + "---\n" + "---\n".join(documents)


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice twice: anchors and aliases are for machines."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump_yaml(document: Mapping[str, Any]) -> str:
    """Return a document as YAML, in the order it was built."""
    return str(yaml.dump(document, Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True))


def manifests(plan: FleetPlan, options: ExportOptions) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (Deployment, Service) for each kind of replica.

    :raises DeploymentError: as :func:`render_kubernetes`.
    """
    require_deployable(plan, options)
    names = dns_names([f"{plan.fleet} {kind.label}" for kind in plan.kinds])
    return [
        (_deployment(plan, kind, name, options), _service(plan, kind, name, options))
        for kind, name in zip(plan.kinds, names, strict=True)
    ]


def gpu_products(plan: FleetPlan) -> dict[str, str]:
    """Return GPU -> value of its node label; empty where all GPUs are of one kind."""
    gpus = sorted({kind.gpu for kind in plan.kinds})
    return {gpu: label_value(gpu) for gpu in gpus} if len(gpus) > 1 else {}


def environment(plan: FleetPlan, options: ExportOptions) -> list[dict[str, Any]]:
    """Return the container's variables: as measured, and the token by reference."""
    variables: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in plan.engine_env]
    if options.secret:
        name, key = options.secret
        variables.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": key}}})
    return variables


def startup_failures(plan: FleetPlan) -> int:
    """Return how many probes in a row may fail before a starting server is given up."""
    return max(1, round(plan.ready_s / PROBE_PERIOD_S))


def _metadata(plan: FleetPlan, kind: ReplicaKind, name: str, options: ExportOptions) -> dict[str, Any]:
    labels = {
        **_selector(name),
        "app.kubernetes.io/part-of": label_value(plan.fleet),
        "app.kubernetes.io/managed-by": "fleetsieve",
        "fleetsieve/workload": label_value(kind.workload),
        "fleetsieve/engine-config": label_value(kind.config.label),
    }
    annotations = {
        "fleetsieve/fleet": plan.fleet,
        "fleetsieve/state": plan.state,
        "fleetsieve/certificate-sha256": plan.certificate_sha256,
        "fleetsieve/model": kind.model.name,
        "fleetsieve/model-revision": kind.model.revision,
        "fleetsieve/replica-capacity-rps": f"{kind.capacity_rps:.6g}",
    }
    metadata: dict[str, Any] = {"name": name}
    if options.namespace:
        metadata["namespace"] = options.namespace
    return {**metadata, "labels": labels, "annotations": annotations}


def _selector(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": name}


def _deployment(plan: FleetPlan, kind: ReplicaKind, name: str, options: ExportOptions) -> dict[str, Any]:
    metadata = _metadata(plan, kind, name, options)
    pod_metadata = {key: metadata[key] for key in ("labels", "annotations")}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": kind.replicas,
            "selector": {"matchLabels": _selector(name)},
            # The plan uses the pool's GPUs: there are none for a pod more while another is replaced
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "progressDeadlineSeconds": round(plan.ready_s) + 600,
            "template": {"metadata": pod_metadata, "spec": _pod(plan, kind, options)},
        },
    }


def _pod(plan: FleetPlan, kind: ReplicaKind, options: ExportOptions) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        # Outlives the container, so that a crash does not fetch the weights again
        {"name": "cache", "emptyDir": {}},
    ]
    if options.volume:
        claim = {"claimName": options.volume[0], "readOnly": True}
        volumes.append({"name": "models", "persistentVolumeClaim": claim})
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        # A Service called vllm would set VLLM_PORT in every pod, which vLLM reads as a port
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 120,
    }
    if products := gpu_products(plan):
        pod["nodeSelector"] = {GPU_LABEL: products[kind.gpu]}
    return {**pod, "containers": [_container(plan, kind, options)], "volumes": volumes}


def _container(plan: FleetPlan, kind: ReplicaKind, options: ExportOptions) -> dict[str, Any]:
    gpus = kind.config.gpus
    health = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": PROBE_PERIOD_S}
    mounts: list[dict[str, Any]] = [
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - where NCCL and the workers meet
        {"name": "cache", "mountPath": "/root/.cache"},
    ]
    if options.volume:
        mounts.append({"name": "models", "mountPath": options.volume[1], "readOnly": True})
    container: dict[str, Any] = {
        "name": "vllm",
        "image": ":".join(options.image_of(kind)),
        "command": list(replica_command(kind)),
        "ports": [{"name": "http", "containerPort": PORT}],
    }
    if variables := environment(plan, options):
        container["env"] = variables
    return {
        **container,
        "resources": {
            "requests": {"cpu": str(CPUS_PER_GPU * gpus), "memory": f"{MEMORY_GIB_PER_GPU * gpus}Gi"},
            "limits": {"nvidia.com/gpu": str(gpus)},
        },
        "startupProbe": {**health, "failureThreshold": startup_failures(plan)},
        "readinessProbe": {**health, "timeoutSeconds": 5},
        # An engine that is busy answers late: only one that is dead is started again
        "livenessProbe": {**health, "timeoutSeconds": 10, "failureThreshold": 6},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": mounts,
    }


def _service(plan: FleetPlan, kind: ReplicaKind, name: str, options: ExportOptions) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(plan, kind, name, options),
        "spec": {
            "type": "ClusterIP",
            "selector": _selector(name),
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }
