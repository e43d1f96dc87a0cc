"""The operator tables that ship in the ``aiconfigurator-core`` wheel, read offline.

The only module that touches that package; pandas and pyarrow are imported inside. Reading the tables rather
than calling the package keeps one interpolation for every source, prices whole arrays at once, and loses
nothing when its API moves.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetsieve_airflow.simulator.curves import PerfDataError
from fleetsieve_airflow.simulator.hardware import KNOWN_HARDWARE, Hardware
from fleetsieve_airflow.simulator.models import ModelShape, shape_from_config
from fleetsieve_airflow.simulator.perf_database import OPERATORS
from fleetsieve_airflow.simulator.table_database import OperatorTable, TableDatabase

if TYPE_CHECKING:
    import pandas as pd

_SYSTEMS = {"h100": "h100_sxm", "h200": "h200_sxm", "a100": "a100_sxm", "b200": "b200_sxm"}
_ATTENTION = {
    "num_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "window_size": "window",
    "kv_cache_dtype": "kv_dtype",
    "batch_size": "batch",
}
_MLA = {"gemm_type": "dtype", "num_heads": "heads", "kv_cache_dtype": "kv_dtype", "batch_size": "batch"}
_MOE = {
    "moe_dtype": "dtype",
    "distribution": "routing",
    "num_tokens": "tokens",
    "hidden_size": "hidden",
    "inter_size": "inter",
    "num_experts": "experts",
    "moe_tp_size": "tp",
    "moe_ep_size": "ep",
}
#: Operator -> (family folder, file, column names there -> ours).
_FILES: dict[str, tuple[str, str, dict[str, str]]] = {
    "gemm": ("gemm", "gemm_perf", {"gemm_dtype": "dtype", "m": "tokens"}),
    "attention_prefill": ("attention", "context_attention_perf", {**_ATTENTION, "isl": "tokens"}),
    "attention_decode": ("attention", "generation_attention_perf", {**_ATTENTION, "step": "context"}),
    "mla_prefill": ("mla", "mla_context_module_perf", {**_MLA, "isl": "tokens"}),
    "mla_decode": ("mla", "mla_generation_module_perf", {**_MLA, "step": "context"}),
    "moe": ("moe", "moe_perf", _MOE),
}
_NCCL = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_reduce": "all_reduce",
}


def package_root() -> Path:
    """Return where the package keeps its data.

    :raises PerfDataError: the optional package is not installed.
    """
    found = importlib.util.find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        raise PerfDataError(
            "The operator tables of aiconfigurator-core are not installed.",
            hint="Install fleetsieve-airflow[simulator], or use your own tables or the roofline.",
        )
    return Path(next(iter(found.submodule_search_locations)))


def available() -> dict[str, tuple[str, ...]]:
    """Return GPU -> engines there are tables for."""
    data = package_root() / "systems" / "data"
    found: dict[str, tuple[str, ...]] = {}
    for system in sorted(data.iterdir()):
        engines = tuple(
            sorted(path.name for path in (system / "gemm").glob("*") if any(path.glob("*/gemm_perf.parquet")))
        )
        if engines:
            found[_short(system.name)] = engines
    return found


def open_tables(gpu: str, engine: str = "vllm", hardware: Hardware | None = None) -> TableDatabase:
    """Open the tables of one GPU and engine.

    :param gpu: our name (``h100``) or the package's (``h100_sxm``).
    :param engine: ``vllm``, ``trtllm`` or ``sglang``.
    :raises PerfDataError: one line naming what exists.
    """
    kinds = available()
    short = _short(_SYSTEMS.get(gpu.lower(), gpu.lower()))
    if short not in kinds:
        raise PerfDataError(f"No operator tables for GPU {gpu!r}; there are tables for {', '.join(kinds)}.")
    if engine not in kinds[short]:
        raise PerfDataError(
            f"No operator tables for engine {engine!r} on {short}; there are {', '.join(kinds[short])}."
        )
    if hardware is None:
        if short not in KNOWN_HARDWARE:
            raise PerfDataError(
                f"GPU {short!r} has tables but no built-in data sheet.", hint="Pass its Hardware record."
            )
        hardware = KNOWN_HARDWARE[short]
    return _LazyTables(package_root() / "systems" / "data" / _SYSTEMS.get(short, short), engine, hardware)


def model_shape(name: str) -> ModelShape:
    """Return a model by its Hugging Face name from the configs in the wheel.

    :raises PerfDataError: one line naming near matches.
    """
    folder = package_root() / "model_configs"
    path = folder / f"{name.replace('/', '--')}_config.json"
    if not path.exists():
        words = [
            word for word in re.split(r"[^a-z0-9]+", name.lower()) if len(word) > len("b1") or word.isdigit()
        ]
        names = [
            item.name.removesuffix("_config.json").replace("--", "/")
            for item in sorted(folder.glob("*_config.json"))
        ]
        near = sorted(names, key=lambda item: -sum(word in item.lower() for word in words))[:5]
        raise PerfDataError(
            f"No config of model {name!r} in aiconfigurator-core; nearest: {', '.join(near)}."
        )
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return shape_from_config(name, config)


@functools.cache
def _shared_tables(folder: Path, engine: str) -> dict[str, OperatorTable]:
    return {}


class _LazyTables(TableDatabase):
    """Tables that are read when an operator is first asked for (a MoE table alone takes half a second)."""

    def __init__(self, folder: Path, engine: str, hardware: Hardware) -> None:
        super().__init__(f"{_short(folder.name)}/{engine} tables", hardware, {})
        # Power-capped and differently priced variants of a GPU read its tables once.
        self._tables = _shared_tables(folder, engine)
        self._folder, self._engine = folder, engine

    def table(self, operator: str) -> OperatorTable:
        if operator not in self._tables and operator in OPERATORS:
            self._tables[operator] = self._read(operator)
        return super().table(operator)

    def _read(self, operator: str) -> OperatorTable:
        frame = self._collective(operator) if operator in _NCCL.values() else self._operator(operator)
        kind = OPERATORS[operator]
        used = [*kind.words, *kind.exact, *kind.between, *kind.free, "seconds"]
        # Two kernels for one shape: the engine takes the faster one.
        fastest = frame.groupby(used[:-1], sort=False)["seconds"].min().reset_index()
        return OperatorTable(kind, {name: fastest[name].to_numpy() for name in used}, self.name)

    def _operator(self, operator: str) -> pd.DataFrame:
        family, file, names = _FILES[operator]
        frames = [_load(path, names) for path in self._versions(family, file)]
        if not frames:
            raise PerfDataError(
                f"{self.name} has no table for operator {operator!r} (no {family}/{self._engine}/{file})."
            )
        kind = OPERATORS[operator]
        if "window" in kind.exact:
            frames = [_attention_defaults(frame) for frame in frames]
        shape = [*kind.words, *kind.exact, *kind.between]
        merged = frames[0]
        for older in frames[1:]:
            merged = _fill(merged, older, shape)
        return merged

    def _collective(self, operator: str) -> pd.DataFrame:
        import pandas as pd

        names = {"num_gpus": "gpus", "message_size": "bytes"}
        parts = []
        if operator == "all_reduce":
            own = self._versions("comm", "custom_allreduce_perf")[:1]
            custom = [_load(path, names) for path in own]
            parts += [frame[~frame["kernel_source"].str.contains("eager")] for frame in custom]
        for path in self._versions("comm", "nccl_perf", engine="nccl")[:1]:
            frame = _load(path, names)
            frame["kind"] = frame["op_name"].map(_NCCL)
            parts.append(frame[(frame["kind"] == operator) & (frame["nccl_dtype"] == "half")])
        parts = [part for part in parts if len(part)]
        if not parts:
            raise PerfDataError(f"{self.name} has no table for the collective {operator!r}.")
        # Message sizes count numbers of two bytes: 8 H100 reach 268 GB/s in an all-reduce of a gigabyte, not
        # 134.
        parts = [part[["gpus", "bytes", "seconds"]].assign(bytes=part["bytes"] * 2.0) for part in parts]
        return _faster_of(parts) if len(parts) > 1 else pd.concat(parts)

    def _versions(self, family: str, file: str, engine: str = "") -> list[Path]:
        """Return the files of all versions, newest first; development builds last."""
        paths = list((self._folder / family / (engine or self._engine)).glob(f"*/{file}.parquet"))
        return sorted(paths, key=lambda path: _version_key(path.parent.name), reverse=True)


def _load(path: Path, names: dict[str, str]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.read_parquet(path).rename(columns=names)
    frame["seconds"] = frame["latency"] / 1e3
    return frame[frame["seconds"] > 0]


def _attention_defaults(frame: pd.DataFrame) -> pd.DataFrame:
    for name, value in (("window", 0), ("head_dim", 128)):
        if name not in frame.columns:
            frame[name] = value
    return frame


def _fill(newer: pd.DataFrame, older: pd.DataFrame, shape: list[str]) -> pd.DataFrame:
    """Add the shapes of an older version that the newer one lacks: curves of two versions never mix."""
    import pandas as pd

    have = pd.MultiIndex.from_frame(newer[shape].drop_duplicates())
    lacking = ~pd.MultiIndex.from_frame(older[shape]).isin(have)
    return pd.concat([newer, older[lacking]], ignore_index=True) if lacking.any() else newer


def _faster_of(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Return, at every message size of any of the curves, the time of the faster one."""
    import numpy as np
    import pandas as pd

    from fleetsieve_airflow.simulator.curves import surface_from_cells

    rows = []
    for gpus in sorted(set.intersection(*(set(part["gpus"]) for part in parts))):
        curves = []
        for part in parts:
            cells = part[part["gpus"] == gpus]
            surface = surface_from_cells(
                np.zeros(len(cells)), cells["bytes"].to_numpy(float), cells["seconds"].to_numpy(float)
            )
            curves.append(surface.row(0.0))
        sizes = np.unique(np.concatenate([curve.x for curve in curves]))
        best = np.min([curve.at(sizes) for curve in curves], axis=0)
        rows.append(pd.DataFrame({"gpus": gpus, "bytes": sizes, "seconds": best}))
    return pd.concat(rows, ignore_index=True)


def _version_key(version: str) -> tuple[int, list[int]]:
    return ("dev" not in version, [int(part) for part in re.findall(r"\d+", version)])


def _short(system: str) -> str:
    return {long: short for short, long in _SYSTEMS.items()}.get(system, system)
