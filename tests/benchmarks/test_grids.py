from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fleets import LIMIT, meets, true_capacities
from benchmarks.grids import Grid, Run, read_grids
from benchmarks.state import Board
from fleetsieve_airflow.errors import GridError
from tests.benchmarks.tiny import tiny_fleet, write_grids


def test_a_grid_file_becomes_complete_grids_with_all_runs(tmp_path: Path) -> None:
    grids = read_grids([write_grids(tmp_path / "grids.csv", models=2)])
    assert [grid.degrees for grid in grids] == [[1, 2, 4], [1, 2, 4]]
    assert all(len(runs) == 2 for grid in grids for runs in grid.cells.values())
    assert grids[0].loads(2) == [4.0, 8.0, 16.0]


def test_an_incomplete_grid_is_left_out_and_none_at_all_is_an_error(tmp_path: Path) -> None:
    path = write_grids(tmp_path / "grids.csv", models=1)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text(
        "\n".join([lines[0], *[line for line in lines[1:] if ",4,concurrency" not in line]]), encoding="utf-8"
    )
    with pytest.raises(GridError, match="No complete grid"):
        read_grids([path])


def test_a_file_without_a_column_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "grids.csv"
    path.write_text("model,gpus\nm,1\n", encoding="utf-8")
    with pytest.raises(GridError, match="lacks the columns source"):
        read_grids([path])


def test_the_truth_is_the_median_and_never_falls_along_the_loads() -> None:
    cells = {
        (1, 4.0): tuple(
            Run(rate, None, ((LIMIT, tail),)) for rate, tail in ((1.0, 2.0), (1.2, 9.0), (1.1, 2.2))
        ),
        (1, 8.0): (Run(1.05, None, ((LIMIT, 1.9),)),),
        (1, 16.0): (Run(3.0, None, ((LIMIT, 5.0),)),),
    }
    truth = Grid("g", "h", "e", "concurrency", cells).truth((LIMIT,))
    tails = [truth[1, load].percentile(LIMIT) for load in (4.0, 8.0, 16.0)]
    rates = [truth[1, load].served_rps for load in (4.0, 8.0, 16.0)]
    assert tails == sorted(tails)
    assert rates == sorted(rates)
    assert tails[2] == pytest.approx(5.0)
    assert tails[0] == tails[1] == pytest.approx((2.2 * 1.9) ** 0.5)
    assert rates[0] == rates[1] == pytest.approx((1.1 + 1.05) / 2)


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.3])
def test_demands_are_scaled_to_what_the_best_plan_serves(scale: float) -> None:
    for seed in range(4):
        board = Board(tiny_fleet(seed, scale, workloads=3, gpus=16))
        assert board.best == pytest.approx(min(1.0, 1.0 / scale), abs=1e-6)


def test_a_true_capacity_is_the_rate_at_the_last_load_met() -> None:
    fleet = tiny_fleet(1, 1.0)
    workload = fleet.spec.workloads[0]
    for candidate, capacity in zip(
        fleet.spec.candidates_of("w00"), true_capacities(fleet.spec, fleet.truth)[0], strict=True
    ):
        runs = [fleet.truth["w00", candidate.config, load] for load in candidate.loads]
        met = [run.served_rps for run in runs if meets(run, workload.slo)]
        assert capacity == max(met, default=0.0)


def test_the_same_seed_gives_the_same_fleet() -> None:
    assert tiny_fleet(3, 1.0).spec == tiny_fleet(3, 1.0).spec
