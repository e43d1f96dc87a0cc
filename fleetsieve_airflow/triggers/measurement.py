"""Wait until another campaign's claim on a point ends, so that one measurement serves both."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from fleetsieve_airflow.errors import TrackingError

if TYPE_CHECKING:
    from fleetsieve_airflow.hooks.mlflow import MlflowHook


class MeasurementWaitTrigger(BaseTrigger):
    """Fire when the MLflow run that holds a claim has ended, or when its lease has run out.

    It only looks and never claims: what to do then is the operator's to find out.

    :param mlflow_conn_id: Airflow connection of the MLflow server.
    :param run_id: the run that holds the claim.
    :param poll_s: seconds between two looks on average; they are spread, so that many waiting points do not
        ask at once.
    """

    def __init__(self, *, mlflow_conn_id: str, run_id: str, poll_s: float = 20.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mlflow_conn_id = mlflow_conn_id
        self.run_id = run_id
        self.poll_s = poll_s
        self.clock: Callable[[], float] = time.time

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what another triggerer needs to go on waiting."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"mlflow_conn_id": self.mlflow_conn_id, "run_id": self.run_id, "poll_s": self.poll_s},
        )

    def tracking(self) -> MlflowHook:
        """Return the hook, without patience: if MLflow does not answer, the operator waits for it."""
        from fleetsieve_airflow.hooks.mlflow import MlflowHook

        return MlflowHook(self.mlflow_conn_id, retry_for_s=0.0)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, wait, look again."""
        # MLflow's client blocks, and so may reading the connection: neither belongs on the triggerer's loop.
        hook = await asyncio.to_thread(self.tracking)
        while await asyncio.to_thread(self._is_held, hook):
            await asyncio.sleep(self.poll_s * random.uniform(0.7, 1.3))  # noqa: S311
        yield TriggerEvent({"run_id": self.run_id})  # type: ignore[no-untyped-call]

    def _is_held(self, hook: MlflowHook) -> bool:
        from fleetsieve_airflow.hooks.claims import CLOCK_SKEW_S, lease_until

        try:
            run = hook.client.call(f"look at run {self.run_id}", lambda client: client.get_run(self.run_id))
        except TrackingError as error:
            self.log.warning("Not waiting for run %s any longer: %s", self.run_id, error)
            return False
        return run.info.status == "RUNNING" and lease_until(run) > self.clock() - CLOCK_SKEW_S
