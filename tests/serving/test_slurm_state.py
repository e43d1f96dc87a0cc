"""States from recorded outputs of two Slurm versions, and from every way an answer can be missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.serving.slurm_state import (
    GRACE_S,
    STALE_HEARTBEAT_S,
    JobFiles,
    JobRow,
    JobStatus,
    JobWatch,
    Observation,
)
from fleetsieve_airflow.serving.slurm_text import MARK, after_mark, command_line, read_books, read_status

OUTPUTS = Path(__file__).parent / "slurm_outputs"
VERSIONS = ("22.05.8", "24.11.5")
#: Job name in the recordings -> state and kind. Their scripts wrote no exit files.
EXPECTED = {
    "failed3": ("failed", "no_results"),
    "failed137": ("failed", "no_results"),
    "badout": ("failed", "launch_failure"),
    "cancel_run": ("cancelled", "cancelled"),
    "cancel_pend": ("cancelled", "cancelled"),
    "completed": ("failed", "no_results"),
    "nodefail": ("failed", "node_fail"),
    "oom": ("failed", "out_of_memory"),
    "timeout": ("failed", "timeout"),
    "preempt_norq": ("failed", "preempted"),
    "dep_never": ("failed", "never_runnable"),
    "part_limit": ("failed", "never_runnable"),
    "preempt": ("queued", ""),
    "held": ("queued", ""),
    "pend_res2": ("queued", ""),
    "pend_res": ("running", ""),
}


def answer(queue: str, *, now: int = 2_000_000_000, up: str = "up", status: int = 0, files: str = "") -> str:
    return f"{now}\n{up}\nsqueue {status}\n{queue}files\n{files}"


def look(
    rows: tuple[JobRow, ...] | None = (),
    *,
    now: float = 0.0,
    up: bool = True,
    books: tuple[JobRow, ...] | None = None,
    files: JobFiles | None = None,
) -> Observation:
    return Observation(now_s=now, controller_up=up, queue=rows, books=books, files=files or JobFiles())


def row(state: str, *, name: str = "job", job_id: int = 7, reason: str = "None") -> JobRow:
    return JobRow(job_id=job_id, name=name, state=state, reason=reason, node="gpu01")


def states(*looks: Observation) -> list[str]:
    watch = JobWatch(7, "job")
    return [watch.judge(seen).state for seen in looks]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("source", "name"),
    [("squeue", name) for name in sorted(EXPECTED)]
    + [("sacct", name) for name in sorted(EXPECTED) if name != "pend_res"],
)
def test_every_recorded_job_has_its_state(version: str, source: str, name: str) -> None:
    text = (OUTPUTS / f"{source}-{version}.txt").read_text()
    books: tuple[JobRow, ...] = ()
    queue: tuple[JobRow, ...] | None = ()
    if source == "squeue":
        _, _, queue, _ = read_status(answer(text))
    else:
        books = read_books(text)
    found = next((item for item in (*(queue or ()), *books) if item.name == name), None)
    assert found is not None
    watch = JobWatch(found.job_id, name)
    first = watch.judge(look(queue, now=0, books=books))
    status = watch.judge(look(queue, now=GRACE_S + 1, books=books))
    if source == "sacct" and EXPECTED[name][1] == "never_runnable":
        assert status.state == "queued"  # accounting knows no reasons
    else:
        assert (status.state, status.kind) == EXPECTED[name]
    assert first.state in (status.state, "running")


def test_an_exit_file_decides_between_success_and_the_kind_of_failure() -> None:
    def state(text: str, reason: str = "") -> JobStatus:
        files = JobFiles(exit=text, reason=reason, started="7.0 gpu02 1")
        return JobWatch(7, "job").judge(look((row("FAILED" if reason else "COMPLETED"),), files=files))

    assert state("rc=0 signal=none").state == "succeeded"
    assert state("rc=81 signal=none", "held").kind == "dirty_node"
    assert state("rc=84 signal=none", "heads").message == "heads"
    assert state("rc=3 signal=none", "x").kind == "exit_code"
    assert state("rc=143 signal=TERM", "x").state == "cancelled"


def test_completed_without_its_exit_file_is_waited_for_and_then_no_success() -> None:
    done = (row("COMPLETED"),)
    late = look(done, now=GRACE_S - 1, files=JobFiles(exit="rc=0 signal=none"))
    assert states(look(done, now=0), late) == ["running", "succeeded"]
    assert states(look(done, now=0), look(done, now=GRACE_S)) == ["running", "failed"]


def test_an_empty_answer_never_means_done() -> None:
    empty = [look((), now=20.0 * number) for number in range(5)]
    assert states(*empty) == ["unknown", "unknown", "unknown", "lost", "lost"]


def test_nothing_is_lost_while_the_controller_is_away() -> None:
    assert set(states(*[look((), now=100.0 * number, up=False) for number in range(50)])) == {"unknown"}
    assert set(states(*[look(None, now=100.0 * number) for number in range(50)])) == {"unknown"}


def test_a_job_that_the_controller_has_forgotten_is_known_by_its_exit_file() -> None:
    assert states(look((), files=JobFiles(exit="rc=0 signal=none"))) == ["succeeded"]


def test_a_stranger_with_the_same_id_is_not_the_job() -> None:
    stranger = (row("RUNNING", name="other"),)
    assert states(*[look(stranger, now=30.0 * number) for number in range(4)])[-1] == "lost"
    reborn = (row("RUNNING", job_id=8),)
    assert states(*[look(reborn, now=30.0 * number) for number in range(4)])[-1] == "lost"


def test_a_job_that_runs_on_paper_only_is_found_out_by_its_silence() -> None:
    running = (row("RUNNING"),)
    silent = look(running, now=STALE_HEARTBEAT_S + 1, files=JobFiles(heartbeat_s=0.0))
    alive = look(running, now=STALE_HEARTBEAT_S + 1, files=JobFiles(heartbeat_s=STALE_HEARTBEAT_S))
    assert JobWatch(7, "job").judge(silent).kind == "hung_node"
    assert states(alive) == ["running"]


def test_a_job_that_has_ended_and_still_completes_is_done_after_a_grace() -> None:
    files = JobFiles(exit="rc=0 signal=none")
    seen = [look((row("COMPLETING"),), now=now, files=files) for now in (0.0, 30.0, GRACE_S + 1)]
    assert states(*seen) == ["running", "running", "succeeded"]


def test_a_state_of_a_later_slurm_is_unknown_and_not_an_end() -> None:
    status = JobWatch(7, "job").judge(look((row("TELEPORTED"),)))
    assert (status.state, status.ended) == ("unknown", False)
    assert "TELEPORTED" in status.message


@pytest.mark.parametrize(
    "reason", ["PartitionNodeLimit", "launch failed requeued held", "BadConstraints", "PartitionDown"]
)
def test_a_job_that_never_runs_ends_with_the_schedulers_words(reason: str) -> None:
    status = JobWatch(7, "job").judge(look((row("PENDING", reason=reason),)))
    assert (status.kind, status.message) == ("never_runnable", f"it will never start: {reason}")


@pytest.mark.parametrize(
    ("kind", "again"),
    [
        ("node_fail", True),
        ("preempted", True),
        ("lost", True),
        ("dirty_node", True),
        ("timeout", False),
        ("out_of_memory", False),
        ("never_runnable", False),
        ("engine_refused", False),
        ("queue_deadline", False),
    ],
)
def test_which_failures_are_worth_another_attempt(kind: str, again: bool) -> None:
    assert JobStatus(state="failed", kind=kind).retryable is again


def test_a_failed_squeue_is_no_queue_and_a_cut_answer_is_an_error() -> None:
    assert read_status(answer("", status=1))[2] is None
    with pytest.raises(MeasurementError, match="cannot be read"):
        read_status("17\nup\n")
    with pytest.raises(MeasurementError, match="cannot be read"):
        read_status("slurm_load_jobs error: Unable to contact slurm controller\n")


def test_reasons_hold_any_text_and_files_any_words() -> None:
    queue = "7|job|PENDING|1|gpu01|ReqNodeNotAvail, UnavailableNodes:gpu[01-02]|x\n"
    _, _, rows, files = read_status(answer(queue, files="job|rc=1 signal=none|7.0 gpu01 5|12|a|b\n"))
    assert rows is not None
    assert rows[0].reason == "ReqNodeNotAvail, UnavailableNodes:gpu[01-02]|x"
    assert files["job"] == JobFiles(
        exit="rc=1 signal=none", started="7.0 gpu01 5", heartbeat_s=12, reason="a|b"
    )


@pytest.mark.parametrize(
    "text", ["a b", "it's", "$(touch pwned)", "`touch pwned`", "; touch pwned", '"', "\\", "*"]
)
def test_arguments_reach_a_remote_program_literally(text: str, tmp_path: Path) -> None:
    line = command_line('printf "%s" "$1"', [text], path="/opt/slurm bin", setup="export A=1;")
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, check=True)
    assert after_mark(done.stdout) == text.encode()
    assert list(tmp_path.iterdir()) == []


def test_the_environment_of_a_job_is_not_passed_on_but_for_the_configuration() -> None:
    environment = {
        "SQUEUE_FORMAT": "%i",
        "SLURM_JOB_ID": "1",
        "SBATCH_ACCOUNT": "x",
        "SLURM_CONF": "/c",
        "PATH": "/bin:/usr/bin",
    }
    done = subprocess.run(
        ["sh", "-c", command_line("env", [])], env=environment, capture_output=True, text=True, check=True
    )
    told = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert told & {"SQUEUE_FORMAT", "SLURM_JOB_ID", "SBATCH_ACCOUNT"} == set()
    assert {"SLURM_CONF", "SLURM_TIME_FORMAT", "LC_ALL"} <= told
    assert after_mark(f"Welcome!\n104\n{MARK}\n105\n".encode()) == b"105\n"
