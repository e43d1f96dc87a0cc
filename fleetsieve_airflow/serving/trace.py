"""Request traces: three published formats and a synthetic one, cut to a window and scaled to a rate.

A trace is rows of (arrival, prompt tokens, output tokens). :func:`window` takes ``rate x duration``
consecutive rows, the place chosen by the seed, and stretches their arrivals so that the realised rate is
exactly the one asked for.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.records import Trace

#: Formats a spec may name. ``poisson`` needs no file: mean lengths of the trace are used for every request.
TRACE_FORMATS = ("azure", "mooncake", "burstgpt", "synthetic", "poisson")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One request: when it arrives after the start of the window, and how many tokens it reads and writes."""

    arrival_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Distribution of a token count: ``fixed``, ``lognormal`` or ``gamma`` with a mean, a CV and a range."""

    distribution: str
    mean: float
    cv: float = 0.0
    minimum: int = 1
    maximum: int = 1_000_000

    def __post_init__(self) -> None:
        if self.distribution not in ("fixed", "lognormal", "gamma"):
            raise SpecError(
                f"Token lengths: distribution {self.distribution!r} is not fixed, lognormal or gamma."
            )
        if not (self.mean >= 1 and self.cv >= 0 and 1 <= self.minimum <= self.maximum):
            raise SpecError(
                f"Token lengths: mean {self.mean}, cv {self.cv}, {self.minimum}..{self.maximum} is no range."
            )

    def draw(self, source: random.Random) -> int:
        """Return one length in tokens."""
        value = self.mean
        if self.distribution == "lognormal" and self.cv > 0:
            sigma2 = math.log1p(self.cv**2)
            value = source.lognormvariate(math.log(self.mean) - sigma2 / 2, math.sqrt(sigma2))
        elif self.distribution == "gamma" and self.cv > 0:
            value = source.gammavariate(1 / self.cv**2, self.mean * self.cv**2)
        return max(self.minimum, min(self.maximum, round(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticTrace:
    """Arrivals as a renewal process with gamma gaps (``arrival_cv`` 1 is Poisson) and independent lengths."""

    arrival_cv: float
    input_lengths: Lengths
    output_lengths: Lengths

    def rows(self, count: int, seed: int) -> list[TraceRow]:
        """Return ``count`` rows at a mean rate of one per second, the same for the same seed."""
        source = random.Random(seed)  # noqa: S311 - a seeded draw that can be repeated is the point
        rows, clock = [], 0.0
        for _ in range(count):
            rows.append(
                TraceRow(
                    arrival_s=clock,
                    input_tokens=self.input_lengths.draw(source),
                    output_tokens=self.output_lengths.draw(source),
                )
            )
            clock += (
                source.gammavariate(1 / self.arrival_cv**2, self.arrival_cv**2)
                if self.arrival_cv > 0
                else 1.0
            )
        return rows


def window(trace: Trace, *, rate_rps: float, duration_s: float, seed: int) -> tuple[TraceRow, ...]:
    """Return the rows of one measurement: ``rate_rps x duration_s`` requests over ``duration_s`` seconds.

    :param trace: what the spec says of the trace; ``path`` must be absolute or relative to the working
        folder.
    :param seed: chooses the place in a recorded trace, and the draws of a synthetic one.
    :returns: rows in order of arrival, the first at 0 s, the last before ``duration_s``.
    :raises SpecError: unknown format, a file that cannot be read, or a trace with too few requests.
    """
    count = round(rate_rps * duration_s)
    if count < 1:
        raise SpecError(f"Trace {trace.name!r}: {rate_rps:g} req/s for {duration_s:g} s sends no request.")
    if trace.format in ("poisson", "synthetic"):
        rows = _synthetic(trace).rows(count + 1, seed)
    else:
        recorded = read_rows(trace)
        if len(recorded) <= count:
            raise SpecError(
                f"Trace {trace.name!r} has {len(recorded)} requests;"
                f" {rate_rps:g} req/s for {duration_s:g} s needs more than {count}.",
                hint="Shorten duration_s, lower the ladder, or bring a longer trace.",
            )
        start = random.Random(seed).randrange(len(recorded) - count)  # noqa: S311 - as above
        rows = recorded[start : start + count + 1]
    return _stretched(rows, duration_s)


def read_rows(trace: Trace) -> list[TraceRow]:
    """Read a recorded trace whole, arrivals counted from its first row.

    :raises SpecError: unknown format, unreadable file, or a line that is not of the format (named by its
        number).
    """
    parse = _PARSERS.get(trace.format)
    if parse is None:
        raise SpecError(
            f"Trace {trace.name!r}: format {trace.format!r} is not one of {', '.join(TRACE_FORMATS)}."
        )
    try:
        with Path(trace.path).open(newline="", encoding="utf-8") as lines:
            rows = list(_parsed(trace, parse, lines))
    except OSError as error:
        raise SpecError(f"Trace {trace.name!r}: {trace.path} cannot be read: {error.strerror}.") from error
    rows.sort(key=lambda row: row.arrival_s)
    first = rows[0].arrival_s if rows else 0.0
    return [
        TraceRow(
            arrival_s=row.arrival_s - first, input_tokens=row.input_tokens, output_tokens=row.output_tokens
        )
        for row in rows
    ]


def content_digest(trace: Trace) -> str:
    """Return the SHA-256 of a trace's content, or of its description where it is synthetic without a file."""
    if trace.path:
        return hashlib.sha256(Path(trace.path).read_bytes()).hexdigest()
    text = json.dumps([trace.format, trace.isl_mean_tokens, trace.osl_mean_tokens])
    return hashlib.sha256(text.encode()).hexdigest()


def mooncake_jsonl(rows: Iterable[TraceRow]) -> str:
    """Write rows as Mooncake JSONL, which load generators replay: milliseconds, lengths, no prefix hashes."""
    return "".join(
        json.dumps(
            {
                "timestamp": round(row.arrival_s * 1000.0, 3),
                "input_length": row.input_tokens,
                "output_length": row.output_tokens,
            }
        )
        + "\n"
        for row in rows
    )


def _stretched(rows: list[TraceRow], duration_s: float) -> tuple[TraceRow, ...]:
    """Scale ``count + 1`` rows so that the last, which is left out, would arrive at ``duration_s``."""
    first, span = rows[0].arrival_s, rows[-1].arrival_s - rows[0].arrival_s
    if span <= 0:
        raise SpecError("A trace window whose requests all arrive at one instant has no rate to scale.")
    return tuple(
        TraceRow(
            arrival_s=(row.arrival_s - first) * duration_s / span,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
        )
        for row in rows[:-1]
    )


def _synthetic(trace: Trace) -> SyntheticTrace:
    if trace.format == "poisson":
        if not (trace.isl_mean_tokens and trace.osl_mean_tokens):
            raise SpecError(
                f"Trace {trace.name!r}: format poisson needs isl_mean_tokens and osl_mean_tokens."
            )
        return SyntheticTrace(
            arrival_cv=1.0,
            input_lengths=Lengths(distribution="fixed", mean=trace.isl_mean_tokens),
            output_lengths=Lengths(distribution="fixed", mean=trace.osl_mean_tokens),
        )
    try:
        text = json.loads(Path(trace.path).read_text(encoding="utf-8"))
        return SyntheticTrace(
            arrival_cv=float(text["arrival_cv"]),
            input_lengths=Lengths(**text["input_tokens"]),
            output_lengths=Lengths(**text["output_tokens"]),
        )
    except OSError as error:
        raise SpecError(f"Trace {trace.name!r}: {trace.path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(
            f"Trace {trace.name!r}: {trace.path} is no synthetic trace: {error}.",
            hint="It is JSON with arrival_cv, input_tokens and output_tokens, each {distribution, mean, cv}.",
        ) from error


def _parsed(
    trace: Trace, parse: Callable[[Any], TraceRow | None], lines: Iterable[str]
) -> Iterator[TraceRow]:
    # A CSV's first row is its second line
    records = (
        enumerate(lines, start=1) if trace.format == "mooncake" else enumerate(csv.DictReader(lines), start=2)
    )
    for number, record in records:
        try:
            row = parse(record)
        except (ValueError, KeyError, TypeError) as error:
            raise SpecError(
                f"Trace {trace.name!r}: {trace.path} line {number} is not of format {trace.format}:"
                f" {error!r}."
            ) from error
        if row is not None:
            yield row


def _azure(record: dict[str, Any]) -> TraceRow:
    # Seven fractional digits: cut to the six that a datetime holds
    moment = datetime.fromisoformat(record["TIMESTAMP"][:26]).replace(tzinfo=UTC)
    return _row(moment.timestamp(), record["ContextTokens"], record["GeneratedTokens"])


def _mooncake(line: str) -> TraceRow:
    record = json.loads(line)
    return _row(float(record["timestamp"]) / 1000.0, record["input_length"], record["output_length"])


def _burstgpt(record: dict[str, Any]) -> TraceRow | None:
    if int(record["Response tokens"]) == 0:  # the published trace writes failed requests this way
        return None
    return _row(float(record["Timestamp"]), record["Request tokens"], record["Response tokens"])


def _row(arrival_s: float, input_tokens: Any, output_tokens: Any) -> TraceRow:
    return TraceRow(
        arrival_s=arrival_s, input_tokens=max(1, int(input_tokens)), output_tokens=max(1, int(output_tokens))
    )


_PARSERS: dict[str, Callable[[Any], TraceRow | None]] = {
    "azure": _azure,
    "mooncake": _mooncake,
    "burstgpt": _burstgpt,
}
