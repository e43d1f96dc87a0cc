"""The cheapest questions whose hoped answers would settle a level, and that these answers indeed do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.core.allocation import problem_of
from fleetsieve_airflow.core.belief import Belief, believe
from fleetsieve_airflow.core.bounds import box_of, value_of
from fleetsieve_airflow.core.dominance import dominated
from fleetsieve_airflow.core.intervals import fit_intervals
from fleetsieve_airflow.core.ladder import Ladder, ladders_of
from fleetsieve_airflow.core.proof import (
    Question,
    Scene,
    expected_capacities,
    expected_price,
    prove_exceeded,
    prove_reached,
)
from fleetsieve_airflow.evidence import Evidence
from fleetsieve_airflow.records import FleetSpec
from tests.builders import make_evidence, make_measurement, make_spec
from tests.core.worlds import Capacities, TrueServer, places, servers


def scene_of(spec: FleetSpec, evidence: Evidence, belief: Belief | None = None) -> Scene:
    """Set the scene as a decision does: what is known, what is believed, what may be asked."""
    problem, ladders = problem_of(spec), ladders_of(spec, evidence)
    box = box_of(spec, problem, fit_intervals(spec, evidence))
    members: list[list[int]] = [[] for _ in problem.names]
    for i, ladder in enumerate(ladders):
        members[ladder.workload].append(i)
    belief = belief or believe(problem, ladders)
    return Scene(
        problem=problem,
        ladders=ladders,
        belief=belief,
        unprompted=belief,
        members=members,
        lower=box.lower,
        upper=box.upper,
        costs=[ladder.gpus * 300.0 for ladder in ladders],
        askable=[[True] * len(ladder.candidate.loads) for ladder in ladders],
        dominated=dominated(problem, ladders, box),
    )


def ends_after(scene: Scene, questions: Iterable[Question]) -> tuple[Capacities, Capacities]:
    """Return lower and upper capacities once every question is answered as hoped."""
    changed: dict[int, Ladder] = dict(enumerate(scene.ladders))
    for q in questions:
        verdict: Any = q.hoped
        rate = float(scene.belief.rate[q.ladder][q.load])
        changed[q.ladder] = changed[q.ladder].with_outcome(q.load, verdict, rate)
    problem = scene.problem
    lower = [[problem.cap(w, changed[i].capacity_lower) for i in row] for w, row in enumerate(scene.members)]
    upper = [
        [min(scene.upper[w][c], problem.cap(w, changed[i].capacity_upper)) for c, i in enumerate(row)]
        for w, row in enumerate(scene.members)
    ]
    return lower, upper


def labels(scene: Scene, questions: Sequence[Question] | None) -> list[str]:
    assert questions is not None
    asked = [(scene.ladders[q.ladder].candidate, q) for q in questions]
    return sorted(f"{candidate.label} {candidate.loads[q.load]:g} {q.hoped}" for candidate, q in asked)


class TestHopedAnswers:
    @settings(max_examples=100)
    @given(st.data())
    def test_they_prove_that_the_level_is_reached(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers())
        scene = scene_of(server.spec, server.evidence(data.draw(places(server))))
        level = data.draw(st.sampled_from([0.2, 0.5, 0.8, 1.0]))
        questions = prove_reached(scene, level)
        assume(questions is not None)
        lower, _ = ends_after(scene, questions or ())
        assert value_of(scene.problem, lower) >= level * (1 - 1e-6)

    @settings(max_examples=100)
    @given(st.data())
    def test_they_prove_that_the_level_is_not_exceeded(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers())
        scene = scene_of(server.spec, server.evidence(data.draw(places(server))))
        level = data.draw(st.sampled_from([0.2, 0.5, 0.8, 0.95]))
        questions = prove_exceeded(scene, level)
        assume(questions is not None)
        _, upper = ends_after(scene, questions or ())
        assert value_of(scene.problem, upper) <= level * (1 + 1e-6)

    @settings(max_examples=50)
    @given(st.data())
    def test_only_open_loads_are_asked_about_each_with_its_chance(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers())
        scene = scene_of(server.spec, server.evidence(data.draw(places(server))))
        for questions in (prove_reached(scene, 0.8), prove_exceeded(scene, 0.8)):
            for question in questions or ():
                assert question.load in scene.ladders[question.ladder].unknown()
                met = float(scene.belief.met[question.ladder][question.load])
                assert question.chance == pytest.approx(met if question.hoped == "met" else 1.0 - met)


class TestReached:
    def test_nothing_is_asked_where_it_is_proved_already(self) -> None:
        spec = make_spec()
        scene = scene_of(spec, make_evidence(make_measurement(spec, load=8.0)))
        assert prove_reached(scene, 1.0) == ()

    def test_nothing_can_be_asked_where_no_answer_would_do(self) -> None:
        scene = scene_of(make_spec(demand={"chat": 400.0}), Evidence())
        assert prove_reached(scene, 1.0) is None

    def test_one_kind_of_replica_is_cheaper_to_prove_than_two(self) -> None:
        spec = make_spec(demand={"chat": 16.0}, configs={"TP4": 4, "TP8": 8})
        assert len(prove_reached(scene_of(spec, Evidence()), 0.9) or ()) == 1

    def test_two_kinds_are_mixed_where_one_alone_cannot_do(self) -> None:
        # In 12 GPUs, three TP4 serve at most 13.5 req/s; a TP8 beside one TP4 serves 14 or more.
        spec = make_spec(
            demand={"chat": 14.0}, configs={"TP4": 4, "TP8": 8}, gpus=12, gpus_per_node=12,
            loads={"TP4": (4.0, 4.5), "TP8": (8.0, 10.0)},
        )  # fmt: skip
        scene = scene_of(replace_nodes(spec), Evidence())
        belief = Belief([scene.belief.met[0] * 0 + 0.9, scene.belief.met[1] * 0 + 0.9], scene.belief.rate)
        questions = prove_reached(replace(scene, belief=belief), 1.0)
        assert [label.split()[1] for label in labels(scene, questions)] == ["TP4", "TP8"]
        assert value_of(scene.problem, ends_after(scene, questions or ())[0]) == pytest.approx(1.0)

    def test_three_kinds_are_mixed_where_two_cannot_do(self) -> None:
        # 7 GPUs serve 7.7 req/s only as a TP4, a TP2 and a TP1 together: every other mix leaves a GPU idle
        # or repeats a kind whose rate is low for its size.
        spec = make_spec(
            demand={"chat": 7.7}, configs={"TP1": 1, "TP2": 2, "TP4": 4}, gpus=7, gpus_per_node=7,
            loads={"TP1": (0.7, 0.8), "TP2": (1.9, 2.0), "TP4": (4.8, 4.9)},
        )  # fmt: skip
        scene = scene_of(replace_nodes(spec), Evidence())
        belief = Belief([row * 0 + 0.9 for row in scene.belief.met], scene.belief.rate)
        questions = prove_reached(replace(scene, belief=belief), 1.0)
        assert labels(scene, questions) == ["chat TP1 0.8 met", "chat TP2 2 met", "chat TP4 4.9 met"]
        assert value_of(scene.problem, ends_after(scene, questions or ())[0]) == pytest.approx(1.0)

    def test_what_cannot_be_asked_is_not_asked(self) -> None:
        scene = scene_of(make_spec(demand={"chat": 16.0}), Evidence())
        silent = replace(scene, askable=[[False] * 4 for _ in scene.ladders])
        assert prove_reached(silent, 0.9) is None


def replace_nodes(spec: FleetSpec) -> FleetSpec:
    """Give the fleet nodes of 4 GPUs, which its replicas divide or fill."""
    return replace(spec, pools=tuple(replace(pool, gpus_per_node=4) for pool in spec.pools))


class TestExceeded:
    def test_nothing_is_asked_where_it_is_proved_already(self) -> None:
        spec = make_spec(demand={"chat": 400.0})
        assert prove_exceeded(scene_of(spec, Evidence()), 0.9) == ()

    def test_every_rival_is_cut(self) -> None:
        spec = make_spec(demand={"chat": 30.0}, configs={"TP4": 4, "TP8": 8})
        known = make_evidence(
            make_measurement(spec, "chat", "TP4", 4.0), make_measurement(spec, "chat", "TP4", 8.0, met=False)
        )
        questions = prove_exceeded(scene_of(spec, known), 0.6)
        assert labels(scene_of(spec, known), questions) == ["chat TP8 12 missed"]

    def test_rates_of_a_closed_loop_are_cut_by_loads_met_too(self) -> None:
        spec = make_spec(
            demand={"chat": 10.0}, configs={"TP8": 8}, gpus=8, loads=(4.0, 8.0, 64.0),
            load_kind="concurrency",
            decision={"closed_loop_slack": 0.0},
        )  # fmt: skip
        known = make_evidence(make_measurement(spec, "chat", "TP8", 4.0, served_rps=0.5))
        scene = scene_of(spec, known)
        assert prove_exceeded(scene, 0.85) == ()  # Little: at most 0.5 x 64 / 4 = 8 req/s of 10
        questions = prove_exceeded(scene, 0.5)
        assert questions
        _, upper = ends_after(scene, questions)
        assert value_of(scene.problem, upper) <= 0.5 + 1e-6

    def test_nothing_can_be_asked_where_a_level_is_reached_for_sure(self) -> None:
        spec = make_spec()
        scene = scene_of(spec, make_evidence(make_measurement(spec, load=8.0)))
        assert prove_exceeded(scene, 0.9) is None


def test_the_expected_capacity_is_the_rate_at_the_highest_load_likely_met_inside_its_bounds() -> None:
    spec = make_spec()
    rows = make_measurement(spec, load=4.0), make_measurement(spec, load=12.0, met=False)
    scene = scene_of(spec, make_evidence(*rows))
    for chance in (0.1, 0.5, 0.9):
        (row,) = expected_capacities(scene, chance)
        assert row[1] in (4.0, 8.0)
    assert expected_capacities(scene, 0.01)[0][1] == 8.0
    bold, careful = expected_capacities(scene, 0.1)[0], expected_capacities(scene, 0.9)[0]
    assert all(low <= high for low, high in zip(careful, bold, strict=True))


def test_an_unlikely_answer_is_expected_to_cost_more() -> None:
    assert expected_price(100.0, 1.0) == 100.0
    assert expected_price(100.0, 0.1) > expected_price(100.0, 0.5) > 100.0
    assert expected_price(100.0, 0.0) < float("inf")
