"""FleetSieve itself: the core's own decision, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.methods.base import Asked, Method
from benchmarks.state import State
from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.evidence import Decision, Evidence, PointFailure


class FleetSieve(Method):
    """Ask what ``core.decision.decide`` asks; it stops by itself."""

    name = "FleetSieve"
    stops_itself = True
    last: Decision

    def batch(self, state: State, room: int | None) -> Sequence[Asked]:
        """Return the round that the core plans, empty once it is settled or gives up."""
        spec = self.board.spec
        if room is not None and room != spec.measurement.profiling_gpus:
            spec = replace(spec, measurement=replace(spec.measurement, profiling_gpus=room))
        failures = tuple(
            PointFailure(
                key=point.key, label=point.label, round=0, kind="missing_in_grid", message="no further run"
            )
            for cell in sorted(state.exhausted)
            for point in self.board.points[cell[0]][cell[1]]
        )
        rounds = max((item.round for item in state.evidence), default=0)
        evidence = Evidence(items=tuple(state.evidence), failures=failures, rounds_done=rounds)
        self.last = decide(spec, evidence)
        if self.last.state != "measure":
            return ()
        return [
            Asked(self.board.cell_of_key[planned.point.key], planned.point, planned.job)
            for planned in self.last.points
        ]
