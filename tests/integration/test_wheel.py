"""The built wheel in an environment of its own: what a user gets from `pip install fleetsieve-airflow`."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleetsieve_airflow.core.certificate import verify_certificate
from fleetsieve_airflow.demo import processes
from fleetsieve_airflow.demo.processes import Service
from fleetsieve_airflow.hooks.mlflow import CampaignSummary, MlflowHook
from tests.integration.lab import EXAMPLE, Fleet, undisturbed
from tests.servers import MlflowServer, free_port

REPOSITORY = Path(__file__).resolve().parents[2]
DAG_FILES = sorted(path.name for path in (REPOSITORY / "dags").glob("*.py"))
PARSE_CPU_S_MAX = 1.0
GUIDE = REPOSITORY / "docs" / "install.md"
PATIENCE_S = 1200.0

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(2400)]

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

    def run(self, *command: str, environment: dict[str, str] | None = None) -> str:
        """Run a program of the environment and return what it printed."""
        own = environment or self.environment(self.folder / "airflow", REPOSITORY / "dags")
        return output_of([str(self.bin / command[0]), *command[1:]], self.folder, own)

    def environment(self, home: Path, dags: Path) -> dict[str, str]:
        """Return the variables of an Airflow of one's own: nothing of the one that tests run in."""
        return {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "PATH": os.pathsep.join([str(self.bin), os.environ["PATH"]]),
            "HOME": os.environ.get("HOME", str(self.folder)),
        }


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


def told(page: Path, language: str) -> list[str]:
    """Return the code that a page shows in one language, block by block, without its indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def commands(page: Path, program: str) -> list[str]:
    """Return the commands of a program that a page tells its reader to type."""
    lines = [line for block in told(page, "bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith(f"{program} ")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """An Airflow as somebody has it, to whom nothing but the wheel was given, and an MLflow elsewhere."""

    installed: Installed
    mlflow: MlflowServer
    environment: dict[str, str]
    dags: Path
    service: Service

    def type(self, command: str) -> str:
        """Do what the guide says, with the address of this MLflow."""
        words = shlex.split(command.replace("https://mlflow.example.com", self.mlflow.url))
        return self.installed.run(*words, environment=self.environment)

    def campaign(self) -> CampaignSummary | None:
        """Return the one campaign, as soon as it is there."""
        return next(MlflowHook(tracking_uri=self.mlflow.url).newest_campaigns(), None)

    def waits_for(self, verdict: str) -> CampaignSummary:
        """Wait until the campaign has come to this."""
        give_up = time.monotonic() + PATIENCE_S
        while (campaign := self.campaign()) is None or campaign.verdict != verdict:
            assert processes.find(self.service.pid_file), processes.tail(self.service.log)
            assert time.monotonic() < give_up, processes.tail(self.service.log)
            time.sleep(1.0)
        return campaign


@pytest.fixture
def fresh(installed: Installed, mlflow_database: Path, tmp_path: Path) -> Iterator[Fresh]:
    """Make an Airflow that has never run, started as `airflow standalone` does."""
    home, dags, port = tmp_path / "home", tmp_path / "dags", free_port()
    home.mkdir()
    dags.mkdir()
    environment = installed.environment(home, dags) | {
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(48),
        # A busy machine with two cores takes longer than the five seconds that a task waits by default.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
    }
    service = Service(
        name="airflow",
        command=(str(installed.bin / "airflow"), "standalone"),
        environment=environment,
        log=tmp_path / "airflow.log",
        pid_file=tmp_path / "airflow.pid",
    )
    mlflow = MlflowServer(tmp_path, mlflow_database)
    try:
        mlflow.start()
        installed.run("airflow", "db", "migrate", environment=environment)
        processes.start(service)
        yield Fresh(installed=installed, mlflow=mlflow, environment=environment, dags=dags, service=service)
    finally:
        processes.stop([service.pid_file])
        mlflow.stop()


def test_the_steps_of_the_guide_plan_the_example_fleet_in_a_fresh_airflow(fresh: Fresh) -> None:
    add_connection, *rest = commands(GUIDE, "airflow")
    (dag_file,) = told(GUIDE, "python")
    assert len([line for line in dag_file.splitlines() if line.strip()]) <= 3
    fresh.type(add_connection)
    (fresh.dags / "fleets").mkdir()
    shutil.copy(EXAMPLE, fresh.dags / "fleets")
    (fresh.dags / "my_fleet.py").write_text(dag_file)
    fresh.type("airflow dags reserialize")
    assert [line.split()[:3] for line in rest] == [
        ["airflow", "dags", "unpause"],
        ["airflow", "dags", "trigger"],
    ]
    for command in rest:
        fresh.type(command)
    found = fresh.waits_for("certified")
    hook = MlflowHook(tracking_uri=fresh.mlflow.url)
    certificate = hook.load_certificate(found.campaign)
    assert certificate
    assert verify_certificate(certificate) == ()
    expected = undisturbed(Fleet(name="", file="", spec=hook.load_spec(found.campaign), control=fresh.dags))
    assert certificate["certificate_sha256"] == expected.certificate["certificate_sha256"]
    assert found.gpu_seconds_window == 3600


def test_the_readme_shows_the_same_steps_as_the_guide() -> None:
    readme = REPOSITORY / "README.md"
    assert [block for block in told(readme, "python") if "fleet_plan(" in block] == told(GUIDE, "python")
    assert commands(readme, "pip") == commands(GUIDE, "pip")
    assert set(commands(GUIDE, "airflow")) == set(commands(readme, "airflow"))
