from __future__ import annotations

import io
import json

import pyarrow.parquet
import pytest

from fleetsieve_airflow.backends.base import Collected
from fleetsieve_airflow.backends.served import JobFailedError, check_served, collect_point, masked
from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.serving.job import rows_of
from fleetsieve_airflow.serving.slurm_state import JobStatus
from tests.builders import make_slo
from tests.serving.jobs import served_points, served_spec

SPEC = served_spec()
POINT = served_points(SPEC)[0]
DONE = JobStatus(state="succeeded", node="gpu01")
FACTS = {
    "engine_version": "0.32.0",
    "gpu": "NVIDIA H100 80GB HBM3",
    "driver": "570.1",
    "began_s": 100.0,
    "warm_s": 160.0,
}


def files(
    *,
    late_s: float = 0.0,
    curtailed_after_s: float | None = None,
    facts: dict[str, object] | None = None,
    **result: object,
) -> dict[str, bytes]:
    records = "".join(
        json.dumps(
            {
                "metadata": {
                    "conversation_id": f"session_{index:06}",
                    "request_start_ns": int((1000 + row.arrival_s + (late_s if index % 2 else 0)) * 1e9),
                },
                "metrics": {
                    "time_to_first_token": {"value": 100.0},
                    "request_latency": {"value": 900.0},
                    "output_sequence_length": {"value": row.output_tokens},
                },
            }
        )
        + "\n"
        for index, row in enumerate(rows_of(SPEC, POINT))
    )
    held_s = (POINT.duration_s if curtailed_after_s is None else curtailed_after_s) + 7.0
    times = {"began_s": 160.0, "ended_s": 160.0 + held_s, "curtailed_after_s": curtailed_after_s}
    window = {"key": POINT.key, **times, "metrics": {}, **result}
    return {
        "facts.json": json.dumps(FACTS if facts is None else facts).encode(),
        f"points/{POINT.key}/result.json": json.dumps(window).encode(),
        f"points/{POINT.key}/out/profile_export.jsonl": records.encode(),
        "server.tail": b"INFO engine ready\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz\n",
    }


def collected(status: JobStatus = DONE, **changes: object) -> Collected:
    return collect_point(SPEC, POINT, 2, status, files(**changes))  # type: ignore[arg-type]


def test_a_finished_window_becomes_a_measurement_with_its_artifacts() -> None:
    found = collected()
    measurement = found.measurement
    assert (measurement.sent, measurement.failed) == (100, 0)
    assert measurement.percentile("ttft_p99_s") == pytest.approx(0.1)
    assert dict(measurement.versions) == {"engine_version": "0.32.0", "gpu": FACTS["gpu"], "driver": "570.1"}
    # 60 s of start and warm-up are shared by the two windows of the job, 7 s around this one are its own
    assert measurement.gpu_seconds_billed == pytest.approx(measurement.gpu_seconds_window + 30.0 + 7.0)
    table = pyarrow.parquet.read_table(io.BytesIO(bytes(found.files["requests/requests.parquet"])))  # type: ignore[arg-type]
    assert table.num_rows == 100
    assert str(found.files["requests/head.csv"]).startswith("row,start_s,ok,ttft_s")
    assert {"logs/vllm.log", "node/facts.json", "node/window.json"} <= set(found.files)


def test_an_early_end_is_taken_over() -> None:
    measurement = collected(curtailed_after_s=12.0).measurement
    assert (measurement.curtailed, measurement.gpu_seconds_window) == (True, 12.0)


def test_an_engine_that_refuses_is_evidence_about_the_config() -> None:
    status = JobStatus(state="failed", kind="engine_refused", message="heads must be divisible")
    found = collect_point(SPEC, POINT, 1, status, {"server.tail": b"heads must be divisible"})
    assert found.measurement.refused == "heads must be divisible"
    assert found.measurement.served_rps == 0.0


@pytest.mark.parametrize(
    ("kind", "retryable"), [("node_fail", True), ("timeout", False), ("server_died", True)]
)
def test_a_job_without_a_result_is_a_failure_that_says_whether_to_try_again(
    kind: str, retryable: bool
) -> None:
    status = JobStatus(state="failed", kind=kind, message="words", node="gpu02")
    with pytest.raises(JobFailedError, match=rf"failed \({kind}\) on gpu02: words") as caught:
        collect_point(SPEC, POINT, 1, status, {})
    assert caught.value.retryable is retryable


def test_a_window_during_which_the_server_died_is_no_evidence() -> None:
    with pytest.raises(JobFailedError):
        collected(JobStatus(state="failed", kind="server_died", message="died"), failed="died")


def test_a_late_client_is_an_invalid_run() -> None:
    with pytest.raises(MeasurementError, match="late at p99") as caught:
        collected(late_s=1.0)
    assert caught.value.kind == "invalid_run"


def test_another_gpu_than_the_spec_names_is_no_evidence() -> None:
    with pytest.raises(
        MeasurementError, match="the spec names gpu 'NVIDIA H100 80GB HBM3', the node has 'NVIDIA A10'"
    ):
        collected(facts={**FACTS, "gpu": "NVIDIA A10"})


@pytest.mark.parametrize(
    "secret",
    [
        "hf_abcdefghijklmnopqrstuvwxyz",
        "Authorization: Bearer abc.def",
        "--api-key=sesame",
        "HF_TOKEN=abc",
        "sk-abcdefghijklmnopqrst",
    ],
)
def test_a_log_leaves_the_node_without_secrets(secret: str) -> None:
    word = secret.rsplit("=", maxsplit=1)[-1].rsplit(" ", maxsplit=1)[-1]
    assert word not in masked(f"before {secret} after")
    assert "hf_abc" not in str(collected().files["logs/vllm.log"])


def test_a_spec_is_checked_before_anything_is_paid_for() -> None:
    check_served(SPEC)
    with pytest.raises(MeasurementError, match="at least 100 are needed"):
        check_served(served_spec(slo=make_slo(ttft_p99_s=1.0), duration_s=20.0))
