from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.core.verdict import judge as verdict_of
from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.evidence import Measurement
from fleetsieve_airflow.records import DecisionSettings, Slo
from fleetsieve_airflow.serialization import point_of
from fleetsieve_airflow.serving.judge import (
    Gates,
    allowed_failures,
    allowed_misses,
    client_report,
    gates_for,
    judge,
    node_limits,
    requests_needed,
)
from fleetsieve_airflow.serving.samples import MissCounter, Sample
from fleetsieve_airflow.serving.trace import TraceRow
from tests.builders import make_slo, make_spec

OPEN = Gates(lateness_p99_s=1e9, achieved_share=0.0)
START = 1_000_000.0


def trace_of(count: int, gap_s: float = 0.5) -> list[TraceRow]:
    return [TraceRow(arrival_s=i * gap_s, input_tokens=10, output_tokens=11) for i in range(count)]


def sample(row: int, *, ttft: float = 0.1, e2e: float = 1.1, ok: bool = True, late: float = 0.0) -> Sample:
    return Sample(row, START + row * 0.5 + late, ok, ttft, e2e, 10, 11, "" if ok else "HTTP 500")


def judged(
    samples: list[Sample],
    slo: Slo | None = None,
    count: int = 200,
    gates: Gates = OPEN,
    curtailed_after_s: float | None = None,
) -> Measurement:
    spec = make_spec(slo=slo, measurement={"duration_s": count * 0.5})
    point = point_of(spec, spec.candidates[0], 2.0)
    return judge(
        point,
        spec.workloads[0].slo,
        trace_of(count),
        samples,
        gates=gates,
        curtailed_after_s=curtailed_after_s,
    )


def test_failed_requests_count_as_infinitely_late() -> None:
    result = judged([sample(i, ok=i >= 4) for i in range(200)])
    assert (result.sent, result.failed, result.success_rate) == (200, 4, 0.98)
    assert result.percentile("ttft_p95_s") == 0.1
    assert result.percentile("ttft_p99_s") is None  # 4 of 200 are infinite: so is p99
    assert result.miss_shares[0].share == 0.02


def test_a_request_of_the_trace_without_a_record_has_failed() -> None:
    result = judged([sample(i) for i in range(190)])
    assert (result.sent, result.failed) == (200, 10)
    assert result.served_rps == pytest.approx(190 / 100.0)


def test_a_percentile_is_the_nearest_rank_over_all_requests() -> None:
    result = judged([sample(i, ttft=(i + 1) / 1000, e2e=2 + i / 1000) for i in range(200)])
    assert result.percentile("ttft_p50_s") == pytest.approx(0.100)
    assert result.percentile("ttft_p99_s") == pytest.approx(0.198)
    assert result.percentile("e2e_p90_s") == pytest.approx(2.179)
    assert result.percentile("tpot_p50_s") == pytest.approx((2.099 - 0.1) / 10)


def test_too_few_requests_for_a_percentile_are_an_error_and_not_a_number() -> None:
    assert requests_needed(make_slo(ttft_p99_s=2.0)) == 100
    assert requests_needed(make_slo(ttft_p50_s=2.0)) == 2
    assert requests_needed(make_slo(0.999)) == 1000
    with pytest.raises(MeasurementError, match=r"a window of 99 requests .* at least 100 are needed"):
        judged([sample(i) for i in range(99)], count=99)


def test_a_late_client_makes_the_run_invalid() -> None:
    gates = gates_for(make_slo(ttft_p99_s=2.0))
    assert gates.lateness_p99_s == pytest.approx(0.1)
    judged([sample(i, late=0.09 * (i % 2)) for i in range(200)], gates=gates)
    with pytest.raises(MeasurementError, match=r"0\.300 s late at p99, allowed are 0\.100 s") as caught:
        judged([sample(i, late=0.3 * (i % 20 == 0)) for i in range(200)], gates=gates)
    assert caught.value.kind == "invalid_run"


def test_a_constant_offset_of_the_clock_is_no_lateness() -> None:
    report = client_report(trace_of(100), [sample(i, late=5.0) for i in range(100)])
    assert report.lateness_p99_s == pytest.approx(0.0, abs=1e-6)


def test_requests_that_were_never_sent_make_the_run_invalid() -> None:
    with pytest.raises(MeasurementError, match=r"sent 190 of 200 requests that were due \(95\.0%"):
        judged([sample(i) for i in range(10, 200)], gates=Gates(lateness_p99_s=1.0))
    with pytest.raises(MeasurementError, match="sent no request"):
        judged([], gates=Gates(lateness_p99_s=1.0))


def test_of_a_window_that_ended_early_requests_still_waiting_are_not_taken_for_unsent() -> None:
    gates = Gates(lateness_p99_s=1.0)
    waiting = {5, 8, 9}  # due before the last that was answered, themselves without an answer
    seen = [sample(i, ttft=9.0) for i in range(12) if i not in waiting]
    assert judged(seen, gates=gates, curtailed_after_s=15.0).curtailed
    with pytest.raises(MeasurementError, match="late at p99"):
        judged([*seen, sample(12, late=3.0)], gates=gates, curtailed_after_s=15.0)


def test_a_request_recorded_twice_is_refused() -> None:
    with pytest.raises(MeasurementError, match="twice"):
        judged([sample(0), *(sample(i) for i in range(200))])


@given(count=st.integers(1, 5000), share=st.sampled_from([0.5, 0.1, 0.05, 0.01, 0.001]))
def test_allowed_misses_is_the_largest_count_within_the_share(count: int, share: float) -> None:
    allowed = allowed_misses(count, share)
    assert allowed / count <= share < (allowed + 1) / count


@given(count=st.integers(20, 3000), confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_one_more_than_the_allowed_misses_is_judged_missed_with_confidence(
    count: int, confidence: float
) -> None:
    allowed = allowed_misses(count, 0.01, confidence)
    settings_ = DecisionSettings(confidence=confidence)
    spec = make_spec()
    point = point_of(spec, spec.candidates[0], 2.0)

    def verdict(misses: int) -> str:
        return verdict_of(
            Measurement(
                point=point, served_rps=1.0, sent=count, failed=misses, success_rate=(count - misses) / count
            ),
            make_slo(0.99),
            settings_,
        )

    assert verdict(allowed + 1) == "missed"
    assert verdict(allowed) != "missed"


def overload(seed: int, slo: Slo) -> tuple[list[TraceRow], list[tuple[float, Sample]]]:
    """Simulate one window on a server of fixed capacity; each sample comes with the second it ended at."""
    draw = random.Random(seed)
    count, rate = draw.choice([120, 300, 700]), draw.uniform(2.0, 20.0)
    arrivals, clock = [], 0.0
    for _ in range(count):
        arrivals.append(clock)
        clock += draw.expovariate(rate)
    service_s = 1.0 / (rate * draw.uniform(0.7, 3.0))
    free, ended = 0.0, []
    worst = max(limit.limit_s for limit in slo.limits)
    for row, arrival in enumerate(arrivals):
        start = max(arrival, free)
        free = start + service_s * draw.uniform(0.5, 1.5)
        wait, ok = start - arrival, draw.random() > draw.choice([0.0, 0.0, 0.003])
        ttft = min(wait + 0.05, 4 * worst)
        e2e = ttft + service_s * draw.uniform(1, 10)
        record = Sample(
            row, START + arrival, ok and wait < 2 * worst, ttft, e2e, 10, 11, "" if ok else "error"
        )
        ended.append((arrival + e2e, record))
    rows = [TraceRow(arrival_s=arrival, input_tokens=10, output_tokens=11) for arrival in arrivals]
    return rows, sorted(ended)


def until_settled(
    ended: list[tuple[float, Sample]], counter: MissCounter
) -> tuple[float | None, list[Sample]]:
    """Feed samples as they end; return when the node would stop, and what it has recorded by then."""
    seen = []
    for moment, record in ended:
        seen.append(record)
        counter.add(record)
        if counter.settled():
            return moment, seen
    return None, seen


@pytest.mark.parametrize("confidence", [None, 0.9])
def test_ending_a_window_early_never_changes_its_verdict(confidence: float | None) -> None:
    slo = make_slo(0.99, ttft_p99_s=0.5, e2e_p95_s=1.0)
    spec = make_spec(slo=slo, measurement={"duration_s": 60.0})
    point, how = point_of(spec, spec.candidates[0], 2.0), DecisionSettings(confidence=confidence)
    verdicts, saved = [], []
    for seed in range(250):
        rows, ended = overload(seed, slo)
        count = len(rows)
        counter = MissCounter(
            list(node_limits(slo, count, confidence)), allowed_failures(slo, count, confidence)
        )
        stopped_s, seen = until_settled(ended, counter)
        full = judge(point, slo, rows, [record for _, record in ended], gates=OPEN)
        short = judge(point, slo, rows, seen, gates=OPEN, curtailed_after_s=stopped_s)
        verdicts.append((verdict_of(full, slo, how), verdict_of(short, slo, how)))
        if stopped_s is not None:
            saved.append(max(0.0, 1.0 - stopped_s / rows[-1].arrival_s))
    assert sum(full != short for full, short in verdicts) == 0
    assert {full for full, _ in verdicts} >= {"met", "missed"}
    assert len(saved) == sum(full == "missed" for full, _ in verdicts)
    print(
        f"confidence {confidence}: 250 windows, {len(saved)} missed and curtailed, 0 verdicts differ,"
        f" mean window saved on missed points {sum(saved) / len(saved):.1%}"
    )
    assert sum(saved) / len(saved) > 0.3


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_the_node_and_the_judge_count_the_same_misses(data: st.DataObject) -> None:
    count = data.draw(st.integers(100, 200))
    latency = st.floats(0.0, 3.0)
    samples = [
        sample(row, ttft=data.draw(latency), e2e=3.0 + data.draw(latency), ok=data.draw(st.booleans()))
        for row in range(0, count, 7)
    ]
    samples += [sample(row) for row in range(count) if row % 7]
    slo = make_slo(0.9, ttft_p90_s=1.0, e2e_p99_s=4.0, tpot_p50_s=0.3)
    counter = MissCounter(list(node_limits(slo, count)), allowed_failures(slo, count))
    for record in samples:
        counter.add(record)
    result = judged(samples, slo, count)
    assert [share.share for share in result.miss_shares] == [misses / count for misses in counter.misses]
    missed = verdict_of(result, slo, DecisionSettings()) == "missed"
    assert missed == bool(counter.settled())


def test_an_early_end_is_recorded_and_bills_only_the_seconds_held() -> None:
    spec = make_spec(slo=make_slo(ttft_p99_s=0.5), measurement={"duration_s": 100.0})
    point = point_of(spec, spec.candidate("chat", "TP4"), 2.0)
    late = [sample(i, ttft=0.9) for i in range(10)]
    result = judge(
        point,
        spec.workloads[0].slo,
        trace_of(200),
        late,
        gates=OPEN,
        curtailed_after_s=6.5,
        overhead_gpu_seconds=40.0,
    )
    assert result.curtailed
    assert result.percentiles == ()
    assert result.miss_shares[0].share == 0.05
    assert result.gpu_seconds_window == pytest.approx(4 * 6.5)
    assert result.gpu_seconds_billed == pytest.approx(4 * 6.5 + 40.0)
    assert result.success_rate == 1.0


def test_a_measurement_of_a_point_keeps_the_digest_of_its_records() -> None:
    samples = [sample(i) for i in range(200)]
    one, other = judged(samples), judged([*samples[:-1], sample(199, ttft=0.2)])
    assert one.samples_sha256 == judged(list(reversed(samples))).samples_sha256 != other.samples_sha256
    assert not math.isnan(one.served_rps)
    assert replace(one, served_rps=0.0) != one
