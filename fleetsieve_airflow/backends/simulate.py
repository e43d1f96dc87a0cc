"""Simulate: discrete events on operator tables as the measuring device, where no GPU is at hand.

What comes out is judged by the same code as a live run. The device's name is in every point's key, so that
a simulated number is never taken for a measured one. Options under ``measurement.options``:

- ``tables``: ``roofline`` (default), ``aiconfigurator``, or the path of one's own operator tables;
- ``constants``: of the engine model, e.g. ``prefill_scale=1.8,step_overhead_s=0.002``;
- ``run_to_run_cv``: how step times vary from run to run, e.g. ``0.02``, drawn from the point's key;
- ``timeout_s``: after which a client gives up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from fleetsieve_airflow.errors import FleetsieveError, SpecError
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint
from fleetsieve_airflow.records import Candidate, FleetSpec, LoadKind, Trace
from fleetsieve_airflow.serving.judge import gates_for, judge, require_enough_requests
from fleetsieve_airflow.serving.samples import Sample
from fleetsieve_airflow.serving.trace import TraceRow, window

if TYPE_CHECKING:
    from fleetsieve_airflow.simulator.arrivals import Requests
    from fleetsieve_airflow.simulator.engine import Constants, EngineModel
    from fleetsieve_airflow.simulator.events import Outcome
    from fleetsieve_airflow.simulator.fleet import FleetEngines
    from fleetsieve_airflow.simulator.pools import AnyEngine

OPTIONS = ("tables", "constants", "run_to_run_cv", "timeout_s")


class SimulateBackend:
    """Measures points by simulating the candidate's replica."""

    def __init__(self) -> None:
        self._engines: dict[FleetSpec, FleetEngines] = {}

    def check(self, spec: FleetSpec) -> None:
        """Refuse a spec whose models, GPUs or traces the simulator cannot price, before a campaign starts.

        :raises FleetsieveError: naming what is missing and what exists.
        """
        options = dict(spec.measurement.options)
        if unknown := sorted(set(options) - set(OPTIONS)):
            raise SpecError(
                f"measurement.options: the simulate backend knows no {', '.join(unknown)}.",
                hint=f"It knows {', '.join(OPTIONS)}.",
            )
        engines, duration = self._of(spec), spec.measurement.duration_s
        for workload in spec.workloads:
            candidates = spec.candidates_of(workload.name)
            problems = [_problem(engines, workload.name, candidate.config) for candidate in candidates]
            if candidates and all(problems):
                raise SpecError(f"workloads.{workload.name}: no candidate can be simulated: {problems[0]}")
            for candidate in candidates:
                split = spec.config(candidate.config).disaggregated
                if split and candidate.load_kind == "concurrency":
                    raise SpecError(
                        f"{candidate.label}: a disaggregated replica is simulated under offered loads only.",
                        hint="Give its workload loads of offered_load_rps.",
                    )
                if candidate.load_kind == "offered_load_rps":
                    fewest = round(candidate.loads[0] * duration)
                    require_enough_requests(candidate.label, workload.slo, fewest)
                    window(workload.trace, rate_rps=candidate.loads[-1], duration_s=duration, seed=0)

    def measure(self, spec: FleetSpec, point: MeasurementPoint) -> Measurement:
        """Simulate one point.

        A config that cannot run comes back as refused, in the words of the engine model.

        :raises MeasurementError: too few requests for a percentile of the SLO.
        """
        from fleetsieve_airflow.simulator.curves import PerfDataError

        engines = self._of(spec)
        startup = point.gpus * spec.measurement.startup_s
        try:
            engine = engines.replica(point.workload, point.config)
        except PerfDataError as error:
            return Measurement(point=point, served_rps=0.0, refused=str(error), gpu_seconds_billed=startup)
        if engine.kv_tokens < 1:
            short = min(models_of(engine), key=lambda model: model.kv_tokens)
            reason = f"{short.shape.name} as {short.plan.label} leaves no memory for the KV cache."
            return Measurement(point=point, served_rps=0.0, refused=reason, gpu_seconds_billed=startup)
        rows, samples = _run(spec, point, _varied(spec, point, engine), engines)
        slo = spec.workload(point.workload).slo
        return judge(
            point,
            slo,
            rows,
            samples,
            gates=gates_for(slo),
            overhead_gpu_seconds=startup,
            versions=_versions(engine),
        )

    def _of(self, spec: FleetSpec) -> FleetEngines:
        from fleetsieve_airflow.simulator.fleet import ROOFLINE, FleetEngines

        if spec not in self._engines:
            tables = spec.measurement.option("tables", ROOFLINE)
            self._engines[spec] = FleetEngines(spec, tables, _constants(spec))
        return self._engines[spec]


def _problem(engines: FleetEngines, workload: str, config: str) -> str:
    try:
        engines.replica(workload, config)
    except FleetsieveError as error:
        return str(error)
    return ""


def _constants(spec: FleetSpec) -> Constants:
    from fleetsieve_airflow.simulator.engine import Constants

    known = {field.name for field in dataclasses.fields(Constants)}
    given: dict[str, float] = {}
    for part in filter(None, spec.measurement.option("constants").split(",")):
        name, _, value = part.partition("=")
        try:
            given[name.strip()] = float(value)
        except ValueError:
            raise SpecError(f"measurement.options.constants: {part!r} is not name=number.") from None
    if unknown := sorted(set(given) - known):
        raise SpecError(
            f"measurement.options.constants: unknown {', '.join(unknown)}; known: {', '.join(sorted(known))}."
        )
    return Constants(**given)


def models_of(engine: AnyEngine) -> tuple[EngineModel, ...]:
    """Return the engine models of a replica: its own, or that of each phase."""
    from fleetsieve_airflow.simulator.pools import SplitEngine

    return (engine.prefill, engine.decode) if isinstance(engine, SplitEngine) else (engine,)


def _varied(spec: FleetSpec, point: MeasurementPoint, engine: AnyEngine) -> AnyEngine:
    """Return the replica as it happens to run this time: step times vary, drawn from the point's key."""
    import numpy as np

    spread = float(spec.measurement.option("run_to_run_cv", "0"))
    if spread <= 0.0:
        return engine
    factor = float(np.random.default_rng(int(point.key, 16)).lognormal(-(spread**2) / 2.0, spread))
    constants = engine.constants
    return engine.with_constants(
        dataclasses.replace(
            constants,
            prefill_scale=constants.prefill_scale * factor,
            decode_scale=constants.decode_scale * factor,
        )
    )


def _run(
    spec: FleetSpec, point: MeasurementPoint, engine: AnyEngine, engines: FleetEngines
) -> tuple[list[TraceRow], list[Sample]]:
    """Return the requests as they were sent, and what became of each."""
    from fleetsieve_airflow.simulator.arrivals import thinned
    from fleetsieve_airflow.simulator.events import StepTimes, simulate
    from fleetsieve_airflow.simulator.pools import SplitEngine, simulate_split

    timeout = spec.measurement.option("timeout_s")
    requests = _requests(spec, point.workload, point.load_kind, point.load, point.seed, models_of(engine)[-1])
    rows: list[TraceRow] = []
    samples: list[Sample] = []
    if isinstance(engine, SplitEngine):
        outcome = simulate_split(
            engine.prefill,
            engine.decode,
            requests,
            prefills=engine.prefills,
            decoders=engine.decoders,
            timeout_s=float(timeout) if timeout else None,
        )
        _record(outcome, requests, rows, samples)
        return rows, samples
    times, copies = StepTimes(engine), engines.copies(point.workload, point.config)
    for copy in range(copies):
        share = thinned(requests, copies, copy)
        for rank in range(engine.plan.dp):
            outcome = simulate(
                engine,
                share,
                timeout_s=float(timeout) if timeout else None,
                times=times,
                rank=rank,
                window_s=point.duration_s,
            )
            part = thinned(share, engine.plan.dp, rank)
            _record(outcome, part, rows, samples)
    return rows, samples


def _record(outcome: Outcome, requests: Requests, rows: list[TraceRow], samples: list[Sample]) -> None:
    for index, sent in enumerate(outcome.sent_s.tolist()):
        ok = bool(outcome.e2e_s[index] < float("inf"))
        isl, osl = int(requests.isl_tokens[index]), int(requests.osl_tokens[index])
        samples.append(
            Sample(
                row=len(rows),
                start_s=sent,
                ok=ok,
                ttft_s=float(outcome.ttft_s[index]) if ok else None,
                e2e_s=float(outcome.e2e_s[index]) if ok else None,
                input_tokens=isl,
                output_tokens=osl,
                error="" if ok else "timed out or did not fit into the KV cache",
            )
        )
        rows.append(TraceRow(arrival_s=sent, input_tokens=isl, output_tokens=osl))


def fleet_requests(
    spec: FleetSpec, engines: FleetEngines, seed: int = 0
) -> Callable[[Candidate, float], Requests]:
    """Return what gives a candidate's requests at a load: the window of its trace a live run replays."""

    def requests_at(candidate: Candidate, load: float) -> Requests:
        engine = models_of(engines.replica(candidate.workload, candidate.config))[-1]
        return _requests(spec, candidate.workload, candidate.load_kind, load, seed, engine)

    return requests_at


def _requests(
    spec: FleetSpec, workload: str, load_kind: LoadKind, load: float, seed: int, engine: EngineModel
) -> Requests:
    import numpy as np

    from fleetsieve_airflow.simulator.arrivals import Requests

    closed, trace = load_kind == "concurrency", spec.workload(workload).trace
    rate = _fastest_rps(trace, load, engine) if closed else load
    rows = window(trace, rate_rps=rate, duration_s=spec.measurement.duration_s, seed=seed)
    arrivals = np.array([0.0 if closed else row.arrival_s for row in rows])
    return Requests(
        arrivals,
        np.array([row.input_tokens for row in rows]),
        np.array([row.output_tokens for row in rows]),
        max(1, round(load)) if closed else None,
    )


def _fastest_rps(trace: Trace, load: float, engine: EngineModel) -> float:
    """Return a rate that clients of a closed loop cannot exceed: twice that of requests each alone."""
    alone = (trace.osl_mean_tokens or 64.0) * float(engine.decode_s(1.0, 0.0)) / engine.tokens_per_step
    return 2.0 * load / max(alone, 0.02)


def _versions(engine: AnyEngine) -> tuple[tuple[str, str], ...]:
    """Return what simulated, and what of it lies beyond the tables."""
    models = models_of(engine)
    beyond = "; ".join(dict.fromkeys(what for model in models for what in model.beyond))
    name = " + ".join(dict.fromkeys(model.database.name for model in models))
    return (("simulator", name), *((("beyond_tables", beyond),) if beyond else ()))
