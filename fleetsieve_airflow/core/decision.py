"""One step of the loop as a pure function: from a spec and its evidence to what to do next.

``decide`` measures on until the decision is settled or the budget is used up. It has no clock, no randomness
and no I/O, so replaying a campaign from what it had revealed gives the same steps and the same plan, to the
byte.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleetsieve_airflow.core.acquisition import choose_points
from fleetsieve_airflow.core.allocation import SLACK, Problem, problem_of
from fleetsieve_airflow.core.bounds import Box, box_of, plan_of, regret_of, scenarios_of, solve
from fleetsieve_airflow.core.dominance import dominated
from fleetsieve_airflow.core.intervals import apply_interior_peak, fit_intervals
from fleetsieve_airflow.core.ladder import Ladder, ladders_of
from fleetsieve_airflow.evidence import (
    CapacityInterval,
    Decision,
    DecisionState,
    Evidence,
    Plan,
    PlannedPoint,
    SkippedPoint,
    Spend,
)
from fleetsieve_airflow.records import FleetSpec

Points = tuple[PlannedPoint, ...]


def decide(spec: FleetSpec, evidence: Evidence) -> Decision:
    """Decide what one round does: measure these points, or stop with a certified or an undetermined plan.

    :raises EvidenceError: the evidence does not hold what the SLO asks about.
    :raises SolverError: the side constraints of the spec leave no plan at all.
    """
    problem = problem_of(spec)
    ladders = ladders_of(spec, evidence)
    intervals = fit_intervals(spec, evidence, ladders)
    box = box_of(spec, problem, intervals)
    counts, solver, status = solve(problem, box.lower)
    conservative = plan_of(problem, box.lower, counts, solver, status)
    best_counts, solver, status = solve(problem, box.upper)
    optimistic = plan_of(problem, box.upper, best_counts, solver, status)
    gap = max(0.0, optimistic.value - conservative.value)
    regret = min(gap, regret_of(problem, box, counts))
    spend = spend_of(spec, evidence)
    state, reason = _settled(spec, conservative, optimistic, gap, regret)
    points: Points = ()
    if state == "measure":
        left = None if spec.budget.gpu_seconds is None else spec.budget.gpu_seconds - spend.gpu_seconds_billed
        points = choose_points(spec, evidence, problem, ladders, intervals, box, left)
        dear: Points = ()
        if not points and left is not None:  # say what the money that is missing would have bought
            dear = choose_points(spec, evidence, problem, ladders, intervals, box, None)
        points, state, reason = _within_budget(spec, evidence, points, dear, spend, reason)
    return Decision(
        state=state,
        round=evidence.rounds_done + 1,
        reason=reason,
        intervals=intervals,
        conservative=conservative,
        optimistic=optimistic,
        gap=gap,
        regret=regret,
        points=points,
        skipped=_skipped(spec, problem, ladders, box, state, {planned.point.key for planned in points}),
        warnings=_warnings(spec, evidence, intervals),
        spend=spend,
        scenarios=scenarios_of(spec, counts, box.lower),
    )


def _settled(
    spec: FleetSpec, conservative: Plan, optimistic: Plan, gap: float, regret: float
) -> tuple[DecisionState, str]:
    """Say whether the decision can no longer change, and why."""
    settings = spec.decision
    required = settings.required_fulfilment
    reaches = conservative.min_fulfilment >= required * (1 - SLACK)
    if reaches and settings.objective == "max_min_fulfilment":
        return (
            "certified_feasible",
            f"The plan serves {required:.4g} of every demand at the lowest proved capacities.",
        )
    loss, word = (regret, "regret") if settings.stop_on == "regret" else (gap, "gap")
    cannot = optimistic.min_fulfilment < required * (1 - SLACK)
    if loss <= settings.tolerance + SLACK:
        proved = f"{word} {loss:.4g} is within the tolerance of {settings.tolerance:.4g}"
        if cannot:
            return (
                "certified_infeasible",
                f"Even at the highest capacities still possible only {optimistic.min_fulfilment:.4g} of "
                f"{required:.4g} is served; this is the best plan: its {proved}.",
            )
        if conservative.min_fulfilment > 0.0 or required <= settings.tolerance:
            return "certified_feasible", f"No other plan can be better by more than the tolerance: {proved}."
    return "measure", f"{word} {loss:.4g} is above the tolerance of {settings.tolerance:.4g}"


def _within_budget(
    spec: FleetSpec, evidence: Evidence, points: Points, dear: Points, spend: Spend, reason: str
) -> tuple[Points, DecisionState, str]:
    """Hold the chosen points to the budget; what cannot be paid for ends the campaign undetermined.

    :param dear: what would be measured next where the GPU-seconds left pay for nothing useful.
    """
    budget = spec.budget
    if budget.rounds is not None and evidence.rounds_done >= budget.rounds:
        return points or dear, "undetermined", f"{reason}; the budget of {budget.rounds} rounds is used up."
    if budget.points is not None:
        left = max(0, budget.points - spend.points_measured)
        if not left:
            why = f"the budget of {budget.points} points is used up"
            return points or dear, "undetermined", f"{reason}; {why}."
        points = points[:left]
    if dear and budget.gpu_seconds is not None:
        rest = max(0.0, budget.gpu_seconds - spend.gpu_seconds_billed)
        price = sum(planned.gpu_seconds_billed for planned in dear)
        why = f"of the budget {rest:.6g} GPU-seconds are left, what would be measured next costs {price:.6g}"
        return dear, "undetermined", f"{reason}; {why}."
    if not points:
        return points, "undetermined", f"{reason}; nothing that can still be measured would settle it."
    return points, "measure", f"{reason}; {len(points)} points can settle it or change the plan."


def spend_of(spec: FleetSpec, evidence: Evidence) -> Spend:
    """Add up what the campaign paid, and what measuring every load of every ladder once would cost."""
    paid = [item.measurement for item in evidence.items if not item.reused]
    every = [
        (len(candidate.loads), spec.config(candidate.config).gpus)
        for candidate in spec.candidates
        if not candidate.excluded
    ]
    return Spend(
        gpu_seconds_window=sum((measurement.gpu_seconds_window for measurement in paid), 0.0),
        gpu_seconds_billed=sum((measurement.gpu_seconds_billed for measurement in paid), 0.0)
        + sum((failure.gpu_seconds_billed for failure in evidence.failures), 0.0),
        points_measured=len(paid),
        points_reused=len(evidence.items) - len(paid),
        points_all=sum(loads for loads, _ in every),
        gpu_seconds_window_all=sum(loads * gpus for loads, gpus in every) * spec.measurement.duration_s,
    )


def _skipped(
    spec: FleetSpec,
    problem: Problem,
    ladders: Sequence[Ladder],
    box: Box,
    state: DecisionState,
    chosen: set[str],
) -> tuple[SkippedPoint, ...]:
    """List the loads that are not measured although they could be, each with why that is safe."""
    beaten = dominated(problem, ladders, box)
    rows = []
    for ladder, worse in zip(ladders, beaten, strict=True):
        unknown = ladder.unknown()
        for j, load in enumerate(ladder.candidate.loads):
            reason = _skip_reason(unknown, j, worse, state)
            if ladder.verdicts[j] is None and reason:
                rows.append(
                    SkippedPoint(
                        workload=ladder.candidate.workload,
                        config=ladder.candidate.config,
                        load=load,
                        reason=reason,
                        gpu_seconds_window=ladder.gpus * spec.measurement.duration_s,
                    )
                )
    return tuple(rows)


def _skip_reason(unknown: range, j: int, worse: bool, state: DecisionState) -> str:
    if j < unknown.start:
        return "implied: a higher load of this candidate is met"
    if j >= unknown.stop:
        return "implied: a lower load of this candidate is missed, or its engine refused to start"
    if worse:
        return "cannot matter: the same GPUs are proved to serve at least as much in other replicas"
    if state.startswith("certified"):
        return "cannot change the decision: the certificate holds whatever this load would show"
    return "" if state == "measure" else "open: the budget ended before it was measured"


def _warnings(spec: FleetSpec, evidence: Evidence, intervals: Sequence[CapacityInterval]) -> tuple[str, ...]:
    rows = [
        f"{interval.label}: a load above a missed one is met (measured loads "
        f"{', '.join(f'{x:g}' for x in interval.contradiction)}); "
        "the span between them is unknown again."
        for interval in intervals
        if interval.contradiction
    ]
    given_up: dict[str, int] = {}
    for failure in evidence.failures:
        given_up[failure.label] = given_up.get(failure.label, 0) + 1
    rows.extend(
        f"{label}: could not be measured {count} times; it counts as unknown, not as missed."
        for label, count in sorted(given_up.items())
    )
    if spec.decision.interior_peak:
        rows.extend(dict.fromkeys(warning for _, warning in apply_interior_peak(spec, intervals) if warning))
    return tuple(rows)
