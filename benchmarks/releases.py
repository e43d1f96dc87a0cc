"""A fleet whose models are released anew: every candidate's capacity has moved by a factor of its own.

A replica of the new release behaves at ``factor x load`` as one of the release before did at ``load``:
latencies, success rate, and the rate served per unit of load. Between recorded loads, logs are interpolated
over log loads.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.fleets import Fleet
from benchmarks.grids import Run
from fleetsieve_airflow.core.verdict import judge
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint
from fleetsieve_airflow.records import Candidate, FleetSpec
from fleetsieve_airflow.serialization import points_of

#: (workload, engine config) -> factor by which its capacity has moved.
Moves = Mapping[tuple[str, str], float]
#: Shares of ln(factor) that are common to a workload, common to a config, and a candidate's own.
OF_WORKLOAD, OF_CONFIG, OWN = 0.5, 0.25, 0.25
#: A changed best TP: the best config of a workload loses this much, its runner-up gains as much.
SWAPPED = 1.4


@dataclass(frozen=True, slots=True)
class Release(Fleet):
    """The fleet ``before`` with the next release of all its models."""

    before: Fleet
    moves: Moves
    _shown: dict[tuple[str, str], list[Measurement]] = field(default_factory=dict, repr=False, compare=False)

    def measure(self, point: MeasurementPoint, run: Run | None = None) -> Measurement:
        """Return what a point shows: what the release before showed at the load divided by the factor."""
        if run is not None:
            raise ValueError("A release has one run per cell.")
        candidate = self.before.spec.candidate(point.workload, point.config)
        rows = self._rows(candidate)
        factor = self.moves[point.workload, point.config]
        at, loads = math.log(point.load / factor), [math.log(load) for load in candidate.loads]
        success = None
        if all(row.success_rate is not None for row in rows):
            success = min(1.0, max(0.0, _between(at, loads, [row.success_rate or 0.0 for row in rows])))
        per_load = [math.log(max(row.served_rps, 1e-9)) - load for row, load in zip(rows, loads, strict=True)]
        return Measurement(
            point=point,
            served_rps=point.load * math.exp(_between(at, loads, per_load)),
            success_rate=success,
            percentiles=tuple(
                (
                    name,
                    math.exp(_between(at, loads, [math.log(row.percentile(name) or 1e-9) for row in rows])),
                )
                for name, _ in rows[0].percentiles
            ),
            gpu_seconds_window=point.gpu_seconds_window,
            gpu_seconds_billed=point.gpu_seconds_window + point.gpus * self.spec.measurement.startup_s,
        )

    def _rows(self, candidate: Candidate) -> list[Measurement]:
        """Return what the release before shows along a candidate's ladder."""
        key = (candidate.workload, candidate.config)
        if key not in self._shown:
            spec = self.before.spec
            self._shown[key] = [self.before.measure(point) for point in points_of(spec, candidate)]
        return self._shown[key]

    def capacities(self) -> list[list[float]]:
        """Return each candidate's true capacity in req/s, in the order of the allocation problem."""
        return [
            [self._capacity(candidate) for candidate in self.spec.candidates_of(workload.name)]
            for workload in self.spec.workloads
        ]

    def _capacity(self, candidate: Candidate) -> float:
        slo, capacity = self.spec.workload(candidate.workload).slo, 0.0
        for point in points_of(self.spec, candidate):
            measurement = self.measure(point)
            if judge(measurement, slo, self.spec.decision) != "met":
                break
            offered = candidate.load_kind == "offered_load_rps"
            capacity = max(capacity, point.load if offered else measurement.served_rps)
        return capacity


def _between(at: float, xs: list[float], values: list[float]) -> float:
    """Interpolate; flat below the lowest load, past the highest in its last direction."""
    if at > xs[-1]:
        return values[-1] + (values[-1] - values[-2]) / (xs[-1] - xs[-2]) * (at - xs[-1])
    return float(np.interp(at, xs, values))


def release(fleet: Fleet, moves: Moves) -> Release:
    """Return the fleet with the next release of all its models."""
    return Release(
        fleet.family, f"{fleet.name} next", _at_next(fleet.spec), {}, {}, before=fleet, moves=moves
    )


def _at_next(spec: FleetSpec) -> FleetSpec:
    models = tuple(replace(model, revision=f"{model.revision} next") for model in spec.models)
    return replace(spec, models=models)


def within(fleet: Fleet, most: float, rng: random.Random) -> Moves:
    """Draw factors between 1 / (1 + most) and 1 + most, partly shared by workloads and by configs."""
    bound = math.log1p(most)
    of_workload = {workload.name: rng.uniform(-1, 1) for workload in fleet.spec.workloads}
    of_config = {config.label: rng.uniform(-1, 1) for config in fleet.spec.configs}
    return {
        (item.workload, item.config): math.exp(
            bound
            * (
                OF_WORKLOAD * of_workload[item.workload]
                + OF_CONFIG * of_config[item.config]
                + OWN * rng.uniform(-1, 1)
            )
        )
        for item in fleet.spec.candidates
    }


def by_half(fleet: Fleet, rng: random.Random) -> Moves:
    """Let every workload's capacities move by 50 % up or down, and those of its candidates by 15 % around."""
    way = {workload.name: rng.choice((1.5, 1 / 1.5)) for workload in fleet.spec.workloads}
    return {(name, label): way[name] * own for (name, label), own in within(fleet, 0.15, rng).items()}


def best_changed(fleet: Fleet, rng: random.Random) -> Moves:
    """Let each workload's best config lose what its runner-up gains, per GPU, and the rest move by 15 %."""
    moves = dict(within(fleet, 0.15, rng))
    for workload, capacities in zip(fleet.spec.workloads, fleet.capacities(), strict=True):
        candidates = fleet.spec.candidates_of(workload.name)
        per_gpu = [
            capacity / fleet.spec.config(item.config).gpus
            for item, capacity in zip(candidates, capacities, strict=True)
        ]
        ranked = sorted(range(len(candidates)), key=lambda c: -per_gpu[c])
        for place, factor in zip(ranked[:2], (1 / SWAPPED, SWAPPED), strict=False):
            moves[workload.name, candidates[place].config] = factor
    return moves
