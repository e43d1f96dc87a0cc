"""Ladders of loads that a spec leaves to us: as fine as asked, with rungs where the replica count changes."""

from __future__ import annotations

import math
from functools import lru_cache

from fleetsieve_airflow.records import LoadKind, Workload
from fleetsieve_airflow.spec_schema import DecisionSection, LoadsSection

#: Default relative step of an automatic ladder: 5 % for rates, doubling for concurrency.
DEFAULT_RESOLUTION: dict[LoadKind, float] = {"offered_load_rps": 0.05, "concurrency": 1.0}
#: Labels show six digits of a load, so two loads of one ladder must differ within them.
_DIGITS = 6
#: A ladder longer than this is a slip of the keyboard, not a question.
LONGEST_LADDER = 500


def listed_loads(
    section: LoadsSection, workload: Workload, label: str, fitting: int, decision: DecisionSection
) -> tuple[float, ...] | str:
    """Return the ladder of a candidate as its section says, or what is wrong with it.

    :param label: of its engine config, of which ``fitting`` replicas fit the pools at most.
    """
    if section.loads != "auto":
        return tuple(float(load) for load in section.loads)
    lowest, highest = section.from_ or 0.0, section.to or 0.0
    resolution = section.resolution or DEFAULT_RESOLUTION[section.kind]
    length = ladder_length(lowest, highest, resolution)
    if length > LONGEST_LADDER:
        return f"makes {length} loads for {label}, at most {LONGEST_LADDER} are allowed"
    if section.kind == "concurrency":
        return concurrency_ladder(lowest, highest, resolution)
    most = fitting if workload.max_replicas is None else min(fitting, workload.max_replicas)
    return rate_ladder(lowest, highest, resolution, workload.demand_rps * decision.required_fulfilment, most)


@lru_cache(maxsize=1024)
def rate_ladder(
    lowest: float, highest: float, resolution: float, needed_rps: float, most_replicas: int
) -> tuple[float, ...]:
    """Return request rates from ``lowest`` to ``highest`` in relative steps, the decision's own among them.

    A plan of n replicas serves ``needed_rps`` only when one replica carries ``needed_rps / n``: those are the
    loads worth asking about, and they take the place of steps nearer than half a step. Above
    n = 1 / resolution they lie closer than the steps and are left to them.

    :param needed_rps: demand times the required fulfilment.
    :param most_replicas: how many replicas fit at most.
    """
    count = min(most_replicas, math.ceil(1.0 / resolution))
    # Rounded up: n replicas at the rung must reach what is needed, not miss it by a rounding error.
    questions = [_rounded_up(needed_rps / n) for n in range(1, count + 1)]
    decisive = [load for load in questions if lowest <= load <= highest]
    near = 1.0 + resolution / 2.0
    steps = [
        load
        for load in _steps(lowest, highest, resolution)
        if not any(load / near < rung < load * near for rung in decisive)
    ]
    return tuple(sorted({lowest, highest, *decisive, *steps}))


def concurrency_ladder(lowest: float, highest: float, resolution: float) -> tuple[float, ...]:
    """Return whole numbers of requests in flight from ``lowest`` to ``highest`` in relative steps."""
    return tuple(
        sorted({lowest, highest, *(float(round(load)) for load in _steps(lowest, highest, resolution))})
    )


def ladder_length(lowest: float, highest: float, resolution: float) -> int:
    """Return how many steps a ladder has, before anything of it is built."""
    return math.ceil(math.log(highest / lowest) / math.log1p(resolution)) + 1


def _steps(lowest: float, highest: float, resolution: float) -> list[float]:
    loads = (lowest * (1.0 + resolution) ** k for k in range(ladder_length(lowest, highest, resolution)))
    return [rounded for load in loads if lowest <= (rounded := float(f"{load:.{_DIGITS}g}")) <= highest]


def _rounded_up(load: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(load)) - _DIGITS + 1)
    return float(f"{math.ceil(round(load / unit, 6)) * unit:.{_DIGITS}g}")
