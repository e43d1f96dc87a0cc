"""What the hook does on a real cluster when nothing fails, and that nothing it is given is ever executed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.hooks.slurm import JobHandle, SlurmHook
from fleetsieve_airflow.hooks.slurm_transport import LocalTransport
from tests.slurm.lab import CONN_ID, Lab, until

pytestmark = pytest.mark.integration
QUICK = "#!/bin/bash\ncd -- \"$1\"\n{}\nprintf 'rc=0 signal=none\\n' >exit\n"
SMALL = ["--mem=100M", "--time=5", "--no-requeue", "--export=NONE"]


@pytest.fixture
def hook(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmHook]:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", lab.connection().as_json())
    made = SlurmHook(CONN_ID)
    yield made
    made.close()


def finished(hook: SlurmHook, handle: JobHandle) -> str:
    until(lambda: hook.statuses([handle])[handle.name].ended, f"the end of {handle.name}")
    status = hook.statuses([handle])[handle.name]
    return f"{status.state} {status.kind}".strip()


def test_the_connection_test_says_what_answers(hook: SlurmHook) -> None:
    reached, words = hook.test_connection()
    assert reached
    assert "slurm-wlm" in words
    assert "is UP" in words


def test_a_host_key_that_is_not_the_known_one_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJfUQWbDm1LqR2sEwTFVYvVsWLxnZfWlCIq2l2DwKPIc"
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", lab.connection(host_key=other).as_json())
    reached, words = SlurmHook(CONN_ID).test_connection()
    assert not reached
    assert "is refused" in words
    assert "host_key" in words


def test_without_a_host_key_nothing_is_sent(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", lab.connection(host_key=None).as_json())
    reached, words = SlurmHook(CONN_ID).test_connection()
    assert not reached
    assert "not found in known_hosts" in words


def test_a_job_runs_and_its_results_come_back(hook: SlurmHook) -> None:
    handle = hook.submit("plain", QUICK.format("mkdir points; echo 7 >points/x"), {"job.json": "{}"}, SMALL)
    assert finished(hook, handle) == "succeeded"
    files = hook.fetch(handle)
    assert files["points/x"] == b"7\n"
    assert files["exit"] == b"rc=0 signal=none\n"


def test_eight_submissions_of_one_work_at_once_are_one_job(lab: Lab, hook: SlurmHook) -> None:
    before = lab.submissions()
    barrier = threading.Barrier(8)

    def submit(_: int) -> JobHandle:
        own = SlurmHook(CONN_ID)
        barrier.wait()
        try:
            return own.submit("once", QUICK.format("sleep 2"), {}, SMALL)
        finally:
            own.close()

    with ThreadPoolExecutor(8) as pool:
        handles = set(pool.map(submit, range(8)))
    assert len(handles) == 1
    assert lab.submissions() == before + 1
    assert finished(hook, handles.pop()) == "succeeded"


def test_a_closed_attempt_is_followed_by_another_on_another_node(hook: SlurmHook) -> None:
    first = hook.submit("again", QUICK.format("hostname >points"), {}, [*SMALL, "--nodelist=gpu01"])
    assert finished(hook, first) == "succeeded"
    assert hook.submit("again", QUICK.format(""), {}, SMALL) == first
    hook.close_attempt(first, avoid_node="gpu01")
    second = hook.submit("again", QUICK.format("hostname >points"), {}, SMALL)
    assert (second.name, second.job_id != first.job_id) == ("again-1", True)
    assert finished(hook, second) == "succeeded"
    assert hook.fetch(second)["points"] != b"gpu01\n"


def test_what_slurm_refuses_is_said_in_its_own_words(lab: Lab, hook: SlurmHook) -> None:
    with pytest.raises(MeasurementError, match=r"(?s)Slurm refused the job: .*Invalid partition name"):
        hook.submit("refused", QUICK.format(""), {}, [*SMALL, "--partition=nowhere"])
    with pytest.raises(MeasurementError, match="Requested node configuration is not available"):
        hook.submit("refused2", QUICK.format(""), {}, [*SMALL, "--gres=gpu:a100:4"])
    assert lab.active() == []


def test_a_refused_job_of_the_same_name_is_not_taken_for_the_job(hook: SlurmHook) -> None:
    with pytest.raises(MeasurementError, match="Requested node configuration"):
        hook.submit("bad-then-good", QUICK.format(""), {}, [*SMALL, "--gres=gpu:a100:4"])
    handle = hook.submit("bad-then-good", QUICK.format(""), {}, SMALL)
    assert finished(hook, handle) == "succeeded"


@pytest.mark.parametrize(
    "text", ["a b", "it's", 'say "hi"', "x; touch ~/pwned", "$(touch ~/pwned)", "`touch ~/pwned`"]
)
def test_no_argument_is_ever_executed_on_the_login_node(hook: SlurmHook, text: str) -> None:
    handle = hook.submit(
        f"quote-{abs(hash(text))}", QUICK.format("ls ~ >points"), {"x": text}, [*SMALL, f"--comment={text}"]
    )
    assert finished(hook, handle) == "succeeded"
    assert b"pwned" not in hook.fetch(handle)["points"]


def test_an_argument_with_a_line_break_is_refused(hook: SlurmHook) -> None:
    with pytest.raises(MeasurementError, match="cannot be an argument of a remote command"):
        hook.submit("newline", QUICK.format(""), {}, ["--comment=a\nb"])


def test_what_a_login_shell_says_and_sets_does_not_matter(lab: Lab, hook: SlurmHook) -> None:
    noisy = Path("/home/fleet/.bashrc")
    before = noisy.read_text() if noisy.exists() else ""
    noisy.write_text(
        "echo Welcome to fleet!\necho 104\nexport SQUEUE_FORMAT=%i SBATCH_PARTITION=nowhere SLURM_JOB_ID=1\n"
    )
    try:
        handle = hook.submit("noisy", QUICK.format(""), {}, SMALL)
        assert finished(hook, handle) == "succeeded"
        assert "exit" in hook.fetch(handle)
    finally:
        noisy.write_text(before)


def test_cancelling_looks_until_the_job_is_gone_and_says_so(lab: Lab, hook: SlurmHook) -> None:
    handle = hook.submit("cancel", QUICK.format("sleep 300"), {}, SMALL)
    until(lambda: hook.statuses([handle])[handle.name].state == "running", "the job's start")
    hook.cancel([handle])
    assert lab.active() == []
    assert hook.statuses([handle])[handle.name].state == "cancelled"
    hook.cancel([handle])


def test_hundred_jobs_are_asked_about_in_one_look(lab: Lab, hook: SlurmHook) -> None:
    handle = hook.submit("many", QUICK.format(""), {}, SMALL)
    finished(hook, handle)
    others = [
        JobHandle(**{**handle.document(), "name": f"stranger-{i}", "job_id": 10_000 + i}) for i in range(99)
    ]
    statuses = hook.statuses([handle, *others])
    assert statuses[handle.name].state == "succeeded"
    assert {statuses[other.name].state for other in others} == {"unknown"}


def test_the_local_transport_and_the_asynchronous_way_say_the_same(
    lab: Lab, hook: SlurmHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = hook.submit("async", QUICK.format(""), {}, SMALL)
    finished(hook, handle)
    assert asyncio.run(SlurmHook(CONN_ID).astatuses([handle]))[handle.name].state == "succeeded"
    monkeypatch.setenv("SLURM_CONF", lab.facts["slurm_conf"])
    local = SlurmHook(CONN_ID, transport=LocalTransport())
    assert local.statuses([handle])[handle.name].state == "succeeded"


def test_accounting_tells_of_a_job_that_the_controller_has_forgotten(
    booked_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", booked_lab.connection().as_json())
    hook = SlurmHook(CONN_ID)
    script = "#!/bin/bash\nsleep 300\n"
    handle = hook.submit("booked", script, {}, SMALL)
    # A job cancelled before its start is booked has no name in the books.
    until(lambda: handle.name in booked_lab.slurm("sacct", "-nXP", "-o", "JobName"), "booking of the start")
    booked_lab.slurm("scancel", str(handle.job_id))
    until(
        lambda: "CANCELLED" in booked_lab.slurm("sacct", "-nXP", "-j", str(handle.job_id), "-o", "State"),
        "booking",
    )
    rows = hook._books([handle])
    assert [(row.job_id, row.name, row.state) for row in rows] == [(handle.job_id, handle.name, "CANCELLED")]
    hook.close()
