"""Requests as arrays: arrival times and lengths, drawn or recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fleetsieve_airflow.simulator.curves import FloatArray, PerfDataError

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Requests:
    """What one replica is asked, in order.

    :param arrival_s: when each request is sent, shape (n,), not decreasing. Under a closed loop all zeros:
        the client sends the next one when one comes back.
    :param isl_tokens: prompt tokens, shape (n,); ``osl_tokens`` output tokens.
    :param concurrency: clients of a closed loop, or None for an open loop.
    """

    arrival_s: FloatArray
    isl_tokens: IntArray
    osl_tokens: IntArray
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if not len(self.arrival_s) == len(self.isl_tokens) == len(self.osl_tokens):
            raise PerfDataError("Requests need as many arrivals as prompt and output lengths.")
        if len(self.arrival_s) and (np.any(np.diff(self.arrival_s) < 0) or self.arrival_s[0] < 0):
            raise PerfDataError("Arrivals must not decrease and not lie before 0.")
        if np.any(self.isl_tokens < 1) or np.any(self.osl_tokens < 1):
            raise PerfDataError("Every request needs at least one prompt token and one output token.")
        if self.concurrency is not None and self.concurrency < 1:
            raise PerfDataError(f"A closed loop needs at least one client, got {self.concurrency}.")

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long prompts and outputs are: means, and how they spread.

    :param spread: ``fixed``; ``uniform`` between ``low`` x mean / ((1 + low) / 2) and its mirror;
        ``lognormal`` with the coefficient of variation ``cv``.
    """

    isl_mean_tokens: float
    osl_mean_tokens: float
    spread: str = "fixed"
    low: float = 0.8
    cv: float = 1.0

    def draw(self, count: int, random: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return prompt and output lengths, each of shape (count,)."""
        return self._one(self.isl_mean_tokens, count, random), self._one(self.osl_mean_tokens, count, random)

    def _one(self, mean: float, count: int, random: np.random.Generator) -> IntArray:
        if self.spread == "fixed":
            values = np.full(count, mean)
        elif self.spread == "uniform":
            high = mean / ((1.0 + self.low) / 2.0)
            values = random.uniform(self.low * high, high, count)
        elif self.spread == "lognormal":
            sigma = np.sqrt(np.log1p(self.cv**2))
            values = random.lognormal(np.log(mean) - sigma**2 / 2.0, sigma, count)
        else:
            raise PerfDataError(f"Unknown spread {self.spread!r}; known: fixed, uniform, lognormal.")
        return np.asarray(np.maximum(1, np.rint(values)), dtype=np.int64)


def poisson(rate_rps: float, duration_s: float, lengths: Lengths, seed: int = 0) -> Requests:
    """Draw a Poisson stream for a duration."""
    random = np.random.default_rng(seed)
    expected = rate_rps * duration_s
    gaps = random.exponential(1.0 / rate_rps, int(expected + 6 * np.sqrt(expected) + 20))
    arrivals = np.cumsum(gaps)
    arrivals = arrivals[arrivals < duration_s]
    isl, osl = lengths.draw(len(arrivals), random)
    return Requests(arrivals, isl, osl)


def closed_loop(concurrency: int, count: int, lengths: Lengths, seed: int = 0) -> Requests:
    """Draw ``count`` requests of ``concurrency`` clients that each send the next when one comes back."""
    isl, osl = lengths.draw(count, np.random.default_rng(seed))
    return Requests(np.zeros(count), isl, osl, concurrency)


def thinned(requests: Requests, ranks: int, rank: int = 0) -> Requests:
    """Return what one of ``ranks`` data-parallel ranks gets of a stream that goes round robin."""
    if ranks == 1:
        return requests
    clients = None if requests.concurrency is None else max(1, requests.concurrency // ranks)
    return Requests(
        requests.arrival_s[rank::ranks],
        requests.isl_tokens[rank::ranks],
        requests.osl_tokens[rank::ranks],
        clients,
    )
