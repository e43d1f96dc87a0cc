"""What is known of each candidate's ladder: the verdict of each load, its rate, what remains possible.

A candidate's capacity is the rate at the highest load of its ladder that meets the SLO. So what is unknown is
one index into the ladder: at least ``met_upto``, at most ``open_upto`` (-1: not even the lowest load).
Hypothetical outcomes are copies of a :class:`Ladder`, which makes look-ahead cheap.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleetsieve_airflow.core.spread import Cells, Noise, noise_of
from fleetsieve_airflow.core.verdict import Verdict, judge_repeats, margin
from fleetsieve_airflow.evidence import Evidence, Measurement, MeasurementPoint
from fleetsieve_airflow.records import Candidate, FleetSpec
from fleetsieve_airflow.serialization import points_of

#: Lowest and highest served rate and highest attempted rate (served or failed) over repeats, req/s.
Rates = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Ladder:
    """What is known of one candidate.

    :param verdicts: per load, or None where it is not measured.
    :param rates: per load, measured rates over repeats, or None; for offered loads the rate is the load
        itself. With a confidence, they are ranges that hold the rate of the load itself.
    :param margins: per load, mean ln(worst metric / limit) over repeats, or None.
    :param keys: per load, the keys of its measurements in the order they became known.
    :param blur: by how much one run's ln rate may differ from its load's at the spec's confidence, else 0.
    :param repeats: how often a load may be measured.
    :param point_keys: keys of all its points, repeats of a load together; empty where nothing is measured.
    """

    candidate: Candidate
    workload: int
    gpus: int
    verdicts: tuple[Verdict | None, ...]
    rates: tuple[Rates | None, ...]
    margins: tuple[float | None, ...]
    keys: tuple[tuple[str, ...], ...]
    refused: bool = False
    monotone: bool = True
    closed_loop: bool = True
    slack: float = 0.0
    blur: float = 0.0
    repeats: int = 1
    point_keys: tuple[str, ...] = field(default=(), compare=False)

    @property
    def met(self) -> list[int]:
        """Indices of loads measured as met."""
        return [j for j, verdict in enumerate(self.verdicts) if verdict == "met"]

    @property
    def missed(self) -> list[int]:
        """Indices of loads measured as missed."""
        return [j for j, verdict in enumerate(self.verdicts) if verdict == "missed"]

    @property
    def contradiction(self) -> tuple[int, ...]:
        """Indices of measured loads from a missed load to a higher met one; empty if there is none."""
        met, missed = self.met, self.missed
        if not met or not missed or max(met) < min(missed):
            return ()
        low, high = min(missed), max(met)
        return tuple(j for j in range(low, high + 1) if self.verdicts[j] in ("met", "missed"))

    @property
    def met_upto(self) -> int:
        """Index of the highest load known to be met, -1 if none; one above a missed load does not count."""
        highest = -1
        for j, verdict in enumerate(self.verdicts):
            if verdict == "missed":
                break
            if verdict == "met":
                highest = j
        return highest

    @property
    def open_upto(self) -> int:
        """Index of the highest load that may still be met, -1 if none may."""
        if self.refused:
            return -1
        if not self.monotone:
            return max((j for j, verdict in enumerate(self.verdicts) if verdict != "missed"), default=-1)
        lowest = len(self.verdicts)  # of the missed loads above every met one
        for j in range(len(self.verdicts) - 1, -1, -1):
            if self.verdicts[j] == "met":
                break
            if self.verdicts[j] == "missed":
                lowest = j
        return lowest - 1

    def rate_lower(self, j: int) -> float:
        """Return a lower bound in req/s on the rate at load ``j``; 0 where nothing bounds it."""
        if self.candidate.load_kind == "offered_load_rps":
            return self.candidate.loads[j]
        if (own := self.rates[j]) is not None:
            return own[0]
        if not self.closed_loop:
            return 0.0
        return max((rate[0] for rate in self.rates[:j] if rate is not None), default=0.0) / (1.0 + self.slack)

    def rate_upper(self, j: int) -> float:
        """Return an upper bound in req/s on the rate at load ``j``; infinity where nothing bounds it.

        Closed loop: the rate grows no faster than the concurrency (Little), and what is attempted (served or
        failed) does not fall with it; both up to the spread between runs.
        """
        loads = self.candidate.loads
        if self.candidate.load_kind == "offered_load_rps":
            return loads[j]
        if (own := self.rates[j]) is not None:
            return own[1]
        if not self.closed_loop:
            return math.inf
        below = [rate[1] * loads[j] / loads[i] for i, rate in enumerate(self.rates[:j]) if rate is not None]
        above = [rate[2] for rate in self.rates[j + 1 :] if rate is not None]
        return min([*below, *above], default=math.inf) * (1.0 + self.slack)

    @property
    def capacity_lower(self) -> float:
        """Lower bound in req/s on the capacity."""
        return max((self.rate_lower(j) for j in range(self.met_upto + 1)), default=0.0)

    @property
    def capacity_upper(self) -> float:
        """Upper bound in req/s on the capacity; infinity where nothing bounds it.

        Loads below the highest met one cannot raise it: capacity is the rate at the highest load that meets
        the SLO.
        """
        upper = max(
            (self.rate_upper(j) for j in range(max(self.met_upto, 0), self.open_upto + 1)), default=0.0
        )
        return max(upper, self.capacity_lower)

    def steps(self) -> tuple[float, ...]:
        """Return the capacities that remain possible, ascending, the bounds included.

        For offered loads they are exact; for a closed loop they are the ends of ranges that cover all
        possible values.
        """
        lower, upper = self.capacity_lower, self.capacity_upper
        inner = {self.rate_lower(j) for j in range(self.met_upto + 1, self.open_upto + 1)}
        if self.candidate.load_kind == "concurrency" and math.isfinite(upper) and upper > lower > 0.0:
            inner |= {lower * (upper / lower) ** (part / 6) for part in range(1, 6)}
        return tuple(sorted({lower, upper, *(rate for rate in inner if lower < rate < upper)}))

    def unknown(self) -> range:
        """Return the indices of loads whose verdict is not implied by what is known."""
        return range(self.met_upto + 1, self.open_upto + 1)

    def open_loads(self) -> list[int]:
        """Return the loads that another measurement can tell more of.

        Those whose verdict is not implied, and the highest met one where its rate is known to a range only.
        """
        edge = self.met_upto
        rates = self.rates[edge] if edge >= 0 and self.blur > 0.0 else None
        return [*([edge] if rates is not None and rates[0] < rates[1] else []), *self.unknown()]

    @property
    def least_blur(self) -> float:
        """By how much a load's mean ln rate may still be wrong once all its repeats are used."""
        return self.blur / math.sqrt(self.repeats)

    def with_outcome(self, j: int, verdict: Verdict, rate: float | None = None) -> Ladder:
        """Return the ladder as it would be had load ``j`` been measured with this verdict and served rate.

        With a confidence the rate is as well known as all repeats can make it.
        """
        verdicts = (*self.verdicts[:j], verdict, *self.verdicts[j + 1 :])
        rates = self.rates
        if rate is not None and self.candidate.load_kind == "concurrency":
            low, high = rate * math.exp(-self.least_blur), rate * math.exp(self.least_blur)
            rates = (*rates[:j], (low, high, high), *rates[j + 1 :])
        return replace(self, verdicts=verdicts, rates=rates)


def ladders_of(spec: FleetSpec, evidence: Evidence) -> tuple[Ladder, ...]:
    """Read the evidence into one ladder per candidate that can run, in the spec's order.

    Measurements that are no point of this spec are left out: they belong to another profile or another
    ladder.

    :raises EvidenceError: a measurement lacks what the SLO asks about.
    """
    known: dict[tuple[str, str], dict[str, Measurement]] = defaultdict(dict)
    for item in evidence.items:
        point = item.measurement.point
        known[point.workload, point.config][point.key] = item.measurement
    index = {workload.name: w for w, workload in enumerate(spec.workloads)}
    gpus = {config.label: config.gpus for config in spec.configs}
    candidates = [candidate for candidate in spec.candidates if not candidate.excluded]
    # Keys are hashes: they are worked out only where there is evidence, for the sake of large fleets.
    points = [
        points_of(spec, candidate, spec.measurement.repeats)
        if (candidate.workload, candidate.config) in known
        else ()
        for candidate in candidates
    ]
    every = [
        _cells(candidate, row, known.get((candidate.workload, candidate.config), {}))
        for candidate, row in zip(candidates, points, strict=True)
    ]
    noise = noise_of(spec, every)
    blank = [
        Ladder(
            candidate=candidate,
            workload=index[candidate.workload],
            gpus=gpus[candidate.config],
            verdicts=(None,) * len(candidate.loads),
            rates=(None,) * len(candidate.loads),
            margins=(None,) * len(candidate.loads),
            keys=((),) * len(candidate.loads),
            monotone="monotone" in spec.decision.certify_on,
            closed_loop="closed_loop" in spec.decision.certify_on,
            slack=spec.decision.closed_loop_slack,
            repeats=spec.measurement.repeats,
            point_keys=tuple(point.key for point in row),
        )
        for candidate, row in zip(candidates, points, strict=True)
    ]
    return tuple(judged(spec, ladder, cells, noise) for ladder, cells in zip(blank, every, strict=True))


def _cells(
    candidate: Candidate, points: Sequence[MeasurementPoint], by_key: Mapping[str, Measurement]
) -> Cells:
    found: dict[float, list[Measurement]] = defaultdict(list)
    for point in points:
        if (measurement := by_key.get(point.key)) is not None:
            found[point.load].append(measurement)
    return [found.get(load, []) for load in candidate.loads]


def judged(spec: FleetSpec, ladder: Ladder, cells: Cells, noise: Noise | None) -> Ladder:
    """Return a ladder with what the measurements of its loads say.

    :raises EvidenceError: a measurement lacks what the SLO asks about.
    """
    closed = ladder.candidate.load_kind == "concurrency"  # an offered rate is what it is
    blur = noise.reach * noise.rate if noise is not None and closed else 0.0
    if not any(cells):
        return replace(ladder, blur=blur) if blur else ladder
    slo = spec.workloads[ladder.workload].slo
    verdicts = [judge_repeats(cell, slo, spec.decision, noise) if cell else None for cell in cells]
    # An engine that started another time is in doubt: ruling it out would contradict what it served.
    ran = any(not measurement.refused for cell in cells for measurement in cell)
    in_place: Verdict = "marginal" if ran else "missed"
    return replace(
        ladder,
        verdicts=tuple(in_place if verdict == "refused" else verdict for verdict in verdicts),
        rates=tuple(_rate_range(cell, blur) for cell in cells),
        margins=tuple(_mean_margin(cell, spec, ladder.workload) for cell in cells),
        keys=tuple(tuple(measurement.point.key for measurement in cell) for cell in cells),
        refused="refused" in verdicts and not ran,
        blur=blur,
    )


def _rate_range(cell: Sequence[Measurement], blur: float) -> Rates | None:
    """Return the range of a load's rates: as seen, or (with a confidence) about their geometric mean."""
    ran = [measurement for measurement in cell if not measurement.refused]
    if not ran:
        return None
    served = [measurement.served_rps for measurement in ran]
    attempted = [
        measurement.served_rps
        / max(1.0 if measurement.success_rate is None else measurement.success_rate, 1e-3)
        for measurement in ran
    ]
    if blur <= 0.0 or min(served) <= 0.0:
        return min(served), max(served), max(attempted)
    mean, reach = sum(map(math.log, served)) / len(served), blur / math.sqrt(len(served))
    tried = sum(map(math.log, attempted)) / len(attempted)
    return math.exp(mean - reach), math.exp(mean + reach), math.exp(tried + reach)


def _mean_margin(cell: Sequence[Measurement], spec: FleetSpec, workload: int) -> float | None:
    margins = [margin(item, spec.workloads[workload].slo) for item in cell if not item.refused]
    return sum(margins) / len(margins) if margins else None
