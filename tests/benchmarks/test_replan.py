"""Fleets whose models are released anew, and what planning them again costs."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import replan
from benchmarks.paper import paper_fleets
from benchmarks.releases import best_changed, by_half, release, within
from fleetsieve_airflow.serialization import points_of
from tests.benchmarks.tiny import tiny_fleet, write_grids


def test_a_release_that_moves_nothing_shows_the_same_under_other_keys() -> None:
    for before in (tiny_fleet(0, 1.0), paper_fleets()[1]):
        after = release(before, within(before, 0.0, random.Random(0)))
        assert after.capacities() == [pytest.approx(row) for row in before.capacities()]
        for candidate in before.spec.candidates:
            rows = zip(points_of(before.spec, candidate), points_of(after.spec, candidate), strict=True)
            for old, new in rows:
                assert old.key != new.key
                shown, again = before.measure(old), after.measure(new)
                assert again.served_rps == pytest.approx(shown.served_rps, rel=0.02)
                assert dict(again.percentiles) == pytest.approx(dict(shown.percentiles))


def test_a_release_that_is_twice_as_fast_does_at_twice_the_load_what_the_one_before_did() -> None:
    before = tiny_fleet(0, 1.0)
    after = release(before, {(c.workload, c.config): 2.0 for c in before.spec.candidates})
    candidate = before.spec.candidates[0]  # each load of its ladder is twice the one before
    old, new = points_of(before.spec, candidate), points_of(after.spec, candidate)
    for slow, fast in zip(old[:-1], new[1:], strict=True):
        assert after.measure(fast).served_rps == pytest.approx(2.0 * before.measure(slow).served_rps)
        assert dict(after.measure(fast).percentiles) == pytest.approx(dict(before.measure(slow).percentiles))


def test_moves_stay_within_what_they_are_called() -> None:
    fleet = tiny_fleet(1, 1.0)
    for seed in range(20):
        small = within(fleet, 0.15, random.Random(seed)).values()
        assert all(1 / 1.15 <= factor <= 1.15 for factor in small)
        large = by_half(fleet, random.Random(seed)).values()
        assert all(1 / 1.5 / 1.15 <= f <= 1.5 * 1.15 and not 0.8 < f < 1.25 for f in large)


def test_a_changed_best_takes_from_the_best_config_what_the_next_one_gains() -> None:
    before = paper_fleets()[1]
    moves = best_changed(before, random.Random(0))
    assert moves["chat", "TP4"] == pytest.approx(1 / 1.4)  # the paper's best config per GPU
    assert sorted(moves.values())[-1] == pytest.approx(1.4)


def test_cases_are_played_and_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [("paper", paper_fleets()[1]), ("tiny", tiny_fleet(0, 0.7)), ("tiny", tiny_fleet(1, 1.3))]
    monkeypatch.setattr(replan, "fleets", lambda grids: iter(chosen))
    assert replan.main(["--out", str(tmp_path), "--report", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "replan.json").read_text())
    assert len(rows) == len(chosen) * len(replan.CHANGES)
    assert all(row["right"] and row["limit"] <= row["again"] + 1e-9 for row in rows)
    text = (tmp_path / "REPLAN.md").read_text()
    assert "| up to 15 % | paper | 1 |" in text
    assert "| 50 % | all | 3 |" in text
    assert "WRONG" not in text
    assert str(tmp_path) not in text
    assert "| release | fleets |" in capsys.readouterr().out


def test_recorded_grids_add_fleets_of_two_and_three_workloads(tmp_path: Path) -> None:
    path = write_grids(tmp_path / "grids.csv", models=2)
    groups = [(group, len(fleet.spec.workloads)) for group, fleet in replan.fleets([path])]
    assert {size for group, size in groups if group != "paper"} == {2, 3}
    recorded = [size for group, size in groups if group == "recorded"]
    assert len(recorded) == len(replan.CHOSEN)
    assert sum(group == "made up" for group, _ in groups) == 5 * len(replan.CHOSEN)


def test_a_wrong_end_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    case = replan.play("tiny", tiny_fleet(0, 0.7), "up to 15 %")
    assert "**WRONG**" in replan.table([replace(case, right=False)])
    assert "0 of 1" in replan.table([replace(case, right=False)])
