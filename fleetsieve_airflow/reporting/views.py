"""Saved views of MLflow's run lists: which columns and charts a fleet's two experiments open with.

MLflow 3.17 keeps a saved view as an experiment tag whose value is JSON holding compressed JSON. The format is
internal to its browser: whoever writes these tags must carry on when they are refused or no longer
understood.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from fleetsieve_airflow.reporting.layout import (
    KIND_MEASUREMENT,
    MEASUREMENTS,
    PLANS,
    TAG_KIND,
    TAG_PLAN,
    TAG_PLAN_NAME,
    TAG_ROUND,
    TAG_VERDICT,
    Kind,
)

#: Raise it with any change below: views are written once per version, so that edits made by people stay.
VIEWS_VERSION = "3"
TAG_PREFIX = "mlflow.sharedViewState."
_TITLES = {PLANS: "Plans", MEASUREMENTS: "Measurements"}
_SECTION = "section-first"
_SHOWN_PERCENTILES = ("ttft_p99_s", "tpot_p99_s", "e2e_p99_s")


def view_tag(kind: Kind, created_ms: int) -> tuple[str, str]:
    """Return the experiment tag (key, value) that holds an experiment's saved view.

    :param created_ms: when the view was made, milliseconds since 1970, as the browser shows it.
    """
    state = plans_state() if kind == PLANS else measurements_state()
    packed = base64.b64encode(zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 9)).decode()
    envelope = {
        "name": _TITLES[kind],
        "createdAt": created_ms,
        "updatedAt": created_ms,
        "state": f"deflate;{packed}",
    }
    return f"{TAG_PREFIX}{kind}", json.dumps(envelope, separators=(",", ":"))


def read_state(tag_value: str) -> dict[str, Any]:
    """Return the state inside a saved view's tag, the reverse of :func:`view_tag`."""
    packed = json.loads(tag_value)["state"].removeprefix("deflate;")
    state: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return state


def plans_state() -> dict[str, Any]:
    """Return the view of campaigns: the decision in words and numbers, and how both bounds met by round."""
    columns = {
        # What was decided and what it cost, before anything that a narrow window may not show.
        _column("tags", TAG_VERDICT): 110,
        _column("tags", TAG_PLAN): 160,
        _column("metrics", "fleet/gpu_seconds_window"): 190,
        _column("metrics", "fleet/points_measured"): 155,
        _column("metrics", "fleet/fulfilment_conservative"): 190,
        _column("metrics", "fleet/gap"): 90,
        _column("metrics", "fleet/gpus_conservative"): 170,
        _column("metrics", "fleet/gpu_seconds_window_saved"): 220,
        _column("metrics", "fleet/points_reused"): 145,
    }
    charts = [
        _line("fulfilment_conservative", "fulfilment_optimistic"),
        _line("gap", "regret"),
        _line("gpus_conservative", "gpus_optimistic"),
        _line("gpu_seconds_window"),
        _line("points_measured"),
        _line("points_skipped"),
    ]
    return _state("Decision by round", columns, charts)


def measurements_state() -> dict[str, Any]:
    """Return the view of measurements: one table of what was measured, and each latency against the load."""
    columns = {
        _column("params", "workload"): 110,
        _column("params", "engine_config"): 115,
        _column("params", "offered_load_rps"): 140,
        _column("metrics", "served_rps"): 100,
        _column("metrics", "success_rate"): 110,
        **{_column("metrics", name): 100 for name in _SHOWN_PERCENTILES},
        _column("metrics", "gpu_seconds_billed"): 150,
        _column("tags", TAG_PLAN_NAME): 180,
        _column("tags", TAG_ROUND): 130,
    }
    charts = [_scatter(name) for name in (*_SHOWN_PERCENTILES, "served_rps")]
    # Claims that lost a race and runs that broke measured nothing: they would be empty rows.
    search = f"tags.`{TAG_KIND}` = '{KIND_MEASUREMENT}' AND attributes.status = 'FINISHED'"
    # Of its own accord the browser draws the first ten.
    everything = {"runsHiddenMode": "SHOW_ALL"}
    return _state("Latency and served rate against load", columns, charts, search) | everything


def _state(
    section: str, columns: Mapping[str, int], charts: Sequence[dict[str, Any]], search: str = ""
) -> dict[str, Any]:
    """Return a view: column -> width in pixels, in the order of the table; all charts in one section."""
    # The browser takes the last two sections to be its own pair of generated ones.
    sections = {_SECTION: section, "section-model": "Model metrics", "section-system": "System metrics"}
    return {
        "searchFilter": search,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": list(columns),
        "columnOrder": list(columns),
        "columnWidths": dict(columns),
        "compareRunCharts": [{**chart, "uuid": f"chart-{index}"} for index, chart in enumerate(charts)],
        "compareRunSections": [
            {
                "uuid": uuid,
                "name": name,
                "display": True,
                "isReordered": False,
                "deleted": False,
                "isGenerated": uuid != _SECTION,
                # With three beside each other, titles and axes are cut in a window of usual width.
                "columns": 2,
            }
            for uuid, name in sections.items()
        ],
        "hideEmptyCharts": True,
    }


def _column(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"


def _card(kind: str) -> dict[str, Any]:
    return {"type": kind, "deleted": False, "isGenerated": False, "metricSectionId": _SECTION}


def _line(*metrics: str) -> dict[str, Any]:
    names = [f"fleet/{metric}" for metric in metrics]
    return {
        **_card("LINE"),
        "runsCountToCompare": 10,
        "metricKey": names[0],
        "selectedMetricKeys": names,
        "lineSmoothness": 0,
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "yAxisKey": "metric",
        "displayPoints": True,
    }


def _scatter(metric: str) -> dict[str, Any]:
    return {
        **_card("SCATTER"),
        "runsCountToCompare": 100,
        "xaxis": {"key": "offered_load_rps", "type": "PARAM"},
        "yaxis": {"key": metric, "type": "METRIC"},
    }
