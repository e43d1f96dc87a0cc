"""Plan fleets again for a release: ``python -m benchmarks.replan``; ``--grids`` adds recorded grids.

Each case is a fleet, planned once, whose models are then released anew with other capacities, and planned
again with the first campaign as prior. Beside both costs stand that of the second campaign without the prior,
and the clairvoyant's: the price of the cheapest proof to someone who knows every answer. No method that
trusts only measurements of the new release can pay less.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from benchmarks.clairvoyant import clairvoyant
from benchmarks.fleets import DEMAND_SCALES, WORKLOADS, Fleet, real_fleets
from benchmarks.grids import read_grids
from benchmarks.paper import paper_fleets
from benchmarks.releases import Moves, best_changed, by_half, release, within
from benchmarks.state import Board
from benchmarks.store import ROOT
from benchmarks.synthetic import synthetic_fleets
from fleetsieve_airflow.campaign import run_campaign
from fleetsieve_airflow.core.earlier import earlier_release
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint, PriorCapacity
from fleetsieve_airflow.records import FleetSpec

#: How a release differs from the one before.
CHANGES: dict[str, Callable[[Fleet, random.Random], Moves]] = {
    "up to 15 %": lambda fleet, rng: within(fleet, 0.15, rng),
    "50 %": by_half,
    "best TP changed": best_changed,
}
#: Fleets of each family with two and with three workloads at every demand scale.
CHOSEN = tuple(scale * len(WORKLOADS) + size for scale in range(len(DEMAND_SCALES)) for size in (0, 1))
PROFILING_GPUS = 16
#: Share of the first campaign's GPU-seconds that planning again may take.
TARGET = 0.4


@dataclass(frozen=True, slots=True)
class Case:
    """One release, in window GPU-seconds.

    :param first: the campaign of the release before; ``again`` that of the release with it as prior;
        ``without`` that of the release without.
    :param limit: no proof from measurements of the release alone is cheaper.
    :param regret: what the certified plan really loses, in fulfilment.
    """

    change: str
    group: str
    fleet: str
    first: float
    again: float
    without: float
    limit: float
    regret: float
    state: str
    right: bool


@dataclass(frozen=True, slots=True)
class FleetBackend:
    """Measures a benchmark's fleet."""

    fleet: Fleet

    def check(self, spec: FleetSpec) -> None:
        """Accept every spec."""

    def measure(self, spec: FleetSpec, point: MeasurementPoint) -> Measurement:
        """Return what the point shows."""
        return self.fleet.measure(point)


def fleets(grids: Sequence[Path]) -> Iterator[tuple[str, Fleet]]:
    """Yield the fleets to plan with the group each belongs to."""
    most = max(CHOSEN) + 1
    drawn = [("paper", fleet) for fleet in paper_fleets()]
    drawn += [("made up", fleet) for fleet in synthetic_fleets(most)]
    if grids:
        drawn += [("recorded", fleet) for fleet in real_fleets(read_grids(list(grids)), most)]
    for group, fleet in drawn:
        if group == "paper" or int(fleet.name.rsplit("#", 1)[1]) in CHOSEN:
            settings = replace(fleet.spec.measurement, profiling_gpus=PROFILING_GPUS)
            yield group, replace(fleet, spec=replace(fleet.spec, measurement=settings))


def play(group: str, fleet: Fleet, change: str) -> Case:
    """Plan a fleet, release its models anew, plan it again."""
    after = release(fleet, CHANGES[change](fleet, random.Random(f"{change}|{fleet.name}")))  # noqa: S311
    board = Board(after)
    first = run_campaign(fleet.spec, FleetBackend(fleet))
    priors = earlier_release(after.spec, fleet.spec, first.evidence)

    def spent(given: Sequence[PriorCapacity]) -> tuple[float, float, str]:
        decision = run_campaign(after.spec, FleetBackend(after), priors=given).decision
        replicas = decision.conservative.replicas()
        counts = [
            [replicas.get(name, {}).get(label, 0) for label in labels]
            for name, labels in zip(board.problem.names, board.problem.labels, strict=True)
        ]
        return decision.spend.gpu_seconds_window, board.true_regret(counts), decision.state

    again, regret, state = spent(priors)
    return Case(
        change=change,
        group=group,
        fleet=fleet.name,
        first=first.decision.spend.gpu_seconds_window,
        again=again,
        without=spent(())[0],
        limit=clairvoyant(board, 60).lower,
        regret=regret,
        state=state,
        right=state.startswith("certified") and regret <= board.tolerance * (1 + 1e-6),
    )


def table(cases: Sequence[Case]) -> str:
    """Write means by change and group, then every case."""
    lines = [
        "# What planning a release again costs",
        "",
        "Written by `make bench-replan`; nothing here is edited by hand. Every fleet was planned, its models",
        "were released anew with other capacities, and it was planned again with the first campaign as",
        "prior. Costs are window GPU-seconds as shares of the first campaign's: means over the cases, and in",
        "brackets the sum over the sum. `limit` is the clairvoyant's proved bound: nobody who trusts only",
        "measurements of the new release pays less. `right` counts certificates whose plan really loses no",
        "more than the tolerance.",
        "",
        "| release | fleets | cases | with prior | without | limit | prior / limit | right | worst regret |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for change in dict.fromkeys(case.change for case in cases):
        groups = dict.fromkeys(case.group for case in cases)
        for group in [*groups, "all"] if len(groups) > 1 else groups:
            rows = [case for case in cases if case.change == change and group in (case.group, "all")]
            lines.append(_mean_row(change, group, rows))
    lines += [
        "",
        f"Aim: at most {TARGET:.2f} with prior for releases of up to 15 %, no regret beyond the",
        "tolerance, and a right end after any release.",
        "",
        "| release | fleet | first | again | without | limit | again / first | regret | end |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {case.change} | {case.fleet} | {case.first:,.0f} | {case.again:,.0f} | {case.without:,.0f} "
        f"| {case.limit:,.0f} | {case.again / case.first:.2f} | {case.regret:.3g} "
        f"| {case.state.replace('_', ' ')}{'' if case.right else ' **WRONG**'} |"
        for case in cases
    ]
    return "\n".join(lines) + "\n"


def _mean_row(change: str, group: str, rows: Sequence[Case]) -> str:
    whole = sum(case.first for case in rows)
    shares = [
        f"{fmean(value / case.first for value, case in zip(values, rows, strict=True)):.2f} "
        f"({sum(values) / whole:.2f})"
        for values in (
            [case.again for case in rows],
            [case.without for case in rows],
            [case.limit for case in rows],
        )
    ]
    over = fmean(case.again / case.limit for case in rows if case.limit > 0.0)
    right = sum(case.right for case in rows)
    return (
        f"| {change} | {group} | {len(rows)} | {' | '.join(shares)} | {over:.2f} | {right} of {len(rows)} "
        f"| {max(case.regret for case in rows):.3g} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replan", description=__doc__)
    parser.add_argument("--grids", default="", help="recorded grids, CSV files separated by commas")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "out", help="where replan.json goes"
    )
    parser.add_argument("--report", type=Path, default=ROOT / "benchmarks", help="where REPLAN.md goes")
    options = parser.parse_args(arguments)
    chosen = list(fleets([Path(path) for path in options.grids.split(",") if path]))
    cases = []
    for change in CHANGES:
        for group, fleet in chosen:
            cases.append(play(group, fleet, change))
            print(
                f"{change}: {fleet.name} {cases[-1].again / cases[-1].first:.2f}", file=sys.stderr, flush=True
            )
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [asdict(case) for case in cases]
    (options.out / "replan.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (options.report / "REPLAN.md").write_text(table(cases), encoding="utf-8")
    print("\n".join(line for line in table(cases).splitlines()[8:] if line.startswith("|"))[:4000])
    return 0 if all(case.right for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
