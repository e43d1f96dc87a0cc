"""The fault matrix: the real job script on a real cluster while something breaks.

Of each fault: the right state, no job left running, no point paid twice, a clear message.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fleetsieve_airflow.backends.base import Collected
from fleetsieve_airflow.backends.served import JobFailedError
from fleetsieve_airflow.backends.slurm import SlurmBackend
from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.evidence import MeasurementPoint
from fleetsieve_airflow.hooks.slurm import JobHandle, SlurmHook
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serving.slurm_state import JobStatus
from fleetsieve_airflow.triggers.slurm import SlurmJobTrigger, SlurmPoller
from tests.serving.jobs import served_points
from tests.slurm.lab import CONN_ID, Lab, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


class Run:
    """One point on its way through the backend, as the operator takes it there."""

    def __init__(self, lab: Lab, name: str, *, behaviour: str = "hang", **options: str) -> None:
        self.lab, self.name = lab, name
        self.backend = SlurmBackend()
        # A server that is never ready keeps its job running for as long as a test needs it
        chosen = {"behaviour": "never-ready" if behaviour == "hang" else behaviour, **options}
        self.spec: FleetSpec = lab.spec(**chosen)
        self.point: MeasurementPoint = served_points(self.spec)[0]
        self.before = lab.submissions()

    @property
    def hook(self) -> SlurmHook:
        """The backend's hook."""
        return self.backend.hook(CONN_ID)

    def submit(self) -> JobHandle:
        """Submit, or find again."""
        return JobHandle.read(self.backend.submit(self.spec, [self.point], scope=self.name))

    def started(self) -> JobHandle:
        """Submit and wait until the job's server has started."""
        handle = self.submit()
        until(lambda: self.status(handle).state == "running", "the job's start")
        until(lambda: "endpoint" in self.listing(handle), "the server's start")
        return handle

    def listing(self, handle: JobHandle) -> list[str]:
        """Return what is in the run folder."""
        return os.listdir(handle.run_folder) if os.path.isdir(handle.run_folder) else []

    def status(self, handle: JobHandle) -> JobStatus:
        """Look once."""
        return self.hook.statuses([handle])[handle.name]

    def ended(self, handle: JobHandle, limit_s: float = 150.0) -> JobStatus:
        """Wait for the trigger, as the triggerer does."""
        trigger = self.backend.trigger(self.spec, handle.document())

        async def first() -> dict[str, object]:
            async for event in trigger.run():
                return dict(event.payload)
            raise AssertionError("the trigger ended without an event")

        event = asyncio.run(asyncio.wait_for(first(), limit_s))
        event.pop("job")
        return JobStatus(**event)  # type: ignore[arg-type]

    def outcome(self, handle: JobHandle, status: JobStatus) -> Collected | MeasurementError:
        """Collect the point, as the operator does after the trigger."""
        event = {"state": status.state, "kind": status.kind, "message": status.message, "node": status.node}
        return self.backend.collect(self.spec, [self.point], handle.document(), event)[self.point.key]

    def failed(self, handle: JobHandle, kind: str, words: str = "", limit_s: float = 150.0) -> JobStatus:
        """Wait for the end, which must be of a kind, and check that nothing is left."""
        status = self.ended(handle, limit_s)
        assert status.kind == kind, status
        outcome = self.outcome(handle, status)
        assert isinstance(outcome, MeasurementError)
        assert words in str(outcome)
        self.nothing_left()
        return status

    def starts_anew(self, *, after: JobHandle) -> None:
        """Check that the same work is a new job now, and end that one."""
        again = self.submit()
        assert again.job_id != after.job_id
        self.backend.cancel(self.spec, again.document())

    def nothing_left(self) -> None:
        """Check that no job and no process of the run is left."""
        until(lambda: self.lab.active() == [], "an empty queue", 60)
        until(lambda: processes(self.lab) == [], "the end of every process", 30)

    def paid(self) -> int:
        """Return how many jobs Slurm accepted for this run."""
        return self.lab.submissions() - self.before


def processes(lab: Lab) -> list[str]:
    """Return the programs of jobs that still run."""
    done = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if f"{lab.folder}/fake_engine.py" in line]


def sessions(lab: Lab) -> int:
    """Return how many commands the login node has been sent."""
    return lab.log("sshd").count("Starting session: command")


def end_strangers(lab: Lab) -> None:
    """End servers of this cluster's folder that belong to no job."""
    done = subprocess.run(["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        if f"{lab.folder}/fake_engine.py serve" in line:
            os.kill(int(line.split()[0]), signal.SIGKILL)


@pytest.fixture(autouse=True)
def clean(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", lab.connection().as_json())
    SlurmPoller._pollers.clear()
    yield
    lab.slurm("scancel", "--user=fleet")
    for node in ("gpu01", "gpu02", "gpu03"):
        lab.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")
    until(lambda: lab.active() == [], "an empty queue")


def test_without_a_fault_a_point_is_measured(lab: Lab) -> None:
    run = Run(lab, "good", behaviour="")
    handle = run.submit()
    status = run.ended(handle)
    outcome = run.outcome(handle, status)
    assert isinstance(outcome, Collected), outcome
    assert (outcome.measurement.sent, outcome.measurement.failed) == (100, 0)
    assert run.submit() == handle
    assert run.paid() == 1
    run.nothing_left()


def test_a_controller_killed_just_after_sbatch_loses_no_point_and_mistakes_none(lab: Lab) -> None:
    run = Run(lab, "ctld-kill", behaviour="")
    first = run.submit()
    lab.fault("ctld-kill")
    lab.fault("ctld-start")
    # Whoever submits next may get the same id: the job is never mistaken for it
    stranger = Run(lab, "stranger", behaviour="hang")
    other = stranger.submit()
    status = run.ended(first)
    if status.kind == "lost":
        outcome = run.outcome(first, status)
        assert isinstance(outcome, MeasurementError)
        assert "Another attempt may succeed" in str(outcome)
        second = run.submit()
        assert (second.name, second.job_id != other.job_id) == (first.name[:-1] + "1", True)
        status = run.ended(second)
        assert status.state == "succeeded"
    stranger.backend.cancel(stranger.spec, other.document())
    run.nothing_left()


def test_a_connection_cut_during_sbatch_submits_once(lab: Lab) -> None:
    run = Run(lab, "cut")
    code = (
        "import sys; sys.path.insert(0, '.');"
        "from fleetsieve_airflow.backends.slurm import SlurmBackend;"
        "from fleetsieve_airflow.serialization import from_document;"
        "import pickle; spec, point = pickle.load(sys.stdin.buffer);"
        "SlurmBackend().submit(spec, [point], scope='cut')"
    )
    environment = {**os.environ, "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
    for delay_s in (0.0, 0.3, 0.6):
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env=environment)
        seen = sessions(lab)
        assert process.stdin is not None
        process.stdin.write(pickle.dumps((run.spec, run.point)))
        process.stdin.close()
        end = time.monotonic() + 60
        while sessions(lab) == seen and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(delay_s)
        process.kill()
        process.wait()
    handle = run.submit()
    assert run.paid() == 1
    run.backend.cancel(run.spec, handle.document())
    run.nothing_left()


def test_a_node_that_crashes_is_left_out_by_the_next_attempt(lab: Lab) -> None:
    run = Run(lab, "node-crash")
    handle = run.started()
    node = run.status(handle).node
    lab.fault("node-crash", node)
    run.failed(handle, "node_fail", "Another attempt may succeed")
    again = run.submit()
    assert again.name != handle.name
    assert f"ExcNodeList={node}" in lab.slurm("scontrol", "show", "job", str(again.job_id))
    run.backend.cancel(run.spec, again.document())
    lab.fault("node-start", node)


def test_a_preempted_job_is_said_to_be(lab: Lab) -> None:
    run = Run(lab, "preempted", partition="spot", exclusive="true", mem="0")
    handle = run.started()
    node = run.status(handle).node
    urgent = [
        "sbatch",
        "--chdir=/",
        "--output=/dev/null",
        "--partition=gpu",
        "--exclusive",
        "--mem=0",
        "--wrap=true",
    ]
    conf = f"SLURM_CONF={lab.facts['slurm_conf']}"
    lab.slurm("runuser", "-u", "fleet", "--", "env", conf, *urgent, f"--nodelist={node}")
    run.failed(handle, "preempted", "it was preempted")


def test_a_job_over_its_time_limit_is_a_timeout(lab: Lab) -> None:
    run = Run(lab, "timeout")
    handle = run.started()
    lab.fault("timeout", str(handle.job_id))
    run.failed(handle, "timeout", "reached its time limit")


def test_a_job_out_of_memory_says_what_to_raise(lab: Lab) -> None:
    run = Run(lab, "oom")
    handle = run.started()
    lab.fault("oom", str(handle.job_id))
    run.failed(handle, "out_of_memory", "raise options.mem")


def test_a_job_cancelled_by_a_person_is_cancelled(lab: Lab) -> None:
    run = Run(lab, "scancel")
    handle = run.started()
    lab.slurm("scancel", str(handle.job_id))
    run.failed(handle, "cancelled", "it was cancelled")


def test_a_job_that_waits_too_long_is_cancelled(lab: Lab) -> None:
    lab.slurm("scontrol", "update", "NodeName=gpu01,gpu02,gpu03", "State=DRAIN", "Reason=test")
    run = Run(lab, "queue-deadline", queue_deadline_s="4")
    handle = run.submit()
    run.failed(handle, "queue_deadline", "waited in the queue for more than 4 s")
    assert run.paid() == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"partition": "closed"}, "PartitionDown"),
        # Slurm first says PartitionTimeLimit and, having looked again, PartitionConfig.
        ({"partition": "short", "ready_s": "9000"}, "Partition"),
    ],
)
def test_a_job_that_can_never_run_ends_with_the_schedulers_reason(
    lab: Lab, options: dict[str, str], reason: str
) -> None:
    run = Run(lab, f"never-{reason}", **options)
    run.failed(run.submit(), "never_runnable", reason)


def test_a_login_node_that_is_away_is_waited_for(lab: Lab) -> None:
    run = Run(lab, "sshd-down", behaviour="")
    handle = run.submit()
    run.hook.close()
    lab.fault("sshd-stop")
    timer = threading.Timer(60, lab.fault, ["sshd-start"])
    timer.start()
    try:
        assert run.status(handle).state == "unknown"
        status = run.ended(handle, 300)
    finally:
        timer.join()
    assert status.state == "succeeded"
    assert isinstance(run.outcome(handle, status), Collected)
    assert run.paid() == 1


def test_a_killed_triggerer_goes_on_where_it_was(lab: Lab) -> None:
    run = Run(lab, "triggerer", behaviour="")
    handle = run.submit()
    path, arguments = run.backend.trigger(run.spec, handle.document()).serialize()

    async def killed() -> None:
        task = asyncio.ensure_future(SlurmJobTrigger(**arguments).run().__anext__())
        await asyncio.sleep(1.5)
        task.cancel()

    asyncio.run(killed())
    SlurmPoller._pollers.clear()
    assert path == "fleetsieve_airflow.triggers.slurm.SlurmJobTrigger"
    assert run.ended(handle).state == "succeeded"
    assert run.paid() == 1


def test_a_killed_worker_finds_its_job_again(lab: Lab) -> None:
    run = Run(lab, "worker", behaviour="")
    handle = run.submit()
    again = replace(run.point)
    assert JobHandle.read(SlurmBackend().submit(run.spec, [again], scope="worker")) == handle
    assert run.paid() == 1
    assert run.ended(handle).state == "succeeded"


def test_a_task_that_is_ended_while_it_waits_cancels_its_job_and_may_run_again(lab: Lab) -> None:
    run = Run(lab, "cleared")
    handle = run.started()
    asyncio.run(run.backend.trigger(run.spec, handle.document()).on_kill())
    run.nothing_left()
    run.starts_anew(after=handle)


def test_a_job_that_is_withdrawn_after_the_next_run_found_it_is_tried_again(lab: Lab) -> None:
    run = Run(lab, "withdrawn")
    handle = run.started()
    assert run.submit() == handle  # the next run of the task is faster than the end of the one before
    asyncio.run(run.backend.trigger(run.spec, handle.document()).on_kill())
    outcome = run.outcome(handle, run.ended(handle))
    assert isinstance(outcome, JobFailedError)
    assert outcome.retryable
    run.starts_anew(after=handle)


def test_a_submission_waits_for_the_end_of_the_job_that_is_being_withdrawn(lab: Lab) -> None:
    run = Run(lab, "withdraw")
    handle = run.started()
    with ThreadPoolExecutor(1) as other:
        ending = other.submit(SlurmBackend().cancel, run.spec, handle.document())
        until(lambda: run.status(handle).state == "cancelled" or ending.done(), "the end of the job", 60)
        run.starts_anew(after=handle)
        ending.result()
    run.nothing_left()


def test_without_accounting_a_forgotten_job_is_known_by_its_exit_file(lab: Lab) -> None:
    run = Run(lab, "forgotten", behaviour="")
    handle = run.submit()
    until(lambda: "exit" in run.listing(handle), "the job's end")
    until(lambda: "Invalid job id" in lab.slurm("scontrol", "show", "job", str(handle.job_id)), "forgetting")
    status = run.ended(handle)
    assert status.state == "succeeded"
    assert isinstance(run.outcome(handle, status), Collected)
    assert run.submit() == handle
    assert run.paid() == 1


def test_a_dirty_node_is_said_and_left_out(lab: Lab) -> None:
    smi = lab.folder / "bin" / "nvidia-smi"
    smi.parent.mkdir(exist_ok=True)
    smi.write_text('#!/bin/bash\necho "0, GPU-1, NVIDIA H100 80GB HBM3, 570.1, 40960, 81559"\n')
    smi.chmod(0o755)
    run = Run(lab, "dirty", setup=f"PATH={smi.parent}:$PATH")
    handle = run.submit()
    status = run.failed(handle, "dirty_node", "GPU 0 holds 40960 MiB")
    again = run.submit()
    assert f"ExcNodeList={status.node}" in lab.slurm("scontrol", "show", "job", str(again.job_id))
    run.backend.cancel(run.spec, again.document())


def test_a_server_that_answers_in_place_of_ours_is_found_out(lab: Lab) -> None:
    run = Run(lab, "wrong-server", behaviour="other-server")
    handle = run.submit()
    try:
        status = run.ended(handle)
    finally:
        end_strangers(lab)
    assert status.kind == "wrong_server"
    assert "a process that this job did not start" in status.message
    assert isinstance(run.outcome(handle, status), MeasurementError)
    run.nothing_left()


def test_a_server_that_dies_under_load_is_no_evidence(lab: Lab) -> None:
    run = Run(lab, "dies", behaviour="", setup="export FAKE_GENERATOR=kill-server")
    run.failed(run.submit(), "server_died", "The server died under load")


def test_a_server_that_is_never_ready_ends_its_job(lab: Lab) -> None:
    run = Run(lab, "never-ready", ready_s="5")
    run.failed(run.submit(), "server_not_ready", "not ready after 5 s")


def test_an_engine_that_refuses_its_config_is_evidence_and_not_a_failure(lab: Lab) -> None:
    run = Run(lab, "refuses", behaviour="refuse")
    handle = run.submit()
    status = run.ended(handle)
    outcome = run.outcome(handle, status)
    assert isinstance(outcome, Collected)
    assert "must be divisible by tensor parallel size" in outcome.measurement.refused
    assert run.submit() == handle
    run.nothing_left()
