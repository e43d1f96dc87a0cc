"""What an operator costs: the protocol that every source of operator tables meets, and the operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fleetsieve_airflow.simulator.curves import Curve, FloatArray, PerfDataError, Surface
from fleetsieve_airflow.simulator.hardware import Hardware

Fixed = Mapping[str, str | float]
Extrapolation = Literal["flag", "refuse"]


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """An operator and the sizes it is priced by.

    :param words: facts that must match to the letter (number formats, routing distribution).
    :param exact: numbers that must match; ``between``: numbers that may lie between two measured ones.
    :param free: the sizes that vary at run time: one (a curve) or two (a surface).
    """

    name: str
    words: tuple[str, ...]
    exact: tuple[str, ...]
    between: tuple[str, ...]
    free: tuple[str, ...]


_HEADS = ("head_dim", "kv_heads", "window")

#: Sizes: ``tokens`` and ``batch`` are counts in one step on one rank (for ``moe``: over all ranks that share
#: the experts), ``context`` tokens already in the cache, ``bytes`` the message of one rank.
OPERATORS: dict[str, OperatorKind] = {
    kind.name: kind
    for kind in (
        OperatorKind("gemm", ("dtype",), (), ("n", "k"), ("tokens",)),
        OperatorKind("attention_prefill", ("kv_dtype",), _HEADS, ("heads",), ("batch", "tokens")),
        OperatorKind("attention_decode", ("kv_dtype",), _HEADS, ("heads",), ("batch", "context")),
        OperatorKind("mla_prefill", ("dtype", "kv_dtype"), (), ("heads",), ("batch", "tokens")),
        OperatorKind("mla_decode", ("dtype", "kv_dtype"), (), ("heads",), ("batch", "context")),
        OperatorKind(
            "moe", ("dtype", "routing"), ("hidden", "inter", "topk", "experts", "tp", "ep"), (), ("tokens",)
        ),
        OperatorKind("all_reduce", (), ("gpus",), (), ("bytes",)),
        OperatorKind("all_gather", (), ("gpus",), (), ("bytes",)),
        OperatorKind("reduce_scatter", (), ("gpus",), (), ("bytes",)),
        OperatorKind("all_to_all", (), ("gpus",), (), ("bytes",)),
    )
}
ROUTINGS = ("balanced", "power_law_1.01", "power_law_1.2")


class PerfDatabase(Protocol):
    """A source of operator times for one GPU and one engine."""

    @property
    def name(self) -> str:
        """Where the numbers come from, as it is shown beside every result."""

    @property
    def hardware(self) -> Hardware:
        """The GPU the numbers are for."""

    def curve(self, operator: str, fixed: Fixed) -> Curve:
        """Return seconds of one call against its one free size.

        :raises PerfDataError: the table lacks the operator at these fixed sizes; says what exists.
        """

    def surface(self, operator: str, fixed: Fixed) -> Surface:
        """Return seconds of one call against its two free sizes.

        :raises PerfDataError: as :meth:`curve`.
        """


def describe(operator: str, fixed: Fixed) -> str:
    """Return an operator with its sizes in words, for messages."""
    sizes = ", ".join(
        f"{name}={value if isinstance(value, str) else format(value, 'g')}" for name, value in fixed.items()
    )
    return f"{operator}({sizes})"


class PowerCapped:
    """A database whose GPU runs under a power cap.

    The part of an operator's time that the GPU's arithmetic needs at full clock grows by 1/clock; the rest
    (memory, links, launches) stays.
    """

    def __init__(self, database: PerfDatabase, power_w: float) -> None:
        self._database = database
        self.hardware = database.hardware.capped(power_w)
        self.name = f"{database.name} at {power_w:g} W"
        self._slowdown = database.hardware.clock / self.hardware.clock - 1.0

    def curve(self, operator: str, fixed: Fixed) -> Curve:
        """Return the slowed curve."""
        base = self._database.curve(operator, fixed)
        operations = _operations(operator, fixed, base.x[:, np.newaxis])[:, 0]
        return Curve(base.x, self._slowed(base.seconds, operations, fixed))

    def surface(self, operator: str, fixed: Fixed) -> Surface:
        """Return the slowed surface."""
        base = self._database.surface(operator, fixed)
        first, second = np.meshgrid(base.x, base.y, indexing="ij")
        operations = _operations(operator, fixed, np.stack([first, second], axis=-1))
        return Surface(base.x, base.y, self._slowed(base.seconds, operations, fixed), base.known)

    def _slowed(self, seconds: FloatArray, operations: FloatArray, fixed: Fixed) -> FloatArray:
        dtype = str(fixed.get("dtype", "bfloat16"))
        arithmetic = np.minimum(seconds, operations / self._database.hardware.flops(dtype))
        return np.asarray(seconds + arithmetic * self._slowdown)


def _operations(operator: str, fixed: Fixed, sizes: FloatArray) -> FloatArray:
    """Return floating-point operations of a call; sizes on the last axis, which is kept for one free size."""

    def number(name: str) -> float:
        return float(fixed[name])

    if operator == "gemm":
        return np.asarray(2.0 * sizes * number("n") * number("k"))
    if operator == "moe":
        share = number("topk") / (number("tp") * number("ep"))
        return np.asarray(2.0 * sizes * share * 3.0 * number("hidden") * number("inter"))
    if operator == "attention_prefill":
        batch, tokens = sizes[..., 0], sizes[..., 1]
        return np.asarray(2.0 * batch * tokens**2 * number("heads") * number("head_dim"))
    if operator == "mla_prefill":
        batch, tokens = sizes[..., 0], sizes[..., 1]
        return np.asarray(2.0 * batch * tokens**2 * number("heads") * 160.0)
    return np.zeros(
        sizes.shape
        if operator in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        else sizes.shape[:-1]
    )


def lacking(operator: str, fixed: Fixed, name: str, exists: str) -> PerfDataError:
    """Return the one-line error for a gap in the tables."""
    return PerfDataError(f"{name} has no {describe(operator, fixed)}; it has {exists}.")
