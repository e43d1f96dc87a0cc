"""What measurements leave possible on one candidate's ladder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsieve_airflow.core.ladder import Ladder, ladders_of
from fleetsieve_airflow.evidence import EvidenceItem
from fleetsieve_airflow.records import FleetSpec, Model
from tests.builders import LOADS, make_evidence, make_measurement, make_spec
from tests.core.worlds import TrueServer, places, servers

USERS = (4.0, 8.0, 16.0, 32.0)


def ladder_of(spec: FleetSpec, verdicts: Mapping[float, bool], **fields: Any) -> Ladder:
    """Return the ladder of chat TP4 after these loads were met or missed."""
    rows = [make_measurement(spec, load=load, met=met, **fields) for load, met in verdicts.items()]
    return next(row for row in ladders_of(spec, make_evidence(*rows)) if row.candidate.label == "chat TP4")


def open_loop(**verdicts: bool) -> Ladder:
    return ladder_of(make_spec(), {float(name[1:]): met for name, met in verdicts.items()})


def closed_loop(rates: Mapping[float, tuple[bool, float]], *, slack: float = 0.0, **decision: Any) -> Ladder:
    """Return the ladder of chat TP4 whose loads are users, after measurements of (met, served rate)."""
    spec = make_spec(loads=USERS, load_kind="concurrency", decision={"closed_loop_slack": slack, **decision})
    rows = [make_measurement(spec, load=n, met=met, served_rps=rate) for n, (met, rate) in rates.items()]
    return next(row for row in ladders_of(spec, make_evidence(*rows)) if row.candidate.label == "chat TP4")


class TestOfferedLoads:
    def test_nothing_measured_leaves_the_whole_ladder_open(self) -> None:
        ladder = open_loop()
        assert (ladder.met_upto, ladder.open_upto) == (-1, 3)
        assert (ladder.capacity_lower, ladder.capacity_upper) == (0.0, 12.0)
        assert ladder.verdicts == (None,) * 4 and list(ladder.unknown()) == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        ("verdicts", "lower", "upper", "unknown"),
        [
            ({"l4": True}, 4.0, 12.0, [2, 3]),
            ({"l4": False}, 0.0, 2.0, [0]),
            ({"l2": True, "l8": False}, 2.0, 4.0, [1]),
            ({"l4": True, "l8": False}, 4.0, 4.0, []),
            ({"l12": True}, 12.0, 12.0, []),
            ({"l2": False}, 0.0, 0.0, []),
        ],
    )
    def test_a_load_met_bounds_below_and_a_load_missed_bounds_above(
        self, verdicts: dict[str, bool], lower: float, upper: float, unknown: list[int]
    ) -> None:
        ladder = open_loop(**verdicts)
        assert (ladder.capacity_lower, ladder.capacity_upper) == (lower, upper)
        assert list(ladder.unknown()) == unknown
        assert ladder.contradiction == ()

    def test_a_load_met_above_a_missed_one_makes_the_span_unknown_again(self) -> None:
        ladder = open_loop(l2=True, l4=False, l12=True)
        assert ladder.contradiction == (1, 3)
        assert (ladder.capacity_lower, ladder.capacity_upper) == (2.0, 12.0)
        assert list(ladder.unknown()) == [1, 2, 3]

    def test_without_monotone_feasibility_a_miss_rules_out_only_itself(self) -> None:
        spec = make_spec(decision={"certify_on": ("measured",)})
        assert ladder_of(spec, {4.0: False}).capacity_upper == 12.0
        assert ladder_of(spec, {12.0: False}).capacity_upper == 8.0
        assert ladder_of(spec, dict.fromkeys(LOADS, False)).open_upto == -1

    def test_the_possible_capacities_are_the_loads_between_the_bounds(self) -> None:
        assert open_loop(l2=True, l12=False).steps() == (2.0, 4.0, 8.0)
        assert open_loop(l12=False).steps() == (0.0, 2.0, 4.0, 8.0)


class TestRefusal:
    def refuse(self, **others: bool) -> Ladder:
        spec = make_spec()
        rows = [make_measurement(spec, load=float(n[1:]), met=met) for n, met in others.items()]
        no = make_measurement(spec, load=8.0, refused="out of memory", served_rps=0.0, percentiles={})
        return next(
            row for row in ladders_of(spec, make_evidence(*rows, no)) if row.candidate.label == "chat TP4"
        )

    def test_an_engine_that_will_not_start_serves_nothing_at_any_load(self) -> None:
        ladder = self.refuse()
        assert ladder.refused and ladder.open_upto == -1
        assert (ladder.capacity_lower, ladder.capacity_upper) == (0.0, 0.0)
        assert ladder.rates == (None,) * 4 and ladder.margins == (None,) * 4

    @pytest.mark.parametrize("others", [{"l2": True}, {"l12": True}, {"l2": True, "l12": True}])
    def test_an_engine_that_also_ran_is_in_doubt_and_not_ruled_out(self, others: dict[str, bool]) -> None:
        ladder = self.refuse(**others)
        assert not ladder.refused
        assert ladder.capacity_lower <= ladder.capacity_upper
        assert ladder.capacity_upper == 12.0
        assert ladder.verdicts[2] == "marginal"


class TestConcurrency:
    def test_the_rate_between_measured_loads_follows_from_little(self) -> None:
        ladder = closed_loop({8.0: (True, 4.0), 32.0: (False, 9.0)})
        assert ladder.rate_lower(2) == 4.0  # does not fall with more users
        assert ladder.rate_upper(2) == 8.0  # grows no faster than the users
        assert ladder.rate_upper(0) == 4.0 and ladder.rate_lower(0) == 0.0
        assert (ladder.capacity_lower, ladder.capacity_upper) == (4.0, 8.0)

    def test_what_is_attempted_further_up_bounds_the_rate_below_it(self) -> None:
        assert closed_loop({8.0: (True, 4.0), 32.0: (False, 5.0)}).capacity_upper == 5.0

    def test_requests_that_failed_were_attempted_too(self) -> None:
        spec = make_spec(loads=USERS, load_kind="concurrency", decision={"closed_loop_slack": 0.0})
        lossy = make_measurement(spec, load=32.0, met=False, served_rps=5.0, success_rate=0.5)
        below = make_measurement(spec, load=8.0, served_rps=4.0)
        ladder = next(
            row for row in ladders_of(spec, make_evidence(lossy, below)) if row.candidate.label == "chat TP4"
        )
        assert ladder.rate_upper(2) == 8.0  # not 5: ten requests a second came, and half of them failed

    def test_the_spread_between_runs_loosens_what_is_not_measured(self) -> None:
        tight, loose = (
            closed_loop({8.0: (True, 4.0), 32.0: (False, 9.0)}, slack=slack) for slack in (0.0, 0.25)
        )
        assert (loose.rate_lower(2), loose.rate_upper(2)) == (4.0 / 1.25, 8.0 * 1.25)
        assert (loose.rate_lower(1), loose.rate_upper(1)) == (tight.rate_lower(1), tight.rate_upper(1))

    def test_without_closed_loop_bounds_only_measured_rates_count(self) -> None:
        ladder = closed_loop({8.0: (True, 4.0)}, certify_on=("measured", "monotone"))
        assert (ladder.rate_lower(2), ladder.rate_upper(2)) == (0.0, math.inf)
        assert ladder.steps() == (4.0, math.inf)

    def test_nothing_measured_bounds_no_rate(self) -> None:
        assert closed_loop({}).capacity_upper == math.inf

    def test_the_possible_capacities_cover_the_interval(self) -> None:
        steps = closed_loop({8.0: (True, 4.0), 32.0: (False, 9.0)}).steps()
        assert (steps[0], steps[-1]) == (4.0, 8.0) and len(steps) > 4
        assert list(steps) == sorted(steps)


class TestReadingEvidence:
    def test_repeats_of_a_load_are_judged_together_and_kept_in_order(self) -> None:
        spec = make_spec()
        rows = [
            make_measurement(spec, load=8.0, met=met, repeat=i) for i, met in enumerate((True, False, False))
        ]
        for count, verdict in ((1, "met"), (2, "marginal"), (3, "missed")):
            ladder = ladders_of(spec, make_evidence(*rows[:count]))[1]
            assert ladder.verdicts[2] == verdict
            assert ladder.keys[2] == tuple(row.point.key for row in rows[:count])

    def test_what_was_measured_of_another_release_is_left_out(self) -> None:
        spec = make_spec()
        older = replace(spec, models=(Model(name="base", revision="r0"),))
        evidence = make_evidence(make_measurement(older, load=8.0, met=False))
        assert ladders_of(spec, evidence) == ladders_of(spec, make_evidence())
        assert ladders_of(older, evidence)[1].verdicts[2] == "missed"

    def test_candidates_that_cannot_run_have_no_ladder(self) -> None:
        spec = make_spec(excluded={"chat TP2": "31 GiB of weights do not fit"})
        assert [row.candidate.label for row in ladders_of(spec, make_evidence())] == ["chat TP4", "chat TP8"]

    @given(st.data())
    def test_a_hypothetical_outcome_is_the_ladder_that_measuring_it_gives(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers(workloads=1))
        known = data.draw(places(server))
        rest = [place for place in server.everything() if place not in known]
        if not rest:
            return
        place = data.draw(st.sampled_from(rest))
        evidence = server.evidence(known)
        index = [item.config for item in server.spec.candidates].index(place[1])
        before = ladders_of(server.spec, evidence)[index]
        more = server.evidence([place]).items[0].measurement
        added = replace(evidence, items=(*evidence.items, EvidenceItem(measurement=more, round=2)))
        after = ladders_of(server.spec, added)[index]
        imagined = before.with_outcome(place[2], after.verdicts[place[2]] or "met", more.served_rps)
        assert imagined.verdicts == after.verdicts
        assert (imagined.capacity_lower, imagined.capacity_upper) == pytest.approx(
            (after.capacity_lower, after.capacity_upper)
        )
