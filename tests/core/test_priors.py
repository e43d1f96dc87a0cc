"""How an earlier release and a simulator steer what is believed, and that they prove nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.core.allocation import problem_of
from fleetsieve_airflow.core.belief import Belief, believe
from fleetsieve_airflow.core.intervals import fit_intervals
from fleetsieve_airflow.core.ladder import ladders_of
from fleetsieve_airflow.core.priors import believe_given
from fleetsieve_airflow.errors import RecordError
from fleetsieve_airflow.evidence import PriorCapacity, PriorLoad
from fleetsieve_airflow.records import FleetSpec
from tests.builders import LOADS, make_evidence, make_measurement, make_spec
from tests.core.worlds import TrueServer, places, servers

#: What a config showed that met 4 req/s with room and missed 8 by far.
BEFORE = {4.0: -0.7, 8.0: 0.7}


def simulated(config: str, lower: float, upper: float, workload: str = "chat") -> PriorCapacity:
    return PriorCapacity(
        workload=workload, config=config, source="simulator", lower_rps=lower, upper_rps=upper
    )


def shown(
    config: str, margins: dict[float, float], *, back: int = 1, workload: str = "chat"
) -> PriorCapacity:
    """What an earlier release showed of a config: ln(worst metric / limit) by load."""
    return PriorCapacity(
        workload=workload,
        config=config,
        source="earlier_release",
        lower_rps=0.0,
        upper_rps=None,
        loads=tuple(
            PriorLoad(load=load, margin=value, rate_rps=load, releases_back=back)
            for load, value in margins.items()
        ),
    )


def belief_in(spec: FleetSpec, *measurements: Any, priors: tuple[PriorCapacity, ...] = ()) -> Belief:
    return believe_given(problem_of(spec), ladders_of(spec, make_evidence(*measurements)), priors)


def same(one: Belief, other: Belief) -> bool:
    rows = zip([*one.met, *one.rate], [*other.met, *other.rate], strict=True)
    return all(left.tolist() == right.tolist() for left, right in rows)


@pytest.mark.parametrize("load_kind", ["offered_load_rps", "concurrency"])
def test_without_priors_the_belief_is_that_of_the_measurements_alone(load_kind: Any) -> None:
    spec = make_spec(load_kind=load_kind)
    evidence = make_evidence(make_measurement(spec, "chat", "TP4", 4.0))
    alone = believe(problem_of(spec), ladders_of(spec, evidence))
    for priors in ((), (simulated("TP16", 1.0, 2.0),)):  # of nothing that is asked about
        assert same(believe_given(problem_of(spec), ladders_of(spec, evidence), priors), alone)


@settings(max_examples=60)
@given(st.data())
def test_beliefs_follow_what_is_known_whatever_the_priors_say(data: st.DataObject) -> None:
    server: TrueServer = data.draw(servers())
    ladders = ladders_of(server.spec, server.evidence(data.draw(places(server))))
    candidate = data.draw(st.sampled_from(server.spec.candidates))
    said = data.draw(st.floats(-3.0, 3.0))
    priors = (
        replace(
            shown(candidate.config, {candidate.loads[0]: said, candidate.loads[-1]: said + 0.5}),
            workload=candidate.workload,
        ),
    )
    belief = believe_given(problem_of(server.spec), ladders, priors)
    for ladder, met, rate in zip(ladders, belief.met, belief.rate, strict=True):
        assert np.isfinite(met).all() and np.isfinite(rate).all()
        assert all(low >= high for low, high in pairwise(met))
        assert all(low <= high for low, high in pairwise(rate))
        assert (met[: ladder.met_upto + 1] == 1.0).all()
        assert (met[ladder.open_upto + 1 :] == 0.0).all()


class TestASimulatedCapacity:
    def test_it_takes_the_place_of_the_share_of_demand(self) -> None:
        spec = make_spec(demand={"chat": 12.0})
        strong, weak = simulated("TP2", 10.0, 14.0), simulated("TP8", 0.0, 0.5)
        assert belief_in(spec, priors=(strong,)).met[0][2] > belief_in(spec).met[0][2]
        assert belief_in(spec, priors=(weak,)).met[2][2] < belief_in(spec).met[2][2]

    def test_one_measurement_corrects_the_other_candidates_too(self) -> None:
        spec = make_spec()
        priors = tuple(simulated(f"TP{d}", 2.0 * d, 2.0 * d) for d in (2, 4, 8))  # twice what is true
        before = belief_in(spec, priors=priors)
        missed = make_measurement(spec, "chat", "TP4", 8.0, met=False)
        after = belief_in(spec, missed, priors=priors)
        assert after.met[0][1] < before.met[0][1]
        assert after.met[2][3] < before.met[2][3]


class TestWhatAnEarlierReleaseShowed:
    @pytest.mark.parametrize("load_kind", ["offered_load_rps", "concurrency"])
    def test_the_next_one_is_expected_to_show_the_same(self, load_kind: Any) -> None:
        spec = make_spec(load_kind=load_kind)
        met = belief_in(spec, priors=(shown("TP4", BEFORE),)).met[1]
        assert met[LOADS.index(4.0)] > 0.8
        assert met[LOADS.index(8.0)] < 0.2

    def test_the_further_back_the_less_certain(self) -> None:
        spec = make_spec()
        by_age = [
            belief_in(spec, priors=(shown("TP4", BEFORE, back=back),)).met[1][LOADS.index(4.0)]
            for back in (1, 2, 3)
        ]
        assert by_age == sorted(by_age, reverse=True)
        assert by_age[0] > by_age[-1]

    def test_a_slower_release_is_slower_everywhere(self) -> None:
        spec = make_spec()
        priors = (shown("TP4", BEFORE), shown("TP8", BEFORE))
        slower = make_measurement(spec, "chat", "TP4", 4.0, percentiles={"ttft_p99_s": 2.0 * np.exp(-0.3)})
        before, after = belief_in(spec, priors=priors), belief_in(spec, slower, priors=priors)
        assert after.met[2][LOADS.index(4.0)] < before.met[2][LOADS.index(4.0)]

    def test_loads_it_did_not_share_with_the_next_one_count_too(self) -> None:
        spec = make_spec()
        met = belief_in(spec, priors=(shown("TP4", {5.0: -0.2, 6.0: 0.2}),)).met[1]
        assert met[LOADS.index(4.0)] > 0.8
        assert met[LOADS.index(8.0)] < 0.2

    def test_a_release_that_is_nothing_like_it_is_soon_believed_more(self) -> None:
        """After measurements that the prior calls impossible, little of it is left."""
        spec = make_spec()
        priors = tuple(shown(label, {2.0: 1.5, 4.0: 2.5}) for label in ("TP2", "TP4", "TP8"))
        fast = [
            make_measurement(spec, "chat", label, 4.0, percentiles={"ttft_p99_s": 0.5})
            for label in ("TP2", "TP4")
        ]
        assert belief_in(spec, priors=priors).met[2][1] < 0.1
        alone, corrected = belief_in(spec, *fast).met[2][1], belief_in(spec, *fast, priors=priors).met[2][1]
        assert corrected > 0.5 * alone


class TestProof:
    @pytest.mark.parametrize("load_kind", ["offered_load_rps", "concurrency"])
    def test_priors_move_no_bound(self, load_kind: Any) -> None:
        spec = make_spec(load_kind=load_kind)
        known = make_evidence(make_measurement(spec, "chat", "TP4", 4.0))
        priors = (simulated("TP2", 3.0, 4.0), shown("TP4", {8.0: 2.0}))
        assert fit_intervals(spec, replace(known, priors=priors)) == fit_intervals(spec, known)

    def test_a_prior_without_an_upper_bound_certifies_none(self) -> None:
        spec = make_spec(decision={"certify_on": ("measured", "monotone", "earlier_release")})
        prior = replace(shown("TP4", {4.0: -0.5}), lower_rps=3.5)
        interval = fit_intervals(spec, make_evidence(priors=(prior,)))[1]
        assert (interval.lower.value_rps, interval.lower.source) == (3.5, "earlier_release")
        assert interval.upper.source == "ladder"

    def test_a_refuted_prior_takes_its_workloads_others_with_it(self) -> None:
        """Where one config's capacity is not what a source said, its other words are worth nothing either."""
        spec = make_spec(
            demand={"chat": 12.0, "code": 6.0},
            decision={"certify_on": ("measured", "monotone", "simulator")},
        )
        priors = (
            simulated("TP2", 3.0, 4.0),
            simulated("TP4", 5.0, 6.0),
            simulated("TP4", 5.0, 6.0, workload="code"),
        )
        slow = make_evidence(make_measurement(spec, "chat", "TP4", 4.0, met=False), priors=priors)
        by_label = {interval.label: interval.upper.source for interval in fit_intervals(spec, slow)}
        assert by_label["chat TP2"] == "ladder"
        assert by_label["chat TP4"] == "monotone"
        assert by_label["code TP4"] == "simulator"


@pytest.mark.parametrize(
    "changed", [{"load": 0.0}, {"margin": float("nan")}, {"rate_rps": -1.0}, {"releases_back": 0}]
)
def test_a_prior_load_refuses_what_cannot_be(changed: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        PriorLoad(**{"load": 1.0, "margin": 0.0, "rate_rps": 1.0, **changed})
