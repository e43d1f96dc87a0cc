"""``fleetsieve``: check a fleet file, plan it without Airflow, verify, export and compare certificates.

Results go to stdout, progress to stderr, so a plan can be piped. The exit code says how it ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetsieve_airflow import __version__
from fleetsieve_airflow.deployment_command import add_deployment_commands
from fleetsieve_airflow.errors import CertificateError, FleetsieveError
from fleetsieve_airflow.simulator.command import add_search_command

if TYPE_CHECKING:
    from fleetsieve_airflow.evidence import Decision, Evidence
    from fleetsieve_airflow.records import FleetSpec

EXIT_CODES = """exit codes:
  0  certified: no other plan can be better by more than the tolerance (verify: the certificate holds)
  1  verify: the certificate does not hold
  2  bad input: the fleet file, the grid or the certificate cannot be used
  3  infeasible: the demand cannot be met on these GPUs by any candidate
  4  undetermined: the budget was used up first"""
#: Commands that may solve an allocation.
SOLVING = ("plan", "verify", "export")
EXIT_OF_STATE = {"certified_feasible": 0, "certified_infeasible": 3, "undetermined": 4}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    :return: the exit code.
    """
    arguments = _parser().parse_args(argv)
    if arguments.command in SOLVING:
        _silence_solver()
    try:
        return int(arguments.run(arguments))
    except FleetsieveError as error:
        print(f"fleetsieve {arguments.command}: {arguments.file}\n{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"fleetsieve {arguments.command}: stopped.", file=sys.stderr)
        return 130


def _silence_solver() -> None:
    """Let HiGHS introduce itself where nobody reads it: it does so once, on stdout, where results go."""
    import highspy

    sys.stdout.flush()
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        kept = os.dup(1)
        try:
            os.dup2(nowhere.fileno(), 1)
            highspy.Highs()  # type: ignore[no-untyped-call]
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fleetsieve",
        description="Certified capacity planning for LLM fleets: measures what can still change a decision.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fleetsieve {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    check = commands.add_parser(
        "check", help="say what is wrong with a fleet file, without measuring anything"
    )
    check.set_defaults(run=_check)
    plan = commands.add_parser("plan", help="plan a fleet to its certificate, here and without Airflow")
    plan.set_defaults(run=_plan)
    for command in (check, plan):
        command.add_argument("file", metavar="fleet.yaml", type=Path, help="the fleet file")
        command.add_argument("--backend", help="what measures, instead of measurement.backend")
        command.add_argument("--grid", help="recorded grid, instead of measurement.grid")
        command.add_argument(
            "--demand-scale",
            type=float,
            default=1.0,
            metavar="FACTOR",
            help="plan for a multiple of each demand",
        )
    plan.add_argument(
        "--prior",
        type=Path,
        metavar="CERTIFICATE.json",
        help="start from what the campaign of an earlier release found; it steers, it proves nothing",
    )
    plan.add_argument(
        "--out", type=Path, metavar="DIR", help="write certificate, evidence, rounds and report there"
    )
    verify = commands.add_parser("verify", help="derive a certificate again from its own evidence, offline")
    verify.add_argument("file", metavar="certificate.json", type=Path, help="the certificate")
    verify.set_defaults(run=_verify)
    add_deployment_commands(commands)
    add_search_command(commands)
    return parser


def _load(arguments: argparse.Namespace) -> FleetSpec:
    from fleetsieve_airflow.backends.grid import PACKAGE_PREFIX
    from fleetsieve_airflow.spec import load_spec

    measurement: dict[str, Any] = {}
    if arguments.backend:
        measurement["backend"] = arguments.backend
    if arguments.grid:
        # On a command line paths start where the person stands, not where the fleet file is.
        shipped = arguments.grid.startswith(PACKAGE_PREFIX)
        measurement["grid"] = arguments.grid if shipped else str(Path(arguments.grid).resolve())
    return load_spec(arguments.file, demand_scale=arguments.demand_scale, measurement=measurement)


def _check(arguments: argparse.Namespace) -> int:
    from fleetsieve_airflow.backends.base import backend_for

    spec = _load(arguments)
    backend_for(spec).check(spec)
    runnable = [candidate for candidate in spec.candidates if not candidate.excluded]
    points = [(len(item.loads), spec.config(item.config).gpus) for item in runnable]
    every = sum(loads * gpus for loads, gpus in points) * spec.measurement.duration_s
    print(
        f"{spec.fleet}: {len(spec.workloads)} workloads, {len(runnable)} candidates, "
        f"{sum(loads for loads, _ in points)} points; measuring all of them takes {every:,.0f} GPU-seconds."
    )
    for candidate in spec.candidates:
        if candidate.excluded:
            print(f"{candidate.label} cannot run: {candidate.excluded}")
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from fleetsieve_airflow.backends.base import backend_for
    from fleetsieve_airflow.campaign import run_campaign
    from fleetsieve_airflow.campaign_files import CampaignFolder
    from fleetsieve_airflow.prior import origin_of, priors_for
    from fleetsieve_airflow.reporting.text import outcome_text, round_line

    spec = _load(arguments)
    try:
        priors = priors_for(spec, _certificate(arguments.prior) if arguments.prior else None)
    except CertificateError as error:
        raise CertificateError(f"--prior {arguments.prior}: {error}") from error
    if priors or arguments.prior:
        origin = origin_of(priors, arguments.prior.name if arguments.prior else "")
        print(f"Prior: {origin}.", file=sys.stderr)
    folder = CampaignFolder(arguments.out, spec) if arguments.out else None

    def on_round(decision: Decision, evidence: Evidence) -> None:
        print(round_line(decision), file=sys.stderr, flush=True)
        if folder:
            folder.write_round(decision, evidence)

    result = run_campaign(spec, backend_for(spec), priors=priors, on_round=on_round)
    print(outcome_text(spec, result.decisions))
    if folder:
        folder.write_certificate(
            {**result.certificate, "issued_at": datetime.now(UTC).isoformat(timespec="seconds")}
        )
        print(f"Report: {folder.report}\nCheck it again: fleetsieve verify {folder.certificate}")
    return EXIT_OF_STATE[result.decision.state]


def _verify(arguments: argparse.Namespace) -> int:
    from fleetsieve_airflow.core.certificate import verify_certificate

    differences = verify_certificate(_certificate(arguments.file))
    print("\n".join(differences) or "holds")
    return 1 if differences else 0


def _certificate(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CertificateError(f"It is not a readable JSON file: {error}.") from error


if __name__ == "__main__":
    sys.exit(main())
