"""The backend `local` with a real vLLM: a real knee, a refused config, nothing left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleetsieve_airflow.backends.base import Collected
from fleetsieve_airflow.backends.local import LocalBackend
from fleetsieve_airflow.core.verdict import judge
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serialization import point_of
from tests.builders import make_slo
from tests.serving.jobs import served_spec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
#: Met by a server that other work on the machine leaves little time; missed by one that has it for itself.
LOW_RPS, HIGH_RPS = 0.5, 20.0
SERVE = Path(__file__).parent / "serve_cpu.sh"


def spec_of(lab: Path, *, degrees: tuple[int, ...] = (1,), **engine_args: str) -> FleetSpec:
    """Return a fleet whose one server takes one request at a time: a knee that two busy cores reach too."""
    arguments = {"max-num-seqs": "1", "dtype": "float32", "max-model-len": "2048", "enforce-eager": "true"}
    spec = served_spec(
        backend="local",
        source=str(lab / "tiny-model"),
        engine_args=tuple(sorted({**arguments, **engine_args}.items())),
        options={
            "vllm": str(SERVE),
            "aiperf": str(lab / "aiperf/bin/aiperf"),
            "python": str(lab / "aiperf/bin/python"),
            "ready_s": "400",
            # Half of that by default, for a client with cores of its own
            "lateness_p99_s": "0.5",
            "workers": "1",
        },
        duration_s=20.0,
        loads=(LOW_RPS, HIGH_RPS),
        slo=make_slo(0.9, ttft_p90_s=5.0),
        degrees=degrees,
    )
    return replace(
        spec,
        workloads=tuple(
            replace(workload, trace=replace(workload.trace, osl_mean_tokens=32.0))
            for workload in spec.workloads
        ),
    )


def measured(spec: FleetSpec, load: float) -> Collected:
    return LocalBackend().measure_with_files(spec, point_of(spec, spec.candidates[0], load))


def servers() -> set[str]:
    """Return the processes of vLLM servers that run on this machine now."""
    done = subprocess.run(["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True, check=True)
    named = [line for line in done.stdout.splitlines() if "VLLM::" in line or "vllm/bin/vllm serve" in line]
    # What has ended stays listed until its parent, on some machines a sleepy one, has taken note.
    return {line for line in named if "<defunct>" not in line}


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    before = servers()
    yield
    assert servers() - before == set()


def test_a_low_load_is_met_and_a_high_load_is_missed_and_ended_early(vllm_lab: Path) -> None:
    spec = spec_of(vllm_lab)
    LocalBackend().check(spec)
    slo = spec.workloads[0].slo
    low, high = measured(spec, LOW_RPS), measured(spec, HIGH_RPS)
    for found in (low, high):
        print(found.measurement)
    assert judge(low.measurement, slo, spec.decision) == "met"
    assert low.measurement.failed == 0
    assert dict(low.measurement.versions)["engine_version"].startswith("0.32.0")
    assert "vllm:num_preemptions_total" in str(low.files["node/window.json"])
    assert judge(high.measurement, slo, spec.decision) == "missed"
    assert high.measurement.curtailed
    assert high.measurement.gpu_seconds_window <= 20.0


@pytest.mark.parametrize(
    ("degrees", "arguments", "words"),
    [
        ((3,), {}, "must be divisible by tensor parallel size"),
        ((1,), {"max-model-len": "100000"}, "is greater than the derived max_model_len"),
        ((1,), {"max-model-len": "4096", "num-gpu-blocks-override": "20"}, "To serve at least one request"),
    ],
)
def test_a_config_that_cannot_run_is_evidence(
    vllm_lab: Path, degrees: tuple[int, ...], arguments: dict[str, str], words: str
) -> None:
    found = measured(spec_of(vllm_lab, degrees=degrees, **arguments), LOW_RPS)
    assert words in found.measurement.refused
    assert found.measurement.served_rps == 0.0
