"""When a measurement meets its SLO, misses it, or says nothing yet."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from fleetsieve_airflow.core.verdict import EXACT, binomial_bounds, judge, judge_repeats, margin
from fleetsieve_airflow.errors import EvidenceError
from fleetsieve_airflow.evidence import Measurement, MissShare
from fleetsieve_airflow.records import DecisionSettings, Slo
from tests.builders import make_measurement, make_slo, make_spec

PLAIN = DecisionSettings()
CONFIDENT = DecisionSettings(confidence=0.95)
TTFT = make_slo(ttft_p99_s=2.0)
SUCCESS = make_slo(0.99)


def measured(slo: Slo = TTFT, **fields: Any) -> Measurement:
    """Measure the default point; everything but the given fields meets the SLO."""
    return make_measurement(make_spec(slo=slo), **fields)


def misses(share: float, *, limit_s: float = 2.0, sent: int | None = None, **fields: Any) -> Measurement:
    """Measure a share of requests past TTFT p99, with no word on the percentile itself."""
    shares = (MissShare(limit="ttft_p99_s", limit_s=limit_s, share=share),)
    return measured(miss_shares=shares, sent=sent, failed=0, **{"percentiles": {}, **fields})


class TestLatencyLimits:
    @pytest.mark.parametrize(
        ("seconds", "verdict"),
        [(0.0, "met"), (1.0, "met"), (2.0, "met"), (2.0001, "missed"), (90.0, "missed")],
    )
    def test_a_percentile_may_reach_its_limit_and_not_exceed_it(self, seconds: float, verdict: str) -> None:
        assert judge(measured(percentiles={"ttft_p99_s": seconds}), TTFT, PLAIN) == verdict

    def test_every_limit_of_the_slo_counts(self) -> None:
        slo = make_slo(0.99, ttft_p99_s=2.0, e2e_p99_s=30.0)
        slow_end = measured(slo, percentiles={"ttft_p99_s": 1.8, "e2e_p99_s": 46.4})
        assert judge(slow_end, slo, PLAIN) == "missed"
        assert judge(slow_end, make_slo(0.99, ttft_p99_s=2.0), PLAIN) == "met"

    def test_failed_requests_count_as_infinitely_late(self) -> None:
        assert judge(measured(success_rate=0.98), TTFT, PLAIN) == "missed"
        assert judge(measured(success_rate=0.99), TTFT, PLAIN) == "met"

    def test_the_median_bears_as_many_failures_as_half_the_requests(self) -> None:
        median = make_slo(ttft_p50_s=2.0)
        assert judge(measured(median, success_rate=0.6), median, PLAIN) == "met"
        assert judge(measured(median, success_rate=0.4), median, PLAIN) == "missed"

    @pytest.mark.parametrize(("share", "verdict"), [(0.0, "met"), (0.01, "met"), (0.0101, "missed")])
    def test_the_share_of_late_requests_decides_where_it_is_recorded(
        self, share: float, verdict: str
    ) -> None:
        assert judge(misses(share), TTFT, PLAIN) == verdict

    def test_the_share_goes_before_the_percentile(self) -> None:
        assert judge(misses(0.002, percentiles={"ttft_p99_s": 2.5}), TTFT, PLAIN) == "met"
        assert judge(misses(0.02, percentiles={"ttft_p99_s": 1.5}), TTFT, PLAIN) == "missed"

    def test_a_share_counted_against_another_limit_says_nothing(self) -> None:
        strict = misses(0.5, limit_s=0.1, percentiles={"ttft_p99_s": 1.0})
        assert judge(strict, TTFT, PLAIN) == "met"


class TestSuccessRate:
    @pytest.mark.parametrize(
        ("rate", "verdict"), [(1.0, "met"), (0.99, "met"), (0.9899, "missed"), (0.0, "missed")]
    )
    def test_it_may_be_as_low_as_the_slo_says(self, rate: float, verdict: str) -> None:
        assert judge(measured(SUCCESS, success_rate=rate), SUCCESS, PLAIN) == verdict

    def test_counts_of_failures_follow_from_the_rate_where_only_that_is_known(self) -> None:
        lossy = measured(SUCCESS, success_rate=0.5, sent=1000)
        assert judge(lossy, SUCCESS, CONFIDENT) == "missed"


class TestWhatCannotBeJudged:
    @pytest.mark.parametrize(
        ("measurement", "slo", "what"),
        [
            (measured(sent=0, failed=0), TTFT, "no request was sent"),
            (measured(percentiles={}), TTFT, "the measurement did not record it"),
            (measured(TTFT), make_slo(0.99, ttft_p99_s=2.0), "the measurement recorded none"),
        ],
        ids=["empty sample", "percentile not recorded", "success not recorded"],
    )
    def test_it_is_refused_in_words_and_never_read_as_met(
        self, measurement: Measurement, slo: Slo, what: str
    ) -> None:
        if "recorded none" in what:
            measurement = measured(TTFT, success_rate=None)
        with pytest.raises(EvidenceError, match=what):
            judge(measurement, slo, PLAIN)

    def test_no_measurement_at_all(self) -> None:
        with pytest.raises(EvidenceError, match="No measurement"):
            judge_repeats([], TTFT, PLAIN)

    def test_a_percentile_that_failures_made_infinite_is_missed_although_it_is_left_out(self) -> None:
        assert judge(measured(percentiles={}, success_rate=0.9), TTFT, PLAIN) == "missed"


class TestRepeats:
    @pytest.mark.parametrize(
        ("verdicts", "together"),
        [
            ((True, False), "marginal"),
            ((True, False, True), "met"),
            ((False, False, True), "missed"),
            ((True, True, False, False), "marginal"),
        ],
    )
    def test_the_strict_majority_decides_and_a_tie_is_marginal(
        self, verdicts: tuple[bool, ...], together: str
    ) -> None:
        rows = [measured(met=met, repeat=i) for i, met in enumerate(verdicts)]
        assert judge_repeats(rows, TTFT, PLAIN) == together

    @pytest.mark.parametrize("settings", [PLAIN, CONFIDENT])
    def test_an_engine_that_refused_once_is_refused(self, settings: DecisionSettings) -> None:
        rows = [
            measured(),
            measured(refused="KV cache does not fit", served_rps=0.0, percentiles={}, repeat=1),
        ]
        assert judge_repeats(rows, TTFT, settings) == "refused"


class TestConfidence:
    @pytest.mark.parametrize(
        ("share", "sent", "verdict"),
        [
            (0.0, 100, "marginal"),  # none of 100 late is still compatible with 3 %
            (0.0, 300, "met"),
            (0.008, 1000, "marginal"),
            (0.008, 30000, "met"),
            (0.012, 1000, "marginal"),
            (0.02, 1000, "missed"),
        ],
    )
    def test_counts_inside_the_noise_are_marginal(self, share: float, sent: int, verdict: str) -> None:
        assert judge(misses(share, sent=sent), TTFT, CONFIDENT) == verdict

    def test_repeats_pool_their_counts(self) -> None:
        rows = [misses(0.0, sent=100, repeat=i) for i in range(3)]
        assert [judge(row, TTFT, CONFIDENT) for row in rows] == ["marginal"] * 3
        assert judge_repeats(rows, TTFT, CONFIDENT) == "met"

    def test_one_limit_missed_for_sure_is_enough(self) -> None:
        slo = make_slo(0.99, ttft_p99_s=2.0)
        row = measured(
            slo,
            success_rate=1.0,
            sent=50,
            failed=0,
            miss_shares=(MissShare(limit="ttft_p99_s", limit_s=2.0, share=0.5),),
        )
        assert judge(row, slo, CONFIDENT) == "missed"

    @pytest.mark.parametrize(
        ("seconds", "repeats", "verdict"),
        [(1.5, 1, "met"), (1.9, 1, "marginal"), (1.9, 9, "met"), (2.1, 1, "marginal"), (2.1, 16, "missed")],
    )
    def test_percentiles_alone_are_held_against_the_variation_between_runs(
        self, seconds: float, repeats: int, verdict: str
    ) -> None:
        settings = DecisionSettings(confidence=0.95, run_to_run_cv=0.08)
        rows = [measured(percentiles={"ttft_p99_s": seconds}, repeat=i) for i in range(repeats)]
        assert judge_repeats(rows, TTFT, settings) == verdict

    @given(sent=st.integers(1, 400), share=st.floats(0, 1), confidence=st.floats(0.6, 0.999))
    def test_the_bounds_are_those_of_clopper_and_pearson(
        self, sent: int, share: float, confidence: float
    ) -> None:
        count = round(share * sent)
        lower, upper = binomial_bounds(count, sent, confidence)
        assert 0.0 <= lower <= count / sent <= upper <= 1.0
        if count > 0:
            assert binom.sf(count - 1, sent, lower) == pytest.approx(1 - confidence, abs=1e-6)
        if count < sent:
            assert binom.cdf(count, sent, upper) == pytest.approx(1 - confidence, abs=1e-6)

    def test_the_rule_of_three(self) -> None:
        assert binomial_bounds(0, 300, 0.95) == (0.0, pytest.approx(1 - 0.05 ** (1 / 300)))
        assert binomial_bounds(300, 300, 0.95)[1] == 1.0

    def test_an_empty_sample_bounds_nothing(self) -> None:
        with pytest.raises(EvidenceError, match="empty sample"):
            binomial_bounds(0, 0, 0.95)


class TestMargin:
    @given(
        seconds=st.floats(0.01, 100.0),
        rate=st.floats(0.0, 1.0),
        share=st.none() | st.floats(0.0, 1.0),
    )
    def test_it_is_negative_or_zero_exactly_where_the_slo_is_met(
        self, seconds: float, rate: float, share: float | None
    ) -> None:
        slo = make_slo(0.99, ttft_p99_s=2.0)
        known = () if share is None else (MissShare(limit="ttft_p99_s", limit_s=2.0, share=share),)
        row = measured(slo, success_rate=rate, percentiles={"ttft_p99_s": seconds}, miss_shares=known)
        assert (margin(row, slo) <= EXACT) == (judge(row, slo, PLAIN) == "met")
        assert math.isfinite(margin(row, slo))

    def test_it_is_the_log_of_the_worst_limit_broken(self) -> None:
        slo = make_slo(ttft_p99_s=2.0, e2e_p99_s=30.0)
        row = measured(slo, percentiles={"ttft_p99_s": 2.0, "e2e_p99_s": 60.0})
        assert margin(row, slo) == pytest.approx(math.log(2.0))

    @given(rates=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2).map(sorted))
    def test_it_never_rises_with_the_success_rate(self, rates: list[float]) -> None:
        low, high = (margin(measured(SUCCESS, success_rate=rate), SUCCESS) for rate in rates)
        assert high <= low + 1e-9


@given(
    seconds=st.floats(0.01, 50.0),
    rate=st.floats(0.5, 1.0),
    limit_s=st.floats(0.5, 20.0),
    more=st.floats(1.0, 4.0),
)
def test_a_looser_slo_is_never_harder_to_meet(
    seconds: float, rate: float, limit_s: float, more: float
) -> None:
    tight, loose = make_slo(0.95, ttft_p99_s=limit_s), make_slo(0.9, ttft_p99_s=limit_s * more)
    row = measured(tight, success_rate=rate, percentiles={"ttft_p99_s": seconds})
    if judge(row, tight, PLAIN) == "met":
        assert judge(row, loose, PLAIN) == "met"
