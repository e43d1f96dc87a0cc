from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.decision_time import Size, campaign
from benchmarks.matrix import tasks_of
from benchmarks.run import compute, evaluate
from benchmarks.store import Store, code_digest, digest_of
from benchmarks.tasks import Setting, fleets_of
from fleetsieve_airflow.core.decision import decide
from tests.benchmarks.tiny import write_grids


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    path = write_grids(tmp_path_factory.mktemp("grids") / "grids.csv", models=2)
    return Setting((str(path),), digest_of([path]), 1, 0, 4, 1, 50, (2,))


def test_an_evaluation_writes_numbers_tables_and_figures_and_is_not_done_twice(
    setting: Setting, tmp_path: Path
) -> None:
    sizes = (Size(3, 4, 32, 10.0),)
    first = evaluate(setting, tmp_path, tmp_path, 1, sizes)
    lines = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(tasks_of(setting))
    again = evaluate(setting, tmp_path, tmp_path, 1, sizes)
    assert (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines() == lines
    assert (
        again["real"]
        == first["real"]
        == json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["real"]
    )
    text = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert "## What it must show" in text
    assert first["told"]["told"]["median"] <= first["told"]["as_it_is"]["median"]
    assert "Where the difference comes from" in text
    assert str(tmp_path) not in text
    for name in ("savings", "clairvoyant", "anytime", "growth"):
        assert (tmp_path / "figures" / f"{name}.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")


def test_a_run_that_was_killed_goes_on_where_it_stopped(setting: Setting, tmp_path: Path) -> None:
    tasks = [task for task in tasks_of(setting) if task.group == "real" and task.kind == "play"][1:4]
    path = tmp_path / "results.jsonl"
    compute(setting, tasks[:2], Store(path), 1)
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + '{"key": "cut sho', encoding="utf-8")
    store = Store(path)
    assert [task.key(setting) in store for task in tasks] == [True, True, False]
    path.write_text(whole, encoding="utf-8")
    compute(setting, tasks, store, 1)
    assert all(task.key(setting) in Store(path) for task in tasks)


def test_results_are_tied_to_the_grids_and_to_the_code_they_came_from(setting: Setting) -> None:
    task = tasks_of(setting)[0]
    other = Setting(setting.paths, "another digest", 1, 0, 4, 1, 50, (2,))
    assert task.key(setting) != task.key(other)
    assert len({code_digest(None), code_digest("ours"), code_digest("orders")}) == 3


def test_fleets_come_in_families_and_cover_every_demand(setting: Setting) -> None:
    fleets = fleets_of(Setting(setting.paths, setting.digest, 18), "real")
    assert {fleet.family for fleet in fleets.values()} == {"h1 vllm"}
    assert sorted({len(fleet.spec.workloads) for fleet in fleets.values()}) == [2, 3, 5, 8, 12, 20]


def test_the_timed_campaign_is_still_undecided() -> None:
    spec, evidence = campaign(Size(4, 6, 64, 1.0))
    decision = decide(spec, evidence)
    assert decision.state == "measure"
    assert decision.regret > spec.decision.tolerance
