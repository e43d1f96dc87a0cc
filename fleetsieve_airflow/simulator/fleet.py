"""From a fleet spec to the simulator: which GPU, which model, which engine a candidate means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetsieve_airflow.records import EngineConfig, FleetSpec, Model, Pool
from fleetsieve_airflow.simulator.curves import PerfDataError
from fleetsieve_airflow.simulator.engine import Constants, EngineModel
from fleetsieve_airflow.simulator.hardware import GIB, KNOWN_HARDWARE, Hardware, hardware_named, watts
from fleetsieve_airflow.simulator.models import KNOWN_MODELS, ModelShape, Precision, shape_from_config
from fleetsieve_airflow.simulator.perf_database import PerfDatabase, PowerCapped
from fleetsieve_airflow.simulator.plans import EngineSettings, ParallelPlan, Speculation
from fleetsieve_airflow.simulator.pools import AnyEngine, SplitEngine
from fleetsieve_airflow.simulator.roofline_database import RooflineDatabase
from fleetsieve_airflow.simulator.table_database import read_tables

#: What ``tables`` may say besides the path of one's own CSV or parquet.
ROOFLINE, PACKAGED = "roofline", "aiconfigurator"
_ENGINES = {"vllm": "vllm", "trtllm": "trtllm", "tensorrt-llm": "trtllm", "sglang": "sglang"}


def hardware_of(pool: Pool) -> Hardware:
    """Return a pool's GPU at full power, with the pool's own node size, memory and price.

    :raises PerfDataError: the GPU's name holds none of the known ones.
    """
    words = pool.gpu.lower().replace("-", " ").replace("_", " ")
    found = next((kind for kind in sorted(KNOWN_HARDWARE, key=len, reverse=True) if kind in words), None)
    if found is None:
        raise PerfDataError(
            f"Pool {pool.name!r}: no known GPU in {pool.gpu!r}; known: {', '.join(sorted(KNOWN_HARDWARE))}."
        )
    hardware = hardware_named(found, pool.price_per_gpu_hour)
    memory = hardware.memory_bytes if pool.gpu_memory_gib is None else pool.gpu_memory_gib * GIB
    return replace(hardware, gpus_per_node=pool.gpus_per_node, memory_bytes=memory)


def open_database(tables: str, hardware: Hardware, engine: str = "vllm") -> PerfDatabase:
    """Open a source of operator times.

    :param tables: ``roofline``, ``aiconfigurator``, or the path of one's own CSV or parquet.
    :raises PerfDataError: the source does not exist or lacks the GPU or the engine.
    """
    if tables == ROOFLINE:
        return RooflineDatabase(hardware)
    if tables == PACKAGED:
        from fleetsieve_airflow.simulator.aic_database import open_tables

        return open_tables(hardware.name.partition("@")[0], _ENGINES.get(engine.lower(), engine), hardware)
    return read_tables(tables, hardware)


def database_of(pool: Pool, tables: str, engine: str = "vllm") -> PerfDatabase:
    """Open a source of operator times for a pool; ``@400W`` at the end of its GPU's name is a power cap.

    :raises PerfDataError: as :func:`hardware_of` and :func:`open_database`.
    """
    database = open_database(tables, hardware_of(pool), engine)
    _, _, cap = pool.gpu.partition("@")
    return PowerCapped(database, watts(cap, pool.gpu)) if cap else database


def shape_of(model: Model, config: EngineConfig | None = None) -> ModelShape:
    """Return a spec's model: from its config.json where ``source`` names one, else a known one.

    :raises PerfDataError: one line naming what exists.
    """
    path = Path(model.source) if model.source else None
    raw: Mapping[str, Any] = {}
    if path is not None and (path / "config.json").is_file():
        path = path / "config.json"
    if path is not None and path.is_file():
        raw = json.loads(path.read_text(encoding="utf-8"))
        shape = shape_from_config(model.name, raw)
    else:
        shape = _named_shape(model)
    return shape.with_precision(_precision(shape, raw, {} if config is None else dict(config.engine_args)))


def _named_shape(model: Model) -> ModelShape:
    names = [name.lower().rpartition("/")[2] for name in (model.name, model.source) if name]
    for name in names:
        for known in sorted(KNOWN_MODELS, key=len, reverse=True):
            if name.removeprefix("meta-").startswith(known):
                return KNOWN_MODELS[known]
    from fleetsieve_airflow.simulator.aic_database import model_shape

    try:
        return model_shape(model.source or model.name)
    except PerfDataError as error:
        raise PerfDataError(
            f"Model {model.name!r} is not built in ({', '.join(sorted(KNOWN_MODELS))}). {error.message}",
            hint="Set the model's source to the folder that holds its config.json.",
        ) from error


def _precision(shape: ModelShape, raw: Mapping[str, Any], args: Mapping[str, str]) -> Precision:
    stored = raw.get("quantization_config") or {}
    method = str(_arg(args, "quantization") or stored.get("quant_method") or "").lower()
    kv = "fp8" if _arg(args, "kv-cache-dtype").startswith("fp8") else shape.precision.kv
    if method == "fp8":
        dtype = "fp8_block" if stored.get("weight_block_size") else "fp8"
        return Precision(gemm=dtype, moe=dtype, kv=kv)
    if method == "mxfp4":
        return Precision(gemm=shape.precision.gemm, moe="w4a16_mxfp4", kv=kv)
    if method in ("nvfp4", "modelopt_fp4"):
        return Precision(gemm="nvfp4", moe="nvfp4", kv=kv)
    return replace(shape.precision, kv=kv)


def settings_of(config: EngineConfig) -> EngineSettings:
    """Return scheduler settings from an engine config's arguments, the engine's defaults for the rest."""
    args, base = dict(config.engine_args), EngineSettings()
    speculation = None
    if text := _arg(args, "speculative-config"):
        said = json.loads(text)
        speculation = Speculation(
            tokens=int(said.get("num_speculative_tokens", 3)), acceptance=float(said.get("acceptance", 0.7))
        )
    return EngineSettings(
        max_num_seqs=int(_arg(args, "max-num-seqs") or base.max_num_seqs),
        max_num_batched_tokens=int(_arg(args, "max-num-batched-tokens") or base.max_num_batched_tokens),
        gpu_memory_utilization=float(_arg(args, "gpu-memory-utilization") or base.gpu_memory_utilization),
        speculation=speculation,
    )


def _arg(args: Mapping[str, str], name: str) -> str:
    """Return an argument's value however it is spelled (``--max-num-seqs``, ``max_num_seqs``)."""
    spelled = {key.lstrip("-").replace("_", "-"): value for key, value in args.items()}
    return str(spelled.get(name, ""))


def plan_of(shape: ModelShape, config: EngineConfig) -> ParallelPlan:
    """Return an engine config's plan; data-parallel copies of a dense model are replicas of one rank each."""
    ranks = config.data_parallel if shape.experts else 1
    return ParallelPlan(
        tp=config.tensor_parallel,
        pp=config.pipeline_parallel,
        dp=ranks,
        ep=config.tensor_parallel * ranks if config.expert_parallel and shape.experts else 1,
    )


class FleetEngines:
    """The engines of a spec's candidates, each built once; tables are shared between them."""

    def __init__(self, spec: FleetSpec, tables: str, constants: Constants | None = None) -> None:
        self._spec, self._tables, self._constants = spec, tables, constants
        self._databases: dict[tuple[str, str], PerfDatabase] = {}
        self._engines: dict[tuple[str, str], EngineModel] = {}

    def replica(self, workload: str, config: str) -> AnyEngine:
        """Return one replica of a candidate, whole or disaggregated.

        :raises PerfDataError: the config cannot run, or the tables lack something it needs.
        """
        built = self._spec.config(config)
        if not built.disaggregated:
            return self.engine(workload, config)
        prefill, decode = (self._built(workload, part.engine) for part in built.parts)
        prefills, decoders = (
            part.engines * (part.engine.data_parallel if engine.plan.dp == 1 else 1)
            for part, engine in zip(built.parts, (prefill, decode), strict=True)
        )
        return SplitEngine(prefill, decode, prefills, decoders)

    def engine(self, workload: str, config: str) -> EngineModel:
        """Return the engine of a candidate that is one engine.

        :raises PerfDataError: the config cannot run, it is disaggregated, or the tables lack something.
        """
        built = self._spec.config(config)
        if built.disaggregated:
            raise PerfDataError(f"{config} prefills and decodes on different engines.")
        return self._built(workload, built)

    def _built(self, workload: str, built: EngineConfig) -> EngineModel:
        spec = self._spec
        model = spec.model(spec.workload(workload).model)
        key = (model.name, built.label)
        if key not in self._engines:
            source = (built.pool, built.engine)
            if source not in self._databases:
                pool = spec.pool(built.pool)
                self._databases[source] = database_of(pool, self._tables, built.engine)
            shape = shape_of(model, built)
            self._engines[key] = EngineModel(
                self._databases[source],
                shape,
                plan_of(shape, built),
                settings_of(built),
                self._constants,
                multi_node=built.multi_node,
            )
        return self._engines[key]

    def copies(self, workload: str, config: str) -> int:
        """Return how many independent ranks share a replica's requests."""
        engine = self.engine(workload, config)
        return self._spec.config(config).data_parallel if engine.plan.dp == 1 else 1
