"""What the local servers are told: loopback only, a real login, nothing of other installations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetsieve_airflow.demo.stack import AIRFLOW_COMPONENTS, Stack


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return Stack.at(tmp_path / "home", tmp_path / "dags", {"AIRFLOW__CORE__PARALLELISM": "2"})


def test_servers_listen_on_loopback_only(stack: Stack) -> None:
    environment = stack.environment()
    assert environment["AIRFLOW__API__HOST"] == "127.0.0.1"
    command = stack.service("mlflow").command
    assert command[command.index("--host") + 1] == "127.0.0.1"
    for component in ("scheduler", "triggerer"):
        assert "--skip-serve-logs" in stack.service(component).command


def test_nobody_is_admin_without_a_password(stack: Stack) -> None:
    environment = stack.environment()
    assert environment["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] == "False"
    passwords = json.loads(Path(environment["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"]).read_text())
    assert passwords == {"admin": stack.settings.password}


def test_another_airflow_or_mlflow_of_the_shell_has_no_say(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_DEFAULT", "mlflow://elsewhere")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    environment = stack.environment()
    assert environment["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert environment["MLFLOW_TRACKING_URI"] == stack.settings.mlflow_url
    connection = json.loads(environment["AIRFLOW_CONN_MLFLOW_DEFAULT"])
    assert connection == {"conn_type": "mlflow", "host": stack.settings.mlflow_url}


def test_nothing_reports_home(stack: Stack) -> None:
    environment = stack.environment()
    assert environment["AIRFLOW__USAGE_DATA_COLLECTION__ENABLED"] == "False"
    assert environment["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_what_the_caller_adds_comes_last(stack: Stack) -> None:
    assert stack.environment()["AIRFLOW__CORE__PARALLELISM"] == "2"


def test_mlflow_starts_first_and_every_server_has_its_own_files(stack: Stack) -> None:
    services = stack.services()
    assert [service.name for service in services] == ["mlflow", *AIRFLOW_COMPONENTS]
    assert len({service.pid_file for service in services}) == len({service.log for service in services}) == 5
    assert stack.running() == []


def test_a_second_stack_of_one_home_talks_to_the_same_servers(stack: Stack, tmp_path: Path) -> None:
    again = Stack.at(tmp_path / "home", tmp_path / "dags")
    assert again.settings == stack.settings
