from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fleetsieve_airflow.errors import FleetsieveError, MeasurementError, SpecError
from fleetsieve_airflow.records import MeasurementSettings
from fleetsieve_airflow.serving.job import (
    JOB_NAME,
    build_job,
    job_base_name,
    node_files,
    node_job,
)
from fleetsieve_airflow.serving.job_script import sbatch_options, script
from fleetsieve_airflow.serving.judge import allowed_failures, node_limits
from fleetsieve_airflow.serving.options import JobOptions, job_options
from tests.builders import make_slo
from tests.serving.jobs import served_points, served_spec

GOLDEN = Path(__file__).parent / "golden"
EVERYTHING = {
    "partition": "gpu",
    "account": "bench",
    "qos": "high",
    "constraint": "h100&nvlink",
    "reservation": "friday",
    "gres": "gpu:h100",
    "cpus": "16",
    "mem": "64G",
    "extra_sbatch": "--nice=100 '--comment=two words'",
    "vllm": "/opt/vllm/bin/vllm",
    "aiperf": "/opt/aiperf/bin/aiperf",
    "python": "/opt/aiperf/bin/python",
    "setup": "module load cuda/12.8",
    "env_file": "/home/fleet/secrets.env",
}
HOSTILE = [
    "a b",
    "it's",
    'say "hi"',
    "x; touch pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "a\\b",
    "*?[x]",
    "<&>|",
]


def hostile_job(text: str) -> str:
    options = {"env_file": text, "python": text, "runtime": "apptainer", "image": "/i.sif"}
    spec = served_spec(options={**options, "mounts": shlex.quote(text)}, source=text)
    return script(build_job(spec, served_points(spec), name="j"))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bare", {}),
        ("everything", EVERYTHING),
        ("pyxis", {"runtime": "pyxis", "image": "/images/vllm.sqsh", "mounts": "/models:/models:ro"}),
        ("apptainer", {"runtime": "apptainer", "image": "/images/vllm.sif", "mounts": "/models"}),
    ],
)
def test_the_script_is_a_pure_function_of_the_record(name: str, options: dict[str, str]) -> None:
    spec = served_spec(options=options)
    record = build_job(spec, served_points(spec, "TP2"), name="fleetsieve-0123456789abcdef-0")
    text = script(record) + "\n# sbatch " + shlex.join(sbatch_options(record)) + "\n"
    assert text == (GOLDEN / f"{name}.sh").read_text()
    assert (
        subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False).returncode
        == 0
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_no_value_of_a_spec_is_ever_run_by_the_script(text: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    done = subprocess.run(
        ["bash", "-c", hostile_job(text), "script", str(tmp_path / "run")],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert list(tmp_path.rglob("pwned")) == []


@pytest.mark.parametrize("text", HOSTILE)
def test_model_ids_and_engine_arguments_pass_literally(text: str) -> None:
    spec = served_spec(source=text, engine_args=(("chat-template", text),))
    record = build_job(spec, served_points(spec), name="j")
    assert record.engine[2] == text
    assert f"--chat-template={text}" in record.engine
    assert json.loads(node_job(record))["engine"] == list(record.engine)


@pytest.mark.parametrize("name", ["partition", "account", "qos", "constraint", "reservation", "gres", "mem"])
@pytest.mark.parametrize("text", ["a\nb", "-x", " x", "a\tb", "a\x00b"])
def test_an_sbatch_value_that_is_more_than_one_word_of_text_is_refused(name: str, text: str) -> None:
    with pytest.raises(SpecError, match=f"options.{name}: .* must be one line of printable text"):
        job_options(MeasurementSettings(options=((name, text),)))


def test_a_measured_run_has_its_node_alone_and_says_its_time_and_memory() -> None:
    spec = served_spec()
    options = sbatch_options(build_job(spec, served_points(spec, "TP2"), name="j"), exclude="gpu07")
    for option in (
        "--exclusive",
        "--no-requeue",
        "--export=NONE",
        "--mem=0",
        "--gres=gpu:2",
        "--exclude=gpu07",
    ):
        assert option in options
    # 1800 s start, 180 s warm-up, two windows of 50 s with 60 s time-out and 180 s slack, 60 s stop
    assert "--time=44" in options


def test_a_neighbour_is_allowed_only_where_the_spec_says_so() -> None:
    spec = served_spec(options={"exclusive": "false", "gres": "none"})
    options = sbatch_options(build_job(spec, served_points(spec), name="j"))
    assert "--exclusive" not in options
    assert not any(option.startswith("--gres") for option in options)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("speed", "9", r"options\.speed is unknown; known: account, "),
        ("cpus", "many", r"options\.cpus: 'many' cannot be read"),
        ("curtail", "maybe", "must be true or false"),
        ("ports", "80-90", "is no range of 100 ports"),
        ("runtime", "docker", "is not one of none, pyxis, apptainer"),
        ("runtime", "pyxis", "does not go with image ''"),
        ("engine_env", "HF_TOKEN=abc", "looks like a secret"),
        ("engine_env", "1A=b", "is not of the form NAME=value"),
        ("extra_sbatch", "gpu", "must be of the form --name=value"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(name: str, value: str, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        job_options(MeasurementSettings(options=((name, value),)))


def test_every_option_has_a_default_that_is_valid() -> None:
    assert job_options(MeasurementSettings()) == JobOptions()


def test_one_job_serves_one_config() -> None:
    spec = served_spec()
    with pytest.raises(SpecError, match="One job serves one config and one model"):
        build_job(spec, [*served_points(spec, "TP1"), *served_points(spec, "TP2")], name="j")


def test_what_a_server_cannot_be_asked_is_refused_before_anything_is_paid() -> None:
    spec = served_spec(slo=make_slo(ttft_p99_s=1.0), duration_s=10.0)
    with pytest.raises(MeasurementError, match="at least 100 are needed"):
        build_job(spec, served_points(spec), name="j")
    point = replace(served_points(served_spec())[0], load_kind="concurrency")
    with pytest.raises(FleetsieveError, match="a concurrency cannot be"):
        build_job(served_spec(), [point], name="j")


@pytest.mark.parametrize("name", ["", "a b", "a;b", "a\nb", "-a", "x" * 65, "a|b", "ä"])
def test_a_job_name_that_slurm_would_lose_is_refused(name: str) -> None:
    spec = served_spec()
    with pytest.raises(SpecError, match="must be 1 to 64 of the characters"):
        build_job(spec, served_points(spec), name=name)


def test_the_run_folder_holds_the_record_the_programs_and_the_traces() -> None:
    spec = served_spec()
    points = served_points(spec)
    record = build_job(spec, points, name="j")
    files = node_files(spec, points, record)
    assert set(files) == {
        "agent.py",
        "job.json",
        "node_server.py",
        "samples.py",
        *(f"points/{point.key}/trace.jsonl" for point in points),
    }
    assert len(files[f"points/{points[0].key}/trace.jsonl"].splitlines()) == 100
    assert all("import fleetsieve" not in line for line in files["samples.py"].splitlines())


def test_a_window_ends_early_only_where_its_verdict_is_certain_enough_for_the_certificate() -> None:
    spec = served_spec()
    spec = replace(spec, decision=replace(spec.decision, confidence=0.95))
    points = served_points(spec)
    record = build_job(spec, points, name="j")
    files = node_files(spec, points, record)
    for point, node in zip(points, record.points, strict=True):
        slo = spec.workload(point.workload).slo
        count = len(files[f"points/{point.key}/trace.jsonl"].splitlines())
        enough = node_limits(slo, count, spec.bound_confidence)
        assert [allowed for _, _, allowed in node.limits] == [limit.allowed_misses for limit in enough]
        assert node.allowed_failures == allowed_failures(slo, count, spec.bound_confidence)
        assert any(
            more.allowed_misses > less.allowed_misses
            for more, less in zip(enough, node_limits(slo, count, 0.95), strict=True)
        )


def test_two_windows_of_one_server_never_share_their_prompts() -> None:
    spec = served_spec()
    seeds = {point.command[point.command.index("--random-seed") + 1] for load in (2.0, 4.0)
             for point in build_job(spec, served_points(spec, load=load), name="j").points}  # fmt: skip
    assert len(seeds) == 4


def test_work_is_found_again_by_its_name() -> None:
    spec = served_spec()
    points = served_points(spec)
    assert job_base_name("c1", points) == job_base_name("c1", list(points))
    assert (
        len({job_base_name("c1", points), job_base_name("c1", points[:1]), job_base_name("c2", points)}) == 3
    )
    assert JOB_NAME.fullmatch(job_base_name("any scope; $(x)", points) + "-12")
