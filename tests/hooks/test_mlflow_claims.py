"""The claim protocol in every order of calls: a fake store, and turns that let one call happen at a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.exceptions import INVALID_PARAMETER_VALUE, MlflowException

from fleetsieve_airflow.hooks.claims import PENDING_LEASE_S, ClaimDesk, ClaimRequest
from fleetsieve_airflow.hooks.mlflow_refs import CampaignRef, Claim
from fleetsieve_airflow.reporting import layout
from tests.builders import make_point

POINT = make_point()
LEASE_S = 600.0


class Crashed(BaseException):
    """The process died here."""


class FakeStore:
    """What the claims need of an MLflow client: runs with tags and a status, each call one step."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.runs: dict[str, SimpleNamespace] = {}
        self.ids = random.Random(7)
        self.naps: list[float] = []

    def search_runs(self, experiment_ids: list[str], query: str, **_: Any) -> list[SimpleNamespace]:
        assert query == f"tags.`{layout.TAG_KEY}` = '{POINT.key}'"
        found = [run for run in self.runs.values() if run.info.lifecycle_stage == "active"]
        return [self._copy(run) for run in sorted(found, key=lambda run: run.info.start_time)]

    def create_run(self, experiment_id: str, *, tags: dict[str, str], run_name: str) -> SimpleNamespace:
        run_id = f"{self.ids.getrandbits(64):016x}"
        info = SimpleNamespace(
            run_id=run_id, status="RUNNING", start_time=self.now, end_time=None, lifecycle_stage="active"
        )
        self.runs[run_id] = SimpleNamespace(info=info, data=SimpleNamespace(tags=dict(tags)))
        return self._copy(self.runs[run_id])

    def get_run(self, run_id: str) -> SimpleNamespace:
        return self._copy(self.runs[run_id])

    def log_batch(self, run_id: str, *, tags: list[Any]) -> None:
        self._active(run_id).data.tags.update({tag.key: tag.value for tag in tags})

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        self._active(run_id).data.tags[key] = value

    def set_terminated(self, run_id: str, status: str) -> None:
        info = self._active(run_id).info
        info.status, info.end_time = status, round(1000 * self.now)

    def delete_run(self, run_id: str) -> None:
        self._active(run_id).info.lifecycle_stage = "deleted"

    def _active(self, run_id: str) -> SimpleNamespace:
        if self.runs[run_id].info.lifecycle_stage != "active":
            raise MlflowException(f"The run {run_id} must be in the 'active' state.", INVALID_PARAMETER_VALUE)
        return self.runs[run_id]

    @staticmethod
    def _copy(run: SimpleNamespace) -> SimpleNamespace:
        data = SimpleNamespace(tags=dict(run.data.tags))
        return SimpleNamespace(info=SimpleNamespace(**vars(run.info)), data=data)


class Turns:
    """Lets threads take turns in an order drawn by a seed: a thread runs alone from one turn to its next."""

    def __init__(self, seed: int) -> None:
        self._choose = random.Random(seed)
        self._changed = threading.Condition()
        self._waiting: set[str] = set()
        self._running = 0
        self._turn = ""

    def wait(self, name: str) -> None:
        with self._changed:
            self._waiting.add(name)
            self._running -= 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._turn == name, timeout=60)
            self._turn = ""
            self._waiting.discard(name)
            self._running += 1

    def run(self, jobs: dict[str, Callable[[], None]]) -> None:
        def work(job: Callable[[], None]) -> None:
            try:
                job()
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

        self._running = len(jobs)
        threads = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs.values()]
        for thread in threads:
            thread.start()
        while True:
            with self._changed:
                assert self._changed.wait_for(lambda: self._running == 0 and not self._turn, timeout=60)
                if not self._waiting:
                    break
                self._turn = self._choose.choice(sorted(self._waiting))
                self._changed.notify_all()
        for thread in threads:
            thread.join(timeout=60)


class SteppedStore:
    """A store seen by one claimer: each call waits for its turn; the claimer may die before any of them."""

    def __init__(self, store: FakeStore, turns: Turns, name: str, dies_at: int | None) -> None:
        self._store, self._turns, self._name, self._dies_at = store, turns, name, dies_at
        self._calls = 0

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._turns.wait(self._name)
            self._store.now += self._store.naps.pop() if self._store.naps else 0.0
            if self._calls == self._dies_at:
                raise Crashed
            self._calls += 1
            return getattr(self._store, method)(*args, **kwargs)

        return call


class DirectClient:
    """A tracking client without a network."""

    def __init__(self, mlflow: Any) -> None:
        self.mlflow = mlflow

    def call(
        self, what: str, function: Callable[[Any], Any], *, again: Callable[[Any], Any] | None = None
    ) -> Any:
        return function(self.mlflow)


def campaign(name: str, started_ms: int = 0, max_age_s: float | None = None) -> CampaignRef:
    return CampaignRef(
        campaign_id=name,
        key=layout.plan_key(name),
        name=name,
        fleet="test",
        plans_id="1",
        measurements_id="2",
        run_id=f"run-{name}",
        started_ms=started_ms,
        reuse_max_age_s=max_age_s,
    )


def request_of(name: str, round: int = 1, **fields: Any) -> ClaimRequest:
    return ClaimRequest(
        point=POINT,
        campaign=campaign(name, **fields),
        round=round,
        lease_s=LEASE_S,
        tags={layout.TAG_KIND: layout.KIND_MEASUREMENT},
    )


def claim_in_turn(store: FakeStore, seed: int, crashes: dict[str, int | None]) -> dict[str, Claim | None]:
    """Let claimers claim one point at once; a claimer with a number dies before its call of that number."""
    turns, results = Turns(seed), {}

    def job(name: str) -> None:
        stepped = SteppedStore(store, turns, name, crashes[name])

        def sleep(seconds: float) -> None:
            turns.wait(name)
            store.now += seconds / len(crashes)

        desk = ClaimDesk(DirectClient(stepped), clock=lambda: store.now, sleep=sleep)  # type: ignore[arg-type]
        results[name] = None
        try:
            results[name] = desk.claim(request_of(name))
        except Crashed:
            return

    turns.run({name: lambda name=name: job(name) for name in crashes})  # type: ignore[misc]
    return results


def desk_of(store: FakeStore) -> ClaimDesk:
    client: Any = DirectClient(store)
    return ClaimDesk(client, clock=lambda: store.now, sleep=lambda seconds: None)


def states(results: dict[str, Claim | None]) -> list[str]:
    return [claim.state if claim else "dead" for claim in results.values()]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), claimers=st.integers(2, 6))
def test_exactly_one_of_many_claimers_gets_the_point_in_every_order_of_calls(
    seed: int, claimers: int
) -> None:
    store = FakeStore()
    results = claim_in_turn(store, seed, {f"campaign-{number}": None for number in range(claimers)})
    assert sorted(states(results)) == ["ours", *["theirs"] * (claimers - 1)]
    winner = next(claim.run_id for claim in results.values() if claim and claim.state == "ours")
    alive = [run.info.run_id for run in store.runs.values() if run.info.status == "RUNNING"]
    assert alive == [winner]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    dies_at=st.lists(st.one_of(st.none(), st.integers(0, 12)), min_size=2, max_size=5),
)
def test_claimers_that_die_at_any_call_leave_a_point_that_one_other_can_have(
    seed: int, dies_at: list[int | None]
) -> None:
    store = FakeStore()
    results = claim_in_turn(store, seed, {f"campaign-{n}": number for n, number in enumerate(dies_at)})
    assert states(results).count("ours") <= 1
    store.now += max(PENDING_LEASE_S, LEASE_S) + 10
    later = desk_of(store).claim(request_of("later"))
    assert later.state == "ours"
    alive = [run.info.run_id for run in store.runs.values() if run.info.status == "RUNNING"]
    assert alive == [later.run_id]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), claimers=st.integers(2, 5))
def test_an_expired_claim_goes_to_exactly_one_of_those_who_find_it(seed: int, claimers: int) -> None:
    store = FakeStore()
    gone = desk_of(store).claim(request_of("gone"))
    store.now += LEASE_S + 10
    results = claim_in_turn(store, seed, {f"campaign-{number}": None for number in range(claimers)})
    assert states(results).count("ours") == 1
    assert store.runs[gone.run_id].info.status == "KILLED"


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_an_owner_that_comes_back_late_and_a_newcomer_never_both_win(seed: int) -> None:
    store = FakeStore()
    desk_of(store).claim(request_of("owner"))
    store.now += LEASE_S + 10
    results = claim_in_turn(store, seed, {"owner": None, "newcomer": None})
    assert states(results).count("ours") == 1


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    naps=st.lists(st.sampled_from([0.0] * 6 + [PENDING_LEASE_S + 10]), min_size=10, max_size=40),
    found_expired=st.booleans(),
)
def test_claimers_that_sleep_past_their_pending_lease_between_two_calls_never_both_win(
    seed: int, naps: list[float], found_expired: bool
) -> None:
    store = FakeStore()
    if found_expired:
        desk_of(store).claim(request_of("campaign-0"))
        store.now += LEASE_S + 10
    # Together shorter than the lease of a claim that has won: what is tried is the way to it.
    store.naps = [nap for index, nap in enumerate(naps) if nap == 0.0 or naps[:index].count(nap) < 5]
    results = claim_in_turn(store, seed, {f"campaign-{number}": None for number in range(3)})
    assert states(results).count("ours") <= 1


def test_the_same_campaign_gets_its_own_run_back_after_a_crash() -> None:
    store = FakeStore()
    first = desk_of(store).claim(request_of("owner"))
    again = desk_of(store).claim(request_of("owner"))
    assert (again.state, again.run_id) == ("ours", first.run_id)


def test_a_run_that_was_created_and_no_more_is_continued_by_its_campaign() -> None:
    store = FakeStore()
    results = claim_in_turn(store, 0, {"owner": 2})  # looked, created, died before looking again
    assert states(results) == ["dead"]
    assert len(store.runs) == 1
    claim = desk_of(store).claim(request_of("owner"))
    assert (claim.state, list(store.runs)) == ("ours", [claim.run_id])


def test_a_run_left_over_from_an_earlier_round_counts_for_the_round_that_continues_it() -> None:
    store = FakeStore()
    first = desk_of(store).claim(request_of("owner", round=1))
    assert store.runs[first.run_id].data.tags[layout.TAG_ROUND] == "1"
    assert desk_of(store).claim(request_of("owner", round=2)).run_id == first.run_id
    assert store.runs[first.run_id].data.tags[layout.TAG_ROUND] == "2"


def test_a_claim_whose_run_somebody_deleted_is_claimed_anew() -> None:
    store = FakeStore()
    first = desk_of(store).claim(request_of("owner"))
    store.delete_run(first.run_id)
    again = desk_of(store).claim(request_of("owner"))
    assert (again.state, again.run_id == first.run_id) == ("ours", False)


def test_a_finished_point_is_not_claimed_and_says_in_which_round_it_was_met() -> None:
    store = FakeStore()
    ours = desk_of(store).claim(request_of("payer"))
    store.set_terminated(ours.run_id, "FINISHED")
    claim = desk_of(store).claim(request_of("other", round=3))
    assert (claim.state, claim.run_id) == ("finished", ours.run_id)
    name = layout.TAG_REUSED_PREFIX + layout.plan_key("other")
    assert store.runs[ours.run_id].data.tags[name] == "3"
    desk_of(store).claim(request_of("other", round=4))
    assert store.runs[ours.run_id].data.tags[name] == "3"


def test_a_point_finished_before_the_campaign_began_carries_no_mark() -> None:
    store = FakeStore()
    ours = desk_of(store).claim(request_of("payer"))
    store.set_terminated(ours.run_id, "FINISHED")
    later = request_of("later", started_ms=round(1000 * store.now) + 1)
    assert desk_of(store).claim(later).state == "finished"
    assert layout.TAG_REUSED_PREFIX + layout.plan_key("later") not in store.runs[ours.run_id].data.tags


def test_a_measurement_that_is_too_old_is_measured_again() -> None:
    store = FakeStore()
    ours = desk_of(store).claim(request_of("payer"))
    store.set_terminated(ours.run_id, "FINISHED")
    store.now += 100
    started_ms = round(1000 * store.now)
    assert desk_of(store).claim(request_of("a", started_ms=started_ms, max_age_s=200.0)).state == "finished"
    assert desk_of(store).claim(request_of("b", started_ms=started_ms, max_age_s=50.0)).state == "ours"


@pytest.mark.parametrize("status", ["FAILED", "KILLED"])
def test_a_point_whose_run_broke_can_be_claimed_again(status: str) -> None:
    store = FakeStore()
    first = desk_of(store).claim(request_of("owner"))
    store.runs[first.run_id].data.tags.update(desk_of(store).released())
    store.set_terminated(first.run_id, status)
    again = desk_of(store).claim(request_of("owner", round=2))
    assert again.state == "ours"
    assert again.run_id != first.run_id


def test_a_claim_that_lost_leaves_no_run_in_the_lists() -> None:
    store = FakeStore()
    for seed in range(40):
        store.runs.clear()
        claim_in_turn(store, seed, {"a": None, "b": None})
        lost = [run for run in store.runs.values() if run.data.tags[layout.TAG_CLAIM] == "lost"]
        assert all((run.info.lifecycle_stage, run.info.status) == ("deleted", "KILLED") for run in lost)
        assert all(run.data.tags[layout.TAG_KIND] == layout.KIND_CLAIM_LOST for run in lost)
        if lost:
            return
    pytest.fail("No order of calls made two claimers meet.")
