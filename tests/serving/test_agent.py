"""The program on the node, run by the batch script against stand-ins for server and load generator."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleetsieve_airflow.evidence import MeasurementPoint
from fleetsieve_airflow.serving.agent import counter_deltas
from fleetsieve_airflow.serving.job import build_job, node_files
from fleetsieve_airflow.serving.job_script import script
from fleetsieve_airflow.serving.node_server import EXIT_KINDS, family
from tests.serving.jobs import served_points, served_spec

pytestmark = pytest.mark.integration
FAKE = Path(__file__).parent / "fake_engine.py"
STATUS = {kind: status for status, kind in EXIT_KINDS.items()}


class Job:
    """A run folder with a job in it, and what became of it."""

    def __init__(self, folder: Path, *, behaviour: str = "", loads: int = 1, **options: str) -> None:
        program = folder / "program"
        program.write_text(f'#!/bin/bash\nexec "{sys.executable}" "{FAKE}" "$@"\n')
        program.chmod(0o755)
        chosen = {"vllm": str(program), "aiperf": str(program), "python": sys.executable, "ready_s": "30"}
        arguments = (("behaviour", behaviour),) if behaviour else ()
        spec = served_spec(options={**chosen, **options}, engine_args=arguments)
        self.points: list[MeasurementPoint] = served_points(spec)[:loads]
        self.record = build_job(spec, self.points, name="job")
        self.run_folder = folder / "run"
        for name, text in node_files(spec, self.points, self.record).items():
            path = self.run_folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Start the batch script."""
        (self.run_folder.parent / "script").write_text(script(self.record))
        return subprocess.Popen(
            ["bash", str(self.run_folder.parent / "script"), str(self.run_folder)],
            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def perform(self, **environment: str) -> str:
        """Run it to its end and return its reason."""
        process = self.start(**environment)
        self.output = process.communicate(timeout=120)[0]
        self.status = process.returncode
        assert self.left_running() == []
        return self.text("reason")

    def text(self, name: str) -> str:
        """Return a file of the run folder, empty where it is missing."""
        path = self.run_folder / name
        return path.read_text() if path.exists() else ""

    def result(self, index: int = 0) -> dict[str, object]:
        """Return a point's result."""
        found: dict[str, object] = json.loads(self.text(f"points/{self.points[index].key}/result.json"))
        return found

    def left_running(self) -> list[int]:
        """Return processes of this job's server that are still there."""
        return [pid for entry in Path("/proc").iterdir() if entry.name.isdigit()
                for pid in [int(entry.name)] if str(self.run_folder.parent) in command_of(pid)]  # fmt: skip


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def test_a_job_measures_its_windows_and_leaves_nothing_behind(tmp_path: Path) -> None:
    job = Job(tmp_path, behaviour="leave-child", loads=2)
    assert job.perform() == ""
    assert job.text("exit") == "rc=0 signal=none\n"
    facts = json.loads(job.text("facts.json"))
    assert (facts["engine_version"], facts["kv_cache_tokens"]) == ("0.0.fake", 12345)
    assert facts["began_s"] <= facts["ready_s"] <= facts["warm_s"]
    for index in (0, 1):
        result = job.result(index)
        assert result["curtailed_after_s"] is None
        records = job.text(f"points/{job.points[index].key}/out/profile_export.jsonl")
        assert len(records.splitlines()) == 100
    assert int(job.text("heartbeat")) <= time.time()
    assert family("job") == []


def test_a_process_that_hides_its_environment_is_still_found_by_its_session() -> None:
    process = subprocess.Popen(["sleep", "60"], env={}, start_new_session=True)
    try:
        assert family("no such mark") == []
        assert family("no such mark", process.pid) == [process.pid]
    finally:
        process.kill()
        process.wait()


def test_a_second_copy_of_a_job_ends_without_touching_the_first(tmp_path: Path) -> None:
    job = Job(tmp_path)
    (job.run_folder / "claim").mkdir()
    job.perform()
    assert job.status == STATUS["second_copy"]
    assert "another copy of this job has claimed" in job.output
    assert job.text("exit") == ""


@pytest.mark.parametrize(
    ("behaviour", "kind", "reason"),
    [
        ("refuse", "engine_refused", "must be divisible by tensor parallel size (3)"),
        ("crash", "server_died", "The server ended at start. Its last words: RuntimeError: something else"),
        ("other-server", "wrong_server", "is answered by a process that this job did not start"),
    ],
)
def test_a_server_that_is_not_the_one_asked_for_ends_the_job(
    tmp_path: Path, behaviour: str, kind: str, reason: str
) -> None:
    job = Job(tmp_path, behaviour=behaviour)
    try:
        job_reason = job_without_sweep(job)
    finally:
        for pid in job.left_running():
            os.kill(pid, signal.SIGKILL)
    assert reason in job_reason
    assert job.status == STATUS[kind]


def job_without_sweep(job: Job) -> str:
    process = job.start()
    process.communicate(timeout=120)
    job.status = process.returncode
    return job.text("reason")


def test_a_server_that_is_never_ready_ends_with_its_last_words(tmp_path: Path) -> None:
    job = Job(tmp_path, behaviour="never-ready", ready_s="3")
    assert job.perform() == (
        "The server was not ready after 3 s. Its last words: GPU KV cache size: 12,345 tokens\n"
    )
    assert job.status == STATUS["server_not_ready"]


def test_a_server_of_another_model_is_refused(tmp_path: Path) -> None:
    job = Job(tmp_path)
    engine = (*job.record.engine, "--answers-for=other")
    document = json.loads(job.text("job.json"))
    (job.run_folder / "job.json").write_text(json.dumps({**document, "engine": list(engine)}))
    assert "serves ['other'], not 'base'" in job.perform()


def test_a_server_that_dies_under_load_fails_the_job_and_keeps_what_was_recorded(tmp_path: Path) -> None:
    job = Job(tmp_path, loads=2)
    assert "The server died under load" in job.perform(FAKE_GENERATOR="kill-server")
    assert job.status == STATUS["server_died"]
    assert "died under load" in str(job.result()["failed"])
    assert not job.text(f"points/{job.points[1].key}/result.json")


def test_a_load_generator_that_leaves_no_records_fails_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert "left no records (exit 1): the generator cannot start" in job.perform(FAKE_GENERATOR="fail")
    assert job.status == STATUS["load_generator"]


def test_a_window_that_is_lost_ends_early_and_says_when_and_why(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.perform(FAKE_GENERATOR="slow-misses") == ""
    result = job.result()
    assert result["curtailed_by"] == "ttft"
    assert 0 < float(str(result["curtailed_after_s"])) < 50


def test_answers_that_decide_nothing_any_more_are_not_waited_for(tmp_path: Path) -> None:
    job = Job(tmp_path)
    record = json.loads(job.text("job.json"))
    record["points"][0]["duration_s"] = 0.1  # over before the first answer
    (job.run_folder / "job.json").write_text(json.dumps(record))
    assert job.perform(FAKE_GENERATOR="slow-misses") == ""
    assert (job.result()["curtailed_by"], job.result()["curtailed_after_s"]) == ("ttft", 0.1)


def test_curtailment_can_be_switched_off(tmp_path: Path) -> None:
    job = Job(tmp_path, curtail="false")
    job.perform(FAKE_GENERATOR="slow-misses")
    assert job.result()["curtailed_after_s"] is None


def test_missing_programs_are_named_before_anything_starts(tmp_path: Path) -> None:
    job = Job(tmp_path, aiperf="/nowhere/aiperf")
    assert "/nowhere/aiperf" in job.perform()
    assert job.status == STATUS["tools_missing"]
    assert not (job.run_folder / "server.log").exists()


def test_gpus_that_are_held_by_someone_else_end_the_job_as_a_dirty_node(tmp_path: Path) -> None:
    job = Job(tmp_path)
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text('#!/bin/bash\necho "0, GPU-1, NVIDIA H100, 570.1, 40960, 81559"\n')
    smi.chmod(0o755)
    reason = job.perform(PATH=f"{smi.parent}:{os.environ['PATH']}")
    assert "is not clean: GPU 0 holds 40960 MiB" in reason
    assert job.status == STATUS["dirty_node"]


def test_a_port_that_is_taken_is_passed_over(tmp_path: Path) -> None:
    job = Job(tmp_path, ports="25000-25100")
    job_id = 3
    first = 25000 + job_id * 20 % 60
    with socket.socket() as other:
        with contextlib.suppress(OSError):  # something else of this machine has it: as good
            other.bind(("127.0.0.1", first))
            other.listen()
        assert job.perform(SLURM_JOB_ID=str(job_id)) == ""
    assert first < int(job.text("endpoint").split()[1]) <= 25100


def test_the_schedulers_term_ends_the_server_at_once(tmp_path: Path) -> None:
    job = Job(tmp_path, behaviour="never-ready", ready_s="60")
    process = job.start()
    deadline = time.monotonic() + 30
    while not job.text("endpoint") and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert job.text("exit") == "rc=143 signal=TERM\n"
    assert job.left_running() == []


def test_what_vllm_counted_in_a_window_is_the_difference_of_its_counters() -> None:
    before = 'vllm:num_preemptions_total{model_name="m"} 2.0\nvllm:kv_cache_usage_perc 0.9\n# HELP x\n'
    after = (
        'vllm:num_preemptions_total{model_name="m"} 5.0\nvllm:kv_cache_usage_perc 0.5\n'
        'vllm:e2e_request_latency_seconds_bucket{le="1"} 7\nvllm:prefix_cache_hits_total{a="1"} 1\n'
        'vllm:prefix_cache_hits_total{a="2"} 2\n'
    )
    assert counter_deltas(before, after) == {
        "vllm:num_preemptions_total": 3.0,
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:prefix_cache_hits_total": 3.0,
    }
