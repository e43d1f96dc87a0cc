"""A hundred points at once over one login node whose sshd drops connections as sshd does by default."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleetsieve_airflow.hooks.slurm import JobHandle, SlurmHook
from fleetsieve_airflow.triggers.slurm import SlurmJobTrigger, SlurmPoller
from tests.slurm.lab import CONN_ID, Lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
SCRIPT = "#!/bin/bash\ncd -- \"$1\"\nprintf 'rc=0 signal=none\\n' >exit\n"
OPTIONS = ["--mem=100M", "--time=5", "--no-requeue", "--export=NONE"]


@pytest.fixture
def connected(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", lab.connection().as_json())
    SlurmPoller._pollers.clear()
    yield


def submit(number: int) -> JobHandle:
    """Submit one job over a connection of its own, as a task process does."""
    hook = SlurmHook(CONN_ID)
    try:
        return hook.submit(f"fan-{number}", SCRIPT, {}, OPTIONS)
    finally:
        hook.close()


@pytest.mark.usefixtures("connected")
def test_a_hundred_points_need_a_handful_of_connections(lab: Lab) -> None:
    assert "MaxStartups 10:30:100" in (lab.folder / "ssh" / "sshd_config").read_text()
    before, log_before = lab.submissions(), len(lab.log("sshd"))
    with ThreadPoolExecutor(100) as tasks:
        handles = list(tasks.map(submit, range(100)))
    assert lab.submissions() - before == 100
    assert len({handle.job_id for handle in handles}) == 100
    opened, most = connections(lab.log("sshd")[log_before:])
    triggers_before = len(lab.log("sshd"))

    async def all_ended() -> list[str]:
        async def ended(handle: JobHandle) -> str:
            async for event in SlurmJobTrigger(job=handle.document(), poll_s=1.0).run():
                return str(event.payload["state"])
            return ""

        return await asyncio.gather(*(ended(handle) for handle in handles))

    states = asyncio.run(all_ended())
    assert states == ["succeeded"] * 100
    waiting, _ = connections(lab.log("sshd")[triggers_before:])
    print(f"100 submissions: {opened} connections one after another, at most {most} at once;"
          f" 100 triggers: {waiting} connection(s)")  # fmt: skip
    # Four slots; sshd notes on a busy machine later than we do that one is free again.
    assert most <= 8
    assert waiting == 1
    assert "drop connection" not in lab.log("sshd")[log_before:]
    assert "beginning MaxStartups throttling" not in lab.log("sshd")[log_before:]


def connections(log: str) -> tuple[int, int]:
    """Return how many connections an sshd log tells of, and how many were open at once."""
    opened = most = now = 0
    for line in log.splitlines():
        if line.startswith("Connection from "):
            opened, now = opened + 1, now + 1
            most = max(most, now)
        elif line.startswith(("Disconnected from user", "Connection closed", "Connection reset")):
            now = max(0, now - 1)
    return opened, most
