from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fleetsieve_airflow.simulator.curves import PerfDataError
from fleetsieve_airflow.simulator.hardware import hardware_named
from fleetsieve_airflow.simulator.perf_database import PerfDatabase, PowerCapped
from fleetsieve_airflow.simulator.table_database import TableDatabase, read_tables

HEAD = "operator,dtype,kv_dtype,head_dim,kv_heads,window,heads,gpus,n,k,batch,tokens,context,bytes,seconds"


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join([HEAD, *rows]) + "\n", encoding="utf-8")
    return path


def gemm(n: int, k: int, tokens: int, seconds: float) -> str:
    return f"gemm,bfloat16,,,,,,,{n},{k},,{tokens},,,{seconds}"


@pytest.fixture
def tables(tmp_path: Path) -> TableDatabase:
    rows = [
        gemm(n, k, tokens, n * k * tokens * 1e-12) for n in (100, 200) for k in (10, 30) for tokens in (1, 8)
    ]
    rows += [
        f"attention_decode,,bfloat16,128,2,0,8,,,,{batch},,{context},,{1e-6 * batch * context}"
        for batch in (1, 4)
        for context in (16, 64)
    ]
    rows += [f"all_reduce,,,,,,,2,,,,,,{size},{size * 1e-9}" for size in (1000, 2000)]
    return read_tables(write(tmp_path / "mine.csv", *rows), hardware_named("h100"))


def test_a_shape_between_measured_ones_is_interpolated_in_every_size(tables: PerfDatabase) -> None:
    curve = tables.curve("gemm", {"dtype": "bfloat16", "n": 150, "k": 20})
    assert curve.at(4.5) == pytest.approx(150 * 20 * 4.5 * 1e-12)


def test_a_product_wider_than_the_table_is_priced_as_equal_pieces(tables: PerfDatabase) -> None:
    curve = tables.curve("gemm", {"dtype": "bfloat16", "n": 600, "k": 10})
    assert curve.at(8) == pytest.approx(3 * 200 * 10 * 8 * 1e-12)


def test_a_size_beyond_the_table_that_cannot_be_cut_is_refused_with_what_exists(tables: PerfDatabase) -> None:
    with pytest.raises(PerfDataError, match=r"gemm\(dtype=bfloat16, n=100, k=40\); it has k up to 30"):
        tables.curve("gemm", {"dtype": "bfloat16", "n": 100, "k": 40})


def test_a_number_format_that_was_not_measured_is_refused_with_what_exists(tables: PerfDatabase) -> None:
    with pytest.raises(PerfDataError, match="it has dtype bfloat16"):
        tables.curve("gemm", {"dtype": "fp8", "n": 100, "k": 10})


def test_an_operator_without_rows_is_refused_with_what_exists(tables: PerfDatabase) -> None:
    with pytest.raises(PerfDataError, match="it has all_reduce, attention_decode, gemm"):
        tables.curve("moe", {})


def test_attention_is_a_surface_over_batch_and_context(tables: PerfDatabase) -> None:
    fixed = {"kv_dtype": "bfloat16", "head_dim": 128, "kv_heads": 2, "window": 0, "heads": 8}
    surface = tables.surface("attention_decode", fixed)
    assert surface.at(4, 40) == pytest.approx(1e-6 * 4 * 40)
    assert bool(surface.outside(4, 65))
    with pytest.raises(PerfDataError, match="ask for its surface"):
        tables.curve("attention_decode", fixed)


def test_a_column_that_an_operator_needs_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("operator,dtype,n,tokens,seconds\ngemm,bfloat16,1,1,1e-6\n", encoding="utf-8")
    with pytest.raises(PerfDataError, match="operator gemm lacks columns k"):
        read_tables(path, hardware_named("h100"))


def test_a_time_that_is_not_a_positive_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PerfDataError, match="not positive"):
        read_tables(write(tmp_path / "bad.csv", gemm(1, 1, 1, 0.0)), hardware_named("h100"))


def test_an_unknown_operator_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(PerfDataError, match="unknown operators conv; known: gemm"):
        read_tables(write(tmp_path / "bad.csv", "conv" + "," * 13 + "1e-6"), hardware_named("h100"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PerfDataError, match=r"none\.csv cannot be read"):
        read_tables(tmp_path / "none.csv", hardware_named("h100"))


def test_parquet_reads_as_csv_does(tmp_path: Path, tables: PerfDatabase) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rows = [(100.0, 10.0, tokens, 100 * 10 * tokens * 1e-12) for tokens in (1.0, 8.0)]
    n, k, tokens, seconds = (list(column) for column in zip(*rows, strict=True))
    columns = {
        "operator": ["gemm"] * 2,
        "dtype": ["bfloat16"] * 2,
        "n": n,
        "k": k,
        "tokens": tokens,
        "seconds": seconds,
    }
    parquet.write_table(pa.table(columns), tmp_path / "mine.parquet")
    read = read_tables(tmp_path / "mine.parquet", hardware_named("h100"))
    fixed = {"dtype": "bfloat16", "n": 100, "k": 10}
    assert np.array_equal(read.curve("gemm", fixed).seconds, tables.curve("gemm", fixed).seconds)


def test_a_power_cap_slows_arithmetic_and_leaves_memory_and_links_alone(tables: PerfDatabase) -> None:
    capped = PowerCapped(tables, 350.0)
    fixed = {"dtype": "bfloat16", "n": 100, "k": 10}
    arithmetic = 2.0 * 8 * 100 * 10 / 989e12
    slower = capped.curve("gemm", fixed).at(8) - tables.curve("gemm", fixed).at(8)
    assert slower == pytest.approx(arithmetic * (2**0.38 - 1))
    assert capped.curve("all_reduce", {"gpus": 2}).at(1500) == tables.curve("all_reduce", {"gpus": 2}).at(
        1500
    )
    assert capped.hardware.power_w == 350.0


def test_a_power_cap_above_the_gpu_is_refused(tables: PerfDatabase) -> None:
    with pytest.raises(PerfDataError, match=r"at most 700"):
        PowerCapped(tables, 900.0)
