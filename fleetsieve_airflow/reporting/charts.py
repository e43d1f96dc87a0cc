"""Charts of a campaign as SVG text: bounds by round, and each candidate's capacity against replica ticks.

Pure functions of records. No meaning hangs on colour alone: the conservative side is solid, the optimistic
side dashed, a chosen candidate is bold. What a chart cannot show is counted in its report, never dropped in
silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleetsieve_airflow.evidence import CapacityInterval, Decision
from fleetsieve_airflow.records import Candidate, FleetSpec, Workload
from fleetsieve_airflow.reporting import charts_svg as draw
from fleetsieve_airflow.reporting import report_words as words
from fleetsieve_airflow.reporting.charts_svg import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PALE, TICK

HALF_WIDTH = 510.0
FULL_WIDTH = 1048.0


def bounds_by_round(spec: FleetSpec, rounds: Sequence[Decision], *, width: float = HALF_WIDTH) -> str:
    """Draw the objective of the conservative plan (solid) and the optimistic plan (dashed) by round.

    :param rounds: the campaign's decisions so far, at least one.
    :param width: of the picture, in pixels.
    """
    series = words.bounds_series(spec, rounds)
    frame = _Frame.of(spec, series, width)
    body = _legend(series) + _axes(spec, series, frame) + _band(series, frame)
    if series.decided:
        body += _decided(spec, series, frame)
    steps = "; ".join(
        f"round {number}: conservative {words.plan_value_text(spec, low)}, "
        f"optimistic {words.plan_value_text(spec, high)}"
        for number, low, high in zip(series.rounds, series.conservative, series.optimistic, strict=True)
    )
    return draw.svg(
        body, width=width, height=frame.height, label=f"{series.title} by round. {draw.cut(steps, 600)}."
    )


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where data goes: pixels of the plot's edges and the value at its top."""

    left: float
    right: float
    top: float
    bottom: float
    height: float
    slots: int
    value_max: float

    @classmethod
    def of(cls, spec: FleetSpec, series: words.BoundsSeries, width: float) -> _Frame:
        value_max = draw.nice_ceiling(words.beyond(spec)) if words.counts_need(spec) else 1.0
        return cls(50.0, width - 12.0, 40.0, 214.0, 258.0, len(series.rounds), value_max)

    def x(self, slot: float) -> float:
        """Left edge of a round's slot; half a slot further is its middle."""
        return self.left + (self.right - self.left) * slot / self.slots

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * min(value / self.value_max, 1.0)


def _legend(series: words.BoundsSeries) -> str:
    entries = (
        ("conservative", {"stroke": BLUE, "stroke_width": "2.5"}),
        ("optimistic", {"stroke": ORANGE, "stroke_width": "2.5", "stroke_dasharray": "6 4"}),
        (series.limit_name, {"stroke": MUTED, "stroke_width": "1.5", "stroke_dasharray": "1.5 3"}),
    )
    x, parts = 2.0, []
    for name, stroke in entries:
        parts.append(draw.line(x, 14, x + 24, 14, **stroke) + draw.label(x + 30, 18, name, fill=INK))
        x += 30 + draw.text_width(name, 11) + 16
    if series.decided:
        parts.append(_dot(x + 5, 14) + draw.label(x + 16, 18, "decided", fill=INK))
    return "".join(parts)


def _axes(spec: FleetSpec, series: words.BoundsSeries, frame: _Frame) -> str:
    parts = []
    for step in range(5):
        value = frame.value_max * step / 4
        y = frame.y(value)
        parts.append(draw.line(frame.left, y, frame.right, y, stroke=GRID))
        shown = draw.number(value) if words.counts_need(spec) else draw.percent(value)
        parts.append(draw.label(frame.left - 6, y + 4, shown, text_anchor="end", fill=MUTED))
    limit = frame.y(series.limit)
    parts.append(
        draw.line(
            frame.left, limit, frame.right, limit, stroke=MUTED, stroke_width="1.5", stroke_dasharray="1.5 3"
        )
    )
    parts.append(draw.label(frame.left - 6, frame.bottom + 18, "round", text_anchor="end", fill=MUTED))
    parts.append(draw.label(frame.left - 6, frame.bottom + 34, "GPU-s", text_anchor="end", fill=MUTED))
    widest = max(draw.text_width(draw.number(spent), 11) for spent in series.spent) + 12
    every = max(1, -(-int(widest * frame.slots) // int(frame.right - frame.left)))
    for slot in range(series.last, -1, -every):
        x = frame.x(slot + 0.5)
        parts.append(
            draw.label(x, frame.bottom + 18, str(series.rounds[slot]), text_anchor="middle", fill=INK)
        )
        spent = draw.number(series.spent[slot])
        parts.append(draw.label(x, frame.bottom + 34, spent, text_anchor="middle", fill=MUTED))
    return "".join(parts)


def _band(series: words.BoundsSeries, frame: _Frame) -> str:
    low, high = (
        [(frame.x(slot + side), frame.y(value)) for slot, value in enumerate(values) for side in (0, 1)]
        for values in (series.conservative, series.optimistic)
    )
    return (
        draw.path([*low, *reversed(high)], close=True, fill=PALE, fill_opacity="0.7")
        + draw.path(low, fill="none", stroke=BLUE, stroke_width="2.5")
        + draw.path(high, fill="none", stroke=ORANGE, stroke_width="2.5", stroke_dasharray="6 4")
    )


def _decided(spec: FleetSpec, series: words.BoundsSeries, frame: _Frame) -> str:
    value = series.conservative[-1]
    x, y = frame.x(series.last + 0.5), frame.y(value)
    text = words.plan_value_text(spec, value)
    half = draw.text_width(text, 12, bold=True) / 2
    baseline = y + 22 if y < frame.top + 24 else y - 12
    halo = {"stroke": "#fff", "stroke_width": "3", "paint_order": "stroke"}
    look = {"text_anchor": "middle", "font_size": "12", "font_weight": "600", "fill": GREEN}
    return _dot(x, y) + draw.label(min(x, frame.right - half), baseline, text, **look, **halo)


def _dot(x: float, y: float) -> str:
    return draw.rect(x - 5, y - 5, 10, 10, rx="5", fill=GREEN, stroke="#fff", stroke_width="1.5")


_ROW = 24.0
_HEAD = 44.0
_LABELS_MIN = 112.0
_LABELS_MAX = 190.0
_CLOSEST_TICKS = 4.0
#: More rows than this are laid out in two columns over the full width.
HALF_WIDTH_ROWS = 12


def capacity_intervals(spec: FleetSpec, decision: Decision, shown: Sequence[Candidate]) -> str:
    """Draw each candidate's capacity per replica against the loads where a replica more or fewer is needed.

    From the tick of n replicas (at demand x required fulfilment / n) up to the tick of n - 1, n replicas are
    needed, so a bar that crosses no tick is settled however wide it is.

    :param shown: candidates to draw, grouped by workload in the order of the spec.
    """
    known = {(interval.workload, interval.config): interval for interval in decision.intervals}
    rows: dict[str, list[tuple[Candidate, CapacityInterval]]] = {}
    for candidate in shown:
        if interval := known.get((candidate.workload, candidate.config)):
            rows.setdefault(candidate.workload, []).append((candidate, interval))
    look = _Look.of(decision)
    columns = [0.0] if sum(map(len, rows.values())) <= HALF_WIDTH_ROWS else [0.0, 0.0]
    parts = []
    for workload in spec.workloads:
        if workload.name in rows:
            panel = _Panel.of(spec, workload, rows[workload.name], look)
            column = columns.index(min(columns))
            at = f"translate({draw.px(column * (FULL_WIDTH - HALF_WIDTH))} {draw.px(columns[column])})"
            parts.append(draw.group(_panel(panel, look), transform=at))
            columns[column] += panel.bottom + 14
    known_texts = [
        f"{item.label} {words.interval_text(item)} req/s" for row in rows.values() for _, item in row
    ]
    return draw.svg(
        "".join(parts),
        width=HALF_WIDTH if len(columns) == 1 else FULL_WIDTH,
        height=max([*columns, 7.0]) - 6,
        label=f"Capacity per replica. {draw.cut('; '.join(known_texts), 600)}.",
    )


@dataclass(frozen=True, slots=True)
class _Look:
    """Which candidates the plans use: replicas in the conservative one, and what only the other one uses."""

    chosen: dict[tuple[str, str], int]
    hoped: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, decision: Decision) -> _Look:
        chosen = {(item.workload, item.config): item.replicas for item in words.used(decision.conservative)}
        hoped = {(item.workload, item.config) for item in words.used(decision.optimistic)}
        return cls(chosen, frozenset(hoped - set(chosen)))

    def name(self, interval: CapacityInterval) -> str:
        """Name a row: its config, with the replicas where the conservative plan runs it."""
        replicas = self.chosen.get((interval.workload, interval.config), 0)
        return f"{replicas} x {interval.config}" if replicas else interval.config

    def weight(self, interval: CapacityInterval) -> dict[str, str]:
        """Return the attributes that make a chosen row bold."""
        return {"font_weight": "600"} if (interval.workload, interval.config) in self.chosen else {}


@dataclass(frozen=True, slots=True)
class _Panel:
    """One workload's rows, with a scale of their own in req/s and replica ticks as (replicas, req/s)."""

    name: str
    demand_rps: float
    intervals: tuple[CapacityInterval, ...]
    right: float
    rps_max: float
    ticks: tuple[tuple[int, float], ...]
    left: float
    width: float = HALF_WIDTH

    @classmethod
    def of(
        cls,
        spec: FleetSpec,
        workload: Workload,
        rows: Sequence[tuple[Candidate, CapacityInterval]],
        look: _Look,
    ) -> _Panel:
        intervals = tuple(interval for _, interval in rows)
        ends = [bound.value_rps for item in intervals for bound in (item.lower, item.upper)]
        ends += [row.loads[-1] for row, _ in rows if row.load_kind == "offered_load_rps"]
        highest = max([end for end in ends if end is not None], default=0.0)
        required = workload.demand_rps * spec.decision.required_fulfilment
        if highest <= 0.0 or highest < required <= 1.3 * highest:
            highest = required
        most = max(words.most_replicas(spec, row) for row, _ in rows)
        ticks = tuple((n, required / n) for n in range(1, most + 1) if required / n <= highest * 1.04)
        numbers = max(draw.text_width(words.interval_text(item), 12) for item in intervals) + 14
        right = HALF_WIDTH - min(max(numbers, 50.0), 130.0)
        names = max(draw.text_width(look.name(item), 12, bold=True) for item in intervals) + 16
        left = min(max(names, _LABELS_MIN), _LABELS_MAX)
        return cls(workload.name, required, intervals, right, highest * 1.04, ticks, left)

    @property
    def bottom(self) -> float:
        return _HEAD + len(self.intervals) * _ROW

    def x(self, rps: float) -> float:
        return self.left + (self.right - self.left) * min(rps / self.rps_max, 1.0)


def _panel(panel: _Panel, look: _Look) -> str:
    rows = [(interval, _HEAD + i * _ROW) for i, interval in enumerate(panel.intervals)]
    bars = "".join(_bar(panel, look, interval, y) for interval, y in rows)
    names = "".join(_row_name(panel, look, interval, y) for interval, y in rows)
    numbers = "".join(_row_numbers(panel, look, interval, y) for interval, y in rows)
    return (
        _panel_head(panel)
        + draw.group(bars, fill=PALE, stroke=BLUE)
        + _tick_lines(panel)
        + draw.group(names + draw.group(numbers, text_anchor="end"), fill=INK, font_size="12")
    )


def _panel_head(panel: _Panel) -> str:
    demand = f"needs {draw.number(panel.demand_rps)} req/s"
    name = draw.fit(panel.name, 12, panel.width - draw.text_width(demand, 11) - 20, bold=True)
    parts = [
        draw.label(panel.width, 14, demand, text_anchor="end"),
        draw.label(panel.left - 8, 34, "replicas needed", text_anchor="end"),
        draw.label(panel.width, 34, "req/s", text_anchor="end"),
    ]
    end = panel.right
    for replicas, rps in panel.ticks:
        x = panel.x(rps)
        text = str(replicas)
        if end - x > draw.text_width(text, 11) + 4:
            parts.append(draw.label((x + end) / 2, 34, text, text_anchor="middle"))
        end = x
    title = draw.label(0, 14, name, font_size="12", font_weight="600", fill=INK)
    return title + draw.group("".join(parts), fill=MUTED)


def _tick_lines(panel: _Panel) -> str:
    """Draw the replica ticks over the bars, leaving out those that would melt into a grey block."""
    places, last = [], panel.right + _CLOSEST_TICKS
    for _, rps in panel.ticks:
        x = panel.x(rps)
        if last - x < _CLOSEST_TICKS:
            break
        last = x
        places.append(x)
    return draw.verticals(places, 26, panel.bottom, stroke=TICK, stroke_opacity="0.8") if places else ""


def _row_name(panel: _Panel, look: _Look, interval: CapacityInterval, y: float) -> str:
    weight = look.weight(interval)
    return draw.label(
        6, y + 16, draw.fit(look.name(interval), 12, panel.left - 14, bold=bool(weight)), **weight
    )


def _row_numbers(panel: _Panel, look: _Look, interval: CapacityInterval, y: float) -> str:
    known = draw.fit(words.interval_text(interval), 12, panel.width - panel.right - 8)
    return draw.label(panel.width, y + 16, known, **look.weight(interval))


def _bar(panel: _Panel, look: _Look, interval: CapacityInterval, y: float) -> str:
    """Draw the interval as a bar: pointed where no upper bound is known, thin where it is one value."""
    key, title = (interval.workload, interval.config), words.interval_reason(interval)
    back, style = "", {}
    if key in look.chosen:
        style = {"fill": BLUE}
        back = draw.bar(0, panel.width, y + 1, y + _ROW - 1, fill=BLUE, fill_opacity="0.08", stroke="none")
    elif key in look.hoped:
        style = {"stroke": ORANGE, "stroke_dasharray": "4 2"}
    start, top, bottom = panel.x(interval.lower.value_rps or 0.0), y + 6, y + 18
    if interval.upper.value_rps is None:
        shoulder, tip = panel.right - 8, (panel.right, y + 12)
        outline = [(start, top), (shoulder, top), tip, (shoulder, bottom), (start, bottom)]
        return back + draw.path(outline, close=True, title=title, **style)
    end = max(panel.x(interval.upper.value_rps), start + 4)
    return back + draw.bar(start, end, top, bottom, title=title, **style)
