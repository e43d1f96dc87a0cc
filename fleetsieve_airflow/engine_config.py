"""How one replica is built: one engine in one pool, or a group of engines for each of two phases.

A disaggregated replica prefills on some engines and decodes on others, perhaps on GPUs of another kind. It
is measured and counted as one: its capacity is what the two groups serve together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fleetsieve_airflow.errors import RecordError

#: Marks a field that is written only where it says something: records without it keep their digests.
OMITTED_BY_DEFAULT: dict[str, Any] = {"omitted_by_default": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGroup:
    """The engines of one phase of a disaggregated replica: ``engines`` of them, all alike, in one pool.

    ``engine_args`` are added to those of the engine config, and win where both name one.
    """

    pool: str
    engines: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    engine_args: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if min(self.engines, self.tensor_parallel, self.pipeline_parallel, self.data_parallel) < 1:
            raise RecordError(f"Engines in pool {self.pool!r}: number and degrees must be at least one.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How one replica is built: one engine in one pool, or a group of engines for each of two phases.

    With ``prefill`` and ``decode`` the replica is disaggregated: ``pool`` is empty and the degrees stay at 1,
    because the groups have their own. What places GPUs asks :attr:`parts`, which covers both forms.
    """

    label: str
    pool: str = ""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    multi_node: bool = False
    engine: str = "vllm"
    engine_version: str = ""
    engine_args: tuple[tuple[str, str], ...] = ()
    prefill: EngineGroup | None = field(default=None, metadata=OMITTED_BY_DEFAULT)
    decode: EngineGroup | None = field(default=None, metadata=OMITTED_BY_DEFAULT)

    def __post_init__(self) -> None:
        degrees = (self.tensor_parallel, self.pipeline_parallel, self.data_parallel)
        if min(degrees) < 1:
            raise RecordError(f"Engine config {self.label!r}: parallel degrees must be at least 1.")
        if (self.prefill is None) != (self.decode is None):
            raise RecordError(f"Engine config {self.label!r}: prefill and decode go together.")
        if bool(self.pool) == self.disaggregated or (self.disaggregated and max(degrees) > 1):
            raise RecordError(
                f"Engine config {self.label!r}: give either a pool and degrees, or prefill and decode."
            )

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode run on engines of their own."""
        return self.prefill is not None

    @property
    def gpus(self) -> int:
        """GPUs of one replica, over all pools."""
        if self.prefill is None:
            return self.tensor_parallel * self.pipeline_parallel * self.data_parallel
        return sum(part.gpus for part in self.parts)

    @property
    def parts(self) -> tuple[ReplicaPart, ...]:
        """The engines of one replica by phase; of a plain one, itself."""
        if self.prefill is None or self.decode is None:
            return (ReplicaPart(phase="", engine=self, engines=1),)
        return (self._part("prefill", self.prefill), self._part("decode", self.decode))

    @property
    def pool_gpus(self) -> dict[str, int]:
        """GPUs of one replica by pool."""
        found: dict[str, int] = {}
        for part in self.parts:
            found[part.engine.pool] = found.get(part.engine.pool, 0) + part.gpus
        return found

    def _part(self, phase: str, group: EngineGroup) -> ReplicaPart:
        engine = replace(
            self,
            label=f"{self.label} {phase}",
            pool=group.pool,
            tensor_parallel=group.tensor_parallel,
            pipeline_parallel=group.pipeline_parallel,
            data_parallel=group.data_parallel,
            expert_parallel=group.expert_parallel,
            engine_args=tuple({**dict(self.engine_args), **dict(group.engine_args)}.items()),
            prefill=None,
            decode=None,
        )
        return ReplicaPart(phase=phase, engine=engine, engines=group.engines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPart:
    """``engines`` engines of one kind in a replica, each placed on its own in a node or in whole nodes."""

    phase: str
    engine: EngineConfig
    engines: int

    @property
    def words(self) -> str:
        """How it is built, e.g. ``2 x TP4PP2 in pool h100``."""
        engine = self.engine
        further = (("PP", engine.pipeline_parallel), ("DP", engine.data_parallel))
        named = "".join(f"{name}{degree}" for name, degree in further if degree > 1)
        return f"{self.engines} x TP{engine.tensor_parallel}{named} in pool {engine.pool}"

    @property
    def gpus(self) -> int:
        """GPUs of all its engines."""
        return self.engines * self.engine.gpus
