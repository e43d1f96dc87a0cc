"""Openers that meet: whatever the order in which a store shows what they wrote, one campaign is left."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from fleetsieve_airflow.hooks.mlflow_opening import PENDING_S, find_opened, find_or_open
from fleetsieve_airflow.reporting import layout

OPENERS = 5


class Store:
    """Runs in memory; each call takes effect at a moment drawn from the seed, and one at a time."""

    def __init__(self, seed: int = 0) -> None:
        self.runs: dict[str, Any] = {}
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def call(self, what: str, function: Callable[[Store], Any]) -> Any:
        """Stand in for the hook's client."""
        return function(self)

    def create_run(
        self, experiment_id: str, *, start_time: int, tags: Mapping[str, str], run_name: str
    ) -> Any:
        """Begin a run whose id says nothing of when it was begun."""
        self._wait()
        with self._lock:
            run_id = f"{self._random.randrange(1000):03d}-{next(self._numbers)}"
            info = SimpleNamespace(run_id=run_id, start_time=start_time)
            self.runs[run_id] = SimpleNamespace(info=info, data=SimpleNamespace(tags=dict(tags)))
            return self.runs[run_id]

    def search_runs(self, experiment_ids: Sequence[str], query: str) -> list[Any]:
        """Show what is there, as it was when it was looked up."""
        self._wait()
        with self._lock:
            return [
                SimpleNamespace(info=run.info, data=SimpleNamespace(tags=dict(run.data.tags)))
                for run in self.runs.values()
            ]

    def set_tag(self, run_id: str, name: str, value: str) -> None:
        """Tag a run, which must be there."""
        self._wait()
        with self._lock:
            self.runs[run_id].data.tags[name] = value

    def get_run(self, run_id: str) -> Any:
        """Return a run, which must be there."""
        return self.runs[run_id]

    def delete_run(self, run_id: str) -> None:
        """Take a run away."""
        self._wait()
        with self._lock:
            del self.runs[run_id]

    def _wait(self) -> None:
        time.sleep(self._random.random() * 0.004)


def opened(store: Store, clock: Callable[[], float] = time.time) -> str:
    """Open the campaign as one task does."""
    run = find_or_open(
        store,  # type: ignore[arg-type]
        "1",
        "key",
        name="campaign",
        tags={layout.TAG_PLAN_KEY: "key"},
        clock=clock,
        sleep=lambda seconds: time.sleep(seconds / 50),
    )
    return str(run.info.run_id)


@pytest.mark.parametrize("seed", range(12))
def test_of_openers_that_meet_all_get_the_same_run_and_no_other_is_left(seed: int) -> None:
    store = Store(seed)
    with ThreadPoolExecutor(OPENERS) as pool:
        found = list(pool.map(lambda _: opened(store), range(OPENERS)))
    assert set(found) == set(store.runs)
    assert len(store.runs) == 1


def test_a_run_of_an_opener_that_died_is_no_campaign_and_is_taken_away_in_time() -> None:
    store = Store()
    store.create_run("1", start_time=0, tags={layout.TAG_PLAN_KEY: "key"}, run_name="campaign")
    assert find_opened(store, "1", "key") is None  # type: ignore[arg-type]
    run_id = opened(store, clock=lambda: PENDING_S + 1.0)
    assert set(store.runs) == {run_id}
    assert find_opened(store, "1", "key").info.run_id == run_id  # type: ignore[arg-type, union-attr]
