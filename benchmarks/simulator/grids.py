"""Recorded measurements as cells: a replica, a closed loop of clients, and what was observed.

Two sources: a CSV of complete grids (one row a run; columns as in the docs), and the sample of silicon
measurements that ships in the ``aiconfigurator-core`` wheel (means of TTFT and TPOT).
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fleetsieve_airflow.simulator.aic_database import available, model_shape, open_tables, package_root
from fleetsieve_airflow.simulator.arrivals import Lengths
from fleetsieve_airflow.simulator.curves import PerfDataError
from fleetsieve_airflow.simulator.hardware import hardware_named
from fleetsieve_airflow.simulator.models import ModelShape, Precision, model_named
from fleetsieve_airflow.simulator.perf_database import PerfDatabase
from fleetsieve_airflow.simulator.plans import ParallelPlan
from fleetsieve_airflow.simulator.roofline_database import RooflineDatabase

#: Prompts and outputs of the public benchmark are drawn uniformly between 80 % and 100 % of the nominal
#: length.
UNIFORM_MEAN, UNIFORM_LOW = 0.9, 0.8
OBSERVED = (
    ("ttft_mean_ms", "ttft_mean_s"),
    ("ttft_p50_ms", "ttft_p50_s"),
    ("ttft_p99_ms", "ttft_p99_s"),
    ("tpot_mean_ms", "tpot_mean_s"),
    ("tpot_p50_ms", "tpot_p50_s"),
    ("tpot_p99_ms", "tpot_p99_s"),
    ("e2e_mean_ms", "e2e_mean_s"),
    ("e2e_p50_ms", "e2e_p50_s"),
    ("e2e_p99_ms", "e2e_p99_s"),
)
_ENGINES = {
    "vllm": "vllm",
    "trt": "trtllm",
    "trtllm": "trtllm",
    "sglang": "sglang",
    "tgis(fork of TGI 0.8)": "vllm",
}
_SHAPES = {
    "Llama-3.3-70B": "llama-3.1-70b",
    "Llama-3.1-70B": "llama-3.1-70b",
    "gpt-oss-120b": "gpt-oss-120b",
    "llama-7b": "llama-2-7b",
    "llama-13b": "llama-2-13b",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration at one load."""

    plan: ParallelPlan
    concurrency: int
    observed: dict[str, float]
    runs: int

    def gpu_seconds(self, requests_per_client: int) -> float:
        """GPU-seconds that measuring the cell once took."""
        return self.plan.gpus * requests_per_client * self.observed["e2e_mean_s"]


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells that differ in plan and load only."""

    model: str
    hardware: str
    engine: str
    workload: str
    lengths: Lengths
    requests_per_client: int
    shape: ModelShape
    database: PerfDatabase
    cells: tuple[Cell, ...]

    @property
    def stack(self) -> tuple[str, str, str]:
        """Model, hardware and engine."""
        return self.model, self.hardware, self.engine


def recorded_grids(path: Path, unusable: dict[str, str]) -> Iterator[Grid]:
    """Read grids of a CSV; what cannot be simulated goes into ``unusable`` with the reason."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            groups[(row["model"], row["precision"], row["hardware"], row["engine"], row["workload"])].append(
                row
            )
    for (model, precision, hardware, engine, workload), rows in sorted(groups.items()):
        try:
            shape, database = _shape(model, precision, engine, hardware), _database(hardware, engine)
        except PerfDataError as error:
            unusable[f"{model} on {hardware} ({engine})"] = error.message
            continue
        mixed = workload == "mix"
        isl, osl = (statistics.fmean(float(row[name]) for row in rows) for name in ("isl", "osl"))
        share = 1.0 if mixed else UNIFORM_MEAN
        yield Grid(
            model=f"{model.rpartition('/')[2]} {precision}",
            hardware=hardware.lower(),
            engine=engine.partition("(")[0],
            workload=workload,
            lengths=Lengths(
                isl_mean_tokens=isl * share,
                osl_mean_tokens=osl * share,
                spread="lognormal" if mixed else "uniform",
                low=UNIFORM_LOW,
                cv=1.5,
            ),
            requests_per_client=40 if mixed else 10,
            shape=shape,
            database=database,
            cells=tuple(_cells(rows)),
        )


def _cells(rows: Iterable[dict[str, str]]) -> Iterator[Cell]:
    runs: dict[tuple[int, int, int], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        ep = int(float(row["ep"] or 1))
        runs[(int(float(row["tp"])), ep, int(float(row["load"])))].append(row)
    for (tp, ep, load), found in sorted(runs.items()):
        observed = {
            ours: statistics.median(float(row[theirs]) / 1e3 for row in found) for theirs, ours in OBSERVED
        }
        observed["served_rps"] = statistics.median(float(row["served_rps"]) for row in found)
        yield Cell(ParallelPlan(tp=tp, ep=tp if ep > 1 else 1), load, observed, len(found))


def _shape(model: str, precision: str, engine: str, hardware: str) -> ModelShape:
    name = next((ours for part, ours in _SHAPES.items() if part in model), None)
    if name is None:
        raise PerfDataError(
            f"the engine model does not know {model} (encoder-decoder or multi-query of another kind)"
        )
    shape = model_named(name)
    if name == "gpt-oss-120b":
        native = engine == "trt" and hardware == "b200"
        return shape.with_precision(Precision(moe="w4a8_mxfp4_mxfp8" if native else "w4a16_mxfp4"))
    if precision == "fp16":
        return shape
    dtype = {"fp8": "fp8", "fp4": "nvfp4"}[precision]
    return shape.with_precision(Precision(gemm=dtype, moe=dtype, kv="fp8"))


def _database(hardware: str, engine: str) -> PerfDatabase:
    gpu = hardware.lower()
    if gpu in available():
        return open_tables(gpu, _ENGINES[engine])
    # No tables for this GPU: its data sheet, which the table of results says.
    return RooflineDatabase(hardware_named(gpu))


def silicon_sample(unusable: dict[str, str]) -> Iterator[Grid]:
    """Read the aggregated measurements of the wheel: means of TTFT and TPOT under closed loops."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    with (package_root() / "systems" / "silicon_sample.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["mode"] == "agg":
                names = (
                    "model_path",
                    "precision",
                    "gemm_quant_mode",
                    "moe_quant_mode",
                    "system",
                    "backend",
                    "isl",
                    "osl",
                )
                groups[tuple(row[name] for name in names)].append(row)
    for (model, precision, gemm, moe, system, backend, isl, osl), rows in sorted(groups.items()):
        where = f"{model} {precision} on {system} ({backend})"
        try:
            shape = _silicon_shape(model, gemm, moe)
            database = open_tables(system, backend)
        except PerfDataError as error:
            unusable[where] = error.message
            continue
        share = UNIFORM_MEAN if "db-dump" in rows[0]["silicon_data_source"] else 1.0
        yield Grid(
            model=f"{model.rpartition('/')[2]} {precision or 'bf16'}",
            hardware=system,
            engine=backend,
            workload=f"{isl}/{osl}",
            lengths=Lengths(
                isl_mean_tokens=float(isl) * share,
                osl_mean_tokens=float(osl) * share,
                spread="uniform" if share < 1.0 else "fixed",
                low=UNIFORM_LOW,
            ),
            requests_per_client=10,
            shape=shape,
            database=database,
            cells=tuple(_silicon_cells(rows, float(osl) * share)),
        )


def _silicon_shape(model: str, gemm: str, moe: str) -> ModelShape:
    names = {"meta-llama/Llama-3.1-70B": "llama-3.1-70b", "zhipuai/GLM-5": "zai-org/GLM-5"}
    known = names.get(model, model)
    shape = model_named(known) if known.islower() and "/" not in known else model_shape(known)
    if gemm:
        moe_format = moe or gemm
        if "gpt-oss" in model:
            return shape.with_precision(Precision(moe="w4a16_mxfp4"))
        if shape.attention == "mla" and gemm == "fp8":
            gemm = moe_format = "fp8_block"
        return shape.with_precision(Precision(gemm=gemm, moe=moe_format, kv="fp8"))
    return shape


def _silicon_cells(rows: Iterable[dict[str, str]], osl: float) -> Iterator[Cell]:
    runs: dict[tuple[int, int, int, int], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        tp, dp = int(float(row["tp_size"])), max(1, int(float(row["attention_dp_size"] or 1)))
        ep = int(float(row["moe_ep_size"] or 1))
        runs[(tp, dp, ep, int(float(row["batch_size"])))].append(row)
    for (tp, dp, ep, batch), found in sorted(runs.items()):
        ttft = statistics.median(float(row["silicon_ttft_ms"]) for row in found) / 1e3
        tpot = statistics.median(float(row["silicon_tpot_ms"]) for row in found) / 1e3
        e2e = ttft + tpot * (osl - 1.0)
        observed = {
            "ttft_mean_s": ttft,
            "tpot_mean_s": tpot,
            "e2e_mean_s": e2e,
            "served_rps": batch * dp / e2e,
        }
        plan = ParallelPlan(tp=tp, dp=dp, ep=tp * dp if ep > 1 else 1)
        yield Cell(plan, batch * dp, observed, len(found))
