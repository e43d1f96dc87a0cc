"""Discrete events for disaggregated serving: a prefill pool, the cache's journey, a decode pool."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fleetsieve_airflow.simulator.arrivals import Requests, thinned
from fleetsieve_airflow.simulator.curves import FloatArray, PerfDataError
from fleetsieve_airflow.simulator.engine import Constants, EngineModel
from fleetsieve_airflow.simulator.events import Outcome, StepTimes, simulate
from fleetsieve_airflow.simulator.steady import LengthProfile, transfer_s


class ArrivedTimes(StepTimes):
    """Step times of a decode pool: the prompt's cache came over the network, nothing is prefilled."""

    def prefill_s(self, decoding: int, chunks: list[tuple[int, int]]) -> float:
        """Return 0: taking a cache over costs the pool no step."""
        return 0.0


@dataclass(frozen=True, slots=True)
class SplitEngine:
    """A disaggregated replica: ``prefills`` engines that prefill beside ``decoders`` that decode."""

    prefill: EngineModel
    decode: EngineModel
    prefills: int = 1
    decoders: int = 1

    @property
    def constants(self) -> Constants:
        """Constants of the engine model, one set for both phases."""
        return self.decode.constants

    @property
    def kv_tokens(self) -> int:
        """Tokens that the smaller of both phases' caches holds."""
        return min(self.prefill.kv_tokens, self.decode.kv_tokens)

    def with_constants(self, constants: Constants) -> SplitEngine:
        """Return the same replica with other constants."""
        return replace(
            self,
            prefill=self.prefill.with_constants(constants),
            decode=self.decode.with_constants(constants),
        )


#: What one replica may be.
AnyEngine = EngineModel | SplitEngine


def serve(
    engine: AnyEngine, requests: Requests, *, times: StepTimes | None = None, window_s: float | None = None
) -> Outcome:
    """Serve requests on one replica, whole or disaggregated.

    :param window_s: when the clients of a closed loop stop sending.
    :raises PerfDataError: a disaggregated replica under clients.
    """
    if isinstance(engine, SplitEngine):
        return simulate_split(
            engine.prefill, engine.decode, requests, prefills=engine.prefills, decoders=engine.decoders
        )
    return simulate(engine, requests, times=times, window_s=window_s)


def simulate_split(
    prefill: EngineModel,
    decode: EngineModel,
    requests: Requests,
    *,
    prefills: int = 1,
    decoders: int = 1,
    timeout_s: float | None = None,
) -> Outcome:
    """Serve an open loop on ``prefills`` prefill replicas and ``decoders`` decode replicas, round robin.

    A request's first token comes from the prefill pool; its cache then travels, and the rest comes from the
    decode pool, where it waits for room.
    """
    if requests.concurrency is not None:
        raise PerfDataError("Disaggregated pools are simulated under an open loop, not under clients.")
    first = _first_tokens(prefill, requests, prefills)
    moved = np.array([_journey_s(prefill, decode, isl) for isl in np.unique(requests.isl_tokens)])
    journey = moved[np.searchsorted(np.unique(requests.isl_tokens), requests.isl_tokens)]
    handed = requests.arrival_s + first + journey
    end, decoding = _decoded(decode, requests, handed, decoders)
    e2e = np.where(requests.osl_tokens > 1, end - requests.arrival_s, first)
    failed = ~np.isfinite(e2e) if timeout_s is None else ~(e2e <= timeout_s)
    tpot = (e2e - first) / np.maximum(1, requests.osl_tokens - 1)
    finite = e2e[~failed]
    return Outcome(
        sent_s=requests.arrival_s,
        ttft_s=np.where(failed, np.inf, first),
        tpot_s=np.where(requests.osl_tokens > 1, np.where(failed, np.inf, tpot), np.nan),
        e2e_s=np.where(failed, np.inf, e2e),
        queued_s=np.maximum(0.0, first - first.min(initial=np.inf)),
        end_s=float((requests.arrival_s + e2e)[~failed].max()) if len(finite) else 0.0,
        busy_s=decoding.busy_s,
        preemptions=decoding.preemptions,
        beyond_tables=decoding.beyond_tables or bool(prefill.beyond),
    )


def _journey_s(prefill: EngineModel, decode: EngineModel, isl: float) -> float:
    return transfer_s(prefill, decode, LengthProfile(isl_tokens=float(isl), osl_tokens=1.0))


def _first_tokens(engine: EngineModel, requests: Requests, replicas: int) -> FloatArray:
    """Return seconds to the first token of every request."""
    only = Requests(requests.arrival_s, requests.isl_tokens, np.ones_like(requests.osl_tokens))
    times, first = StepTimes(engine), np.full(len(requests), np.inf)
    for replica in range(replicas):
        share = thinned(only, replicas, replica)
        for rank in range(engine.plan.dp):
            outcome = simulate(engine, share, times=times, rank=rank)
            first[replica::replicas][rank :: engine.plan.dp] = outcome.ttft_s
    return first


def _decoded(
    engine: EngineModel, requests: Requests, handed: FloatArray, replicas: int
) -> tuple[FloatArray, Outcome]:
    """Return when every request ended (absolute seconds) and the last rank's run."""
    local = engine.with_constants(replace(engine.constants, request_overhead_s=0.0))
    order = np.argsort(handed, kind="stable")
    order = order[np.isfinite(handed[order])]
    rest = Requests(handed[order], requests.isl_tokens[order], np.maximum(1, requests.osl_tokens[order] - 1))
    times, end, run = ArrivedTimes(local), np.full(len(order), np.inf), None
    for replica in range(replicas):
        share = thinned(rest, replicas, replica)
        for rank in range(engine.plan.dp):
            run = simulate(local, share, times=times, rank=rank)
            end[replica::replicas][rank :: engine.plan.dp] = run.sent_s + run.e2e_s
    every = np.full(len(requests), np.inf)
    every[order] = end
    return every, run if run is not None else simulate(local, rest)
