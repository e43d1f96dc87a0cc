"""``python -m fleetsieve_airflow.demo run | up | down``, the program behind the Makefile's targets."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fleetsieve_airflow.demo.home import USER, Home
from fleetsieve_airflow.demo.processes import ENDING_SIGNALS, DemoError
from fleetsieve_airflow.demo.stack import Stack, stop_all
from fleetsieve_airflow.errors import FleetsieveError

FLEET_FILE = Path("fleets/chat_and_code_h100.yaml")
CAMPAIGN_ID = "demo"
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="fleetsieve_airflow.demo", description=__doc__)
    parser.add_argument("command", choices=("run", "up", "down"))
    parser.add_argument(
        "--home", type=Path, default=Path(".local/demo"), help="folder for databases and results"
    )
    parser.add_argument("--dags", type=Path, default=Path("dags"), help="folder of DAG files")
    arguments = parser.parse_args(argv)
    for number in ENDING_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        {"run": _run, "up": _up, "down": _down}[arguments.command](arguments)
    except FleetsieveError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; everything that was started is ended.", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def _run(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    home, dags = _places(arguments)
    _forget(home)
    stack = Stack.at(home.root, dags)
    try:
        _say("Starting MLflow and Airflow (api-server, scheduler, dag-processor, triggerer)")
        stack.start()
        _plan(stack, started)
    finally:
        _say("Ending the servers")
        stack.stop()


def _plan(stack: Stack, started: float) -> None:
    # Only now: these bring MLflow's client, whose import would slow the servers' own start.
    from fleetsieve_airflow.demo.campaign import (
        follow_campaign,
        start_campaign,
        wait_for_dag,
        write_results,
    )
    from fleetsieve_airflow.reporting.text import outcome_text, round_line
    from fleetsieve_airflow.spec import load_spec

    fleet = load_spec(stack.dags_folder / FLEET_FILE).fleet
    api = stack.api()
    wait_for_dag(stack, api)
    _say(f"Planning {stack.dags_folder.name}/{FLEET_FILE} in Airflow at {stack.settings.airflow_url}")
    start_campaign(api, CAMPAIGN_ID)
    outcome = follow_campaign(
        stack,
        api,
        fleet=fleet,
        campaign_id=CAMPAIGN_ID,
        on_round=lambda decision: _say(f"  {round_line(decision)}"),
    )
    summary = write_results(stack.home.root, outcome, time.monotonic() - started)
    _say("")
    _say(outcome_text(outcome.spec, outcome.decisions))
    _say("")
    certificate, verify = (
        _from_here(summary["certificate"]),
        _from_here(Path(sys.executable).parent / "fleetsieve"),
    )
    _say(f"Report       {_from_here(summary['report'])}")
    _say(f"Certificate  {certificate}   check it again: {verify} verify {certificate}")
    _say(f"Took {summary['wall_s']:.0f} s. Browse this campaign in Airflow and MLflow: make up")


def _up(arguments: argparse.Namespace) -> None:
    home, dags = _places(arguments)
    stack = Stack.at(home.root, dags)
    ran = stack.running()
    try:
        _say(
            "Starting MLflow and Airflow"
            if len(ran) < len(stack.services())
            else "MLflow and Airflow run already"
        )
        stack.start()
    except BaseException:
        stack.stop()
        raise
    _say(f"Airflow  {stack.settings.airflow_url}   user {USER}, password {stack.settings.password}")
    _say(f"MLflow   {stack.settings.mlflow_url}")
    _say("Both listen on this machine only and keep running; end them with: make down")


def _down(arguments: argparse.Namespace) -> None:
    ended = stop_all(Home(root=arguments.home.resolve()))
    _say(f"Ended {', '.join(ended)}." if ended else "Nothing was running.")


def _places(arguments: argparse.Namespace) -> tuple[Home, Path]:
    if not (arguments.dags / "fleet_plan.py").is_file():
        raise DemoError(
            f"There is no DAG file {arguments.dags / 'fleet_plan.py'}.",
            hint="Run this in a checkout of the repository, or name the folder with --dags.",
        )
    return Home(root=arguments.home.resolve()), arguments.dags.resolve()


def _forget(home: Home) -> None:
    """Begin with empty databases: a campaign that finds its points measured would have nothing to show.

    What the last demo left is kept beside them, once.
    """
    if ended := stop_all(home):
        _say(f"Ended what was running here: {', '.join(ended)}")
    if home.root.exists():
        previous = home.root.with_name(f"{home.root.name}.previous")
        shutil.rmtree(previous, ignore_errors=True)
        home.root.rename(previous)


def _from_here(path: str | Path) -> str:
    """Return a path as one would type it in this folder."""
    return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else str(path)


def _say(text: str) -> None:
    print(text, flush=True)


def _interrupt(_number: int, _frame: object) -> None:
    # A second one must not cut short the ending of the servers.
    for each in ENDING_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
