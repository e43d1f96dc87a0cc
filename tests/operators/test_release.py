from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from fleetsieve_airflow.dag_release import release_asset
from fleetsieve_airflow.operators.release import HISTORY, PlanReleasedFleetsOperator
from fleetsieve_airflow.releases import Release

ASSET = release_asset()


class Planning(PlanReleasedFleetsOperator):
    """The task with an Airflow of the test's, which knows some runs already."""

    def __init__(self, *, there: Sequence[str] = (), **fields: Any) -> None:
        super().__init__(task_id="plan", asset=ASSET, plan_dag_id="fleet_plan", **fields)
        self.runs: dict[str, dict[str, Any]] = {}
        self.there = there

    def start(self, run_id: str, conf: Mapping[str, Any]) -> bool:
        if run_id in self.there or run_id in self.runs:
            return False
        self.runs[run_id] = dict(conf)
        return True


class Events(list[Any]):
    """The history of an asset, as Airflow offers it to a task."""

    def ascending(self, ascending: bool) -> Events:
        return Events(sorted(self, key=lambda event: event.timestamp, reverse=not ascending))

    def limit(self, limit: int) -> Events:
        assert limit == HISTORY
        return Events(self[:limit])


def event(model: str, version: str, *, hours_ago: float = 0.0, at: bool = True) -> SimpleNamespace:
    """An asset event of a release, as the webhook records it."""
    when = datetime.now(UTC) - timedelta(hours=hours_ago)
    told = Release(
        model=model, version=version, alias="production", at=when.timestamp() if at else 0.0
    ).as_event()
    return SimpleNamespace(extra=told, timestamp=when)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three fleets of three models, one of which the registry knows by another name."""
    fleets = tmp_path / "fleets"
    (fleets / "eu").mkdir(parents=True)
    write(fleets / "a.yaml", "chat: {revision: r1}")
    write(fleets / "eu" / "b.yml", "chat: {revision: r1}\n  code: {revision: r1, registered_model: Code 7B}")
    write(fleets / "c.yaml", "rank: {revision: r1}")
    (fleets / "README.md").write_text("chat")
    return fleets


def write(path: Path, models: str) -> None:
    path.write_text(f"fleet: {path.stem}\nmodels:\n  {models}\n")


def found(
    folder: Path, *, triggering: list[SimpleNamespace] | None = None, history: Sequence[SimpleNamespace] = ()
) -> dict[str, dict[str, Any]]:
    """Run the task; the confs by fleet file."""
    operator = Planning(fleet_folder=str(folder), relative_to=str(folder.parent))
    try:
        started = operator.execute(context_of(triggering, history))
    except AirflowSkipException:
        started = []
    assert started == list(operator.runs)
    assert all(run_id == f"{conf['campaign_id']}__r01" for run_id, conf in operator.runs.items())
    return {conf["fleet"]: conf for conf in operator.runs.values()}


def context_of(triggering: Sequence[Any] | None, history: Sequence[Any] = ()) -> Any:
    """What Airflow gives a running task."""
    return {
        "triggering_asset_events": {} if triggering is None else {ASSET: list(triggering)},
        "inlet_events": {ASSET: Events(history)},
    }


def test_every_fleet_that_serves_the_model_gets_a_campaign_at_the_new_revision(folder: Path) -> None:
    confs = found(folder, triggering=[event("chat", "7")])
    assert confs == {
        "fleets/a.yaml": {
            "fleet": "fleets/a.yaml",
            "campaign_id": "release-a-chat-v7",
            "reason": "release chat v7",
            "revisions": {"chat": "v7"},
        },
        "fleets/eu/b.yml": {
            "fleet": "fleets/eu/b.yml",
            "campaign_id": confs["fleets/eu/b.yml"]["campaign_id"],
            "reason": "release chat v7",
            "revisions": {"chat": "v7"},
        },
    }


def test_a_model_is_found_by_its_name_in_the_registry(folder: Path) -> None:
    confs = found(folder, triggering=[event("Code 7B", "3")])
    assert confs["fleets/eu/b.yml"]["revisions"] == {"code": "v3"}
    assert list(confs) == ["fleets/eu/b.yml"]
    assert found(folder, triggering=[event("code", "3")]) == {}


def test_two_models_released_together_are_both_planned_and_one_plan_for_who_serves_both(folder: Path) -> None:
    told = [event("chat", "7"), event("Code 7B", "3")]
    confs = found(folder, triggering=told, history=told)
    assert confs["fleets/a.yaml"]["revisions"] == {"chat": "v7"}
    assert confs["fleets/eu/b.yml"]["revisions"] == {"chat": "v7", "code": "v3"}
    assert confs["fleets/eu/b.yml"]["reason"] == "release Code 7B v3 and chat v7"


def test_a_release_that_no_run_was_told_of_is_found_by_the_next_run(folder: Path) -> None:
    stranded = event("rank", "2", hours_ago=0.01)
    confs = found(folder, triggering=[event("chat", "7")], history=[stranded, event("chat", "7")])
    assert set(confs) == {"fleets/a.yaml", "fleets/c.yaml", "fleets/eu/b.yml"}
    assert set(found(folder, history=[stranded])) == {"fleets/c.yaml"}


def test_an_old_release_is_not_planned_again_but_its_version_stays_in_force(folder: Path) -> None:
    old = event("Code 7B", "3", hours_ago=24 * 90)
    assert found(folder, history=[old]) == {}
    confs = found(folder, triggering=[event("chat", "7")], history=[old])
    assert confs["fleets/eu/b.yml"]["revisions"] == {"chat": "v7", "code": "v3"}


def test_an_event_that_triggers_the_run_counts_however_old_it_is(folder: Path) -> None:
    assert set(found(folder, triggering=[event("rank", "2", hours_ago=100)])) == {"fleets/c.yaml"}


def test_the_same_release_told_twice_is_one_campaign_and_a_later_version_replaces_it(folder: Path) -> None:
    twice = [event("rank", "2", hours_ago=0.2), event("rank", "2", hours_ago=0.1, at=False)]
    first = found(folder, triggering=twice, history=twice)
    assert first["fleets/c.yaml"]["campaign_id"] == "release-c-rank-v2"
    later = [*twice, event("rank", "3")]
    assert found(folder, triggering=later)["fleets/c.yaml"]["campaign_id"] == "release-c-rank-v3"
    assert found(folder, triggering=later[::-1])["fleets/c.yaml"]["campaign_id"] == "release-c-rank-v3"


def test_events_that_are_no_releases_are_passed_over(folder: Path) -> None:
    strange = SimpleNamespace(extra={"hello": "world"}, timestamp=datetime.now(UTC))
    assert found(folder, triggering=[strange], history=[strange]) == {}


def test_a_file_that_cannot_be_read_does_not_keep_the_others_from_being_planned(folder: Path) -> None:
    (folder / "broken.yaml").write_text("models: {chat: [\n")
    (folder / "other.yaml").write_text("models: {rank: [\n")
    (folder / "list.yaml").write_text("[chat]")
    (folder / "odd.yaml").write_text("models: {chat: 7, 8: {}}")
    confs = found(folder, triggering=[event("chat", "7")])
    assert set(confs) == {
        "fleets/a.yaml",
        "fleets/eu/b.yml",
        # Its campaign fails and says what is wrong with the file.
        "fleets/broken.yaml",
        "fleets/odd.yaml",
    }
    assert confs["fleets/broken.yaml"]["revisions"] == {"chat": "v7"}


def test_a_folder_of_its_own_is_where_files_are_named_from(folder: Path) -> None:
    operator = Planning(fleet_folder=str(folder / "eu"))
    operator.execute(context_of([event("chat", "7")]))
    assert [conf["fleet"] for conf in operator.runs.values()] == ["b.yml"]


def test_a_campaign_that_is_there_is_not_started_again_and_the_others_are(folder: Path) -> None:
    operator = Planning(fleet_folder=str(folder), there=["release-a-chat-v7__r01"])
    (started,) = operator.execute(context_of([event("chat", "7")]))
    assert started.startswith("release-eu-b-")


def test_with_nothing_to_start_the_task_is_skipped_and_says_why(folder: Path) -> None:
    operator = Planning(fleet_folder=str(folder), there=["release-c-rank-v2__r01"])
    with pytest.raises(AirflowSkipException, match="serves rank at a version that is not planned already"):
        operator.execute(context_of([event("rank", "2")]))
