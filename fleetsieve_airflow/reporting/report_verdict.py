"""The verdict on a campaign in plain words: what was decided, how sure it is, or what is still missing.

Plain text, not yet escaped, so that a report, a run's description in MLflow, a log line and a message in chat
all say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fleetsieve_airflow.evidence import CapacityInterval, Decision
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting import report_words as words
from fleetsieve_airflow.reporting.charts_svg import count, number, percent

VerdictKind = Literal["decided", "impossible", "undetermined", "measuring"]
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictText:
    """A verdict: its kind, a headline of one line, what it means, and why it can be trusted."""

    kind: VerdictKind
    headline: str
    meaning: str
    trust: str = ""

    @property
    def sentence(self) -> str:
        """Headline and meaning as one text."""
        return f"{self.headline} {self.meaning}".strip()


def verdict_text(spec: FleetSpec, rounds: Sequence[Decision]) -> VerdictText:
    """Say in plain words what a campaign has decided so far.

    :param rounds: the campaign's decisions so far; empty while the first round runs.
    """
    rows = words.latest_of_each_round(rounds)
    if not rows:
        return VerdictText(
            kind="measuring",
            headline="Measuring: the first round has not ended yet.",
            meaning="Plans, bounds and what was skipped appear here when it has.",
        )
    decision = rows[-1]
    return {
        "certified_feasible": _feasible,
        "certified_infeasible": _infeasible,
        "undetermined": _undetermined,
        "measure": _measuring,
    }[decision.state](spec, decision)


def contradictions(decision: Decision) -> tuple[CapacityInterval, ...]:
    """Return the intervals whose measurements contradict each other."""
    return tuple(interval for interval in decision.intervals if interval.contradiction)


def _feasible(spec: FleetSpec, decision: Decision) -> VerdictText:
    plan = decision.conservative
    named = words.plan_text(plan)
    gpus = words.gpus_text(spec, plan)
    if words.counts_money(spec):
        gpus += f", {words.need_text(spec, words.needed(spec, plan))}"
    headline = f"Decided: {named} ({gpus})." if named else f"Decided: {gpus}."
    if words.reaches_required(spec, plan):
        meaning = (
            f"This plan serves {_required(spec)} within its SLO even at the lowest capacities still possible."
        )
        if words.counts_need(spec):
            meaning += _less_needed(spec, decision)
    else:
        meaning = (
            f"This plan serves at least {percent(plan.min_fulfilment)} of every workload's demand within its "
            f"SLO, and {_no_better(spec, decision)}"
        )
    return VerdictText(kind="decided", headline=headline, meaning=meaning, trust=_trust(spec, decision))


def _required(spec: FleetSpec) -> str:
    required = spec.decision.required_fulfilment
    if required >= 1.0 - words.EXACT:
        return "every workload's whole demand"
    return f"at least {percent(required)} of every workload's demand"


def _less_needed(spec: FleetSpec, decision: Decision) -> str:
    money = words.counts_money(spec)
    if decision.gap <= words.EXACT:
        return f" No {'cheaper plan' if money else 'plan with fewer GPUs'} does so even at the highest."
    loss = words.objective_text(spec, _loss(spec, decision))
    return f" No plan can do so with more than {loss} {'less' if money else 'fewer'}: within the tolerance."


def _no_better(spec: FleetSpec, decision: Decision) -> str:
    tolerance = words.objective_text(spec, spec.decision.tolerance)
    loss = words.objective_text(spec, _loss(spec, decision))
    if spec.decision.stop_on == "gap":
        return (
            f"no plan serves more than {percent(decision.optimistic.min_fulfilment)} even at the highest: "
            f"a gap of {loss}, tolerance {tolerance}."
        )
    return f"no other plan can raise that by more than {loss} of demand (regret; tolerance {tolerance})."


def _loss(spec: FleetSpec, decision: Decision) -> float:
    return decision.regret if spec.decision.stop_on == "regret" else decision.gap


def _trust(spec: FleetSpec, decision: Decision) -> str:
    """Say on what the plan's lower bounds rest and why the rest was safe to skip."""
    bounds = {(interval.workload, interval.config): interval for interval in decision.intervals}
    resting = [bounds[item.workload, item.config] for item in words.used(decision.conservative)]
    sources = sorted({interval.lower.source for interval in resting})
    parts = []
    if sources == ["measured"]:
        listed = f": {', '.join(_loads(spec, resting))}" if len(resting) <= _MOST_NAMED else ""
        parts.append(f"Every replica of the plan runs at a load that was measured and met its SLO{listed}.")
    elif sources:
        parts.append(
            f"The plan's lower bounds rest on: {', '.join(words.SOURCE_WORDS[source] for source in sources)}."
        )
    if decision.skipped:
        parts.append(
            f"{len(decision.skipped):,} of {count(decision.spend.points_all, 'point')} stayed unmeasured, "
            "because none of them can change this decision."
        )
    return " ".join(parts)


def _loads(spec: FleetSpec, intervals: Sequence[CapacityInterval]) -> list[str]:
    kinds = {item.label: spec.candidate(item.workload, item.config).load_kind for item in intervals}
    return [
        f"{item.label} at {words.load_text(kinds[item.label], item.operating_load)}"
        for item in intervals
        if item.operating_load is not None
    ]


def _infeasible(spec: FleetSpec, decision: Decision) -> VerdictText:
    plan, best = decision.conservative, decision.optimistic
    gpus = count(words.usable_gpus(spec), "GPU")
    headline = f"Not possible: {gpus} cannot serve {_required(spec)} within its SLO."
    named = f", {text}," if (text := words.plan_text(plan)) else ""
    meaning = (
        "Even at the highest capacities still possible, no plan serves more than "
        f"{percent(best.min_fulfilment)} of the worst-served workload's demand. The best certified plan"
        f"{named} serves at least {percent(plan.min_fulfilment)}{_losses(spec, decision)}."
    )
    return VerdictText(kind="impossible", headline=headline, meaning=meaning, trust=_trust(spec, decision))


def _losses(spec: FleetSpec, decision: Decision) -> str:
    served = dict(decision.conservative.fulfilment)
    lost = [
        (workload.demand_rps * (1.0 - served.get(workload.name, 0.0)), workload)
        for workload in spec.workloads
    ]
    short = sorted((row for row in lost if row[0] > words.EXACT), key=lambda row: -row[0] / row[1].demand_rps)
    if not short:
        return ""
    named = [
        f"{w.name} loses up to {number(rate)} of {number(w.demand_rps)} req/s"
        for rate, w in short[:_MOST_NAMED]
    ]
    more = f" and {count(len(short) - _MOST_NAMED, 'workload')} more" if len(short) > _MOST_NAMED else ""
    return f": {', '.join(named)}{more}"


def _both_plans(spec: FleetSpec, decision: Decision) -> str:
    low, high = decision.conservative, decision.optimistic
    if words.counts_need(spec):
        sure, hope = (words.need_text(spec, words.needed(spec, plan)) for plan in (low, high))
        sure = (
            f"The conservative plan {'costs' if words.counts_money(spec) else 'needs'} {sure}"
            if words.reaches_required(spec, low)
            else "No plan is sure to serve the demand yet"
        )
        hope = (
            f"{hope} may be enough"
            if words.reaches_required(spec, high)
            else f"the most that may be served is {percent(high.min_fulfilment)}"
        )
        return f"{sure}; {hope}"
    if low.min_fulfilment <= 0.0:
        unserved = [name for name, share in low.fulfilment if share <= 0.0]
        named = (
            ", ".join(unserved[:_MOST_NAMED])
            if len(unserved) <= _MOST_NAMED
            else count(len(unserved), "workload")
        )
        hope = percent(high.min_fulfilment)
        return f"Nothing is proved yet for {named}; up to {hope} of every demand may be possible"
    return (
        f"The conservative plan serves at least {percent(low.min_fulfilment)} of every workload's demand; "
        f"up to {percent(high.min_fulfilment)} may be possible"
    )


def _undetermined(spec: FleetSpec, decision: Decision) -> VerdictText:
    tolerance = words.objective_text(spec, spec.decision.tolerance)
    meaning = f"{_both_plans(spec, decision)}. "
    if not (words.counts_need(spec) and not words.reaches_required(spec, decision.conservative)):
        gap, regret = (words.objective_text(spec, value) for value in (decision.gap, decision.regret))
        meaning += f"The gap is {gap} and the regret at most {regret}, where {tolerance} is tolerated. "
    if decision.points:
        headline = "Undetermined: the budget is used up and the plans still differ."
        cost = sum(planned.gpu_seconds_billed for planned in decision.points)
        meaning += (
            f"Measuring {count(len(decision.points), 'more point')} ({number(cost)} GPU-seconds) is the next "
            "step to close it."
        )
    else:
        headline = "Undetermined: the plans still differ, and no point within the budget would settle it."
        meaning += "More budget, more repeats or further loads on the ladders could."
    return VerdictText(
        kind="undetermined", headline=headline, meaning=meaning, trust=sentence(decision.reason)
    )


def sentence(text: str) -> str:
    """Return text with a capital first letter and a full stop."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}" if text else ""


def _measuring(spec: FleetSpec, decision: Decision) -> VerdictText:
    loss = words.loss_text(spec, decision, _loss(spec, decision))
    tolerance = words.objective_text(spec, spec.decision.tolerance)
    points = count(len(decision.points), "point")
    verb = "is" if len(decision.points) == 1 else "are"
    return VerdictText(
        kind="measuring",
        headline=f"Measuring: not decided after round {decision.round}.",
        meaning=(
            f"{_both_plans(spec, decision)}. The {spec.decision.stop_on} is {loss}, tolerance {tolerance}; "
            f"{points} can still change the decision and {verb} measured next."
        ),
    )
