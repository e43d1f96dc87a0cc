"""Recorded grids: what is read, and what is refused with file, line, column and remedy."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fleetsieve_airflow.backends.grid import DATA_FOLDER, grid_path, read_grid
from fleetsieve_airflow.errors import GridError
from fleetsieve_airflow.records import EngineConfig

HEADER = "workload,tensor_parallel,offered_load_rps,served_rps,success_rate,ttft_p50_s,ttft_p99_s"
ROW = "chat,4,6.6,6.6,0.999,0.2,0.9"
TP4 = EngineConfig(label="TP4", pool="h100", tensor_parallel=4)


def write(folder: Path, *lines: str) -> str:
    path = folder / "grid.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def refusal(folder: Path, *lines: str) -> str:
    with pytest.raises(GridError) as caught:
        read_grid(write(folder, *lines))
    return str(caught.value).replace(f"{folder}/", "")


class TestReadGrid:
    def test_the_shipped_grid_has_24_points_and_says_which_are_published(self) -> None:
        grid = read_grid("package:paper_grid.csv")
        runs = [run for cell in grid.cells.values() for run in cell]
        assert len(runs) == 24
        assert {run.workload for run in runs if run.provenance == "published"} == {"chat"}
        assert sorted(run.provenance for run in runs).count("reconstructed") == 21
        assert grid.loads("code", TP4) == (1.2, 2.4, 3.6, 6.0)
        assert dict(grid.cell("chat", TP4, 11.27)[0].percentiles)["e2e_p99_s"] == 46.4

    def test_the_readme_counts_the_rows_of_the_shipped_grid_by_provenance(self) -> None:
        readme = (DATA_FOLDER / "README.md").read_text()
        runs = [run for cell in read_grid("package:paper_grid.csv").cells.values() for run in cell]
        for provenance in ("published", "derived", "reconstructed"):
            count = sum(run.provenance == provenance for run in runs)
            assert f"| `{provenance}` | {count} |" in readme
        assert "2608.19659" in readme

    def test_a_grid_is_known_by_the_digest_of_its_bytes(self, tmp_path: Path) -> None:
        name = write(tmp_path, HEADER, ROW)
        digest = hashlib.sha256(Path(name).read_bytes()).hexdigest()
        assert read_grid(name).device == f"replay:{digest[:16]}"

    def test_labels_win_over_degrees(self, tmp_path: Path) -> None:
        grid = read_grid(
            write(
                tmp_path,
                "workload,engine_config,tensor_parallel,concurrency,served_rps",
                "chat,TP4-eager,4,8,2.0",
                "chat,TP4,4,8,3.0",
            )
        )
        assert grid.cell("chat", TP4, 8)[0].served_rps == 3.0
        assert grid.configs("chat") == ("TP4-eager", "TP4")
        assert grid.load_kinds == {"chat": "concurrency"}

    def test_repeated_runs_are_ordered_by_their_number(self, tmp_path: Path) -> None:
        header = "workload,tensor_parallel,offered_load_rps,served_rps,repeat"
        grid = read_grid(write(tmp_path, header, "chat,4,2,1.9,1", "chat,4,2,2.0,0"))
        assert [run.served_rps for run in grid.cell("chat", TP4, 2.0)] == [2.0, 1.9]

    def test_counts_give_the_success_rate_where_its_column_is_missing(self, tmp_path: Path) -> None:
        header = "workload,tensor_parallel,offered_load_rps,served_rps,sent,failed"
        run = read_grid(write(tmp_path, header, "chat,4,2,2,200,3")).cell("chat", TP4, 2.0)[0]
        assert (run.sent, run.failed, run.success_rate) == (200, 3, 0.985)

    def test_blank_lines_a_byte_order_mark_and_unknown_columns_are_harmless(self, tmp_path: Path) -> None:
        path = tmp_path / "grid.csv"
        path.write_text(f"{HEADER},note\n\n{ROW},first\n\n", encoding="utf-8-sig")
        assert read_grid(str(path)).loads("chat", TP4) == (6.6,)

    def test_a_config_that_a_mere_degree_does_not_name_is_refused(self, tmp_path: Path) -> None:
        grid = read_grid(write(tmp_path, HEADER, ROW))
        config = EngineConfig(label="TP4PP2", pool="h100", tensor_parallel=4, pipeline_parallel=2)
        with pytest.raises(GridError, match="Add a column engine_config"):
            grid.loads("chat", config)


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("column", "value", "said"),
        [
            ("served_rps", "nan", "must be a finite number of at least 0, got 'nan'"),
            ("served_rps", "inf", "must be a finite number of at least 0, got 'inf'"),
            ("served_rps", "-1", "must be a finite number of at least 0, got '-1'"),
            ("served_rps", "6,6", "has 8 cells, the header has 7"),
            ("served_rps", "", "must be a finite number of at least 0, got ''"),
            ("offered_load_rps", "0", "must be a finite number above 0, got '0'"),
            ("offered_load_rps", "", "needs exactly one of offered_load_rps and concurrency"),
            ("ttft_p99_s", "NaN", "must be a finite number of at least 0, got 'NaN'"),
            ("ttft_p99_s", "fast", "must be a finite number of at least 0, got 'fast'"),
            ("ttft_p99_s", "0.1", "must not be below ttft_p50_s 0.2, got '0.1'"),
            ("success_rate", "99.9", "must be a share between 0 and 1, got '99.9'. Write 0.999"),
            ("tensor_parallel", "4.5", "must be a whole number, got '4.5'"),
            ("tensor_parallel", "", "must be a finite number above 0, got ''"),
            ("workload", "", "must not be empty, got ''"),
        ],
    )
    def test_a_cell_that_is_no_measurement_names_file_line_and_column(
        self, tmp_path: Path, column: str, value: str, said: str
    ) -> None:
        cells = ROW.split(",")
        cells[HEADER.split(",").index(column)] = value
        message = refusal(tmp_path, HEADER, "chat,2,6.6,4.5,0.9,0.2,9", ",".join(cells))
        assert message.startswith("grid.csv: line 3")
        assert column in message or "cells" in message
        assert said in message

    def test_all_bad_cells_are_said_at_once_up_to_a_limit(self, tmp_path: Path) -> None:
        rows = [f"chat,4,{load},nan,,,-1" for load in range(1, 8)]
        lines = refusal(tmp_path, HEADER, *rows).splitlines()
        assert len(lines) == 11
        assert lines[-1].endswith("4 more problems of this kind.")

    @pytest.mark.parametrize(
        ("missing", "said"),
        [
            ("workload", "lacks a column workload"),
            ("tensor_parallel", "lacks a column engine_config or tensor_parallel"),
            ("offered_load_rps", "lacks a column offered_load_rps or concurrency"),
            ("served_rps", "lacks a column served_rps"),
        ],
    )
    def test_a_missing_column_is_named_with_those_that_are_there(
        self, tmp_path: Path, missing: str, said: str
    ) -> None:
        message = refusal(tmp_path, HEADER.replace(missing, "other"), ROW)
        assert said in message
        assert "it has" in message

    def test_a_column_given_twice_is_refused(self, tmp_path: Path) -> None:
        assert "has the column served_rps 2 times" in refusal(tmp_path, f"{HEADER},served_rps", f"{ROW},1")

    def test_the_same_cell_twice_is_refused_with_both_lines(self, tmp_path: Path) -> None:
        message = refusal(tmp_path, HEADER, ROW, ROW)
        assert message.startswith("grid.csv: line 3: chat 4 at 6.6, repeat 0, is already on line 2.")

    def test_two_kinds_of_load_in_one_workload_are_refused(self, tmp_path: Path) -> None:
        header = "workload,tensor_parallel,offered_load_rps,concurrency,served_rps"
        message = refusal(tmp_path, header, "chat,4,2,,2", "code,4,,8,2", "chat,4,,8,2")
        assert "line 4: workload chat is given by concurrency, but by offered_load_rps on line 2" in message

    def test_a_row_with_both_loads_is_refused(self, tmp_path: Path) -> None:
        header = "workload,tensor_parallel,offered_load_rps,concurrency,served_rps"
        assert "needs exactly one of" in refusal(tmp_path, header, "chat,4,2,8,2")

    @pytest.mark.parametrize(
        ("counts", "said"),
        [
            ("0.999,100,30", "must agree with sent 100 and failed 30"),
            ("0.9,100,101", "must be at most the 100 requests sent"),
            ("0.9,100,1.5", "must be a whole number"),
        ],
    )
    def test_counts_that_contradict_are_refused(self, tmp_path: Path, counts: str, said: str) -> None:
        header = "workload,tensor_parallel,offered_load_rps,served_rps,success_rate,sent,failed"
        assert said in refusal(tmp_path, header, f"chat,4,2,2,{counts}")

    def test_an_empty_file_and_a_header_alone_are_refused(self, tmp_path: Path) -> None:
        assert "is empty" in refusal(tmp_path, "")
        assert "no rows under the header" in refusal(tmp_path, HEADER)

    def test_a_file_that_is_no_text_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "grid.csv").write_bytes(b"\xff\xfe\x00\x81")
        with pytest.raises(GridError, match="cannot be read"):
            read_grid(str(tmp_path / "grid.csv"))

    def test_a_grid_of_the_package_is_never_a_path_out_of_it(self) -> None:
        with pytest.raises(GridError, match="no such grid in this package"):
            grid_path("package:../records.py")
