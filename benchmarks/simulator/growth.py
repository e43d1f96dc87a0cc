"""What a search costs against the number of configurations it prices, and what one simulated window costs.

    python -m benchmarks.simulator.growth --tables aiconfigurator --out results/

Times are processor seconds of this process, so that they mean the same on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from fleetsieve_airflow.simulator.arrivals import Lengths, poisson
from fleetsieve_airflow.simulator.engine import EngineModel
from fleetsieve_airflow.simulator.events import simulate
from fleetsieve_airflow.simulator.models import Precision, model_named
from fleetsieve_airflow.simulator.plans import ParallelPlan
from fleetsieve_airflow.simulator.search import Targets, search
from fleetsieve_airflow.simulator.space import SearchSpace, databases_named
from fleetsieve_airflow.simulator.steady import LengthProfile

GPUS = ("h100", "h200")
#: Model -> precision, and steps of (kinds of GPU, every how manieth batch). Pools of two kinds combine, so
#: configurations grow with the square. Experts allow more cuts, so a dense model needs more batches.
MODELS = {
    "qwen3-235b-a22b": (
        Precision(gemm="fp8_block", moe="fp8_block", kv="fp8"),
        ((1, 64), (1, 16), (1, 8), (1, 4), (2, 8)),
    ),
    "llama-3.1-70b": (
        Precision(gemm="fp8", moe="fp8", kv="fp8"),
        ((1, 16), (1, 4), (1, 2), (2, 2), (2, 1)),
    ),
}
COLORS = ("#2f6f9f", "#b35c1e")
Points = Sequence[dict[str, float]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", default="roofline")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    points = {}
    for name in MODELS:
        # A process of its own, so that its memory is that of this model.
        with ProcessPoolExecutor(1) as process:
            points[name] = process.submit(grown, arguments.tables, name).result()
    window = one_window(arguments.tables)
    result = {"tables": arguments.tables, "search": points, "window_300s_10rps_cpu_s": window}
    (arguments.out / "growth.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (arguments.out / "growth.svg").write_text(figure(points), encoding="utf-8")
    print(json.dumps(result, indent=1))
    return 0


def grown(tables: str, name: str) -> Points:
    """Search spaces of growing size for one model."""
    points = []
    for gpus, stride in MODELS[name][1]:
        points.append(point := measured(tables, name, gpus, stride))
        print(json.dumps({"model": name, **point}), flush=True)
    return points


def measured(tables: str, name: str, gpus: int, stride: int) -> dict[str, float]:
    """Search for one model: hardware x TP x PP x EP x DP x runtime x batch."""
    started = time.process_time()
    space = SearchSpace(
        databases=databases_named(GPUS[:gpus], tables, "vllm"),
        batches=tuple(range(1, 257, stride)),
        max_gpus=64,
    )
    shape = model_named(name).with_precision(MODELS[name][0])
    profile = LengthProfile(isl_tokens=4000, osl_tokens=1000)
    result = search(shape, profile, space, Targets(ttft_s=2.0, tpot_s=0.04))
    return {
        "configurations": result.priced,
        "cpu_s": round(time.process_time() - started, 2),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def one_window(tables: str) -> float:
    """Simulate 300 s of a 70B model at 10 requests per second; processor seconds, the best of three."""
    database = databases_named(["h100"], tables, "vllm")[0]
    shape = model_named("llama-3.1-70b").with_precision(Precision(gemm="fp8", moe="fp8"))
    lengths = Lengths(isl_mean_tokens=1155, osl_mean_tokens=211, spread="lognormal")
    taken = []
    for seed in range(3):
        engine = EngineModel(database, shape, ParallelPlan(tp=8))
        requests = poisson(10.0, 300.0, lengths, seed)
        started = time.process_time()
        simulate(engine, requests)
        taken.append(time.process_time() - started)
    return round(min(taken), 3)


def rounded_up(value: float) -> float:
    """Return the end of an axis whose four steps are round numbers."""
    unit = 4 * 10.0 ** math.floor(math.log10(value / 4))
    return unit * next(step for step in (1, 2, 2.5, 3, 4, 5, 6, 8, 10) if unit * step >= value * (1 - 1e-9))


def figure(models: Mapping[str, Points]) -> str:
    """Draw processor seconds against configurations, a line for each model."""
    width, height, left, bottom = 560, 320, 60, 44
    right = rounded_up(max(point["configurations"] for points in models.values() for point in points))
    top = rounded_up(1.1 * max(point["cpu_s"] for points in models.values() for point in points))

    def place(x: float, y: float) -> str:
        return (
            f"{left + x / right * (width - left - 40):.1f},{20 + (1 - y / top) * (height - bottom - 20):.1f}"
        )

    lines = ""
    for color, (name, points) in zip(COLORS, models.items(), strict=True):
        places = [place(point["configurations"], point["cpu_s"]) for point in points]
        lines += f'<polyline points="{" ".join(places)}" fill="none" stroke="{color}"/>'
        for x, y in (text.split(",") for text in places):
            lines += f'<circle cx="{x}" cy="{y}" r="4" fill="{color}"/>'
        x, y = places[-1].split(",")
        anchor = "middle" if points[-1]["configurations"] < 0.85 * right else "end"
        lines += f'<text x="{x}" y="{float(y) - 10}" text-anchor="{anchor}" fill="{color}">{name}</text>'
    labels = "".join(
        f'<text x="{place(right * s, 0).split(",")[0]}" y="{height - 26}" text-anchor="middle">'
        f'{right * s / 1e6:g} M</text><text x="{left - 6}" y="{place(0, top * s).split(",")[1]}" '
        f'text-anchor="end" dominant-baseline="middle">{top * s:g} s</text>'
        for s in (0.25, 0.5, 0.75, 1.0)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui" '
        f'font-size="12"><rect width="{width}" height="{height}" fill="white"/>'
        f'<path d="M{left},20 V{height - bottom} H{width - 40}" fill="none" stroke="#444"/>'
        f"{lines}{labels}"
        f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle">configurations priced</text>'
        f'<text x="{left}" y="14">processor seconds of one core</text></svg>'
    )


if __name__ == "__main__":
    raise SystemExit(main())
