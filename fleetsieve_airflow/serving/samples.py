"""What one request did, and when it counts as a miss.

Standard library only: this file is also sent to the node. The judge on the worker and the early end of a
window on the node use the same rule from the same file, so that they cannot disagree.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Sample(NamedTuple):
    """One request of a window. Times are in seconds; ``start_s`` is wall-clock time since the epoch.

    ``ok``: no error, not cancelled, and exactly the output tokens that were asked for. Latencies of a request
    that is not ok are kept for the record and never enter a percentile.
    """

    row: int
    start_s: float
    ok: bool
    ttft_s: float | None
    e2e_s: float | None
    input_tokens: int | None
    output_tokens: int | None
    error: str


class Limit(NamedTuple):
    """A latency limit as the node sees it: later than ``limit_s`` is a miss, and so many are allowed."""

    metric: str
    limit_s: float
    allowed_misses: int


def latency_s(sample: Sample, metric: str) -> float | None:
    """Return ``ttft``, ``tpot`` or ``e2e`` of a sample, None where it has none: infinitely late.

    A request of one output token has no time per further token: its TPOT is 0.
    """
    if not sample.ok or sample.ttft_s is None or sample.e2e_s is None or sample.output_tokens is None:
        return None
    if metric == "ttft":
        return sample.ttft_s
    if metric == "e2e":
        return sample.e2e_s
    if sample.output_tokens < 2:  # noqa: PLR2004 - the first token is TTFT, TPOT starts with the second
        return 0.0
    return (sample.e2e_s - sample.ttft_s) / (sample.output_tokens - 1)


def is_miss(sample: Sample, metric: str, limit_s: float) -> bool:
    """Tell whether a request failed or was later than a limit."""
    latency = latency_s(sample, metric)
    return latency is None or latency > limit_s


class MissCounter:
    """Counts misses as requests finish and says when no later request can save the window any more."""

    def __init__(self, limits: list[Limit], allowed_failures: int | None) -> None:
        self.limits = limits
        self.allowed_failures = allowed_failures
        self.failures = 0
        self.misses = [0] * len(limits)

    def add(self, sample: Sample) -> None:
        """Count one finished request."""
        self.failures += not sample.ok
        for index, limit in enumerate(self.limits):
            self.misses[index] += is_miss(sample, limit.metric, limit.limit_s)

    def settled(self) -> str:
        """Return the limit that the whole window is already certain to miss, or an empty text."""
        if self.allowed_failures is not None and self.failures > self.allowed_failures:
            return "success_rate"
        for limit, misses in zip(self.limits, self.misses):  # noqa: B905 - equal by construction, and runs on any Python 3
            if misses > limit.allowed_misses:
                return limit.metric
        return ""


def parse_aiperf(line: str, requested_tokens: list[int]) -> Sample | None:
    """Read one line of aiperf's per-request records; None for a request of another phase (warm-up).

    aiperf counts a stream that ends in an error event as a success; such a record lacks output tokens, which
    the comparison with the tokens asked for catches.

    :param requested_tokens: output tokens asked for, by row of the trace.
    :raises ValueError: a record that names no row of the trace.
    """
    record = json.loads(line)
    about = record["metadata"]
    if about.get("benchmark_phase", "profiling") != "profiling":
        return None
    row = int(about["conversation_id"].rsplit("_", 1)[1])
    if not 0 <= row < len(requested_tokens):
        raise ValueError(f"the record of {about['conversation_id']} names no row of the trace")
    metrics, error = record.get("metrics") or {}, record.get("error")
    output_tokens = _number(metrics, "output_sequence_length")
    ttft_ms, e2e_ms = _number(metrics, "time_to_first_token"), _number(metrics, "request_latency")
    reason = ""
    if error:
        reason = (
            f"{error.get('type') or 'error'} {error.get('code') or ''} {error.get('message') or ''}".strip()[
                :300
            ]
        )
    elif about.get("was_cancelled"):
        reason = "cancelled by the client"
    elif output_tokens != requested_tokens[row]:
        reason = f"{output_tokens or 0:g} of {requested_tokens[row]} output tokens"
    elif ttft_ms is None or e2e_ms is None:
        reason = "no latencies recorded"
    input_tokens = _number(metrics, "input_sequence_length")
    return Sample(
        row=row,
        start_s=about["request_start_ns"] / 1e9,
        ok=not reason,
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        e2e_s=None if e2e_ms is None else e2e_ms / 1e3,
        input_tokens=None if input_tokens is None else int(input_tokens),
        output_tokens=None if output_tokens is None else int(output_tokens),
        error=reason,
    )


def _number(metrics: dict[str, Any], name: str) -> float | None:
    value = metrics.get(name)
    if isinstance(value, dict):
        value = value.get("value")
    return value if isinstance(value, (int, float)) else None
