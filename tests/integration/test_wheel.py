"""The built wheel in an environment of its own: what a user gets from `pip install fleetsieve-airflow`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DAG_FILES = sorted(path.name for path in (REPOSITORY / "dags").glob("*.py"))
PARSE_CPU_S_MAX = 1.0

pytestmark = pytest.mark.integration

#: Parses one DAG file as Airflow's DAG processor does, and says what that cost and brought in.
PARSE = """
import importlib.util, json, sys, time
import airflow.sdk, airflow.providers.standard.operators.trigger_dagrun
before = set(sys.modules)
started = time.process_time()
spec = importlib.util.spec_from_file_location("parsed", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
cpu_s = time.process_time() - started
dags = [value.dag_id for value in vars(module).values() if isinstance(value, airflow.sdk.DAG)]
roots = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
print(json.dumps({"cpu_s": cpu_s, "dags": dags, "brought": roots}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment with the wheel, outside the repository."""

    bin: Path
    folder: Path
    wheel: Path

    def run(self, *command: str) -> str:
        """Run a program of the environment and return what it printed."""
        own = {
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", str(self.folder)),
        }
        return output_of([str(self.bin / command[0]), *command[1:]], self.folder, own)


def table(text: str) -> list[dict[str, str]]:
    """Return the table that an Airflow command printed as JSON, below whatever it logged first."""
    lines = text.splitlines()
    start = max(number for number, line in enumerate(lines) if line.startswith("["))
    rows: list[dict[str, str]] = json.loads("\n".join(lines[start:]))
    return rows


def output_of(command: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a program; its standard output, or a failure that shows both of its outputs."""
    done = subprocess.run(
        list(command), cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the wheel and install it beside the pinned Airflow, without the server and development tools."""
    folder = tmp_path_factory.mktemp("wheel")
    output_of([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], REPOSITORY)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    uv = [sys.executable, "-m", "uv"]
    output_of([*uv, "venv", "--quiet", "--python", sys.executable, str(environment)], folder)
    pins = ["--constraint", str(REPOSITORY / "constraints.txt")]
    target = ["--python", str(environment / "bin" / "python"), *pins]
    output_of([*uv, "pip", "install", "--quiet", *target, str(wheel)], folder)
    return Installed(bin=environment / "bin", folder=folder, wheel=wheel)


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"fleetsieve_airflow"}
    assert {"fleetsieve_airflow/py.typed", "fleetsieve_airflow/data/paper_grid.csv"} <= set(names)
    assert "fleetsieve_airflow/operators/profile.py" in names


def test_airflow_lists_the_provider(installed: Installed) -> None:
    providers = table(installed.run("airflow", "providers", "list", "--output", "json"))
    assert "fleetsieve-airflow" in {provider["package_name"] for provider in providers}


def test_airflow_loads_the_plugin(installed: Installed) -> None:
    plugins = table(installed.run("airflow", "plugins", "--output", "json"))
    ours = [plugin for plugin in plugins if plugin["name"] == "fleetsieve"]
    assert len(ours) == 1
    assert "fleetsieve-airflow" in ours[0]["source"]


def test_the_command_line_works_without_the_repository(installed: Installed) -> None:
    fleet = REPOSITORY / "dags" / "fleets" / "chat_and_code_h100.yaml"
    assert "24 points" in installed.run("fleetsieve", "check", str(fleet))


def test_no_dag_file_has_import_errors(installed: Installed) -> None:
    installed.run("airflow", "db", "migrate")
    installed.run("airflow", "dags", "reserialize")
    assert table(installed.run("airflow", "dags", "list-import-errors", "--output", "json")) == []
    known = {dag["dag_id"] for dag in table(installed.run("airflow", "dags", "list", "--output", "json"))}
    assert "fleet_plan" in known


@pytest.mark.parametrize("name", DAG_FILES)
def test_a_dag_file_is_parsed_in_a_second_without_heavy_imports(installed: Installed, name: str) -> None:
    lines = installed.run("python", "-c", PARSE, str(REPOSITORY / "dags" / name)).splitlines()
    parsed = json.loads(lines[-1])
    assert parsed["dags"]
    assert not {"highspy", "mlflow", "numpy", "pandas", "pulp", "scipy"} & set(parsed["brought"])
    assert parsed["cpu_s"] < PARSE_CPU_S_MAX
