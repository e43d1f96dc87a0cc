from __future__ import annotations

import pytest

from benchmarks.clairvoyant import clairvoyant
from benchmarks.methods import ALL, FleetSieve, Method, ToldFleetSieve, UniformRandom
from benchmarks.methods.orders import first_settled, shuffled, without_implied
from benchmarks.noise import RecordedRuns
from benchmarks.paper import PUBLISHED, paper_fleets
from benchmarks.play import play, with_repeats
from benchmarks.state import Board
from fleetsieve_airflow.core import acquisition
from fleetsieve_airflow.core.priors import believe_given
from tests.benchmarks.tiny import tiny_fleet

methods = pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)


@methods
@pytest.mark.parametrize("scale", [0.7, 1.3])
def test_every_method_reaches_a_certificate_that_is_right(method: type[Method], scale: float) -> None:
    board = Board(tiny_fleet(5, scale, workloads=3, gpus=16, loads=4))
    outcome = play(board, method(board))
    assert outcome.state == ("certified_feasible" if scale < 1.0 else "certified_infeasible")
    assert outcome.regret <= board.tolerance + 1e-9
    assert not outcome.wrong
    assert clairvoyant(board).lower <= outcome.window <= sum(map(board.window, board.cells))


@methods
def test_more_gpus_for_profiling_never_take_longer_than_one_point_at_a_time(method: type[Method]) -> None:
    board = Board(tiny_fleet(6, 1.0, workloads=3, gpus=16, loads=4))
    alone, together = play(board, method(board)), play(board, method(board), room=8)
    assert together.state == alone.state
    assert together.hours <= alone.hours
    assert together.rounds <= alone.rounds


@methods
def test_with_noise_a_method_ends_and_asks_no_cell_more_often_than_it_was_run(method: type[Method]) -> None:
    fleet = tiny_fleet(3, 1.0)
    board = with_repeats(Board(fleet), 3, 0.95, 0.05)
    outcome = play(board, method(board), measure=RecordedRuns(fleet, 0))
    assert outcome.points <= sum(len(runs) for runs in fleet.runs.values())
    assert outcome.state in ("certified_feasible", "certified_infeasible", "undetermined")


def test_bisection_over_an_order_finds_the_stop_that_playing_it_finds() -> None:
    for seed in range(6):
        board = Board(tiny_fleet(seed, 1.3, workloads=3, gpus=16))
        order = shuffled(board, seed)
        length = first_settled(board, order)
        assert board.after(order[:length]).stop().state
        assert not board.after(order[: length - 1]).stop().state
        assert play(board, UniformRandom(board, seed)).points <= length


def test_an_order_without_implied_loads_still_settles_everything() -> None:
    board = Board(tiny_fleet(1, 1.3, loads=5))
    order = without_implied(board, shuffled(board, 0))
    assert len(order) < len(board.cells)
    assert board.after(order).stop().state


@pytest.mark.parametrize("number", range(3))
def test_on_the_papers_grid_fleetsieve_finds_a_plan_as_good_as_the_oracles(number: int) -> None:
    board = Board(paper_fleets()[number])
    outcome = play(board, FleetSieve(board))
    assert outcome.regret == pytest.approx(0.0, abs=1e-9)
    assert outcome.window <= 7200.0


def test_at_the_papers_demand_the_plan_is_the_published_one() -> None:
    board = Board(paper_fleets()[1])
    outcome = play(board, FleetSieve(board))
    assert outcome.plan == outcome.oracle == PUBLISHED[1.0].oracle


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [0.7, 1.0, 1.3])
def test_told_the_truth_fleetsieve_pays_little_beyond_the_cheapest_proof(seed: int, scale: float) -> None:
    board = Board(tiny_fleet(seed, scale, workloads=3, gpus=16, loads=5))
    told, limit = play(board, ToldFleetSieve(board)), clairvoyant(board)
    assert told.state.startswith("certified")
    assert not told.wrong
    assert limit.lower <= told.window <= 1.5 * limit.found


def test_what_the_core_believes_is_only_replaced_while_a_round_is_chosen() -> None:
    board = Board(tiny_fleet(1, 1.0))
    play(board, ToldFleetSieve(board))
    assert acquisition.believe_given is believe_given
