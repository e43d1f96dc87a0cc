from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from fleetsieve_airflow.triggers.measurement import MeasurementWaitTrigger
from tests.builders import make_measurement, make_point, make_spec

SPEC = make_spec()


class Watching(MeasurementWaitTrigger):
    """A trigger on a hook of the test's, which says how often it looked."""

    def __init__(self, hook: MlflowHook, run_id: str) -> None:
        super().__init__(mlflow_conn_id="unused", run_id=run_id, poll_s=0.0)
        self.hook, self.looks = hook, 0

    def tracking(self) -> MlflowHook:
        return self.hook

    def _is_held(self, hook: MlflowHook) -> bool:
        self.looks += 1
        return super()._is_held(hook)

    async def fires(self) -> dict[str, str]:
        return (await anext(self.run())).payload


@pytest.fixture
def hook(tmp_path: Path, mlflow_database: Path) -> MlflowHook:
    return MlflowHook(
        tracking_uri=f"sqlite:///{shutil.copy(mlflow_database, tmp_path / 'mlflow.db')}", retry_for_s=0.0
    )


@pytest.fixture
def campaign(hook: MlflowHook) -> CampaignRef:
    return hook.open_campaign(SPEC, "c1")


def test_it_goes_on_waiting_in_another_triggerer() -> None:
    trigger = MeasurementWaitTrigger(mlflow_conn_id="ml", run_id="r1", poll_s=3.0)
    path, kwargs = trigger.serialize()
    assert path == "fleetsieve_airflow.triggers.measurement.MeasurementWaitTrigger"
    assert MeasurementWaitTrigger(**kwargs).serialize() == (path, kwargs)


def test_it_waits_while_the_claim_is_held_and_fires_when_its_run_ends(
    hook: MlflowHook, campaign: CampaignRef
) -> None:
    claim = hook.claim_measurement(make_point(SPEC), campaign, 1)
    trigger = Watching(hook, claim.run_id)

    async def wait() -> dict[str, str]:
        fired = asyncio.create_task(trigger.fires())
        while trigger.looks < 2:
            await asyncio.sleep(0.01)
        assert not fired.done()
        await asyncio.to_thread(hook.finish_measurement, claim.run_id, make_measurement(SPEC), SPEC)
        return await fired

    assert asyncio.run(wait()) == {"run_id": claim.run_id}


@pytest.mark.parametrize("how", ["finish", "fail_or_kill"])
def test_it_fires_at_once_for_a_run_that_has_ended(hook: MlflowHook, campaign: CampaignRef, how: str) -> None:
    claim = hook.claim_measurement(make_point(SPEC), campaign, 1)
    if how == "finish":
        hook.finish_measurement(claim.run_id, make_measurement(SPEC), SPEC)
    else:
        hook.kill_measurement(claim.run_id)
    trigger = Watching(hook, claim.run_id)
    asyncio.run(trigger.fires())
    assert trigger.looks == 1


def test_it_fires_when_the_lease_of_a_vanished_campaign_has_run_out(
    hook: MlflowHook, campaign: CampaignRef
) -> None:
    claim = hook.claim_measurement(make_point(SPEC), campaign, 1, lease_s=60.0)
    trigger = Watching(hook, claim.run_id)
    now = trigger.clock()
    trigger.clock = lambda: now + 3600.0
    asyncio.run(trigger.fires())
    assert trigger.looks == 1


def test_it_leaves_an_mlflow_that_does_not_answer_to_the_operator(hook: MlflowHook) -> None:
    trigger = Watching(hook, "0" * 32)
    assert asyncio.run(trigger.fires()) == {"run_id": "0" * 32}
