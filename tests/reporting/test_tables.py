"""Tables and descriptions of a campaign in MLflow."""

from __future__ import annotations

import json

from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.evidence import Evidence
from fleetsieve_airflow.reporting import tables
from tests.builders import make_evidence, make_measurement, make_point, make_spec

SPEC = make_spec(demand={"chat": 12.0, "code": 5.0})
KNOWN = make_evidence(
    make_measurement(SPEC, "chat", "TP4", 8.0), make_measurement(SPEC, "code", "TP2", 12.0, met=False)
)


def test_measurements_are_rows_in_the_order_they_became_known() -> None:
    key = make_point(SPEC, "chat", "TP4", 8.0).key
    table = tables.measurements_table(KNOWN, {key: "met"})
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [row["point"] for row in rows] == ["chat TP4 8 req/s", "code TP2 12 req/s"]
    assert [row["verdict"] for row in rows] == ["met", None]
    assert rows[0]["ttft_p99_s"] == 1.0
    assert rows[0]["e2e_p99_s"] is None
    json.dumps(table, allow_nan=False)


def test_the_first_four_columns_answer_what_was_measured() -> None:
    assert tables.measurements_table(Evidence(), {})["columns"][:4] == [
        "point",
        "verdict",
        "round",
        "served_rps",
    ]


def test_what_was_skipped_says_why() -> None:
    decision = decide(SPEC, KNOWN)
    table = tables.skipped_table(SPEC, decision)
    assert len(table["data"]) == len(decision.skipped) > 0
    for row, item in zip(table["data"], decision.skipped, strict=True):
        assert row[0].startswith(f"{item.workload} {item.config} ")
        assert row[0].endswith(" req/s")
        assert row[1] == item.reason


def test_a_description_begins_with_the_verdict_and_goes_on_with_the_plan() -> None:
    decision = decide(SPEC, KNOWN)
    lines = tables.plan_note(SPEC, decision).splitlines()
    assert lines[0].startswith("**Measuring: not decided after round 2.** ")
    rows = [line for line in lines if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| chat", "| code"]
    assert {row.count("|") for row in rows} == {7}


def test_evidence_and_cost_are_in_the_lines_that_mlflow_shows_at_once() -> None:
    lines = tables.plan_note(
        SPEC, decide(SPEC, KNOWN), {"report": "#r", "all measurements": "#m"}
    ).splitlines()
    assert "2 points measured, 0 reused, of 24; 1,800 of 33,600 GPU-seconds" in lines[2]
    assert lines[3] == "[report](#r) · [all measurements](#m)"


def test_a_plan_fits_on_one_line() -> None:
    spec = make_spec()
    decision = decide(
        spec, make_evidence(make_measurement(spec, load=8.0), make_measurement(spec, load=12.0))
    )
    assert tables.plan_words(decision.conservative) == "chat 1 x TP4"
    assert tables.plan_words(decide(spec, Evidence()).conservative) == "nothing yet"


def test_a_measurement_says_what_came_out_and_who_paid() -> None:
    note = tables.measurement_note(
        make_measurement(load=8.0, curtailed=True),
        round=2,
        plan_name="2026-11-30-weekly",
        plan_ids=("1", "abc"),
    )
    assert note.startswith("**chat TP4 8 req/s: 8 req/s served.** TTFT p99 1 s. The window ended early")
    assert "[2026-11-30-weekly](#/experiments/1/runs/abc?workflowType=machine_learning)" in note


def test_a_refusal_is_told_in_the_engines_words() -> None:
    refused = make_measurement(load=8.0, refused="CUDA out of memory", served_rps=0.0, percentiles={})
    note = tables.measurement_note(refused, round=1, plan_name="p", plan_ids=("1", "abc"))
    assert "The engine refused to start: CUDA out of memory" in note
