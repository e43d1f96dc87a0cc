from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsieve_airflow.cli import main
from fleetsieve_airflow.simulator.models import model_named
from fleetsieve_airflow.simulator.plans import Speculation
from fleetsieve_airflow.simulator.search import SearchResult, Targets, frontier_of, meets, search
from fleetsieve_airflow.simulator.search_output import document, figure, page, table
from fleetsieve_airflow.simulator.space import SearchSpace, databases_named, plans
from fleetsieve_airflow.simulator.steady import LengthProfile
from tests.simulator.conftest import FP8

PROFILE = LengthProfile(isl_tokens=4000, osl_tokens=500)
DENSE = model_named("llama-3.1-70b").with_precision(FP8)


def space(*gpus: str, **changes: object) -> SearchSpace:
    settings = {"batches": (1, 4, 16, 64, 256), "budgets": (2048, 8192), "prefill_replicas": 3, **changes}
    return SearchSpace(databases=databases_named(gpus or ("h100",), "roofline", "vllm"), **settings)  # type: ignore[arg-type]


def run(targets: Targets | None = None, *gpus: str, **changes: object) -> SearchResult:
    return search(DENSE, PROFILE, space(*gpus, **changes), targets)


def test_every_configuration_is_priced_or_left_out_for_a_named_reason() -> None:
    result = run()
    assert result.priced > 0
    assert "weights and one request do not fit into memory" in result.pruned
    assert all(count > 0 for count in result.pruned.values())


def test_what_is_ranked_meets_the_targets_best_first() -> None:
    targets = Targets(ttft_s=1.5, tpot_s=0.03)
    result = run(targets)
    assert result.ranked
    assert all(meets(item, targets) for item in result.ranked)
    values = [item.rate_per_gpu for item in result.ranked]
    assert values == sorted(values, reverse=True)


def test_nothing_of_the_space_beats_the_frontier_in_both_speed_and_throughput() -> None:
    result = run()
    speeds = [item.tpot_s for item in result.frontier]
    values = [item.rate_per_gpu for item in result.frontier]
    assert speeds == sorted(speeds)
    assert values == sorted(values)
    for item in result.ranked:
        assert not any(
            other.tpot_s < item.tpot_s and other.rate_per_gpu > item.rate_per_gpu
            for other in result.ranked
            if item in result.frontier
        )


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=40))
def test_a_frontier_holds_what_no_other_point_dominates(points: list[tuple[int, int]]) -> None:
    cost, value = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    chosen = {points[index] for index in frontier_of(cost, value)}
    best = {(c, v) for c, v in points if not any((d <= c and w > v) or (d < c and w >= v) for d, w in points)}
    assert chosen == best


def test_a_target_nothing_meets_names_the_nearest_configuration() -> None:
    result = run(Targets(tpot_s=1e-4))
    assert result.ranked == ()
    assert result.nearest is not None
    assert "No configuration meets the targets. The nearest: h100 TP8" in table(result)


def test_a_space_in_which_nothing_fits_says_so() -> None:
    result = run(None, "l40s", tp=(1,), pp=(1,))
    assert result.priced == 0
    assert "No configuration of this space can run." in table(result)


def test_money_ranks_a_cheap_gpu_above_a_fast_one_where_both_meet_the_targets() -> None:
    dear = databases_named(("h100", "h200"), "roofline", "vllm", {"h100": 1.0, "h200": 9.0})
    result = search(
        DENSE,
        PROFILE,
        SearchSpace(databases=dear, batches=(1, 16, 64), budgets=(8192,), disaggregated=False),
        objective="per_dollar",
    )
    assert result.ranked[0].serve.database.hardware.name == "h100"


def test_prefill_and_decode_may_come_from_different_gpus() -> None:
    result = search(DENSE, PROFILE, space("h100", "b200"), top=400)
    mixed = {
        (item.prefill.database.hardware.name, item.serve.database.hardware.name)
        for item in result.ranked
        if item.prefill is not None
    }
    assert {("h100", "b200"), ("b200", "h100"), ("b200", "b200"), ("h100", "h100")} <= mixed


def test_groups_larger_than_allowed_are_left_out() -> None:
    result = run(None, max_gpus=8)
    assert all(item.gpus <= 8 for item in (*result.ranked, *result.frontier))
    assert result.pruned["more GPUs than allowed"] > 0


def test_extrapolations_are_marked_and_can_be_left_out() -> None:
    far = LengthProfile(isl_tokens=4000, osl_tokens=400_000)
    marked = search(DENSE, far, space(batches=(1,)), top=3)
    assert all(item.beyond_tables for item in marked.ranked)
    assert "* lies beyond the measured tables" in table(marked)
    strict = search(DENSE, far, space(batches=(1,)), Targets(allow_extrapolation=False))
    assert strict.ranked == ()


def test_a_dense_model_is_not_cut_over_data_parallel_ranks_and_a_sparse_one_is() -> None:
    sparse = model_named("qwen3-235b-a22b")
    assert {plan.dp for plan in plans(DENSE, space())} == {1}
    assert {plan.dp for plan in plans(sparse, space())} == {1, 2, 4, 8}
    assert {plan.ep for plan in plans(sparse, space(tp=(2,), dp=(2,)))} == {1, 4}


def test_context_parallel_ranks_serve_prefill_pools_only() -> None:
    result = search(DENSE, PROFILE, space(cp=(1, 2), tp=(4,), pp=(1,)), top=50)
    assert {item.serve.plan.cp for item in result.ranked} == {1}
    assert 2 in {item.prefill.plan.cp for item in result.ranked if item.prefill}


def test_speculation_is_one_more_dimension() -> None:
    guess = Speculation(tokens=3, acceptance=0.8)
    result = search(DENSE, PROFILE, space(speculations=(None, guess), batches=(1,)), Targets(), top=100)
    fastest = min(result.ranked, key=lambda item: item.tpot_s)
    assert fastest.serve.settings.speculation == guess
    assert "spec3" in fastest.label


def test_progress_counts_up_to_all_configurations() -> None:
    seen: list[tuple[int, int]] = []
    result = search(DENSE, PROFILE, space(), progress=lambda done, every: seen.append((done, every)))
    assert seen[-1] == (result.priced, result.priced)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_the_document_is_json_and_the_figure_is_svg() -> None:
    result = run(Targets(tpot_s=0.05))
    read = json.loads(json.dumps(document(result), allow_nan=False))
    assert read["ranked"][0]["rate_per_gpu"] == result.ranked[0].rate_per_gpu
    root = ElementTree.fromstring(figure(result))  # noqa: S314 - our own text
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == len(result.frontier) + 1 + 2
    assert page(result).startswith("<!doctype html>")


COMMAND = [
    "search",
    "llama-3.1-70b",
    "--isl",
    "4000",
    "--osl",
    "500",
    "--dtype",
    "fp8",
    "--max-batch",
    "16",
    "--quiet",
]


def test_the_command_prints_a_table_and_writes_what_it_is_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "s.json", tmp_path / "s.svg", tmp_path / "s.html"]
    options = [
        part
        for name, path in zip(("--json", "--svg", "--html"), files, strict=True)
        for part in (name, str(path))
    ]
    assert main([*COMMAND, "--gpu", "h100", "h100@400W", "--tpot", "0.03", *options]) == 0
    printed = capsys.readouterr().out
    assert "configurations priced" in printed
    assert "Estimates of medians, not measurements" in printed
    assert all(path.stat().st_size > 500 for path in files)


def test_the_command_exits_with_1_where_nothing_meets_the_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--tpot", "0.0001"]) == 1
    assert "The nearest" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--gpu", "tpu"], "No GPU named 'tpu'; known: a100"),
        (["--price", "h100=cheap"], "is not GPU=PER_HOUR"),
        (["--speculate", "many"], "is not TOKENS:ACCEPTANCE"),
        (["--dtype", "fp7"], "Unknown number format 'fp7'"),
    ],
)
def test_the_command_says_in_one_line_what_it_cannot_price(
    change: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *change]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
