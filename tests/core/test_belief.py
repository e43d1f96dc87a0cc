"""What is expected of loads not yet measured."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.core.allocation import problem_of
from fleetsieve_airflow.core.belief import Belief, believe
from fleetsieve_airflow.core.ladder import ladders_of
from fleetsieve_airflow.evidence import Evidence
from fleetsieve_airflow.records import FleetSpec
from tests.builders import make_evidence, make_measurement, make_spec
from tests.core.worlds import TrueServer, places, servers

USERS = (4.0, 8.0, 16.0, 32.0, 64.0)


def belief_in(spec: FleetSpec, *measurements: Any) -> Belief:
    return believe(problem_of(spec), ladders_of(spec, make_evidence(*measurements)))


@settings(max_examples=60)
@given(st.data())
def test_beliefs_follow_what_is_known_and_never_rise_with_load(data: st.DataObject) -> None:
    server: TrueServer = data.draw(servers())
    ladders = ladders_of(server.spec, server.evidence(data.draw(places(server))))
    belief = believe(problem_of(server.spec), ladders)
    for ladder, met, rate in zip(ladders, belief.met, belief.rate, strict=True):
        assert len(met) == len(rate) == len(ladder.candidate.loads)
        assert np.isfinite(met).all() and np.isfinite(rate).all()
        assert all(low >= high for low, high in pairwise(met))
        assert all(low <= high for low, high in pairwise(rate))
        assert (met[: ladder.met_upto + 1] == 1.0).all()
        assert (met[ladder.open_upto + 1 :] == 0.0).all()
        inside = met[ladder.met_upto + 1 : ladder.open_upto + 1]
        assert ((inside > 0.0) & (inside < 1.0)).all()  # what is not known is never taken for certain


def test_a_fleet_without_candidates_is_believed_nothing_of() -> None:
    spec = make_spec(excluded={f"chat {label}": "does not fit" for label in ("TP2", "TP4", "TP8")})
    assert belief_in(spec) == Belief([], [])


def test_the_order_of_the_evidence_does_not_matter() -> None:
    spec = make_spec(demand={"chat": 12.0, "code": 6.0})
    rows = [make_measurement(spec, "chat", "TP4", 8.0), make_measurement(spec, "code", "TP2", 4.0, met=False)]
    one, other = belief_in(spec, *rows), belief_in(spec, *reversed(rows))
    for left, right in zip([*one.met, *one.rate], [*other.met, *other.rate], strict=True):
        assert left.tolist() == right.tolist()


class TestWhatAMeasurementTeaches:
    @pytest.mark.parametrize(
        "fields", [{}, {"load_kind": "concurrency", "loads": USERS}], ids=["open", "closed"]
    )
    def test_another_degree_is_thought_better_of_after_a_load_met_than_after_one_missed(
        self, fields: dict[str, Any]
    ) -> None:
        spec = make_spec(**fields)
        load = spec.candidates[0].loads[1]
        met, missed = (belief_in(spec, make_measurement(spec, load=load, met=ok)) for ok in (True, False))
        assert met.met[2][1] > missed.met[2][1]
        assert met.met[0][0] > missed.met[0][0]

    def test_a_narrow_miss_says_less_against_lower_loads_than_a_wide_one(self) -> None:
        spec = make_spec()
        narrow, wide = (
            belief_in(spec, make_measurement(spec, load=12.0, met=False, percentiles={"ttft_p99_s": seconds}))
            for seconds in (2.1, 40.0)
        )
        assert narrow.met[1][2] > wide.met[1][2]

    def test_it_says_more_of_its_own_workload_than_of_another(self) -> None:
        spec = make_spec(demand={"chat": 12.0, "code": 12.0})
        far_off = make_measurement(spec, "chat", "TP4", 8.0, met=False, percentiles={"ttft_p99_s": 60.0})
        before, after = belief_in(spec), belief_in(spec, far_off)
        own, other = (before.met[i][1] - after.met[i][1] for i in (2, 5))
        assert own > other >= 0.0

    def test_a_served_rate_is_expected_to_go_on_as_it_was_measured(self) -> None:
        spec = make_spec(load_kind="concurrency", loads=USERS, demand={"chat": 500.0})
        slow, fast = (
            belief_in(spec, make_measurement(spec, load=16.0, served_rps=rate)) for rate in (2.0, 8.0)
        )
        assert (slow.rate[1] < fast.rate[1]).all()
        assert (slow.rate[1][2], fast.rate[1][2]) == (2.0, 8.0)


def test_a_fleet_with_very_many_measurements_is_still_believed_in() -> None:
    names = {f"w{i:02d}": 10.0 for i in range(36)}
    spec = make_spec(demand=names, gpus=512, configs={"TP2": 2, "TP4": 4, "TP8": 8})
    rows = [
        make_measurement(spec, name, config, load, met=load <= limit)
        for name in names
        for config, limit in (("TP2", 2.0), ("TP4", 8.0))
        for load in (2.0, 4.0, 8.0)
    ]
    belief = belief_in(spec, *rows)
    evidence = make_evidence(*rows)
    for ladder, met in zip(ladders_of(spec, evidence), belief.met, strict=True):
        assert np.isfinite(met).all()
        if ladder.candidate.config == "TP8":
            assert met[0] > 0.5  # as TP4 and TP2 are known to meet it


def test_nothing_measured_expects_every_replica_to_carry_its_share() -> None:
    spec = make_spec(demand={"chat": 16.0}, gpus=16)
    belief = believe(problem_of(spec), ladders_of(spec, Evidence()))
    assert belief.met[2][0] > belief.met[1][0] > belief.met[0][0]  # TP8's share is 8 req/s, TP2's is 2
    assert belief.met[2][2] == pytest.approx(0.5)
