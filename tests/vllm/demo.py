"""``make demo-real``: Airflow submits over SSH to a real Slurm, whose jobs serve a real vLLM under aiperf's
load.

Ends with a certificate that rests on what was measured here, its evidence in MLflow. Everything runs on
loopback and is ended by pid.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from fleetsieve_airflow.demo.campaign import follow_campaign, start_campaign, wait_for_dag, write_results
from fleetsieve_airflow.demo.stack import Stack
from fleetsieve_airflow.evidence import Decision
from tests.slurm.lab import Lab

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
#: Twenty minutes on two quiet cores; twice that where others use them too.
LIMIT_S = 2400.0


def main() -> int:
    """Run the demo; returns the exit code."""
    began = time.monotonic()
    lab_folder = Path(os.environ.get("FLEETSIEVE_VLLM_LAB") or REPOSITORY / ".local" / "vllm-lab")
    home = REPOSITORY / ".local" / "demo-real"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    dags = prepared_dags(home, lab_folder)
    folder = Path(tempfile.mkdtemp(prefix="fleetsieve-demo-"))
    folder.chmod(0o755)  # munged runs as a user of its own
    # As root: the environments lie below this repository, which another user may not be able to enter
    cluster = Lab(folder / "slurm", users="root", nodes="gpu01:h100:4")
    try:
        say("Starting Slurm: munged, slurmctld, one slurmd, sshd")
        cluster.start()
        stack = Stack.at(home, dags, {"AIRFLOW_CONN_SLURM_DEFAULT": cluster.connection().as_json()})
        try:
            say("Starting MLflow and Airflow")
            stack.start()
            plan(stack, home, began)
        finally:
            say("Ending MLflow and Airflow")
            stack.stop()
    finally:
        say("Ending Slurm")
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def plan(stack: Stack, home: Path, began: float) -> None:
    """Plan the fleet and write what came out."""
    api = stack.api()
    wait_for_dag(stack, api)
    say(f"Planning in Airflow at {stack.settings.airflow_url}, with MLflow at {stack.settings.mlflow_url}")
    start_campaign(api, "real")
    outcome = follow_campaign(
        stack, api, fleet="tiny-on-cpu", campaign_id="real", on_round=tell, timeout_s=LIMIT_S
    )
    summary = write_results(home, outcome, time.monotonic() - began)
    say(json.dumps(summary, indent=2))
    say(f"In MLflow: {outcome.url}")


def prepared_dags(home: Path, lab: Path) -> Path:
    """Write the DAG and the fleet file with this machine's paths; return their folder."""
    folder = home / "dags"
    folder.mkdir()
    text = (
        (HERE / "fleet.yaml")
        .read_text()
        .replace("@LAB@", str(lab))
        .replace("@SERVE@", str(HERE / "serve_cpu.sh"))
    )
    (folder / "fleet.yaml").write_text(text)
    (folder / "plan.py").write_text(
        "from fleetsieve_airflow.dag import fleet_plan\n\ndag = fleet_plan(fleet='fleet.yaml')\n"
    )
    return folder


def tell(decision: Decision) -> None:
    """Say what a round decided."""
    points = ", ".join(planned.point.label for planned in decision.points) or decision.reason
    say(f"Round {decision.round}: {decision.state}; gap {decision.gap:.3f}; {points}")


def say(words: str) -> None:
    """Print with the time."""
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
