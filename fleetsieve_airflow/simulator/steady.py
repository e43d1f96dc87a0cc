"""Closed forms: what a replica does in steady state, for whole arrays of configurations at once.

Medians and means of one length profile, not tails: they say where to look. :mod:`.events` gives the tails.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fleetsieve_airflow.simulator.curves import BoolArray, FloatArray
from fleetsieve_airflow.simulator.engine import EngineModel, StepShape

ITERATIONS = 8
#: How busy a prefill pool is run: above, its queue makes the time to the first token.
PREFILL_UTILISATION = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthProfile:
    """Mean prompt and output tokens of the requests."""

    isl_tokens: float
    osl_tokens: float


@dataclass(frozen=True, slots=True)
class Steady:
    """Estimates, arrays of one shape.

    :param rate_rps: requests per second of one replica (all its ranks).
    """

    ttft_s: FloatArray
    tpot_s: FloatArray
    rate_rps: FloatArray
    beyond_tables: BoolArray

    def e2e_s(self, profile: LengthProfile) -> FloatArray:
        """Return seconds until the last token."""
        return np.asarray(self.ttft_s + self.tpot_s * (profile.osl_tokens - 1.0))


def continuous(
    engine: EngineModel, profile: LengthProfile, batch: npt.ArrayLike, budget: npt.ArrayLike | None = None
) -> Steady:
    """Estimate continuous batching with chunked prefill at ``batch`` running sequences on each rank.

    In the time in which the decoding sequences take all their steps once, each of the others' successors is
    prefilled once: d sequences end in ``steps x step + d x prefill`` seconds. How many decode, and how long
    a prompt waits for those before it, follow from the rate that results.

    :param budget: tokens of one step; the engine's own by default.
    """
    batch = np.asarray(batch, dtype=float)
    budget = np.asarray(engine.settings.max_num_batched_tokens if budget is None else budget, dtype=float)
    batch, budget = np.broadcast_arrays(batch, budget)
    context = profile.isl_tokens + profile.osl_tokens / 2.0
    step = engine.step_s(StepShape(batch, context))
    steps = max(1.0, (profile.osl_tokens - 1.0) / engine.tokens_per_step)
    prompt = StepShape(batch, context, profile.isl_tokens)
    prefill, lag = engine.prefill_s(prompt), engine.prefill_lag_s(prompt)
    chunks = np.ceil(profile.isl_tokens / np.maximum(1.0, budget - batch))
    # The prompt rides along with the decoding steps of the others, and first waits for the step that runs.
    ride = (chunks + 0.5) * step * (1.0 - 1.0 / np.maximum(batch, 1.0))
    decoding, rate, ttft = batch, batch / (steps * step + (batch - 1.0) * prefill), step
    for _ in range(ITERATIONS):
        share = np.minimum(rate * prefill, 0.999)
        queue = np.minimum(share * prefill / (2.0 * (1.0 - share)), (batch - 1.0) * prefill / 2.0)
        ttft = engine.constants.request_overhead_s + prefill + lag + ride + queue
        decoding = np.maximum(0.5 * batch, 0.5 * decoding + 0.5 * (batch - rate * ttft))
        rate = decoding / (steps * step + np.maximum(0.0, batch - 1.0) / batch * decoding * prefill)
    decode = decoding / rate
    widest = StepShape(batch, context, np.minimum(profile.isl_tokens, budget))
    tpot = decode / max(1.0, profile.osl_tokens - 1.0)
    return Steady(ttft, tpot, engine.plan.dp * rate, engine.outside(widest))


def prefill_pool(engine: EngineModel, profile: LengthProfile) -> tuple[float, float]:
    """Return a prefill replica's seconds to the first token, queue included, and its requests per second."""
    prompt = StepShape(prefill=profile.isl_tokens)
    busy = float(engine.prefill_s(prompt)) + engine.constants.step_overhead_s
    queue = PREFILL_UTILISATION * busy / (2.0 * (1.0 - PREFILL_UTILISATION))
    ttft = engine.constants.request_overhead_s + busy + float(engine.prefill_lag_s(prompt)) + queue
    return ttft, engine.plan.dp * PREFILL_UTILISATION / busy


def transfer_s(prefill: EngineModel, decode: EngineModel, profile: LengthProfile) -> float:
    """Return seconds to move a prompt's cache between the pools, each rank over its own network card."""
    senders, receivers = prefill.database.hardware, decode.database.hardware
    cards = min(prefill.plan.tp * prefill.plan.pp, decode.plan.tp * decode.plan.pp)
    whole = profile.isl_tokens * prefill.shape.kv_bytes_per_token(1)
    bandwidth = min(senders.network_bandwidth, receivers.network_bandwidth)
    return senders.link_latency_s + whole / (cards * bandwidth)


def decode_pool(engine: EngineModel, profile: LengthProfile, batch: npt.ArrayLike) -> Steady:
    """Estimate a decode replica that never prefills, at ``batch`` sequences on each rank."""
    batch = np.asarray(batch, dtype=float)
    context = profile.isl_tokens + profile.osl_tokens / 2.0
    tpot = engine.step_s(StepShape(batch, context)) / engine.tokens_per_step
    rate = engine.plan.dp * batch / (tpot * max(1.0, profile.osl_tokens - 1.0))
    return Steady(np.zeros_like(tpot), tpot, rate, engine.outside(StepShape(batch, context)))


@dataclass(frozen=True, slots=True)
class Split:
    """Disaggregated pools over arrays of decode batches (last axis) and prefill replicas (first axis).

    :param decoders: decode replicas beside ``prefills`` prefill replicas; ``gpus`` of all of them.
    :param rate_rps: what both pools together serve; ``cost_per_hour`` NaN where a price is not known.
    """

    steady: Steady
    prefills: FloatArray
    decoders: FloatArray
    gpus: FloatArray
    cost_per_hour: FloatArray


def disaggregated(
    prefill: EngineModel, decode: EngineModel, profile: LengthProfile, batch: npt.ArrayLike, most: int = 8
) -> Split:
    """Balance the pools: for 1 to ``most`` prefill replicas, the decode replicas that keep up."""
    ttft, prefill_rate = prefill_pool(prefill, profile)
    ttft += transfer_s(prefill, decode, profile)
    decoding = decode_pool(decode, profile, batch)
    prefills = np.arange(1.0, most + 1.0)[:, np.newaxis]
    decoders = np.maximum(1.0, np.rint(prefills * prefill_rate / decoding.rate_rps))
    rate = np.minimum(prefills * prefill_rate, decoders * decoding.rate_rps)
    prefills = np.broadcast_to(prefills, rate.shape)
    gpus = prefills * prefill.plan.gpus + decoders * decode.plan.gpus
    prices = [_price(engine) for engine in (prefill, decode)]
    cost = prefills * prefill.plan.gpus * prices[0] + decoders * decode.plan.gpus * prices[1]
    # A decode pool with room to spare runs smaller batches and faster steps than asked; that is left as
    # headroom.
    steady = Steady(
        np.full(rate.shape, ttft),
        np.broadcast_to(decoding.tpot_s, rate.shape),
        rate,
        np.broadcast_to(decoding.beyond_tables, rate.shape),
    )
    return Split(steady, prefills, decoders, gpus, cost)


def _price(engine: EngineModel) -> float:
    price = engine.database.hardware.price_per_gpu_hour
    return float("nan") if price is None else price
