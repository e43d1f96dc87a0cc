from __future__ import annotations

import json
import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.records import Trace
from fleetsieve_airflow.serving.trace import content_digest, mooncake_jsonl, read_rows, window

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,374,44
2023-11-16 18:17:04.0319600,396,109
2023-11-16 18:17:05.0781490,879,55
2023-11-16 18:17:07.0781490,91,16
"""
MOONCAKE = (
    '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    '{"timestamp": 3000, "input_length": 7322, "output_length": 490, "hash_ids": [0, 2]}\n'
)
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
52,ChatGPT,417,0,417,Conversation log
118,GPT-4,1360,245,1605,Conversation log
"""


def recorded(folder: Path, form: str, text: str) -> Trace:
    path = folder / f"trace.{form}"
    path.write_text(text)
    return Trace(name="t", format=form, path=str(path))


def test_azure_rows_count_from_the_first_arrival_and_cut_the_seventh_digit(tmp_path: Path) -> None:
    rows = read_rows(recorded(tmp_path, "azure", AZURE))
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [
        (374, 44),
        (396, 109),
        (879, 55),
        (91, 16),
    ]
    assert [row.arrival_s for row in rows] == pytest.approx([0.0, 0.052, 1.098189, 3.098189])


def test_mooncake_rows_are_in_milliseconds(tmp_path: Path) -> None:
    rows = read_rows(recorded(tmp_path, "mooncake", MOONCAKE))
    assert [(row.arrival_s, row.input_tokens, row.output_tokens) for row in rows] == [
        (0, 6758, 500),
        (3, 7322, 490),
    ]


def test_burstgpt_rows_without_an_answer_are_failures_and_left_out(tmp_path: Path) -> None:
    rows = read_rows(recorded(tmp_path, "burstgpt", BURSTGPT))
    assert [(row.arrival_s, row.input_tokens) for row in rows] == [(0, 472), (40, 1087), (113, 1360)]


@pytest.mark.parametrize("rate", [0.5, 3.0, 17.0])
def test_a_window_has_exactly_the_rate_and_the_duration_asked_for(tmp_path: Path, rate: float) -> None:
    lines = "".join(
        f"2023-11-16 18:{i // 60:02}:{i % 60:02}.{i % 7}000000,{i + 1},{i + 1}\n" for i in range(1500)
    )
    trace = recorded(tmp_path, "azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + lines)
    rows = window(trace, rate_rps=rate, duration_s=40.0, seed=1)
    assert len(rows) == round(rate * 40)
    assert rows[0].arrival_s == 0.0
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(rows))
    assert rows[-1].arrival_s < 40.0


def test_the_seed_chooses_the_window_and_the_same_seed_the_same_window(tmp_path: Path) -> None:
    lines = "".join(
        f'{{"timestamp": {i * 100}, "input_length": {i + 1}, "output_length": 5}}\n' for i in range(500)
    )
    trace = recorded(tmp_path, "mooncake", lines)
    first, again, other = (window(trace, rate_rps=2, duration_s=10, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first[0].input_tokens != other[0].input_tokens


def test_a_trace_that_is_too_short_is_refused_with_both_counts(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"has 4 requests; 10 req/s for 30 s needs more than 300"):
        window(recorded(tmp_path, "azure", AZURE), rate_rps=10, duration_s=30, seed=0)


def test_a_line_of_another_format_is_named(tmp_path: Path) -> None:
    broken = AZURE + "2023-11-16 18:17:09.0000000,many,16\n"
    with pytest.raises(SpecError, match="line 6 is not of format azure"):
        read_rows(recorded(tmp_path, "azure", broken))


@pytest.mark.parametrize(("form", "match"), [("parquet", "not one of azure"), ("azure", "cannot be read")])
def test_an_unknown_format_or_a_missing_file_is_an_error_of_the_spec(form: str, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        read_rows(Trace(name="t", format=form, path="/nowhere/trace"))


def test_poisson_arrivals_have_a_cv_near_one_and_fixed_lengths() -> None:
    trace = Trace(name="p", format="poisson", isl_mean_tokens=256, osl_mean_tokens=64)
    rows = window(trace, rate_rps=50, duration_s=100, seed=3)
    gaps = [b.arrival_s - a.arrival_s for a, b in pairwise(rows)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1.0, abs=0.06)
    assert {(row.input_tokens, row.output_tokens) for row in rows} == {(256, 64)}


def test_a_synthetic_trace_draws_bursty_arrivals_and_lengths_within_their_range(tmp_path: Path) -> None:
    described = {
        "arrival_cv": 3.0,
        "input_tokens": {"distribution": "lognormal", "mean": 1000, "cv": 0.8, "maximum": 4000},
        "output_tokens": {"distribution": "gamma", "mean": 200, "cv": 0.5},
    }
    trace = recorded(tmp_path, "synthetic", json.dumps(described))
    rows = window(trace, rate_rps=100, duration_s=100, seed=4)
    gaps = [b.arrival_s - a.arrival_s for a, b in pairwise(rows)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(3.0, abs=0.4)
    assert statistics.mean(row.output_tokens for row in rows) == pytest.approx(200, rel=0.05)
    assert max(row.input_tokens for row in rows) <= 4000


def test_a_synthetic_trace_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is no synthetic trace"):
        window(recorded(tmp_path, "synthetic", '{"arrival_cv": 1}'), rate_rps=1, duration_s=10, seed=0)


def test_what_is_replayed_is_mooncake_lines_without_prefix_hashes() -> None:
    trace = Trace(name="p", format="poisson", isl_mean_tokens=8, osl_mean_tokens=2)
    lines = mooncake_jsonl(window(trace, rate_rps=2, duration_s=2, seed=0)).splitlines()
    assert json.loads(lines[0]) == {"timestamp": 0.0, "input_length": 8, "output_length": 2}
    assert len(lines) == 4


def test_the_digest_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    one, two = recorded(tmp_path, "azure", AZURE), recorded(tmp_path / "a", "azure", AZURE)
    assert content_digest(one) == content_digest(two)
    assert content_digest(one) != content_digest(recorded(tmp_path, "azure", AZURE[:-1]))
