"""One run for each campaign, however many tasks open it at once: MLflow has no unique keys and no locks.

Whoever opens a campaign first writes (a run that is not settled yet), then looks. Who sees no other run
settles its own; of two, the one that wrote later sees the other's, so never do both settle. Who sees another
waits for it to be settled and takes its own away, but the smallest run id stays, so one of them settles.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fleetsieve_airflow.errors import TrackingError
from fleetsieve_airflow.hooks.mlflow_client import TrackingClient
from fleetsieve_airflow.reporting import layout

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

#: After so long whoever wrote an unsettled run is taken to have died.
PENDING_S = 60.0
_LOOKS = 100
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0


def find_opened(client: TrackingClient, experiment_id: str, key: str) -> Run | None:
    """Return the settled run of a campaign, or None."""
    return _settled(_runs(client, experiment_id, key))


def find_or_open(
    client: TrackingClient,
    experiment_id: str,
    key: str,
    *,
    name: str,
    tags: Mapping[str, str],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Run:
    """Find the run of a campaign, or begin it.

    :param key: identity of the campaign within the experiment.
    :raises TrackingError: MLflow does not answer, or others kept beginning the same campaign.
    """
    mine = ""
    for look in range(_LOOKS):
        runs = _runs(client, experiment_id, key)
        alive = sorted(
            str(run.info.run_id) for run in runs if _is_alive(run, clock()) or run.info.run_id == mine
        )
        if found := _settled(runs):
            _discard(client, [mine] if mine and mine != found.info.run_id else [])
            return found
        if mine and alive == [mine]:
            _discard(client, [run.info.run_id for run in runs if run.info.run_id != mine])
            return client.call("open campaign", partial(_settle, mine))
        if not alive:
            mine = client.call(
                "open campaign",
                lambda mlflow: mlflow.create_run(
                    experiment_id, start_time=round(clock() * 1000), tags=dict(tags), run_name=name
                ),
            ).info.run_id
            continue
        if mine and mine != alive[0]:
            _discard(client, [mine])
            mine = ""
        sleep(random.uniform(0.5, 1.0) * min(_LONGEST_WAIT_S, _SHORTEST_WAIT_S * 2 ** min(look, 10)))  # noqa: S311
    raise TrackingError(
        f"Others began campaign {key} again and again while this task tried to.",
        hint="Compare the clocks of the workers, then clear the task.",
    )


def _settle(run_id: str, mlflow: MlflowClient) -> Run:
    mlflow.set_tag(run_id, layout.TAG_OPENED, "1")
    return mlflow.get_run(run_id)


def _runs(client: TrackingClient, experiment_id: str, key: str) -> Sequence[Run]:
    query = f"tags.`{layout.TAG_PLAN_KEY}` = '{key}'"
    return client.call("find campaign", lambda mlflow: mlflow.search_runs([experiment_id], query))


def _settled(runs: Sequence[Run]) -> Run | None:
    settled = [run for run in runs if layout.TAG_OPENED in run.data.tags]
    return min(settled, key=lambda run: (run.info.start_time, run.info.run_id), default=None)


def _is_alive(run: Run, now_s: float) -> bool:
    return bool(now_s - run.info.start_time / 1000 < PENDING_S)


def _discard(client: TrackingClient, run_ids: Sequence[str]) -> None:
    for run_id in run_ids:
        client.call("discard a campaign begun twice", partial(_delete, run_id))


def _delete(run_id: str, mlflow: MlflowClient) -> None:
    mlflow.delete_run(run_id)
