"""The engine model: what one step of a replica takes, from operator tables and a parallelism plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fleetsieve_airflow.simulator.collectives import collective, point_to_point
from fleetsieve_airflow.simulator.curves import BoolArray, Curve, FloatArray, PerfDataError, Surface, add
from fleetsieve_airflow.simulator.models import ModelShape
from fleetsieve_airflow.simulator.operators import OperatorCall, operator_graph
from fleetsieve_airflow.simulator.perf_database import Extrapolation, Fixed, PerfDatabase
from fleetsieve_airflow.simulator.plans import EngineSettings, ParallelPlan, cannot_run, kv_tokens

#: Share of a data sheet's memory bandwidth that element-wise kernels reach, and what launching one takes.
MEMORY_SHARE, MEMORY_LAUNCH_S = 0.8, 3e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The few numbers that tables do not hold; :mod:`.calibration` fits them to a stack.

    :param prefill_scale: on the time a prompt's tokens add; ``decode_scale`` on the time of the decoding
        tokens.
    :param step_overhead_s: of scheduling, launching and sampling per step; ``sequence_overhead_s`` per
        running sequence.
    :param request_overhead_s: before a request is scheduled: network, tokenizer, queue hand-over.
    """

    prefill_scale: float = 1.0
    decode_scale: float = 1.0
    step_overhead_s: float = 1.0e-3
    sequence_overhead_s: float = 5e-6
    request_overhead_s: float = 5e-3


@dataclass(frozen=True, slots=True)
class StepShape:
    """The sizes of steps, arrays that broadcast: what is decoded and what is prefilled on one attention rank.

    :param decoding: sequences that decode; ``context`` tokens each has in the cache (mean).
    :param prefill: prompt tokens prefilled in this step, of ``prompts`` prompts of which ``done`` tokens are
        cached already.
    """

    decoding: npt.ArrayLike = 0.0
    context: npt.ArrayLike = 0.0
    prefill: npt.ArrayLike = 0.0
    prompts: npt.ArrayLike = 1.0
    done: npt.ArrayLike = 0.0


class EngineModel:
    """Step times and limits of one replica of a model on one parallelism plan."""

    def __init__(
        self,
        database: PerfDatabase,
        shape: ModelShape,
        plan: ParallelPlan,
        settings: EngineSettings | None = None,
        constants: Constants | None = None,
        *,
        beyond_tables: Extrapolation = "flag",
        multi_node: bool = False,
    ) -> None:
        """Look every operator of the plan up.

        :param beyond_tables: ``refuse`` raises where a collective or a step is wider than the tables;
            ``flag`` says so.
        :raises PerfDataError: the plan cannot run, or the tables lack an operator.
        """
        self.database, self.shape, self.plan = database, shape, plan
        self.settings, self.constants = settings or EngineSettings(), constants or Constants()
        self._refuse = beyond_tables == "refuse"
        if reason := cannot_run(shape, database.hardware, plan, multi_node=multi_node):
            raise PerfDataError(
                f"{shape.name} cannot run as {plan.label} on {database.hardware.name}: {reason}."
            )
        self.kv_tokens = kv_tokens(shape, database.hardware, plan, self.settings)
        self.beyond: list[str] = []
        #: What others derive from this engine whatever its constants; variants share it.
        self.shared: dict[str, object] = {}
        graph = operator_graph(shape, plan, self.settings.routing)
        self.tokens = add([self._priced(call) for call in graph if not call.head])
        self.head = add([self._priced(call) for call in graph if call.head])
        self._prefill = self._attention("prefill")
        self._decode = self._attention("decode")
        if self.beyond and self._refuse:
            raise PerfDataError(f"{database.name} would have to extrapolate: {'; '.join(self.beyond)}.")

    def with_constants(self, constants: Constants) -> EngineModel:
        """Return the same engine with other constants; nothing is looked up again."""
        other = object.__new__(EngineModel)
        other.__dict__.update(self.__dict__)
        other.constants = constants
        return other

    @property
    def tokens_per_step(self) -> float:
        """Tokens a decoding sequence gains in one step."""
        speculation = self.settings.speculation
        return 1.0 if speculation is None else speculation.tokens_per_step

    def step_s(self, step: StepShape) -> FloatArray:
        """Return seconds of steps (the pipeline full: one such step of every stage a turn)."""
        constants = self.constants
        decoding = np.asarray(step.decoding, dtype=float)
        overhead = constants.step_overhead_s + constants.sequence_overhead_s * decoding
        return np.asarray(overhead + self.decode_s(decoding, step.context) + self.prefill_s(step))

    def decode_s(self, decoding: npt.ArrayLike, context: npt.ArrayLike) -> FloatArray:
        """Return seconds the decoding sequences take on their own, without overhead; 0 where none decodes."""
        decoding = np.asarray(decoding, dtype=float)
        speculation = self.settings.speculation
        verified = 1.0 if speculation is None else 1.0 + speculation.tokens
        micro = np.maximum(1.0, decoding / self.plan.pp)
        seconds = self.tokens.at(micro * verified) + self.head.at(micro * verified)
        seconds = seconds + sum(part.at(micro, np.minimum(context, cap)) for part, cap in self._decode)
        if speculation is not None:
            seconds = seconds * (1.0 + speculation.tokens * speculation.draft_cost)
        return np.asarray(np.where(decoding > 0, seconds * self.constants.decode_scale, 0.0))

    def prefill_s(self, step: StepShape) -> FloatArray:
        """Return seconds the prompt tokens of a step keep each stage busy beyond its decoding.

        With the pipeline full the stages work on different prompts, so a stage is busy for its own layers
        only.
        """
        prefill, decoding = np.asarray(step.prefill, dtype=float), np.asarray(step.decoding, dtype=float)
        prompts, done = np.asarray(step.prompts, dtype=float), np.asarray(step.done, dtype=float)
        shared = prefill / self.plan.cp
        below = np.where(decoding > 0, self.tokens.at(np.maximum(1.0, decoding)), 0.0)
        added = np.maximum(0.0, self.tokens.at(np.maximum(1.0, decoding + shared)) - below)
        each = np.maximum(1.0, prefill / np.maximum(prompts, 1.0))
        # A chunk attends to what is cached before it: the triangle of the whole prompt less that of the
        # cached part.
        whole = each + done
        share = np.clip((whole**2 - done**2) / np.maximum(whole**2, 1.0), 0.0, 1.0)
        attention = sum(
            part.at(np.maximum(prompts, 1.0), np.minimum(whole, cap)) for part, cap in self._prefill
        )
        seconds = (
            added + np.asarray(attention) * share / self.plan.cp + self.head.at(np.maximum(prompts, 1.0))
        )
        if self.plan.cp > 1:
            seconds = seconds + self._context_gather.at(
                shared * self.shape.kv_bytes_per_token(self.plan.tp) / self.shape.layers
            )
        return np.asarray(np.where(prefill > 0, seconds * self.constants.prefill_scale / self.plan.pp, 0.0))

    def outside(self, step: StepShape) -> BoolArray:
        """Return which steps lie outside the tables."""
        tokens = np.asarray(step.decoding, dtype=float) + np.asarray(step.prefill, dtype=float) / self.plan.cp
        far = self.tokens.outside(tokens)
        decoding = np.asarray(step.decoding, dtype=float)
        for part, cap in self._decode:
            far = far | (
                (decoding > 0) & part.outside(np.maximum(1.0, decoding), np.minimum(step.context, cap))
            )
        return np.asarray(far)

    def prefill_lag_s(self, step: StepShape) -> FloatArray:
        """Return how long after its first stage is free again a prefill leaves the last stage."""
        return self.prefill_s(step) * (self.plan.pp - 1.0)

    def max_sequences(self, tokens_each: float) -> int:
        """Return how many sequences of a length the KV cache of one rank holds, within the engine's limit."""
        return min(self.settings.max_num_seqs, int(self.kv_tokens / max(1.0, tokens_each)))

    def _priced(self, call: OperatorCall) -> Curve:
        if call.group == "memory":
            hardware = self.database.hardware
            sizes = np.array([0.0, 1e12])
            base = Curve(sizes, MEMORY_LAUNCH_S * 3 + sizes / (MEMORY_SHARE * hardware.memory_bandwidth))
        elif call.group == "pipeline":
            base = point_to_point(self.database, self.plan.gpus > self.database.hardware.gpus_per_node)
        elif call.group == "collective":
            base, beyond = collective(self.database, call.operator, int(float(call.fixed["gpus"])))
            if beyond:
                self._note(f"{call.operator} over {call.fixed['gpus']} GPUs")
        else:
            base = self.database.curve(call.operator, call.fixed)
        uneven = -(-self.shape.layers // self.plan.pp) * self.plan.pp / self.shape.layers
        return base.scaled(call.calls * (uneven if call.calls > self.plan.pp else 1.0), 1.0 / call.per_token)

    def _attention(self, phase: str) -> list[tuple[Surface, float]]:
        shape, tp = self.shape, self.plan.tp
        if shape.attention == "mla":
            fixed: Fixed = {
                "dtype": shape.precision.gemm,
                "kv_dtype": shape.precision.kv,
                "heads": shape.heads // tp,
            }
            return [(self.database.surface(f"mla_{phase}", fixed).scaled(shape.layers), np.inf)]
        if self.plan.cp > 1 and phase == "prefill":
            self._context_gather, _ = collective(self.database, "all_gather", self.plan.cp)
            self._context_gather = self._context_gather.scaled(shape.layers)
        parts = []
        for layers, window in (
            (shape.layers - shape.sliding_layers, 0),
            (shape.sliding_layers, shape.window),
        ):
            if layers:
                parts.append(self._windowed(phase, layers, window))
        return parts

    def _windowed(self, phase: str, layers: int, window: int) -> tuple[Surface, float]:
        shape = self.shape
        heads, kv_heads = shape.heads // self.plan.tp, max(1, shape.kv_heads // self.plan.tp)
        fixed: dict[str, str | float] = {
            "kv_dtype": shape.precision.kv,
            "head_dim": shape.head_dim,
            "kv_heads": kv_heads,
            "window": window,
            "heads": heads,
        }
        try:
            return self.database.surface(f"attention_{phase}", fixed).scaled(layers), np.inf
        except PerfDataError:
            if not window:
                raise
        # No rows for this window: full attention over at most the window, which is what decoding reads.
        self._note(f"attention_{phase} with window {window}")
        fixed["window"] = 0
        cap = float(window) if phase == "decode" else np.inf
        return self.database.surface(f"attention_{phase}", fixed).scaled(layers), cap

    def _note(self, what: str) -> None:
        if what not in self.beyond:
            self.beyond.append(what)


def scaled_constants(constants: Constants, **changes: float) -> Constants:
    """Return constants with some replaced (the simulator's what-if and the tests' wrong priors)."""
    return replace(constants, **changes)
