"""Who may measure a point: at most one campaign at a time, although MLflow has no unique keys and no locks.

A claimer first writes (its run, RUNNING, with a lease), then looks. Whoever looks and sees no other living
lease has won. Of two claimers the one that wrote later must see the other's lease, so never do both win: what
MLflow's store has committed it shows to every later search (a read replica that lags behind would not).
Whoever sees another gives way, except that among claimers none of which has won the smallest run id waits for
the others to go, so one of them does win.

Only the lease says whether a claim lives, never the run's status alone: a claimer that takes over an expired
claim ends that run, then looks again. If the owner renewed in between, the lease is alive again and the
newcomer gives way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetsieve_airflow.errors import TrackingError
from fleetsieve_airflow.evidence import MeasurementPoint
from fleetsieve_airflow.hooks.mlflow_client import TrackingClient
from fleetsieve_airflow.hooks.mlflow_refs import CampaignRef, Claim
from fleetsieve_airflow.reporting import layout

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

#: A claim that has not won yet must be won, or is forgotten, within this time.
PENDING_LEASE_S = 60.0
#: How far the clocks of two workers may be apart.
CLOCK_SKEW_S = 5.0
_LOOKS = 12
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0
_PENDING, _HELD, _LOST = "pending", "held", "lost"
_ENDED_FOR_GOOD = ("FINISHED", "FAILED")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """A campaign's wish to measure a point.

    :param lease_s: how long the claim lives without being renewed.
    :param tags: facts to be kept with the run from its beginning.
    """

    point: MeasurementPoint
    campaign: CampaignRef
    round: int
    lease_s: float
    tags: Mapping[str, str]

    @property
    def owner(self) -> str:
        """Who may continue this claim after a crash."""
        return layout.owner_id(self.campaign.key, self.point.key)

    @property
    def words(self) -> str:
        """The claim for logs and errors."""
        return f"claim {self.point.label}"


class ClaimDesk:
    """Claims points for campaigns.

    :param clock: seconds since 1970; leases of other workers are read by it.
    :param sleep: waits that many seconds.
    """

    def __init__(
        self, client: TrackingClient, *, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._client = client
        self._clock = clock
        self._sleep = sleep

    def claim(self, request: ClaimRequest) -> Claim:
        """Find the point measured, or claim it, or learn that another campaign measures it.

        :raises TrackingError: MLflow does not answer, or the claim was taken over again and again.
        """
        rival = ""
        for look in range(_LOOKS):
            runs = self._runs(request)
            if done := usable_result(runs, request.campaign):
                return self._finished(request, done)
            mine = next((run for run in runs if self._continues(request, run)), None)
            rivals = [run for run in runs if self._is_rival(request, run)]
            if mine is None and rivals:
                rival, won = _first(rivals)
                if won:
                    return Claim(state="theirs", run_id=rival)
                self._pause(look)
                continue
            run_id = self._renew(request, mine) if mine else self._create(request)
            if claim := self._contend(request, run_id):
                return claim
            self._pause(look)
        if not rival:
            raise TrackingError(
                f"Point {request.point.label} was claimed and taken over {_LOOKS} times in a row.",
                hint="Compare the clocks of the workers: leases are read by them.",
            )
        return Claim(state="theirs", run_id=rival)

    def _contend(self, request: ClaimRequest, run_id: str) -> Claim | None:
        """Look until the claim is won or lost; None where it is not known yet who has won."""
        rival, won = "", False
        for look in range(_LOOKS):
            runs = self._runs(request)
            if done := usable_result(runs, request.campaign):
                self._withdraw(request, run_id)
                return self._finished(request, done)
            mine = next((run for run in runs if run.info.run_id == run_id), None)
            if mine is None:
                return None
            if mine.info.status != "RUNNING":
                # Another took it over; its lease must not stand in the way of our next try.
                self._withdraw(request, run_id)
                return None
            rivals = [run for run in runs if run is not mine and self._is_rival(request, run)]
            if rivals:
                rival, won = _first(rivals)
                if won or rival < run_id:
                    break
                self._pause(look)
            elif not self._lasts(mine):
                self._renew(request, mine)
            elif expired := self._expired(runs, run_id):
                self._end_expired(request, expired)
            else:
                return self._hold(request, run_id)
        self._withdraw(request, run_id)
        return Claim(state="theirs", run_id=rival) if won or rival > run_id else None

    def _pause(self, look: int) -> None:
        longest = min(_LONGEST_WAIT_S, _SHORTEST_WAIT_S * 2**look)
        self._sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311

    def _runs(self, request: ClaimRequest) -> list[Run]:
        experiment_id = request.campaign.measurements_id
        return self._client.call(
            request.words, lambda client: runs_of(client, experiment_id, request.point.key)
        )

    def _create(self, request: ClaimRequest) -> str:
        tags = dict(request.tags) | {
            layout.TAG_KEY: request.point.key,
            layout.TAG_OWNER: request.owner,
            layout.TAG_CAMPAIGN: request.campaign.key,
            layout.TAG_ROUND: str(request.round),
        }

        def create(client: MlflowClient) -> str:
            made = client.create_run(
                request.campaign.measurements_id,
                tags=tags | self._lease(_PENDING, PENDING_LEASE_S),
                run_name=request.point.label,
            )
            return str(made.info.run_id)

        def find_or_create(client: MlflowClient) -> str:
            # A second run of ours would be a rival of the first.
            runs = runs_of(client, request.campaign.measurements_id, request.point.key)
            mine = next((run for run in runs if self._continues(request, run)), None)
            return str(mine.info.run_id) if mine else create(client)

        return self._client.call(request.words, create, again=find_or_create)

    def _renew(self, request: ClaimRequest, run: Run) -> str:
        run_id = str(run.info.run_id)
        state = _tag(run, layout.TAG_CLAIM)
        lease_s = max(PENDING_LEASE_S, request.lease_s) if state == _HELD else PENDING_LEASE_S
        # A run left over from an earlier round is measured in this one: evidence is ordered by it.
        tags = {layout.TAG_ROUND: str(request.round), **self._lease(state, lease_s)}
        self._client.call(request.words, lambda client: set_tags(client, run_id, tags))
        return run_id

    def _hold(self, request: ClaimRequest, run_id: str) -> Claim | None:
        def hold(client: MlflowClient) -> bool:
            set_tags(client, run_id, self._lease(_HELD, request.lease_s))
            # Whoever took the claim over while this call waited for the server has ended the run.
            return str(client.get_run(run_id).info.status) == "RUNNING"

        if self._client.call(request.words, hold):
            return Claim(state="ours", run_id=run_id)
        self._withdraw(request, run_id)
        return None

    def _withdraw(self, request: ClaimRequest, run_id: str) -> None:
        """End our own run and take it out of the lists: it measured nothing."""

        def withdraw(client: MlflowClient) -> None:
            lost = {layout.TAG_KIND: layout.KIND_CLAIM_LOST, **self.released()}
            set_tags(client, run_id, lost)
            client.set_terminated(run_id, "KILLED")
            client.delete_run(run_id)

        def withdraw_if_there(client: MlflowClient) -> None:
            if client.get_run(run_id).info.lifecycle_stage == "active":
                withdraw(client)

        self._client.call(request.words, withdraw, again=withdraw_if_there)

    def _end_expired(self, request: ClaimRequest, run_ids: list[str]) -> None:
        def end(client: MlflowClient) -> None:
            for run_id in run_ids:
                end_unless_deleted(client, run_id)

        self._client.call(request.words, end)

    def _finished(self, request: ClaimRequest, run: Run) -> Claim:
        """Note at the measurement in which round this campaign came to know it: evidence is ordered by it."""
        run_id, name = str(run.info.run_id), layout.TAG_REUSED_PREFIX + request.campaign.key
        known = _tag(run, layout.TAG_CAMPAIGN) == request.campaign.key or name in run.data.tags
        if not known and run.info.end_time > request.campaign.started_ms:
            self._client.call(request.words, lambda client: client.set_tag(run_id, name, str(request.round)))
        return Claim(state="finished", run_id=run_id)

    def _continues(self, request: ClaimRequest, run: Run) -> bool:
        return run.info.status == "RUNNING" and _tag(run, layout.TAG_OWNER) == request.owner

    def _is_rival(self, request: ClaimRequest, run: Run) -> bool:
        own_leftover = run.info.status != "RUNNING" and _tag(run, layout.TAG_OWNER) == request.owner
        return self._alive(run) and not own_leftover

    def _alive(self, run: Run) -> bool:
        if run.info.status in _ENDED_FOR_GOOD or _tag(run, layout.TAG_CLAIM) not in (_PENDING, _HELD):
            return False
        return lease_until(run) > self._clock() - CLOCK_SKEW_S

    def _lasts(self, run: Run) -> bool:
        return lease_until(run) > self._clock() + PENDING_LEASE_S / 2

    def _expired(self, runs: list[Run], own_run_id: str) -> list[str]:
        left = [run for run in runs if run.info.status == "RUNNING" and not self._alive(run)]
        return [
            str(run.info.run_id)
            for run in left
            if run.info.run_id != own_run_id and not self._is_withdrawing(run)
        ]

    def _is_withdrawing(self, run: Run) -> bool:
        # Its own claimer is about to end it, unless it has died over it.
        lost = _tag(run, layout.TAG_CLAIM) == _LOST
        return lost and lease_until(run) > self._clock() - PENDING_LEASE_S

    def _lease(self, state: str, seconds: float) -> dict[str, str]:
        return {
            layout.TAG_CLAIM: state,
            layout.TAG_LEASE_UNTIL: f"{self._clock() + seconds:.3f}",
        }

    def released(self) -> dict[str, str]:
        """Return the tags of a claim that is given up."""
        return self._lease(_LOST, -CLOCK_SKEW_S)

    def held(self, lease_s: float) -> dict[str, str]:
        """Return the tags of a claim that is won and lives for ``lease_s`` from now."""
        return self._lease(_HELD, lease_s)


def runs_of(client: MlflowClient, experiment_id: str, key: str) -> list[Run]:
    """Return all runs of a point, in any state but deleted, oldest first."""
    found = client.search_runs(
        [experiment_id], f"tags.`{layout.TAG_KEY}` = '{key}'", max_results=1000, order_by=["start_time ASC"]
    )
    return list(found)


def usable_result(runs: list[Run], campaign: CampaignRef) -> Run | None:
    """Return the run that measured the point for a campaign: the first to end that is young enough."""
    done = [run for run in runs if run.info.status == "FINISHED" and is_usable(run, campaign)]
    return min(done, key=lambda run: (run.info.end_time, run.info.run_id), default=None)


def is_usable(run: Run, campaign: CampaignRef) -> bool:
    """Return whether a finished measurement is young enough for a campaign, or its own."""
    if campaign.reuse_max_age_s is None or _tag(run, layout.TAG_CAMPAIGN) == campaign.key:
        return True
    return bool(run.info.end_time >= campaign.started_ms - 1000 * campaign.reuse_max_age_s)


def lease_until(run: Run) -> float:
    """Return when a run's lease ends, seconds since 1970; a run without one has none."""
    try:
        return float(_tag(run, layout.TAG_LEASE_UNTIL))
    except ValueError:
        return 0.0


def end_unless_deleted(client: MlflowClient, run_id: str) -> None:
    """End a run as killed; its claimer may come back and delete it at the same moment."""
    from mlflow.exceptions import MlflowException

    try:
        client.set_terminated(run_id, "KILLED")
    except MlflowException:
        if str(client.get_run(run_id).info.lifecycle_stage) != "deleted":
            raise


def set_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    """Set several tags of a run in one request."""
    from mlflow.entities import RunTag

    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])


def _first(rivals: list[Run]) -> tuple[str, bool]:
    """Return the run that comes before all rivals, and whether it has won: then it comes first of all."""
    won = [str(run.info.run_id) for run in rivals if _tag(run, layout.TAG_CLAIM) == _HELD]
    return min(won or [str(run.info.run_id) for run in rivals]), bool(won)


def _tag(run: Run, name: str) -> str:
    return str(run.data.tags.get(name, ""))
