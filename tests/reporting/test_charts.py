"""Charts: what is drawn where, and that nothing leaves the picture."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.reporting import charts, charts_svg
from fleetsieve_airflow.reporting.charts_svg import (
    cut,
    escape,
    fit,
    nice_ceiling,
    number,
    percent,
    text_width,
)
from tests.reporting import campaigns

SVG = "{http://www.w3.org/2000/svg}"


def _parse(picture: str) -> ET.Element:
    return ET.fromstring(picture)  # noqa: S314 - a picture of our own


def _paths(picture: str, **attributes: str) -> list[list[tuple[float, float]]]:
    """Return the points of all paths that have these attributes of their own."""
    found = []
    for element in _parse(picture).iter(f"{SVG}path"):
        if all(element.get(name.replace("_", "-")) == value for name, value in attributes.items()):
            found.append(_points(element.get("d", "")))
    return found


def _points(path: str) -> list[tuple[float, float]]:
    x, y, points = 0.0, 0.0, []
    for command, numbers in re.findall(r"([MLHV])(-?[\d.]+(?: -?[\d.]+)?)", path):
        values = [float(text) for text in numbers.split()]
        x, y = {"H": (values[0], y), "V": (x, values[0])}.get(command, (values[0], values[-1]))
        points.append((x, y))
    return points


def _texts(picture: str) -> list[str]:
    return [element.text or "" for element in _parse(picture).iter(f"{SVG}text")]


def _ticks(element: ET.Element) -> list[float]:
    (lines,) = (path for path in element.iter(f"{SVG}path") if path.get("stroke") == charts_svg.TICK)
    return [float(x) for x in re.findall(r"M([\d.]+) ", lines.get("d", ""))]


def _extents(element: ET.Element, size: float = 11.0, anchor: str = "start") -> Iterator[tuple[float, float]]:
    """Yield where each text begins and ends, with the font size and the anchor that it inherits."""
    size, anchor = float(element.get("font-size", size)), element.get("text-anchor", anchor)
    if element.tag == f"{SVG}text":
        length = text_width(element.text or "", size, bold=element.get("font-weight") == "600")
        start = float(element.get("x", "nan")) - {"end": length, "middle": length / 2, "start": 0.0}[anchor]
        yield start, start + length
    for child in element:
        yield from _extents(child, size, anchor)


def _draw_intervals(campaign: campaigns.Campaign) -> str:
    return charts.capacity_intervals(campaign.spec, campaign.rounds[-1], campaign.spec.candidates)


class TestBoundsByRound:
    def test_the_conservative_plan_is_a_solid_step_per_round_and_rises_to_the_optimistic_one(self) -> None:
        campaign = campaigns.paper_campaign()
        picture = charts.bounds_by_round(campaign.spec, campaign.rounds)
        (low,) = _paths(picture, stroke=charts_svg.BLUE, fill="none")
        (high,) = _paths(picture, stroke=charts_svg.ORANGE, fill="none")
        assert len(low) == len(high) == 2 * len(campaign.rounds)
        assert [y for _, y in low] == sorted((y for _, y in low), reverse=True)
        assert low[-1] == high[-1]
        assert all(above[1] <= below[1] for above, below in zip(high, low, strict=True))

    def test_the_optimistic_plan_is_dashed_and_the_conservative_one_is_not(self) -> None:
        campaign = campaigns.paper_campaign()
        root = _parse(charts.bounds_by_round(campaign.spec, campaign.rounds))
        dashes = {path.get("stroke"): path.get("stroke-dasharray") for path in root.iter(f"{SVG}path")}
        assert dashes[charts_svg.ORANGE]
        assert dashes[charts_svg.BLUE] is None

    def test_only_a_decided_campaign_has_a_dot(self) -> None:
        decided, running = campaigns.paper_campaign(), campaigns.paper_campaign(2)
        assert "decided" in _texts(charts.bounds_by_round(decided.spec, decided.rounds))
        assert "decided" not in _texts(charts.bounds_by_round(running.spec, running.rounds))

    def test_gpus_are_counted_from_zero_and_an_unsure_plan_lies_above_the_pool(self) -> None:
        campaign = campaigns.fewest_gpus_campaign()
        picture = charts.bounds_by_round(campaign.spec, campaign.rounds)
        assert "0" in _texts(picture)
        (low,) = _paths(picture, stroke=charts_svg.BLUE, fill="none")
        pool = _paths(picture, stroke_dasharray="1.5 3")[-1]
        assert low[0][1] < pool[0][1] < low[-1][1]
        assert "round 1: conservative more than 16 GPUs, optimistic 4 GPUs" in picture
        assert "12 GPUs" in _texts(picture)

    def test_a_round_carried_out_twice_is_drawn_as_it_came_out_last(self) -> None:
        campaign = campaigns.paper_campaign()
        twice = [campaign.rounds[0], *campaign.rounds]
        assert charts.bounds_by_round(campaign.spec, twice) == charts.bounds_by_round(
            campaign.spec, campaign.rounds
        )

    def test_round_numbers_do_not_touch_each_other_in_a_long_campaign(self) -> None:
        campaign = campaigns.paper_campaign()
        many = [replace(campaign.rounds[1], round=number) for number in range(1, 120)]
        root = _parse(charts.bounds_by_round(campaign.spec, many))
        shown = [text for text in root.iter(f"{SVG}text") if text.get("text-anchor") == "middle"]
        places = sorted(float(text.get("x", "nan")) for text in shown if text.text and text.text.isdigit())
        assert places
        assert min(b - a for a, b in pairwise(places)) > text_width("119", 11)


class TestCapacityIntervals:
    def test_ticks_stand_where_one_replica_more_or_fewer_is_needed(self) -> None:
        campaign = campaigns.paper_campaign()
        picture = _draw_intervals(campaign)
        panel = _parse(picture)[0]
        places = _ticks(panel)
        # Demand 12 req/s: one replica at 12, two at 6, three at 4, ...
        start = 112.0
        assert [round((x - start) / (places[0] - start), 2) for x in places[:4]] == [1.0, 0.5, 0.33, 0.25]

    def test_no_tick_asks_for_more_replicas_than_the_pool_has_room_for(self) -> None:
        campaign = campaigns.paper_campaign()
        only_tp8 = [campaign.spec.candidate("chat", "TP8")]
        picture = charts.capacity_intervals(campaign.spec, campaign.rounds[-1], only_tp8)
        assert len(_ticks(_parse(picture))) == 2

    def test_a_chosen_candidate_is_bold_and_says_its_replicas(self) -> None:
        root = _parse(_draw_intervals(campaigns.paper_campaign()))
        bold = [text.text for text in root.iter(f"{SVG}text") if text.get("font-weight") == "600"]
        assert bold.count("2 x TP4") == 2
        assert "TP8" not in bold

    def test_an_interval_without_an_upper_bound_points_to_the_right_edge(self) -> None:
        campaign = campaigns.undetermined_campaign()
        picture = _draw_intervals(campaign)
        pointed = [path for path in _paths(picture) if len(path) == 5]
        assert len(pointed) == 1
        assert "unknown" in _texts(picture)

    def test_the_source_of_both_bounds_is_said_on_hover(self) -> None:
        titles = [t.text for t in _parse(_draw_intervals(campaigns.paper_campaign())).iter(f"{SVG}title")]
        assert any(
            text is not None and text.startswith("at least 3.6 req/s (measured); at most 6 req/s")
            for text in titles
        )

    def test_many_candidates_are_laid_out_in_two_columns(self) -> None:
        campaign = campaigns.large_campaign(4, 5, 3)
        picture = _draw_intervals(campaign)
        assert _parse(picture).get("width") == f"{charts.FULL_WIDTH:g}"
        assert len({move for move in re.findall(r"translate\((\S+) ", picture)}) == 2

    @given(
        lower=st.floats(0.0, 50.0),
        width=st.one_of(st.none(), st.floats(0.0, 500.0)),
        name=st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=80),
    )
    @settings(max_examples=40, deadline=None)
    def test_bars_and_texts_stay_inside_whatever_is_drawn(
        self, lower: float, width: float | None, name: str
    ) -> None:
        campaign = campaigns.paper_campaign(chat=f"_{name}")
        decision = campaign.rounds[-1]
        upper = None if width is None else lower + width
        odd = campaigns.interval(decision.intervals[0].label, lower, upper)
        decision = replace(decision, intervals=(odd, *decision.intervals[1:]))
        picture = charts.capacity_intervals(campaign.spec, decision, campaign.spec.candidates)
        assert all(0.0 <= x <= charts.HALF_WIDTH for path in _paths(picture) for x, _ in path)
        assert all(-1.0 <= start < end <= charts.HALF_WIDTH + 1.0 for start, end in _extents(_parse(picture)))


class TestTexts:
    @pytest.mark.parametrize(
        ("share", "text"),
        [
            (1.0, "100 %"),
            (0.99999, "99.9 %"),
            (0.939, "93.9 %"),
            (0.0, "0 %"),
            (0.0001, "under 0.1 %"),
            (1.5, "150 %"),
            (43928.2, "4,392,820 %"),
        ],
    )
    def test_per_cent_never_rounds_up_to_a_hundred(self, share: float, text: str) -> None:
        assert percent(share) == text

    @pytest.mark.parametrize(
        ("value", "text"), [(11.27, "11.27"), (22200.0, "22,200"), (6.0, "6"), (0.5, "0.5")]
    )
    def test_numbers_are_short_and_grouped(self, value: float, text: str) -> None:
        assert number(value) == text

    def test_control_and_direction_characters_cannot_pass(self) -> None:
        assert (
            escape('a\x00b\u202e<"&') == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}&lt;&quot;&amp;"
        )

    def test_wide_glyphs_count_for_a_whole_em(self) -> None:
        assert text_width("\u6a21\u578b", 10) == 20.0

    def test_text_is_cut_to_the_room_there_is(self) -> None:
        assert cut("abcdef", 4) == "abc\u2026"
        assert fit("abcdef", 10, 1000) == "abcdef"
        assert text_width(fit("abcdefghij", 10, 40), 10) <= 40

    @pytest.mark.parametrize(("value", "ceiling"), [(17, 20), (64, 80), (1, 1), (401, 500), (0.3, 0.4)])
    def test_axes_end_on_round_numbers(self, value: float, ceiling: float) -> None:
        assert nice_ceiling(value) == pytest.approx(ceiling)
