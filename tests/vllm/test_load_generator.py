"""aiperf against a scripted server of known truth: who counts as served, how punctual the client is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.records import Trace
from fleetsieve_airflow.serving.judge import Gates, client_report, gates_for, require_valid_run
from fleetsieve_airflow.serving.load import Aiperf, LoadJob
from fleetsieve_airflow.serving.samples import Sample
from fleetsieve_airflow.serving.trace import TraceRow, mooncake_jsonl, window
from tests.builders import make_slo
from tests.slurm.lab import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
Replay = Callable[..., tuple[tuple[TraceRow, ...], list[Sample]]]


@pytest.fixture
def server(request: pytest.FixtureRequest, vllm_lab: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = str(Path(__file__).parent / "scripted_server.py")
    process = subprocess.Popen([str(vllm_lab / "aiperf/bin/python"), script, str(port), *request.param])

    def answers() -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health").status == 200)
        except OSError:
            return False

    until(answers, "the scripted server's start", 60)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(10)


@pytest.fixture
def replay(vllm_lab: Path, tmp_path: Path) -> Replay:
    """Replay a Poisson window with aiperf, by the command line that jobs use."""

    def run(url: str, *, rate_rps: float, duration_s: float) -> tuple[tuple[TraceRow, ...], list[Sample]]:
        trace = Trace(name="p", format="poisson", isl_mean_tokens=20, osl_mean_tokens=10)
        rows = window(trace, rate_rps=rate_rps, duration_s=duration_s, seed=1)
        (tmp_path / "trace.jsonl").write_text(mooncake_jsonl(rows))
        generator = Aiperf()
        command = generator.command(
            str(vllm_lab / "aiperf/bin/aiperf"),
            LoadJob(
                url=url,
                model="tiny",
                tokenizer=str(vllm_lab / "tiny-model"),
                trace_path=str(tmp_path / "trace.jsonl"),
                output_folder=str(tmp_path / "out"),
                request_timeout_s=10,
                seed=7,
                workers=1,
            ),
        )
        set_, unset = (
            dict(generator.environment),
            [name for name, value in generator.environment if not value],
        )
        environment = {name: value for name, value in {**os.environ, **set_}.items() if name not in unset}
        with (tmp_path / "aiperf.log").open("wb") as log:
            subprocess.run(command, env=environment, stdout=log, stderr=log, check=True, timeout=500)
        return rows, generator.samples(
            (tmp_path / "out" / generator.records_file).read_text().splitlines(), rows
        )

    return run


@pytest.mark.parametrize("server", [["--faults"]], indirect=True)
def test_of_hundred_requests_exactly_the_sixty_good_ones_are_served(server: str, replay: Replay) -> None:
    rows, samples = replay(server, rate_rps=10, duration_s=10)
    told = json.loads(urllib.request.urlopen(f"{server}/seen").read())  # noqa: S310 - loopback
    truth = [item["answer"] for item in told]
    assert len(rows) == len(samples) == 100
    faults = ("http_500", "error_event", "cut", "empty")
    assert [truth.count(fault) for fault in faults] == [10] * 4
    good = sum(sample.ok for sample in samples)
    print(f"truth: {truth.count('good')} good of {len(truth)}; counted as served: {good}")
    assert good == 60


@pytest.mark.parametrize("server", [[]], indirect=True)
@pytest.mark.parametrize("rate_rps", [50, 200])
def test_how_late_the_client_is_is_known_and_a_late_client_is_refused(
    server: str, replay: Replay, rate_rps: int
) -> None:
    rows, samples = replay(server, rate_rps=rate_rps, duration_s=10)
    report = client_report(rows, samples)
    assert report.started == len(rows) == rate_rps * 10
    assert report.lateness_p99_s is not None
    print(
        f"{rate_rps} req/s: lateness p50 {1000 * (report.lateness_p50_s or 0):.1f} ms, p99"
        f" {1000 * report.lateness_p99_s:.1f} ms, sent {report.achieved_share:.1%} of what was due"
    )
    strict = Gates(lateness_p99_s=report.lateness_p99_s / 2)
    with pytest.raises(MeasurementError, match="late at p99, allowed are") as caught:
        require_valid_run("strict", report, strict)
    assert caught.value.kind == "invalid_run"
    wide = gates_for(make_slo(ttft_p99_s=100_000.0))
    require_valid_run("wide", report, wide)
