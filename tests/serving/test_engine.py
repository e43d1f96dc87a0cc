"""The command of a replica: the same for measuring it and for deploying it."""

from __future__ import annotations

import pytest

from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.records import EngineConfig, Model
from fleetsieve_airflow.serving.engine import engine_command

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("argument", "match"),
    [
        (("port", "1"), "cannot be an engine argument"),
        (("tensor_parallel_size", "8"), "cannot be an engine argument"),
        (("x y", "1"), "cannot be an engine argument"),
        (("api-key", "s3cret"), "is a secret"),
    ],
)
def test_an_engine_argument_that_would_measure_something_else_is_refused(
    argument: tuple[str, str], match: str
) -> None:
    config = EngineConfig(label="TP1", pool="h100", engine_args=(argument,))
    with pytest.raises(SpecError, match=match):
        engine_command("vllm", Model(name="m", revision="r"), config)


def test_the_engine_command_follows_the_degrees_and_the_arguments() -> None:
    config = EngineConfig(
        label="wide",
        pool="h100",
        tensor_parallel=4,
        pipeline_parallel=2,
        data_parallel=2,
        expert_parallel=True,
        engine_args=(
            ("kv_cache_dtype", "fp8"),
            ("enforce-eager", "true"),
            ("enable-prefix-caching", "false"),
        ),
    )
    assert engine_command("vllm", Model(name="m", revision="r", source="org/m"), config)[2:] == (
        "org/m",
        "--served-model-name=m",
        "--host=127.0.0.1",
        "--port=@PORT@",
        "--tensor-parallel-size=4",
        "--pipeline-parallel-size=2",
        "--data-parallel-size=2",
        "--enable-expert-parallel",
        "--kv-cache-dtype=fp8",
        "--enforce-eager",
        "--no-enable-prefix-caching",
    )


def test_a_model_that_looks_like_an_option_is_refused() -> None:
    with pytest.raises(SpecError, match="must not start with a dash"):
        engine_command(
            "vllm", Model(name="m", revision="r", source="--help"), EngineConfig(label="a", pool="p")
        )


@pytest.mark.parametrize(
    ("source", "revision", "pinned"),
    [
        ("org/m", COMMIT, True),
        ("org/m", "2026-11", False),
        ("/models/m", COMMIT, False),
        ("s3://b/m", COMMIT, False),
    ],
)
def test_a_commit_of_a_repository_is_what_the_engine_loads(source: str, revision: str, pinned: bool) -> None:
    model = Model(name="m", revision=revision, source=source)
    command = engine_command("vllm", model, EngineConfig(label="TP1", pool="p"))
    assert (f"--revision={revision}" in command) == pinned


def test_a_revision_that_the_config_names_itself_is_not_named_twice() -> None:
    config = EngineConfig(label="TP1", pool="p", engine_args=(("revision", "main"),))
    command = engine_command("vllm", Model(name="m", revision=COMMIT, source="org/m"), config)
    assert [option for option in command if option.startswith("--revision")] == ["--revision=main"]
