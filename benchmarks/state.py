"""What a campaign on a recorded fleet knows, with the ladders, bounds and stop rule of the core.

``core.decision.decide`` reads all evidence anew each round. Thousands of stop tests need something faster: a
:class:`State` updates one ladder per measurement and works the stop out only when something changed. A test
holds both to the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from benchmarks.fleets import Fleet
from fleetsieve_airflow.core.allocation import SLACK, Problem, problem_of
from fleetsieve_airflow.core.bounds import (
    Box,
    Counts,
    fulfilments,
    ranges_between,
    regret_of,
    solve,
    value_of,
)
from fleetsieve_airflow.core.ladder import Ladder, judged, ladders_of
from fleetsieve_airflow.core.spread import Cells, Noise, noise_of
from fleetsieve_airflow.evidence import Evidence, EvidenceItem, Measurement, MeasurementPoint
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serialization import points_of

Cell = tuple[int, int]  # (ladder, load): what can be measured
Ranges = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Whether the decision is settled, and the plan as it stands.

    :param state: ``certified_feasible``, ``certified_infeasible``, or empty while it is not settled.
    """

    state: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class Known:
    """One ladder with the bounds in req/s on its capacity, capped at its workload's demand."""

    ladder: Ladder
    lower: float
    upper: float
    ranges: Ranges


class Board:
    """The parts of a fleet that no measurement changes: made once, shared by every state."""

    def __init__(self, fleet: Fleet, spec: FleetSpec | None = None) -> None:
        self.fleet = fleet
        self.spec = fleet.spec if spec is None else spec
        self.problem: Problem = problem_of(self.spec)
        self.blank: tuple[Ladder, ...] = ladders_of(self.spec, Evidence())
        seen = [0] * len(self.problem.names)
        self.places: list[
            Cell
        ] = []  # per ladder: its workload and its place among that workload's candidates
        for ladder in self.blank:
            self.places.append((ladder.workload, seen[ladder.workload]))
            seen[ladder.workload] += 1
        repeats = self.spec.measurement.repeats
        self.points: list[list[tuple[MeasurementPoint, ...]]] = []
        for ladder in self.blank:
            row = points_of(self.spec, ladder.candidate, repeats)
            self.points.append(
                [row[j * repeats : (j + 1) * repeats] for j in range(len(ladder.candidate.loads))]
            )
        self.cells: list[Cell] = [(i, j) for i, row in enumerate(self.points) for j in range(len(row))]
        self.cell_of_key = {p.key: (i, j) for i, j in self.cells for p in self.points[i][j]}
        self.capacities = fleet.capacities()
        self.best = value_of(self.problem, self.capacities)
        #: Per ladder, what has to be started to measure it: points that share it share one job.
        self.servers = [
            (self.spec.workload(ladder.candidate.workload).model, ladder.candidate.config)
            for ladder in self.blank
        ]
        self._full: tuple[Ladder, ...] | None = None
        #: (ladder, loads revealed as bits) -> what is then known of it, without noise.
        self._known: dict[tuple[int, int], Known] = {}

    @property
    def tolerance(self) -> float:
        """What a plan may lose."""
        return self.spec.decision.tolerance

    @property
    def full(self) -> tuple[Ladder, ...]:
        """The ladders with every load measured without noise."""
        if self._full is None:
            state = State(self)
            for i, j in self.cells:
                state.observe(i, j, self.fleet.measure(self.points[i][j][0]))
            self._full = tuple(state.ladders)
        return self._full

    def window(self, cell: Cell) -> float:
        """GPU-seconds of one window."""
        return self.points[cell[0]][cell[1]][0].gpu_seconds_window

    def true_regret(self, counts: Counts) -> float:
        """Return what a plan loses against the best plan under the true capacities."""
        served = min(*fulfilments(self.problem, self.capacities, counts), self.problem.ceiling)
        return max(0.0, self.best - served)

    def after(self, cells: Iterable[Cell]) -> State:
        """Return the state in which exactly these cells are measured, each once and without noise."""
        state = State(self)
        asked: dict[int, int] = {}
        for i, j in cells:
            asked[i] = asked.get(i, 0) | 1 << j
        for i, bits in asked.items():
            state.know(i, self.known(i, bits))
        return state

    def known(self, i: int, bits: int) -> Known:
        """Return what is known of a ladder once the loads of these bits are measured, each without noise."""
        if (i, bits) not in self._known:
            ladder = self.blank[i]
            if bits:
                full, shown = self.full[i], [bool(bits >> j & 1) for j in range(len(ladder.verdicts))]
                ladder = replace(
                    ladder,
                    verdicts=tuple(v if show else None for v, show in zip(full.verdicts, shown, strict=True)),
                    rates=tuple(r if show else None for r, show in zip(full.rates, shown, strict=True)),
                )
            self._known[i, bits] = self.bounded(i, ladder)
        return self._known[i, bits]

    def bounded(self, i: int, ladder: Ladder) -> Known:
        """Return a ladder with its bounds as the core's box holds them."""
        w, _ = self.places[i]
        top = ladder.capacity_upper
        lower = self.problem.cap(w, ladder.capacity_lower)
        upper = self.problem.cap(w, top if math.isfinite(top) else None)
        loads = ladder.candidate.loads if ladder.candidate.load_kind == "offered_load_rps" else None
        return Known(ladder, lower, upper, ranges_between(lower, upper, loads))


class State:
    """What is known after some measurements."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.ladders: list[Ladder] = list(board.blank)
        self.evidence: list[EvidenceItem] = []
        self.measured: dict[Cell, list[Measurement]] = {}
        self.pending: set[Cell] = set()  # asked for in the running round, answer not known yet
        self.exhausted: set[Cell] = set()  # no further run of it was recorded
        self._lower: list[list[float]] = [[0.0] * len(row) for row in board.problem.gpus]
        self._upper: list[list[float]] = [[0.0] * len(row) for row in board.problem.gpus]
        self._ranges: list[list[Ranges]] = [[()] * len(row) for row in board.problem.gpus]
        self._stop: Stop | None = None
        self._plan: Counts | None = None
        self._bits: dict[int, int] = {}
        self._asked: set[int] = set()
        self._noise: Noise | None = None
        for i in range(len(self.ladders)):
            self.know(i, board.known(i, 0))

    def observe(self, i: int, j: int, measurement: Measurement) -> None:
        """Take in one measurement of one cell."""
        self.measured.setdefault((i, j), []).append(measurement)
        spec, changed = self.board.spec, {i}
        every = {k: self._cells(k) for k in ({i} if spec.decision.confidence is None else self._asked | {i})}
        self._asked.add(i)
        noise = noise_of(spec, list(every.values()))
        if noise != self._noise:  # what one ladder shows of the noise concerns all
            self._noise, changed = noise, self._asked
        for k in changed:
            self.know(k, self.board.bounded(k, judged(spec, self.board.blank[k], every[k], noise)))

    def _cells(self, i: int) -> Cells:
        """Return the measurements of each load of a ladder."""
        return [self.measured.get((i, j), ()) for j in range(len(self.board.points[i]))]

    def reveal(self, i: int, j: int) -> None:
        """Show one load as its noise-free measurement would; not to be mixed with :meth:`observe`."""
        self._bits[i] = self._bits.get(i, 0) | 1 << j
        self.know(i, self.board.known(i, self._bits[i]))

    def know(self, i: int, known: Known) -> None:
        """Replace what is known of one ladder."""
        w, c = self.board.places[i]
        before = (self._lower[w][c], self._upper[w][c], self._ranges[w][c])
        self.ladders[i] = known.ladder
        self._lower[w][c], self._upper[w][c], self._ranges[w][c] = known.lower, known.upper, known.ranges
        if before != (known.lower, known.upper, known.ranges):
            self._stop = None
        if before[0] != known.lower:
            self._plan = None

    def next_point(self, cell: Cell) -> MeasurementPoint | None:
        """Return the point that would measure a cell next, None where all its repeats are used."""
        done = len(self.measured.get(cell, ()))
        row = self.board.points[cell[0]][cell[1]]
        return (
            row[done] if done < len(row) and cell not in self.exhausted and cell not in self.pending else None
        )

    def askable(self, i: int) -> list[int]:
        """Return the loads of a ladder that tell more and can be measured (again)."""
        return [j for j in self.ladders[i].open_loads() if self.next_point((i, j)) is not None]

    def bounds(self, i: int) -> tuple[float, float]:
        """Return the bounds in req/s on a ladder's capacity, capped at its workload's demand."""
        w, c = self.board.places[i]
        return self._lower[w][c], self._upper[w][c]

    @property
    def lower(self) -> list[list[float]]:
        """Lower bounds on the capacities, per workload and candidate."""
        return self._lower

    @property
    def upper(self) -> list[list[float]]:
        """Upper bounds on the capacities, per workload and candidate."""
        return self._upper

    def box(self) -> Box:
        """Return all capacities that remain possible."""
        return Box(self._lower, self._upper, self._ranges)

    def plan(self) -> Counts:
        """Return the conservative plan's replica counts."""
        if self._plan is None:
            self._plan = solve(self.board.problem, self._lower)[0]
        return self._plan

    def stop(self) -> Stop:
        """Work out whether the decision is settled; only anew where something changed."""
        if self._stop is None:
            self._stop = self._settled()
        return self._stop

    def _settled(self) -> Stop:
        problem, settings = self.board.problem, self.board.spec.decision
        box = self.box()
        counts = self.plan()
        level = min(fulfilments(problem, box.lower, counts))
        goal = settings.required_fulfilment * (1 - SLACK)
        if level >= goal and problem.objective == "max_min_fulfilment":
            return Stop("certified_feasible", counts)
        limit = settings.tolerance + SLACK
        if regret_of(problem, box, counts, enough=limit) > limit:
            return Stop("", counts)
        if min(fulfilments(problem, box.upper, solve(problem, box.upper)[0])) < goal:
            return Stop("certified_infeasible", counts)
        return Stop("certified_feasible" if level > 0.0 else "", counts)
