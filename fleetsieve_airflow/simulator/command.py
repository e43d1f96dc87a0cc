"""``fleetsieve search``: price millions of configurations of one model on several GPUs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleetsieve_airflow.errors import FleetsieveError


def add_search_command(subparsers: Any) -> None:
    """Add ``search`` to the ``fleetsieve`` command line; the simulator is imported when it runs."""
    parser = subparsers.add_parser(
        "search",
        help="simulate every way to build a replica of a model and rank them, without measuring anything",
        description="Example: fleetsieve search llama-3.1-70b --gpu h100 --isl 4000 --osl 1000 --tpot 0.03",
    )
    parser.add_argument(
        "model", help="a built-in model, a folder with config.json, or a name from the tables' package"
    )
    parser.add_argument(
        "--gpu", nargs="+", default=["h100"], help="GPUs, e.g. h100 h200 h100@400W (a power cap)"
    )
    parser.add_argument(
        "--price", nargs="*", default=[], metavar="GPU=PER_HOUR", help="your own prices, e.g. h100=2.1"
    )
    parser.add_argument(
        "--tables", default="roofline", help="roofline, aiconfigurator, or your own CSV or parquet"
    )
    parser.add_argument("--engine", default="vllm", help="engine whose tables are used: vllm, trtllm, sglang")
    parser.add_argument("--dtype", default="", help="number format of the weights, e.g. bfloat16, fp8, nvfp4")
    parser.add_argument("--kv-dtype", default="", help="number format of the KV cache: bfloat16 or fp8")
    parser.add_argument("--isl", type=float, required=True, help="mean prompt tokens")
    parser.add_argument("--osl", type=float, required=True, help="mean output tokens")
    for name in ("ttft", "tpot", "e2e"):
        parser.add_argument(f"--{name}", type=float, metavar="SECONDS", help=f"median {name.upper()} at most")
    _add_space(parser)
    parser.add_argument(
        "--objective", choices=("per_gpu", "per_dollar"), default="per_gpu", help="what is ranked by"
    )
    parser.add_argument("--top", type=int, default=12, help="ways to build a replica to show")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write ranking and frontier there")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the frontier's figure there")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write figure and table there")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run_search)


def _add_space(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tp", nargs="+", type=int, default=[1, 2, 4, 8], help="tensor-parallel degrees")
    parser.add_argument("--pp", nargs="+", type=int, default=[1, 2, 4], help="pipeline-parallel degrees")
    parser.add_argument(
        "--dp", nargs="+", type=int, default=[1, 2, 4, 8], help="data-parallel ranks (experts only)"
    )
    parser.add_argument(
        "--cp", nargs="+", type=int, default=[1], help="context-parallel ranks of prefill pools"
    )
    parser.add_argument("--max-batch", type=int, default=256, help="most running sequences of a rank")
    parser.add_argument("--max-gpus", type=int, default=64, help="most GPUs of a replica or group")
    parser.add_argument(
        "--routing", default="power_law_1.2", help="balanced, power_law_1.01 or power_law_1.2"
    )
    parser.add_argument(
        "--speculate", metavar="TOKENS:ACCEPTANCE", help="price speculative decoding too, e.g. 3:0.7"
    )
    parser.add_argument("--no-disaggregation", action="store_true", help="continuous batching only")
    parser.add_argument(
        "--refuse-extrapolation", action="store_true", help="leave out what lies beyond the tables"
    )


def run_search(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code: 0 found, 1 nothing meets the targets, 2 it cannot be priced."""
    try:
        return _search(arguments)
    except FleetsieveError as error:
        print(f"fleetsieve search: {error}", file=sys.stderr)
        return 2


def _search(arguments: argparse.Namespace) -> int:
    from fleetsieve_airflow.simulator.search import Targets, search
    from fleetsieve_airflow.simulator.search_output import document, figure, page, table
    from fleetsieve_airflow.simulator.steady import LengthProfile

    targets = Targets(
        ttft_s=arguments.ttft,
        tpot_s=arguments.tpot,
        e2e_s=arguments.e2e,
        allow_extrapolation=not arguments.refuse_extrapolation,
    )
    result = search(
        _shape(arguments),
        LengthProfile(isl_tokens=arguments.isl, osl_tokens=arguments.osl),
        _space(arguments),
        targets,
        objective=arguments.objective,
        top=arguments.top,
        progress=None if arguments.quiet else progress_bar(sys.stderr),
    )
    print(table(result))
    for path, write in ((arguments.svg, figure), (arguments.html, page)):
        if path is not None:
            path.write_text(write(result), encoding="utf-8")
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps(document(result), indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )
    return 0 if result.ranked else 1


def progress_bar(stream: Any) -> Callable[[int, int], None]:
    """Return a progress callback that draws a bar on a terminal and keeps quiet elsewhere."""

    def show(done: int, every: int) -> None:
        if stream.isatty():
            share = done / max(1, every)
            stream.write(f"\r[{'#' * int(40 * share):<40}] {share:4.0%} of {every:,} configurations")
            stream.write("\n" if done >= every else "")
            stream.flush()

    return show


def _shape(arguments: argparse.Namespace) -> Any:
    from dataclasses import replace

    from fleetsieve_airflow.records import Model
    from fleetsieve_airflow.simulator.fleet import shape_of

    folder = Path(arguments.model)
    source = str(folder) if folder.exists() else ""
    shape = shape_of(Model(name=arguments.model, revision="", source=source))
    precision = shape.precision
    if arguments.dtype:
        precision = replace(precision, gemm=arguments.dtype, moe=arguments.dtype)
    if arguments.kv_dtype:
        precision = replace(precision, kv=arguments.kv_dtype)
    return shape.with_precision(precision)


def _space(arguments: argparse.Namespace) -> Any:
    from fleetsieve_airflow.simulator.plans import EngineSettings, Speculation
    from fleetsieve_airflow.simulator.space import SearchSpace, databases_named

    speculations: tuple[Speculation | None, ...] = (None,)
    if arguments.speculate:
        tokens, _, acceptance = arguments.speculate.partition(":")
        try:
            speculations = (None, Speculation(tokens=int(tokens), acceptance=float(acceptance or 0.7)))
        except ValueError:
            raise FleetsieveError(
                f"--speculate {arguments.speculate!r} is not TOKENS:ACCEPTANCE, e.g. 3:0.7."
            ) from None
    prices = _prices(arguments.price)
    return SearchSpace(
        databases=databases_named(arguments.gpu, arguments.tables, arguments.engine, prices),
        tp=tuple(arguments.tp),
        pp=tuple(arguments.pp),
        dp=tuple(arguments.dp),
        cp=tuple(arguments.cp),
        batches=tuple(range(1, arguments.max_batch + 1)),
        max_gpus=arguments.max_gpus,
        speculations=speculations,
        disaggregated=not arguments.no_disaggregation,
        settings=EngineSettings(routing=arguments.routing),
    )


def _prices(given: list[str]) -> dict[str, float]:
    prices = {}
    for item in given:
        gpu, _, price = item.partition("=")
        try:
            prices[gpu] = float(price)
        except ValueError:
            raise FleetsieveError(f"--price {item!r} is not GPU=PER_HOUR, e.g. h100=2.1.") from None
    return prices
