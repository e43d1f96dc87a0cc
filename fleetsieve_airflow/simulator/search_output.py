"""A search's result as a table for people, as JSON for programs, and as one figure."""

from __future__ import annotations

import html
from typing import Any

from fleetsieve_airflow.simulator.search import Found, SearchResult

_COLUMNS = (
    "#",
    "configuration",
    "batch",
    "budget",
    "GPUs",
    "TTFT s",
    "TPOT ms",
    "E2E s",
    "req/s",
    "req/s/GPU",
    "req/$",
)
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 760, 420, 64, 48, 40
_COLOURS = {"continuous": "#2f6f9f", "disaggregated": "#c2571a"}


def table(result: SearchResult) -> str:
    """Return the ranking as text, with what was left out and why."""
    rows = [_COLUMNS, *(_row(number, item) for number, item in enumerate(result.ranked, 1))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [_headline(result), ""]
    if result.ranked:
        for row in rows:
            left = [f"{row[0]:>{widths[0]}}", f"{row[1]:<{widths[1]}}"]
            right = [f"{cell:>{width}}" for cell, width in zip(row[2:], widths[2:], strict=True)]
            lines.append("  ".join(left + right).rstrip())
    else:
        lines.append(_nothing(result))
    if any(item.beyond_tables for item in result.ranked):
        lines += ["", "* lies beyond the measured tables: an extrapolation."]
    left_out = "; ".join(f"{count:,} {reason}" for reason, count in result.pruned.items())
    lines += ["", f"Left out: {left_out or 'nothing'}.", f"Times from {', '.join(result.sources)}."]
    lines.append("Estimates of medians, not measurements: measure the ones you would run.")
    return "\n".join(lines)


def document(result: SearchResult) -> dict[str, Any]:
    """Return the result as JSON-able plain data."""
    targets = result.targets
    return {
        "kind": "SearchResult",
        "schema_version": 1,
        "model": result.model,
        "isl_tokens": result.profile.isl_tokens,
        "osl_tokens": result.profile.osl_tokens,
        "targets": {"ttft_s": targets.ttft_s, "tpot_s": targets.tpot_s, "e2e_s": targets.e2e_s},
        "objective": result.objective,
        "sources": list(result.sources),
        "priced": result.priced,
        "seconds": round(result.seconds, 3),
        "pruned": result.pruned,
        "ranked": [plain(item) for item in result.ranked],
        "frontier": [plain(item) for item in result.frontier],
        "nearest": None if result.nearest is None else plain(result.nearest),
    }


def plain(item: Found) -> dict[str, Any]:
    """Return one configuration as plain data."""
    return {
        "label": item.label,
        "runtime": item.runtime,
        "serve": _pool(item, prefill=False),
        "prefill": _pool(item, prefill=True),
        "batch": item.batch,
        "budget": item.budget,
        "gpus": item.gpus,
        "ttft_s": item.ttft_s,
        "tpot_s": item.tpot_s,
        "e2e_s": item.e2e_s,
        "rate_rps": item.rate_rps,
        "rate_per_gpu": item.rate_per_gpu,
        "cost_per_hour": item.cost_per_hour,
        "requests_per_dollar": item.requests_per_dollar,
        "beyond_tables": item.beyond_tables,
    }


def _pool(item: Found, *, prefill: bool) -> dict[str, Any] | None:
    engine, replicas = (item.prefill, item.prefills) if prefill else (item.serve, item.decoders)
    if engine is None:
        return None
    plan = engine.plan
    return {
        "gpu": engine.database.hardware.name,
        "replicas": replicas,
        "tensor_parallel": plan.tp,
        "pipeline_parallel": plan.pp,
        "data_parallel": plan.dp,
        "expert_parallel": plan.ep > 1,
        "context_parallel": plan.cp,
        "speculative_tokens": engine.settings.speculation.tokens if engine.settings.speculation else 0,
    }


def figure(result: SearchResult) -> str:
    """Return the frontier as an SVG: throughput per GPU (or money) against the speed one user sees."""
    points = [(1.0 / item.tpot_s, _value(result, item), item) for item in result.frontier]
    best = [(1.0 / item.tpot_s, _value(result, item), item) for item in result.ranked[:1]]
    right = max((x for x, _, _ in points), default=1.0) * 1.08
    top = max((y for _, y, _ in points), default=1.0) * 1.1
    unit = "requests per second and GPU" if result.objective == "per_gpu" else "requests per dollar"

    def place(x: float, y: float) -> tuple[float, float]:
        inner_width, inner_height = _WIDTH - _LEFT - 20, _HEIGHT - _BOTTOM - _TOP
        return _LEFT + x / right * inner_width, _TOP + (1.0 - y / top) * inner_height

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{html.escape(_headline(result))}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{html.escape(result.model)}: {unit} against speed</text>',
        *_axes(place, right, top),
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 8}" text-anchor="middle">tokens per second a user sees</text>',
    ]
    if points:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(px, py) for px, py, _ in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="#bbb"/>')
    for x, y, item in points + best:
        px, py = place(x, y)
        radius, opacity = (7, 0.35) if (x, y, item) in best else (4, 0.9)
        parts.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{radius}" fill="{_COLOURS[item.runtime]}" '
            f'fill-opacity="{opacity}"><title>{html.escape(_words(item))}</title></circle>'
        )
    for number, (runtime, colour) in enumerate(_COLOURS.items()):
        y = _TOP + 4 + 16 * number
        parts.append(f'<circle cx="{_WIDTH - 130}" cy="{y}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{_WIDTH - 120}" y="{y + 4}">{runtime}</text>')
    return "\n".join([*parts, "</svg>"])


def page(result: SearchResult) -> str:
    """Return the figure and the table as one HTML page."""
    title = html.escape(f"FleetSieve search: {result.model}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<body style="max-width:72rem;margin:2rem auto;font-family:system-ui">'
        f'{figure(result)}<pre style="white-space:pre-wrap">{html.escape(table(result))}</pre></body></html>'
    )


def _axes(place: Any, right: float, top: float) -> list[str]:
    parts = []
    (x0, y0), (x1, y1) = place(0.0, 0.0), place(right, top)
    parts.append(f'<path d="M{x0:.1f},{y1:.1f} V{y0:.1f} H{x1:.1f}" fill="none" stroke="#444"/>')
    for share in (0.25, 0.5, 0.75, 1.0):
        x, y = place(right * share, top * share)
        parts.append(f'<text x="{x:.1f}" y="{y0 + 16:.1f}" text-anchor="middle">{right * share:.3g}</text>')
        parts.append(f'<text x="{x0 - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{top * share:.3g}</text>')
    return parts


def _headline(result: SearchResult) -> str:
    limits = (("TTFT", result.targets.ttft_s), ("TPOT", result.targets.tpot_s), ("E2E", result.targets.e2e_s))
    asked = (
        ", ".join(f"{name} <= {limit:g} s" for name, limit in limits if limit is not None)
        or "no latency target"
    )
    return (
        f"{result.model}, {result.profile.isl_tokens:g} tokens in and {result.profile.osl_tokens:g} out, "
        f"{asked or 'no latency target'}: "
        f"{result.priced:,} configurations priced in {result.seconds:.1f} s"
    )


def _nothing(result: SearchResult) -> str:
    if result.nearest is None:
        return "No configuration of this space can run."
    return f"No configuration meets the targets. The nearest: {_words(result.nearest)}."


def _words(item: Found) -> str:
    return (
        f"{item.label}, batch {item.batch}: TTFT {item.ttft_s:.3g} s, TPOT {item.tpot_s * 1e3:.3g} ms, "
        f"{item.rate_rps:.3g} req/s on {item.gpus} GPUs"
    )


def _row(number: int, item: Found) -> tuple[str, ...]:
    per_dollar = item.requests_per_dollar
    return (
        str(number),
        item.label + ("*" if item.beyond_tables else ""),
        str(item.batch),
        str(item.budget or "-"),
        str(item.gpus),
        f"{item.ttft_s:.3f}",
        f"{item.tpot_s * 1e3:.1f}",
        f"{item.e2e_s:.2f}",
        f"{item.rate_rps:.2f}",
        f"{item.rate_per_gpu:.3f}",
        "-" if per_dollar is None else f"{per_dollar:.0f}",
    )


def _value(result: SearchResult, item: Found) -> float:
    return item.rate_per_gpu if result.objective == "per_gpu" else (item.requests_per_dollar or 0.0)
