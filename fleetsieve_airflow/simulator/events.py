"""Discrete-event simulation of one replica: continuous batching, chunked prefill, a full KV cache.

Between two events that matter (an arrival, a sequence that ends, a full cache) all decoding steps are alike
but for their growing context, so they are taken in one leap; a window of thousands of requests costs tens of
thousands of leaps, not millions of tokens.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

import numpy as np

from fleetsieve_airflow.simulator.arrivals import Requests, thinned
from fleetsieve_airflow.simulator.curves import FloatArray
from fleetsieve_airflow.simulator.engine import Constants, EngineModel, StepShape

_LENGTHS = np.unique(np.concatenate([np.arange(0, 64), np.round(np.geomspace(64, 262144, 400))]))
_CONTEXTS = np.unique(np.round(np.concatenate([[0.0], np.geomspace(16, 262144, 96)])))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of every request of a run.

    :param sent_s: when each request was sent, shape (n,).
    :param ttft_s: seconds to the first token, shape (n,); infinite where the request failed. So ``e2e_s``.
    :param tpot_s: mean seconds per further token; NaN for outputs of one token.
    :param queued_s: seconds before a request was first scheduled.
    :param end_s: when the last request ended; ``busy_s`` how long the replica was stepping.
    """

    sent_s: FloatArray
    ttft_s: FloatArray
    tpot_s: FloatArray
    e2e_s: FloatArray
    queued_s: FloatArray
    end_s: float
    busy_s: float
    preemptions: int
    beyond_tables: bool

    @property
    def failed(self) -> int:
        """Requests that failed."""
        return int(np.sum(~np.isfinite(self.e2e_s)))

    @property
    def success_rate(self) -> float:
        """Share of requests that succeeded; 0 for an empty run."""
        return 1.0 - self.failed / len(self.e2e_s) if len(self.e2e_s) else 0.0

    def percentile(self, metric: str, percentile: float) -> float:
        """Return a percentile in seconds over all sent requests, failed ones infinitely late.

        :param metric: ``ttft``, ``tpot``, ``e2e`` or ``queued``.
        """
        values = self.values(metric)
        if not len(values):
            return float("inf")
        return float(np.percentile(values, percentile, method="inverted_cdf"))

    def mean(self, metric: str) -> float:
        """Return the mean in seconds over the requests that succeeded."""
        values = self.values(metric)
        finite = values[np.isfinite(values)]
        return float(np.mean(finite)) if len(finite) else float("inf")

    def values(self, metric: str) -> FloatArray:
        """Return a metric per request; requests without one (TPOT of a single token) left out."""
        values = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s, "queued": self.queued_s}[
            metric
        ]
        return np.asarray(values[~np.isnan(values)])


class _Tables:
    """An engine's step times before any constant, as plain lists; one engine's variants share them."""

    def __init__(self, engine: EngineModel) -> None:
        self.plain = engine.with_constants(Constants(step_overhead_s=0.0, sequence_overhead_s=0.0))
        longest = (
            engine.settings.max_num_batched_tokens * engine.plan.pp + 2 * engine.settings.max_num_seqs + 2
        )
        self.tokens: list[float] = engine.tokens.at(np.maximum(1, np.arange(longest))).tolist()
        lengths = np.maximum(_LENGTHS, 1.0)
        alone = self.plain.prefill_s(StepShape(prefill=lengths)) * engine.plan.pp
        rest = np.maximum(0.0, alone - engine.tokens.at(np.maximum(1.0, lengths / engine.plan.cp)))
        every = np.interp(np.arange(_LENGTHS[-1] + 1.0), _LENGTHS, rest)
        self.attention: list[float] = every.tolist()
        self.rows: dict[int, list[float]] = {}

    def row(self, decoding: int) -> list[float]:
        row = self.rows.get(decoding)
        if row is None:
            row = self.rows[decoding] = self.plain.decode_s(float(decoding), _CONTEXTS).tolist()
        return row


class StepTimes:
    """An engine's step times as plain lists, so that one step costs a few look-ups."""

    def __init__(self, engine: EngineModel) -> None:
        tables = engine.shared.get("steps")
        if not isinstance(tables, _Tables):
            tables = engine.shared["steps"] = _Tables(engine)
        self.constants, self._tables = engine.constants, tables
        self.budget = engine.settings.max_num_batched_tokens
        self._contexts: list[float] = _CONTEXTS.tolist()
        self._cp = engine.plan.cp
        self._prefill_scale = engine.constants.prefill_scale / engine.plan.pp

    def decode_s(self, decoding: int, context: float) -> float:
        """Return seconds one step of ``decoding`` sequences takes, overhead included."""
        row, contexts, constants = self._tables.row(decoding), self._contexts, self.constants
        if context >= contexts[-1]:
            seconds = row[-1] * context / contexts[-1]
        else:
            right = bisect_right(contexts, context)
            low, below = contexts[right - 1], row[right - 1]
            seconds = below + (row[right] - below) * (context - low) / (contexts[right] - low)
        overhead = constants.step_overhead_s + constants.sequence_overhead_s * decoding
        return seconds * constants.decode_scale + overhead

    def prefill_s(self, decoding: int, chunks: list[tuple[int, int]]) -> float:
        """Return seconds that prompt chunks (tokens, already cached) add to a step."""
        attention_s, tokens_s = self._tables.attention, self._tables.tokens
        floor = attention_s[1]
        tokens, attention, last = 0, floor, len(attention_s) - 1
        for size, done in chunks:
            tokens += size
            share = 1.0 if not done else 1.0 - (done / (size + done)) ** 2
            attention += max(0.0, attention_s[min(size + done, last)] - floor) * share
        position = min(decoding + -(-tokens // self._cp), len(tokens_s) - 1)
        added = tokens_s[position] - (tokens_s[decoding] if decoding else 0.0)
        return (max(0.0, added) + attention) * self._prefill_scale


class Replica:
    """One rank of a replica and its requests, as a scheduler sees them."""

    def __init__(self, times: StepTimes, engine: EngineModel, requests: Requests) -> None:
        self.times, self.plan = times, engine.plan
        self.max_seqs, self.kv_limit = engine.settings.max_num_seqs, engine.kv_tokens
        self.gain = engine.tokens_per_step
        count = len(requests)
        self.isl: list[int] = requests.isl_tokens.tolist()
        self.osl: list[int] = requests.osl_tokens.tolist()
        self.sent: list[float] = requests.arrival_s.tolist()
        self.open_loop, self.next = requests.concurrency is None, 0
        self.sending_until = float("inf")
        self.first = [float("nan")] * count
        self.end = [float("inf")] * count
        self.scheduled = [float("nan")] * count
        self.clock, self.busy = 0.0, 0.0
        self.waiting: deque[int] = deque()
        self.partial: list[int] = []
        self.cached = [0] * count
        self.produced = [0.0] * count
        self.steps, self.decoding, self.context_sum = 0.0, 0, 0.0
        self.ends: list[tuple[float, int]] = []
        self.joined: dict[int, tuple[float, float]] = {}
        self.reserved = 0
        self.preemptions = 0
        self.widest = (0, 0.0)
        self.lag = 0.0
        self.clients = 0 if self.open_loop else min(requests.concurrency or 1, count)

    def run(self, give_up_s: float, sending_until_s: float) -> None:
        """Serve until every request has ended or the clock passes ``give_up_s``."""
        self.sending_until = sending_until_s
        for _ in range(self.clients):
            self._send(0.0)
        while self.clock < give_up_s:
            self._receive()
            chunks = self._schedule()
            if chunks:
                self._mixed_step(chunks)
            elif self.decoding:
                self._decode_leap()
            elif self.open_loop and self.next < len(self.sent):
                self.clock = max(self.clock, self.sent[self.next] + self.times.constants.request_overhead_s)
            elif not self.waiting:
                return

    def _send(self, now: float) -> None:
        """Let one client of a closed loop send its next request, and the one after it if it is refused."""
        while self.next < len(self.sent) and now < self.sending_until:
            self.sent[self.next] = now
            self.next += 1
            if self._accept(self.next - 1):
                return

    def _accept(self, request: int) -> bool:
        # A request that could never fit is refused at once, as the engine does.
        fits = self.isl[request] + self.osl[request] <= self.kv_limit
        if fits:
            self.waiting.append(request)
        return fits

    def _receive(self) -> None:
        if not self.open_loop:
            return
        latest = self.clock - self.times.constants.request_overhead_s + 1e-12
        while self.next < len(self.sent) and self.sent[self.next] <= latest:
            self._accept(self.next)
            self.next += 1

    def _schedule(self) -> list[tuple[int, int, int]]:
        """Return the prompt chunks of the next step: (request, tokens, tokens cached before)."""
        budget = self.times.budget * self.plan.pp - self.decoding
        chunks = []
        for request in self.partial:
            size = min(budget, self._prompt(request) - self.cached[request])
            if size > 0:
                chunks.append((request, size, self.cached[request]))
                budget -= size
        while self.waiting and budget > 0 and self.decoding + len(self.partial) < self.max_seqs:
            request = self.waiting[0]
            prompt = self._prompt(request)
            if self.reserved + self.context_sum + prompt > self.kv_limit:
                break
            self.waiting.popleft()
            self.partial.append(request)
            self.reserved += prompt
            if math.isnan(self.scheduled[request]):
                self.scheduled[request] = self.clock
            size = min(budget, prompt)
            chunks.append((request, size, 0))
            budget -= size
        return chunks

    def _prompt(self, request: int) -> int:
        # After a preemption what was produced is computed again with the prompt.
        return int(self.isl[request] + self.produced[request])

    def _mixed_step(self, chunks: list[tuple[int, int, int]]) -> None:
        seconds = prefill = self.times.prefill_s(self.decoding, [(size, done) for _, size, done in chunks])
        if self.decoding:
            self._make_room(1.0)
            seconds += self.times.decode_s(self.decoding, self.context_sum / max(1, self.decoding))
            self.context_sum += self.gain * self.decoding
            self.steps += 1.0
        else:
            seconds += self.times.constants.step_overhead_s
        self._advance(seconds)
        self.lag = (
            prefill * (self.plan.pp - 1.0) * min(1.0, self.times.budget / sum(chunk[1] for chunk in chunks))
        )
        for request, size, done in chunks:
            self.cached[request] = done + size
            if done + size >= self._prompt(request):
                self._join(request)
        self._finish()

    def _join(self, request: int) -> None:
        """Move a prefilled request to the decoding ones: its first (or next) token is out."""
        self.partial.remove(request)
        prompt = self._prompt(request)
        self.reserved -= prompt
        if math.isnan(self.first[request]):
            self.first[request] = self.clock + self.lag
        self.produced[request] += 1.0
        left = self.osl[request] - self.produced[request]
        if left <= 0:
            self._complete(request)
            return
        last = self.steps + float(int(-(-left // self.gain)))
        self.joined[request] = (self.steps, float(prompt + 1))
        heapq.heappush(self.ends, (last, request))
        self.decoding += 1
        self.context_sum += prompt + 1

    def _decode_leap(self) -> None:
        """Take all decoding steps until the next arrival, end or full cache at once."""
        self._make_room(1.0)
        if not self.decoding:
            return
        leap = max(1.0, self.ends[0][0] - self.steps)
        room = (self.kv_limit - self.reserved - self.context_sum) / (self.gain * self.decoding)
        leap = max(1.0, min(leap, float(int(room))))
        mean = self.context_sum / self.decoding
        self.widest = max(self.widest, (self.decoding, mean))
        now = self.times.decode_s(self.decoding, mean)
        # With requests already waiting the head of the queue is blocked by the cache: an arrival changes
        # nothing.
        if self.open_loop and not self.waiting and self.next < len(self.sent) and leap > 1.0:
            gap = self.sent[self.next] + self.times.constants.request_overhead_s - self.clock
            leap = max(1.0, min(leap, float(int(-(-gap // now)))))
        then = now if leap == 1.0 else self.times.decode_s(self.decoding, mean + self.gain * (leap - 1.0))
        self.context_sum += self.gain * self.decoding * leap
        self.steps += leap
        self._advance(leap * (now + then) / 2.0)
        self._finish()

    def _advance(self, seconds: float) -> None:
        self.clock += seconds
        self.busy += seconds

    def _make_room(self, steps: float) -> None:
        """Preempt the youngest sequences until the next steps fit into the cache; one alone always fits."""
        while self.decoding > 1:
            if self.reserved + self.context_sum + self.gain * self.decoding * steps <= self.kv_limit:
                return
            victim = max(self.joined, key=lambda request: (self.joined[request][0], request))
            self._leave(victim)
            self.ends.remove(next(item for item in self.ends if item[1] == victim))
            heapq.heapify(self.ends)
            self.waiting.appendleft(victim)
            self.cached[victim] = 0
            self.preemptions += 1

    def _leave(self, request: int) -> None:
        since, context = self.joined.pop(request)
        gained = self.gain * (self.steps - since)
        self.produced[request] = min(self.osl[request] - 1.0, self.produced[request] + gained)
        self.context_sum -= context + gained
        self.decoding -= 1

    def _finish(self) -> None:
        while self.ends and self.ends[0][0] <= self.steps + 1e-9:
            _, request = heapq.heappop(self.ends)
            self._leave(request)
            self._complete(request)
        if not self.decoding:
            self.context_sum = 0.0

    def _complete(self, request: int) -> None:
        self.end[request] = max(self.clock, self.first[request])
        if not self.open_loop and self.next < len(self.sent):
            self._send(self.clock)


def simulate(
    engine: EngineModel,
    requests: Requests,
    *,
    timeout_s: float | None = None,
    times: StepTimes | None = None,
    rank: int = 0,
    window_s: float | None = None,
) -> Outcome:
    """Serve requests on one replica.

    Of a replica with data-parallel ranks one rank is simulated with its share of the requests: the ranks step
    together.

    :param timeout_s: a request that takes longer counts as failed (the client gives up; the engine serves it
        on).
    :param times: step times of the same engine, to share between runs.
    :param rank: the data-parallel rank to simulate.
    :param window_s: when the clients of a closed loop stop sending; what was not sent by then is left out.
    """
    requests = thinned(requests, engine.plan.dp, rank)
    replica = Replica(times or StepTimes(engine), engine, requests)
    last = float(requests.arrival_s[-1]) if len(requests) else 0.0
    replica.run(last + 86400.0, float("inf") if window_s is None else window_s)
    count = replica.next
    sent, first, end = (np.array(values[:count]) for values in (replica.sent, replica.first, replica.end))
    overhead = 0.0 if replica.open_loop else engine.constants.request_overhead_s
    e2e = end - sent + overhead
    if timeout_s is not None:
        e2e = np.where(e2e > timeout_s, np.inf, e2e)
    failed = ~np.isfinite(e2e)
    ttft = np.where(failed, np.inf, first - sent + overhead)
    further = np.maximum(1, requests.osl_tokens[:count] - 1)
    tpot = np.where(failed, np.inf, (end - first) / further)
    tpot = np.where(requests.osl_tokens[:count] > 1, tpot, np.nan)
    finite = end[np.isfinite(end)]
    decoding, context = replica.widest
    return Outcome(
        sent_s=sent,
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=e2e,
        queued_s=np.nan_to_num(np.array(replica.scheduled[:count]) - sent, nan=np.inf),
        end_s=float(finite.max()) if len(finite) else 0.0,
        busy_s=replica.busy,
        preemptions=replica.preemptions,
        beyond_tables=bool(engine.beyond) or bool(engine.outside(StepShape(decoding, context))),
    )
