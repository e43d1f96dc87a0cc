"""Replay: recorded runs answer points, and what was not recorded is never made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleetsieve_airflow.backends.replay import ReplayBackend
from fleetsieve_airflow.errors import GridError, MeasurementError, SpecError
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serialization import point_of
from fleetsieve_airflow.spec import parse_spec
from tests.builders import make_point, make_spec, paper_measurement, paper_spec

HEADER = "workload,tensor_parallel,offered_load_rps,served_rps,success_rate,ttft_p99_s,repeat"
ROWS = (
    "chat,2,2,2,1,0.5,0",
    "chat,2,4,3,0.9,7,0",
    "chat,4,2,2,1,0.2,0",
    "chat,4,4,4,1,0.6,0",
    "chat,4,4,3.9,1,0.7,1",
)


def recorded(folder: Path, *rows: str, header: str = HEADER, **changes: Any) -> FleetSpec:
    """Load a fleet of one workload, replaying these rows; ``changes`` are of the workload."""
    (folder / "grid.csv").write_text("\n".join((header, *rows)) + "\n")
    workload = {
        "model": "base",
        "demand_rps": 4.0,
        "slo": {"ttft_p99_s": 2.0},
        "engine_configs": ["TP2", "TP4"],
    }
    settings = {"grid": "grid.csv", "startup_s": 60.0, **changes.pop("measurement", {})}
    configs = {"TP2": {"pool": "h100", "tensor_parallel": 2}, "TP4": {"pool": "h100", "tensor_parallel": 4}}
    return parse_spec(
        {
            "fleet": "recorded",
            "pools": {"h100": {"gpu": "H100", "gpus": 8, "gpus_per_node": 8}},
            "models": {"base": {"revision": "r1"}},
            "engine_configs": {**configs, **changes.pop("configs", {})},
            "workloads": {"chat": {**workload, **changes}},
            "measurement": settings,
        },
        folder,
    )


def check_error(spec: FleetSpec) -> str:
    with pytest.raises(GridError) as caught:
        ReplayBackend().check(spec)
    return str(caught.value)


class TestMeasure:
    def test_a_point_gets_the_numbers_of_its_row(self) -> None:
        measurement = paper_measurement("chat", "TP4", 11.27)
        assert measurement.served_rps == 11.27
        assert measurement.success_rate == 0.996
        assert dict(measurement.percentiles) == {"ttft_p99_s": 1.8, "e2e_p99_s": 46.4}
        assert measurement.miss_shares == ()
        assert dict(measurement.versions)["provenance"] == "published"

    def test_gpu_seconds_are_counted_with_and_without_start_up(self) -> None:
        measurement = paper_measurement("code", "TP8", 6.0)
        assert measurement.gpu_seconds_window == 8 * 300
        assert measurement.gpu_seconds_billed == 8 * (300 + 180)

    def test_the_same_point_gives_the_same_measurement(self) -> None:
        assert paper_measurement("code", "TP2", 2.4) == paper_measurement("code", "TP2", 2.4)

    def test_two_rows_never_have_the_same_samples_digest(self) -> None:
        spec, backend = paper_spec(), ReplayBackend()
        digests = [
            backend.measure(spec, point_of(spec, candidate, load)).samples_sha256
            for candidate in spec.candidates
            for load in candidate.loads
        ]
        assert len(set(digests)) == 24

    def test_the_seed_picks_the_repeated_run(self, tmp_path: Path) -> None:
        spec = recorded(tmp_path, *ROWS, measurement={"seed": 5})
        first, second = (make_point(spec, "chat", "TP4", 4.0, repeat) for repeat in (0, 1))
        assert ReplayBackend().measure(spec, first).served_rps == 4.0
        assert ReplayBackend().measure(spec, second).served_rps == 3.9

    def test_a_repeat_that_was_not_recorded_is_never_an_earlier_run_again(self, tmp_path: Path) -> None:
        spec = recorded(tmp_path, *ROWS)
        with pytest.raises(
            MeasurementError, match=r"run 3 is not in grid\.csv, which holds 2 of it"
        ) as caught:
            ReplayBackend().measure(spec, make_point(spec, "chat", "TP4", 4.0, 2))
        assert caught.value.kind == "missing_in_grid"

    def test_counts_travel_with_the_measurement(self, tmp_path: Path) -> None:
        header = "workload,tensor_parallel,concurrency,served_rps,sent,failed,ttft_p99_s"
        spec = recorded(tmp_path, "chat,2,8,2,500,4,1", "chat,4,8,3,600,0,1", header=header)
        measurement = ReplayBackend().measure(spec, make_point(spec, "chat", "TP2", 8.0))
        assert (measurement.sent, measurement.failed, measurement.success_rate) == (500, 4, 0.992)
        assert measurement.point.load_kind == "concurrency"

    def test_a_grid_that_changed_since_the_spec_was_made_is_refused(self, tmp_path: Path) -> None:
        spec = recorded(tmp_path, *ROWS)
        with (tmp_path / "grid.csv").open("a") as file:
            file.write("chat,4,8,5,0.8,30,0\n")
        with pytest.raises(GridError, match="the file has changed since"):
            ReplayBackend().measure(spec, make_point(spec, "chat", "TP4", 4.0))

    def test_a_spec_without_a_grid_is_refused(self) -> None:
        with pytest.raises(SpecError, match=r"measurement\.grid: is missing"):
            ReplayBackend().check(make_spec())


class TestCheck:
    def test_the_shipped_fleet_can_be_replayed(self) -> None:
        ReplayBackend().check(paper_spec())

    def test_a_point_that_is_not_in_the_grid_is_named_with_what_is(self, tmp_path: Path) -> None:
        spec = recorded(tmp_path, *ROWS, loads={"offered_load_rps": [2, 3, 4, 5]})
        message = check_error(spec)
        assert "lacks 4 points of the spec: chat TP2 at 3 (recorded: 2, 4); chat TP2 at 5" in message
        assert message.endswith(
            "Leave out the workload's loads to take the grid's own, or record these points."
        )

    def test_what_can_never_run_needs_no_rows(self, tmp_path: Path) -> None:
        large = {"TP16": {"pool": "h100", "tensor_parallel": 16}}
        spec = recorded(tmp_path, *ROWS, configs=large, engine_configs=["TP2", "TP16"])
        assert spec.candidate("chat", "TP16").excluded
        ReplayBackend().check(spec)

    def test_a_limit_without_a_column_is_refused(self, tmp_path: Path) -> None:
        spec = recorded(tmp_path, *ROWS, slo={"ttft_p99_s": 2.0, "e2e_p95_s": 9.0})
        assert "lacks the column e2e_p95_s, which the SLO of chat limits" in check_error(spec)

    def test_a_success_rate_without_a_column_is_refused(self, tmp_path: Path) -> None:
        header = "workload,tensor_parallel,offered_load_rps,served_rps,ttft_p99_s"
        spec = recorded(
            tmp_path,
            "chat,2,2,2,1",
            "chat,4,2,2,1",
            header=header,
            slo={"success_rate": 0.99, "ttft_p99_s": 2},
        )
        assert "lacks the column success_rate" in check_error(spec)

    def test_the_other_kind_of_load_is_refused(self, tmp_path: Path) -> None:
        spec = recorded(tmp_path, *ROWS, loads={"concurrency": [2, 4]})
        assert "was recorded by offered_load_rps, but the spec asks for concurrency" in check_error(spec)

    def test_two_configs_of_one_degree_need_labels(self, tmp_path: Path) -> None:
        eager = {"TP4-eager": {"pool": "h100", "tensor_parallel": 4}}
        spec = recorded(tmp_path, *ROWS, configs=eager, engine_configs=["TP4", "TP4-eager"])
        assert "TP4 and TP4-eager have the same tensor_parallel degree" in check_error(spec)

    def test_windows_of_another_length_are_refused(self, tmp_path: Path) -> None:
        rows = [f"{row},120" for row in ROWS]
        spec = recorded(tmp_path, *rows, header=f"{HEADER},duration_s")
        assert "column duration_s: 120, but measurement.duration_s is 300" in check_error(spec)
        ReplayBackend().check(
            recorded(tmp_path, *rows, header=f"{HEADER},duration_s", measurement={"duration_s": 120})
        )

    def test_an_empty_percentile_must_be_explained_by_failures(self, tmp_path: Path) -> None:
        ReplayBackend().check(recorded(tmp_path, "chat,2,2,1,0.5,,0", *ROWS[2:]))
        message = check_error(recorded(tmp_path, "chat,2,2,1,0.999,,0", *ROWS[2:]))
        assert "line 2, column ttft_p99_s: is empty, though only 0.10% of requests failed" in message

    def test_an_empty_success_rate_that_the_slo_limits_is_refused(self, tmp_path: Path) -> None:
        spec = recorded(tmp_path, "chat,2,2,2,,0.5,0", *ROWS[2:], slo={"success_rate": 0.99})
        assert "line 2, column success_rate: is empty, and the SLO limits it" in check_error(spec)
