"""Per-request records to a measurement: who succeeded, how late, and whether the run may count at all.

A failed request counts as infinitely late, percentiles are over all requests of the window, and a run whose
client was late or slow is refused: it says something about the client, not about the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint, MissShare
from fleetsieve_airflow.records import LATENCY_METRICS, PERCENTILES, LatencyLimit, Slo
from fleetsieve_airflow.serialization import sha256
from fleetsieve_airflow.serving.samples import Limit, Sample, is_miss, latency_s
from fleetsieve_airflow.serving.trace import TraceRow

#: Share of the tightest TTFT limit (or of the tightest other limit) that the client's own lateness may reach.
LATENESS_SHARE = 0.05
MIN_LATENESS_LIMIT_S = 0.02
MIN_ACHIEVED_SHARE = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """When a run is valid: the client at most so late at p99, and so much of its schedule sent."""

    lateness_p99_s: float
    achieved_share: float = MIN_ACHIEVED_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReport:
    """How well the load generator kept its schedule; None where nothing was sent."""

    started: int
    expected: int
    lateness_p50_s: float | None
    lateness_p99_s: float | None

    @property
    def achieved_share(self) -> float:
        """Requests started over requests that the schedule had due by then."""
        return self.started / self.expected if self.expected else 0.0


def gates_for(slo: Slo) -> Gates:
    """Return an SLO's default gates: lateness at most 5 % of its tightest limit, TTFT before all others."""
    limits = [limit.limit_s for limit in slo.limits if limit.metric == "ttft"] or [
        item.limit_s for item in slo.limits
    ]
    tightest = min(limits, default=1.0)
    return Gates(lateness_p99_s=max(MIN_LATENESS_LIMIT_S, LATENESS_SHARE * tightest))


def requests_needed(slo: Slo) -> int:
    """Return the fewest requests for which every limit of an SLO can be told apart, e.g. 100 for a p99."""
    shares = [limit.allowed_miss_share for limit in slo.limits]
    if slo.success_rate is not None and slo.success_rate < 1.0:
        shares.append(1.0 - slo.success_rate)
    return max((math.ceil(round(1.0 / share, 6)) for share in shares), default=1)


def require_enough_requests(label: str, slo: Slo, count: int) -> None:
    """Refuse a window that is too short for the percentiles it is to be judged by.

    :raises MeasurementError: naming the requests there are and the requests needed.
    """
    needed = requests_needed(slo)
    if count < needed:
        raise MeasurementError(
            f"{label}: a window of {count} requests cannot tell its SLO's percentiles;"
            f" at least {needed} are needed.",
            hint="Lengthen measurement.duration_s, raise the lowest load, or judge by a lower percentile.",
        )


def allowed_misses(count: int, share: float, confidence: float | None = None) -> int:
    """Return the most misses among ``count`` requests that leave a window's verdict open.

    Without a confidence that is the most whose share is still at most ``share``. With one, a verdict needs
    more: so many misses that, were the true share ``share``, as many or more would be seen with a probability
    below 1 - confidence.
    """
    misses = math.floor(count * share) + 1
    while misses > 0 and misses / count > share:
        misses -= 1
    if confidence is None:
        return misses
    while misses < count and _tail(misses + 1, count, share) >= 1.0 - confidence:
        misses += 1
    return misses


def node_limits(slo: Slo, count: int, confidence: float | None = None) -> tuple[Limit, ...]:
    """Return an SLO's latency limits as the node counts them for a window of ``count`` requests."""
    return tuple(
        Limit(limit.metric, limit.limit_s, allowed_misses(count, limit.allowed_miss_share, confidence))
        for limit in slo.limits
    )


def allowed_failures(slo: Slo, count: int, confidence: float | None = None) -> int | None:
    """Return the most failures that leave the verdict on an SLO's success rate open, None without one."""
    if slo.success_rate is None:
        return None
    return allowed_misses(count, round(1.0 - slo.success_rate, 10), confidence)


def client_report(rows: Sequence[TraceRow], samples: Sequence[Sample]) -> ClientReport:
    """Compare when requests were sent with when they were due.

    The window starts where the most punctual request puts it, so a constant offset of the client's clock is
    no lateness.
    """
    if not samples:
        return ClientReport(started=0, expected=len(rows), lateness_p50_s=None, lateness_p99_s=None)
    offsets = [sample.start_s - rows[sample.row].arrival_s for sample in samples]
    start = min(offsets)
    last = max(sample.start_s for sample in samples) - start
    due = sum(row.arrival_s <= last for row in rows)
    lateness = sorted(offset - start for offset in offsets)
    return ClientReport(
        started=len(samples),
        expected=max(due, len(samples)),
        lateness_p50_s=_nearest_rank(lateness, 50),
        lateness_p99_s=_nearest_rank(lateness, 99),
    )


def require_valid_run(label: str, report: ClientReport, gates: Gates, *, curtailed: bool = False) -> None:
    """Refuse a run whose client did not keep its schedule.

    Of a window that ended early only the lateness counts: its requests that wait for an answer have no record
    yet, and were some of them not sent at all, it would have missed its SLO under even less load.

    :raises MeasurementError: of kind ``invalid_run``, with the figure, the gate, and what to do.
    """
    hint = "It is no evidence. Give the load generator cores of its own (whole nodes do), or lower the rate."
    if report.lateness_p99_s is None:
        raise MeasurementError(f"{label}: the load generator sent no request.", hint=hint, kind="invalid_run")
    if report.lateness_p99_s > gates.lateness_p99_s:
        raise MeasurementError(
            f"{label}: the load generator was {report.lateness_p99_s:.3f} s late at p99,"
            f" allowed are {gates.lateness_p99_s:.3f} s.",
            hint=hint,
            kind="invalid_run",
        )
    if report.achieved_share < gates.achieved_share and not curtailed:
        raise MeasurementError(
            f"{label}: the load generator sent {report.started} of {report.expected} requests that were due"
            f" ({report.achieved_share:.1%}, at least {gates.achieved_share:.0%} are needed).",
            hint=hint,
            kind="invalid_run",
        )


def judge(
    point: MeasurementPoint,
    slo: Slo,
    rows: Sequence[TraceRow],
    samples: Sequence[Sample],
    *,
    gates: Gates,
    curtailed_after_s: float | None = None,
    overhead_gpu_seconds: float = 0.0,
    versions: tuple[tuple[str, str], ...] = (),
) -> Measurement:
    """Judge one window from its per-request records.

    A request of the trace without a record counts as failed. Of a window that ended early the requests that
    were not sent count as good: its miss shares are lower bounds, and one of them is above its allowance,
    which is why it ended.

    :param rows: the window's requests as they were to be sent.
    :param samples: what the load generator recorded, in any order, at most one per row.
    :param curtailed_after_s: seconds after which the node ended the window; None for a whole window.
    :param overhead_gpu_seconds: what is billed on top of the window: this point's share of server start and
        warm-up, and the time its GPUs were held before the first request and for the last answers.
    :raises MeasurementError: too few requests for a percentile of the SLO; of kind ``invalid_run``: the
        client was late or slow, or the records contradict the trace.
    """
    require_enough_requests(point.label, slo, len(rows))
    if len({sample.row for sample in samples}) != len(samples):
        raise MeasurementError(
            f"{point.label}: the records hold a request of the trace twice.", kind="invalid_run"
        )
    curtailed = curtailed_after_s is not None
    require_valid_run(point.label, client_report(rows, samples), gates, curtailed=curtailed)
    sent = len(rows)
    good = [sample for sample in samples if sample.ok]
    missing = 0 if curtailed else sent - len(samples)
    failed = len(samples) - len(good) + missing
    window_s = curtailed_after_s if curtailed_after_s is not None else point.duration_s
    return Measurement(
        point=point,
        served_rps=len(good) / window_s if window_s > 0 else 0.0,
        success_rate=(sent - failed) / sent,
        sent=sent,
        failed=failed,
        percentiles=() if curtailed else _percentiles(good, sent),
        miss_shares=tuple(_miss_share(limit, samples, missing, sent) for limit in slo.limits),
        curtailed=curtailed,
        gpu_seconds_window=point.gpus * window_s,
        gpu_seconds_billed=point.gpus * window_s + overhead_gpu_seconds,
        samples_sha256=samples_digest(samples),
        versions=versions,
    )


def samples_digest(samples: Sequence[Sample]) -> str:
    """Return the SHA-256 of per-request records, whatever their order."""
    return sha256([list(sample) for sample in sorted(samples)])


def _tail(misses: int, count: int, share: float) -> float:
    """Return the probability of at least ``misses`` out of ``count``, each with probability ``share``."""
    if share <= 0.0:
        return 0.0 if misses > 0 else 1.0
    below = 0.0
    for k in range(misses):
        choose = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        below += math.exp(choose + k * math.log(share) + (count - k) * math.log1p(-share))
    return max(0.0, 1.0 - below)


def _miss_share(limit: LatencyLimit, samples: Sequence[Sample], missing: int, sent: int) -> MissShare:
    misses = missing + sum(is_miss(sample, limit.metric, limit.limit_s) for sample in samples)
    return MissShare(limit=limit.name, limit_s=limit.limit_s, share=misses / sent)


def _percentiles(good: Sequence[Sample], sent: int) -> tuple[tuple[str, float], ...]:
    """Return every percentile that is finite when all requests that are not good count as infinitely late."""
    found = []
    for metric in LATENCY_METRICS:
        values = sorted(value for sample in good if (value := latency_s(sample, metric)) is not None)
        for percentile in PERCENTILES:
            rank = math.ceil(round(percentile * sent / 100, 9))
            if 1 <= rank <= len(values):
                found.append((f"{metric}_p{percentile}_s", values[rank - 1]))
    return tuple(found)


def _nearest_rank(ordered: Sequence[float], percentile: int) -> float:
    return ordered[max(0, math.ceil(round(percentile * len(ordered) / 100, 9)) - 1)]
