"""The hook without a cluster: what it sends, how it reads answers, and what it does when there are none."""

from __future__ import annotations

import asyncio
import io
import tarfile
import threading
import time

import pytest

from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.hooks.slurm import JobHandle, SlurmHook
from fleetsieve_airflow.hooks.slurm_transport import Answer, LocalTransport, connection_slot
from fleetsieve_airflow.serving.slurm_text import MARK
from fleetsieve_airflow.triggers.slurm import SlurmJobTrigger, SlurmPoller

HANDLE = JobHandle(
    conn_id="slurm_default", job_id=7, name="job-0", submitted_s=1000.0, run_folder="/runs/job-0"
)
QUEUE = "7|job-0|{state}|1000|gpu01|None\n"


class ScriptedTransport:
    """Gives its answers in turn, the last one for ever; an error is raised."""

    def __init__(self, *answers: Answer | MeasurementError) -> None:
        self.answers = list(answers)
        self.commands: list[str] = []
        self.data = b""
        self.closed = 0

    def run(self, command: str, data: bytes = b"", timeout_s: float = 60.0) -> Answer:
        """Note the command and answer."""
        self.commands.append(command)
        self.data = data
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, MeasurementError):
            raise answer
        return answer

    async def run_async(self, command: str, data: bytes = b"", timeout_s: float = 60.0) -> Answer:
        """Do the same."""
        return self.run(command, data, timeout_s)

    def close(self) -> None:
        """Count."""
        self.closed += 1


def said(text: str, status: int = 0, errors: str = "") -> Answer:
    return Answer(status, f"Welcome!\n{MARK}\n{text}".encode(), errors)


def look(state: str, files: str = "") -> Answer:
    return said(f"2000\nup\nsqueue 0\n{QUEUE.format(state=state) if state else ''}files\n{files}")


def hook_of(*answers: Answer | MeasurementError) -> tuple[SlurmHook, ScriptedTransport]:
    transport = ScriptedTransport(*answers)
    hook = SlurmHook(transport=transport)
    hook._extra = {}
    return hook, transport


def test_a_submission_sends_files_by_standard_input_and_options_as_arguments() -> None:
    hook, transport = hook_of(said("7|job-0|1000|/runs/job-0\n"))
    assert (
        hook.submit("job", "#!/bin/bash\n", {"points/a": "1"}, ["--mem=0", "--comment=two words"]) == HANDLE
    )
    with tarfile.open(fileobj=io.BytesIO(transport.data)) as archive:
        assert sorted(archive.getnames()) == ["points/a", "script"]
    assert transport.commands[0].endswith("fleetsieve '~/fleetsieve' job --mem=0 '--comment=two words'")


def test_a_handle_survives_being_written_as_json() -> None:
    assert JobHandle.read(HANDLE.document()) == HANDLE


@pytest.mark.parametrize(
    ("status", "words"), [(77, "Slurm refused the job: no such partition"), (73, "run folder")]
)
def test_what_will_not_pass_is_raised_at_once(status: int, words: str) -> None:
    hook, transport = hook_of(said("", status, "no such partition"))
    with pytest.raises(MeasurementError, match=words):
        hook.submit("job", "", {}, [])
    assert len(transport.commands) == 1


def test_a_controller_that_is_away_is_tried_again_with_the_same_work() -> None:
    away = said("", 76, "Unable to contact slurm controller")
    cut = MeasurementError("the connection was cut")
    hook, transport = hook_of(away, cut, said("7|job-0|1000|/runs/job-0\n"))
    assert hook.submit("job", "", {}, []) == HANDLE
    assert len(set(transport.commands)) == 1
    assert len(transport.commands) == 3


def test_a_controller_that_stays_away_is_an_error_in_the_end() -> None:
    hook, _ = hook_of(said("", 76, "Unable to contact slurm controller"))
    with pytest.raises(MeasurementError, match="does not answer: Unable to contact"):
        hook.submit("job", "", {}, [], deadline_s=0.0)


def test_one_question_is_asked_for_all_jobs() -> None:
    hook, transport = hook_of(look("RUNNING"))
    assert hook.statuses([HANDLE])["job-0"].state == "running"
    assert len(transport.commands) == 1
    assert "job-0" in transport.commands[0]


def test_a_login_node_that_is_away_makes_states_unknown_and_raises_nothing() -> None:
    hook, _ = hook_of(MeasurementError("nobody answers"))
    status = hook.statuses([HANDLE])["job-0"]
    assert (status.state, status.message, status.ended) == ("unknown", "nobody answers", False)


def test_accounting_is_asked_only_about_what_the_queue_does_not_know() -> None:
    hook, transport = hook_of(look(""), said("7|job-0|TIMEOUT|1000|gpu01|0:0\n"))
    status = hook.statuses([HANDLE])["job-0"]
    assert (status.state, status.kind) == ("failed", "timeout")
    assert "sacct" in transport.commands[1]


def test_a_site_without_accounting_is_no_reason_to_fail() -> None:
    hook, _ = hook_of(
        look("", "job-0|rc=0 signal=none|7.0 gpu01 1|1990|\n"), said("", 1, "storage is disabled")
    )
    assert hook.statuses([HANDLE])["job-0"].state == "succeeded"


def test_a_job_that_is_still_there_after_scancel_is_said() -> None:
    hook, _ = hook_of(said("7\n"))
    with pytest.raises(MeasurementError, match="Jobs 7 were cancelled and are still active"):
        hook.cancel([HANDLE])
    hook_of(said(""))[0].cancel([HANDLE])


def test_results_that_come_back_broken_are_an_error() -> None:
    hook, _ = hook_of(said("not an archive"))
    with pytest.raises(MeasurementError, match="came back broken"):
        hook.fetch(HANDLE)


def test_the_connection_test_reports_instead_of_raising() -> None:
    assert hook_of(said("slurm-wlm 22.05\n"))[0].test_connection() == (True, "slurm-wlm 22.05")
    reached, words = hook_of(MeasurementError("host key unknown"))[0].test_connection()
    assert (reached, words) == (False, "host key unknown")


def test_the_local_transport_carries_bytes_both_ways() -> None:
    answer = LocalTransport().run("cat; echo oops >&2; exit 3", b"\x00\xff")
    assert answer == Answer(3, b"\x00\xff", "oops\n")
    with pytest.raises(MeasurementError, match=r"did not end within 0\.2 s"):
        LocalTransport().run("sleep 5", timeout_s=0.2)


def test_a_machine_holds_few_connections_to_one_login_node_at_once() -> None:
    held, most, lock = 0, 0, threading.Lock()

    def connect() -> None:
        nonlocal held, most
        with connection_slot("test-host", slots=2):
            with lock:
                held += 1
                most = max(most, held)
            time.sleep(0.02)
            with lock:
                held -= 1

    threads = [threading.Thread(target=connect) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (held, most) == (0, 2)


def fired(trigger: SlurmJobTrigger, hook: SlurmHook) -> dict[str, object]:
    """Run a trigger on a loop of its own, with a hook of the test's."""

    async def first() -> dict[str, object]:
        place = (id(asyncio.get_running_loop()), trigger.job["conn_id"])
        SlurmPoller._pollers[place] = SlurmPoller(hook, trigger.poll_s)
        async for event in trigger.run():
            return dict(event.payload)
        raise AssertionError("no event")

    return asyncio.run(asyncio.wait_for(first(), 60))


def trigger_of(**arguments: float) -> SlurmJobTrigger:
    return SlurmJobTrigger(job=HANDLE.document(), poll_s=0.01, **arguments)


def test_the_trigger_waits_through_silence_and_fires_at_the_end() -> None:
    hook, transport = hook_of(MeasurementError("away"), look("PENDING"), look("RUNNING"), look("TIMEOUT"))
    event = fired(trigger_of(queue_deadline_s=1e12), hook)
    assert (event["state"], event["kind"], event["job"]) == ("failed", "timeout", HANDLE.document())
    assert len(transport.commands) == 4


def test_the_trigger_cancels_a_job_that_waits_too_long() -> None:
    hook, transport = hook_of(look("PENDING"), said(""))
    event = fired(trigger_of(queue_deadline_s=10.0), hook)
    assert event["kind"] == "queue_deadline"
    assert "scancel" in transport.commands[1]


def test_the_trigger_cancels_a_job_that_never_starts() -> None:
    never = said("2000\nup\nsqueue 0\n7|job-0|PENDING|1000||PartitionTimeLimit\nfiles\n")
    hook, transport = hook_of(never, said(""))
    assert fired(trigger_of(queue_deadline_s=1e12), hook)["kind"] == "never_runnable"
    assert "scancel" in transport.commands[1]


def test_what_another_triggerer_gets_is_enough_and_holds_no_secret() -> None:
    path, arguments = trigger_of(queue_deadline_s=5.0).serialize()
    assert path == "fleetsieve_airflow.triggers.slurm.SlurmJobTrigger"
    assert SlurmJobTrigger(**arguments).serialize() == (path, arguments)
    assert arguments["job"] == HANDLE.document()
