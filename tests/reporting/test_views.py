"""The saved views: a format that belongs to MLflow's browser, so its shape is held here."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest

from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.evidence import Evidence
from fleetsieve_airflow.reporting import layout, views
from tests.builders import make_measurement, make_point, make_spec

STATES = [views.plans_state(), views.measurements_state()]


@pytest.mark.parametrize("kind", [layout.PLANS, layout.MEASUREMENTS])
def test_a_view_is_named_dated_and_compressed_as_the_browser_reads_it(kind: layout.Kind) -> None:
    key, value = views.view_tag(kind, 1_796_053_656_650)
    assert key == f"mlflow.sharedViewState.{kind}"
    envelope = json.loads(value)
    assert set(envelope) == {"name", "createdAt", "updatedAt", "state"}
    assert (envelope["name"], envelope["createdAt"]) == (kind.capitalize(), 1_796_053_656_650)
    prefix, packed = envelope["state"].split(";")
    assert prefix == "deflate"
    state = json.loads(zlib.decompress(base64.b64decode(packed)))
    assert state == views.read_state(value)
    assert len(value) < 5000


@pytest.mark.parametrize("state", STATES)
def test_every_chart_sits_in_the_first_section_and_has_an_id_of_its_own(state: dict[str, Any]) -> None:
    first, *generated = state["compareRunSections"]
    assert [section["name"] for section in generated] == ["Model metrics", "System metrics"]
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == {first["uuid"]}
    ids = [chart["uuid"] for chart in state["compareRunCharts"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("state", STATES)
def test_every_column_has_a_width(state: dict[str, Any]) -> None:
    assert list(state["columnWidths"]) == state["columnOrder"] == state["selectedColumns"]


def test_the_plans_view_shows_only_metrics_that_plans_have() -> None:
    spec = make_spec()
    logged = set(layout.plan_metrics(spec, decide(spec, Evidence()))) | {"fleet/gpu_seconds_window_saved"}
    state = views.plans_state()
    columns = {name for name in state["selectedColumns"] if name.startswith("metrics.")}
    assert columns <= {f"metrics.`{name}`" for name in logged}
    charted = {name for chart in state["compareRunCharts"] for name in chart["selectedMetricKeys"]}
    assert charted <= logged


def test_the_measurements_view_shows_only_what_measurements_have() -> None:
    percentiles = {f"{metric}_p99_s": 1.0 for metric in ("ttft", "tpot", "e2e")}
    metrics = layout.measurement_metrics(make_measurement(load=8.0, percentiles=percentiles))
    known = {f"metrics.`{name}`" for name in metrics}
    known |= {f"params.`{name}`" for name in layout.point_params(make_spec(), make_point(load=8.0))}
    known |= {f"tags.`{name}`" for name in (layout.TAG_PLAN_NAME, layout.TAG_ROUND)}
    assert set(views.measurements_state()["selectedColumns"]) <= known
    assert "attributes.status = 'FINISHED'" in views.measurements_state()["searchFilter"]
