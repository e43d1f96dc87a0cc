"""A plan as ``vllm serve`` commands, one for each kind of replica."""

from __future__ import annotations

import shlex

from fleetsieve_airflow.deployment.options import PORT, one_line, require_vllm
from fleetsieve_airflow.deployment.plan import FleetPlan, ReplicaKind
from fleetsieve_airflow.serving.engine import engine_command


def replica_command(kind: ReplicaKind) -> tuple[str, ...]:
    """Return the measured command that starts one replica, reachable from outside, as an argument list.

    :raises DeploymentError: another engine than vLLM.
    :raises SpecError: an engine argument that is refused.
    """
    require_vllm(kind)
    return engine_command("vllm", kind.model, kind.config, host="0.0.0.0", port=str(PORT))  # noqa: S104


def render_commands(plan: FleetPlan) -> str:
    """Return the commands as text for a POSIX shell, each below what it is and how often it is started.

    :raises DeploymentError: as :func:`replica_command`.
    """
    env = [f"{name}={value}" for name, value in plan.engine_env]
    lines = [f"# {line}" for line in headline(plan)]
    lines.append("# Start each command as often as it says; every replica needs GPUs and a port of its own.")
    for kind in plan.kinds:
        lines += ["", f"# {one_line(words_of(kind))}"]
        if kind.spans_nodes:
            lines.append(f"# A replica spans nodes of {kind.gpus_per_node} GPUs: start it on a Ray cluster.")
        command = replica_command(kind)
        lines.append(shlex.join(["env", *env, *command] if env else command))
    return "\n".join(lines) + "\n"


def headline(plan: FleetPlan) -> tuple[str, ...]:
    """Return what stands at the top of every exported file: whose plan it is and what vouches for it."""
    proof = f"certificate {plan.certificate_sha256[:16]}" if plan.certificate_sha256 else "no certificate"
    lines = [one_line(f"Fleet {plan.fleet}: {plan.gpus} GPUs, {plan.state.replace('_', ' ')}, {proof}.")]
    if not plan.certified:
        lines.append("NOT CERTIFIED: another plan may serve more, or these replicas less.")
    elif plan.state == "certified_infeasible":
        lines.append(
            "The demand cannot be met: the worst-served workload gets "
            f"{plan.min_fulfilment:.0%} of its demand."
        )
    return tuple(lines)


def words_of(kind: ReplicaKind) -> str:
    """Return a kind of replica in words, e.g. ``chat: 2 replicas TP4 of 4 GPUs, each for 6.6 req/s ...``."""
    replicas = "1 replica" if kind.replicas == 1 else f"{kind.replicas} replicas"
    version = f" on vLLM {kind.config.engine_version}" if kind.config.engine_version else ""
    gpus = "1 GPU" if kind.config.gpus == 1 else f"{kind.config.gpus} GPUs"
    return (
        f"{kind.workload}: {replicas} {kind.config.label} of {gpus} ({kind.gpu}){version}, "
        f"each for {kind.capacity_rps:.4g} req/s at most"
    )
