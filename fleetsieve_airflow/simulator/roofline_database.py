"""Operator times from a data sheet alone: for GPUs that nobody has tables for, and for trying things out.

A roofline knows arithmetic, memory and links, not kernels; its name says so beside every result, and it is
the source that gains most from calibration.
"""

from __future__ import annotations

import math

import numpy as np

from fleetsieve_airflow.simulator.curves import Curve, FloatArray, PerfDataError, Surface
from fleetsieve_airflow.simulator.hardware import Hardware
from fleetsieve_airflow.simulator.models import BYTES
from fleetsieve_airflow.simulator.perf_database import OPERATORS, Fixed, lacking

#: Shares of the data sheet that kernels reach, and what one launch takes.
COMPUTE_SHARE, MEMORY_SHARE, LINK_SHARE, LAUNCH_S = 0.62, 0.75, 0.7, 4e-6
_TOKENS: FloatArray = np.unique(np.round(np.geomspace(1, 65536, 60)))
_BATCHES: FloatArray = np.exp2(np.arange(12, dtype=float))
_CONTEXTS: FloatArray = np.concatenate([[1.0], 2.0 ** np.arange(4, 18)])
_MESSAGES: FloatArray = np.exp2(np.arange(7, 34, dtype=float))


class RooflineDatabase:
    """A :class:`~fleetsieve_airflow.simulator.perf_database.PerfDatabase` computed from a data sheet."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.name = f"{hardware.name} roofline (data sheet, no measurements)"

    def curve(self, operator: str, fixed: Fixed) -> Curve:
        """Return seconds of one call against its one free size."""
        if operator == "gemm":
            return Curve(_TOKENS, self._gemm(_number(fixed, "n"), _number(fixed, "k"), str(fixed["dtype"])))
        if operator == "moe":
            return Curve(_TOKENS, self._moe(fixed))
        if operator in OPERATORS and OPERATORS[operator].exact == ("gpus",):
            return Curve(_MESSAGES, self._collective(operator, int(_number(fixed, "gpus"))))
        raise lacking(operator, fixed, self.name, "gemm, moe and collectives as curves")

    def surface(self, operator: str, fixed: Fixed) -> Surface:
        """Return seconds of one call against its two free sizes."""
        if operator not in ("attention_prefill", "attention_decode", "mla_prefill", "mla_decode"):
            raise lacking(operator, fixed, self.name, "attention as surfaces")
        batch, length = np.meshgrid(_BATCHES, _CONTEXTS, indexing="ij")
        window = float(fixed.get("window", 0))
        seen = np.minimum(length, window) if window else length
        heads = _number(fixed, "heads")
        if operator.startswith("mla"):
            per_token, width, projections = 576.0, 512.0, 4e7 * heads / 128.0
        else:
            per_token, width, projections = (
                2 * _number(fixed, "kv_heads") * _number(fixed, "head_dim"),
                _number(fixed, "head_dim"),
                0.0,
            )
        stored = BYTES[str(fixed["kv_dtype"])]
        queries = length if operator.endswith("prefill") else np.ones_like(length)
        pairs = batch * queries * seen * (0.5 if operator.endswith("prefill") and not window else 1.0)
        operations = 4.0 * pairs * heads * width + 2.0 * batch * queries * projections
        moved = batch * seen * per_token * stored + projections * 2.0
        seconds = self._seconds(operations, moved, "bfloat16")
        return Surface(_BATCHES, _CONTEXTS, seconds, np.ones_like(seconds, dtype=bool))

    def _gemm(self, n: float, k: float, dtype: str) -> FloatArray:
        return self._seconds(2.0 * _TOKENS * n * k, n * k * BYTES[dtype] + 2.0 * _TOKENS * (n + k), dtype)

    def _moe(self, fixed: Fixed) -> FloatArray:
        experts, topk = _number(fixed, "experts"), _number(fixed, "topk")
        ep, tp = _number(fixed, "ep"), _number(fixed, "tp")
        hidden, inter = _number(fixed, "hidden"), _number(fixed, "inter")
        uneven = imbalance(str(fixed["routing"]), ep)
        rows = _TOKENS * topk / ep * uneven
        local = experts / ep
        touched = (
            local * (1.0 - (1.0 - 1.0 / local) ** np.maximum(rows, 1.0)) if local > 1 else np.ones_like(rows)
        )
        weights = 3.0 * hidden * inter / tp
        moved = touched * weights * BYTES[str(fixed["dtype"])] + 4.0 * rows * hidden
        return self._seconds(2.0 * rows * weights, moved, str(fixed["dtype"])) + 2.0 * LAUNCH_S

    def _collective(self, operator: str, gpus: int) -> FloatArray:
        if gpus <= 1:
            raise PerfDataError(f"A collective needs at least 2 GPUs, got {gpus}.")
        crosses = gpus > self.hardware.gpus_per_node
        bandwidth = self.hardware.network_bandwidth if crosses else self.hardware.node_bandwidth
        rounds = 2.0 if operator == "all_reduce" else 1.0
        travelled = rounds * (gpus - 1) / gpus * _MESSAGES
        latency = (
            self.hardware.link_latency_s * (0.4 if not crosses else 1.5) * rounds * math.log2(gpus) / 2.0
        )
        return np.asarray(latency + travelled / (bandwidth * LINK_SHARE))

    def _seconds(self, operations: FloatArray, moved: FloatArray, dtype: str) -> FloatArray:
        arithmetic = operations / (self.hardware.flops(dtype) * COMPUTE_SHARE * self.hardware.clock)
        memory = moved / (self.hardware.memory_bandwidth * MEMORY_SHARE)
        return np.asarray(np.maximum(arithmetic, memory) + LAUNCH_S)


def imbalance(routing: str, ranks: float) -> float:
    """Return how much longer the busiest of ``ranks`` expert ranks takes than it would if all had the same.

    Fitted to measured rows (H100, 128 experts in fp8, 8,192 tokens: 1.32, 1.65, 1.96, 2.24 times the balanced
    time on 2, 4, 8, 16 ranks at exponent 1.2; 1.17, 1.35, 1.69 on 2, 4, 8 at 1.01).
    """
    if routing == "balanced" or ranks <= 1:
        return 1.0
    exponent = float(routing.rpartition("_")[2])
    return 1.0 + max(0.0, 0.63 * exponent - 0.436) * math.log2(ranks)


def _number(fixed: Fixed, name: str) -> float:
    return float(fixed[name])
