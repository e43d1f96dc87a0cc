from __future__ import annotations

import json
from typing import Any

import pytest

from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.serving.load import Aiperf, LoadJob
from fleetsieve_airflow.serving.samples import Sample, latency_s
from fleetsieve_airflow.serving.trace import TraceRow

ROWS = [TraceRow(arrival_s=float(i), input_tokens=20, output_tokens=10) for i in range(3)]
JOB = LoadJob(
    url="http://127.0.0.1:@PORT@",
    model="base",
    tokenizer="/models/tiny",
    trace_path="@RUN@/trace.jsonl",
    output_folder="@RUN@/out",
    request_timeout_s=60.0,
    seed=7,
)


def line(
    row: int = 0,
    *,
    error: dict[str, Any] | None = None,
    phase: str = "profiling",
    cancelled: bool = False,
    **metrics: float,
) -> str:
    values = {
        "time_to_first_token": 50.0,
        "request_latency": 150.0,
        "output_sequence_length": 10,
        "input_sequence_length": 20,
    }
    return json.dumps(
        {
            "metadata": {
                "conversation_id": f"session_{row:06}",
                "request_start_ns": 1_000_000_000,
                "benchmark_phase": phase,
                "was_cancelled": cancelled,
            },
            "metrics": {
                name: {"value": value, "unit": "x"}
                for name, value in {**values, **metrics}.items()
                if value >= 0
            },
            "error": error,
        }
    )


def only(text: str) -> Sample:
    samples = Aiperf().samples([text], ROWS)
    assert len(samples) == 1
    return samples[0]


def test_the_command_replays_open_loop_and_asks_for_exact_lengths() -> None:
    command = Aiperf().command("/opt/aiperf", JOB)
    assert command[:2] == ("/opt/aiperf", "profile")
    for part in (
        "--fixed-schedule",
        "--streaming",
        "--use-server-token-count",
        "ignore_eos:true",
        "mooncake-trace",
    ):
        assert part in command
    assert not any("concurrency" in part or "benchmark-duration" in part for part in command)
    assert command[command.index("--request-timeout-seconds") + 1] == "60"


def test_a_good_request_has_its_latencies_in_seconds() -> None:
    sample = only(line(2))
    assert sample == Sample(2, 1.0, True, 0.05, 0.15, 20, 10, "")
    assert [latency_s(sample, metric) for metric in ("ttft", "e2e")] == [0.05, 0.15]
    assert latency_s(sample, "tpot") == pytest.approx(0.1 / 9)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (line(error={"type": "TimeoutError", "code": 499, "message": "late"}), "TimeoutError 499 late"),
        (line(cancelled=True), "cancelled by the client"),
        (line(output_sequence_length=9), "9 of 10 output tokens"),
        (line(output_sequence_length=-1), "0 of 10 output tokens"),
        (line(time_to_first_token=-1), "no latencies recorded"),
    ],
)
def test_what_is_no_success_says_why_and_has_no_latency(text: str, why: str) -> None:
    sample = only(text)
    assert (sample.ok, sample.error) == (False, why)
    assert latency_s(sample, "ttft") is None


def test_warm_up_is_no_part_of_a_window() -> None:
    assert Aiperf().samples([line(phase="warmup")], ROWS) == []


@pytest.mark.parametrize("text", ["{", "{}", line(3), '{"metadata": {"conversation_id": "x"}}'])
def test_a_record_that_cannot_be_read_is_named_by_its_line(text: str) -> None:
    with pytest.raises(MeasurementError, match="Line 2 of aiperf's records cannot be read"):
        Aiperf().samples([line(), text], ROWS)
