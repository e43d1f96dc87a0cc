"""The compose file keeps its rules, and the compose client accepts it: nothing here needs a Docker engine."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import compose
import paramiko
import pytest
import yaml

from fleetsieve_airflow.plugin_webhook import PREFIX
from tests.builders import REPOSITORY

DOCKER = REPOSITORY / "docker"
CLIENT = Path(compose.__file__).parent / "docker-compose"
README = DOCKER / "README.md"
#: Another process, as another worker of the server, reads what the first has written.
TELL_WEBHOOKS = """
import subprocess, sys
code = '''
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore
(webhook,) = SqlAlchemyStore("sqlite:///{database}").list_webhooks()
print(webhook.url, webhook.secret)
'''
subprocess.run([sys.executable, "-c", code], check=True)
"""
PROFILES = ("local", "celery", "local,slurm", "celery,slurm")
#: Services whose daemons start processes of other users, or log them in.
ROOT = {"slurm-login", "slurm-gpu01", "slurm-gpu02"}
ONCE = {"airflow-init"}
REQUIRED = re.compile(r"\$\{([A-Z_]+):\?")
PINNED = re.compile(r"[a-z0-9./-]+:v?\d+(\.\d+)+(-[a-z0-9.]+)*")


@cache
def written() -> dict[str, Any]:
    """Return the compose file with its anchors followed, its variables as they are written."""
    return yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))


def services() -> list[str]:
    return sorted(written()["services"])


def example() -> dict[str, str]:
    lines = (DOCKER / ".env.example").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture(scope="module")
def env_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of secrets as ``make-secrets`` writes it."""
    path = tmp_path_factory.mktemp("secrets") / ".env"
    subprocess.run([str(DOCKER / "make-secrets"), str(path)], check=True, capture_output=True)
    return path


def client(env: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(CLIENT), "--env-file", str(env), "-f", str(DOCKER / "compose.yaml"), *arguments]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def resolved(env: Path, profiles: str = "celery,local,slurm") -> dict[str, Any]:
    names = [option for name in profiles.split(",") for option in ("--profile", name)]
    done = client(env, *names, "config", "--format", "json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


class TestRules:
    @pytest.mark.parametrize("name", services())
    def test_an_image_is_pinned(self, name: str) -> None:
        image = written()["services"][name]["image"]
        assert PINNED.fullmatch(image) or image == "fleetsieve/slurm:bookworm"

    @pytest.mark.parametrize("name", services())
    def test_a_service_tells_its_health(self, name: str) -> None:
        health = written()["services"][name]["healthcheck"]
        assert health == {"disable": True} if name in ONCE else health["test"][0] in ("CMD", "CMD-SHELL")

    @pytest.mark.parametrize("name", sorted(set(services()) - ROOT))
    def test_a_service_has_no_rights_that_it_does_not_need(self, name: str) -> None:
        service = written()["services"][name]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        user = service.get("user") or last_user(REPOSITORY / service["build"]["dockerfile"])
        assert user.partition(":")[0] not in ("", "0", "root")

    def test_databases_broker_and_tracking_server_cannot_write_to_their_images(self) -> None:
        locked = {name for name in services() if written()["services"][name].get("read_only")}
        assert locked == {"airflow-db", "mlflow-db", "mlflow", "redis"}

    def test_nothing_is_reached_from_another_machine(self) -> None:
        ports = [port for name in services() for port in written()["services"][name].get("ports", ())]
        assert len(ports) == 2
        assert all(port.startswith("127.0.0.1:") for port in ports)

    def test_data_are_in_named_volumes_and_dag_files_are_only_read(self) -> None:
        declared = set(written()["volumes"])
        for name in services():
            for volume in written()["services"][name].get("volumes", ()):
                source, *rest = volume.split(":")
                assert source in declared or (source, rest[-1]) == ("../dags", "ro"), (name, volume)

    def test_every_secret_is_asked_for_and_has_no_default(self) -> None:
        text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
        secrets = {name for name, value in example().items() if not value}
        assert set(REQUIRED.findall(text)) == secrets
        defaults = set(re.findall(r"\$\{([A-Z_]+):?-", text))
        assert defaults == {"AIRFLOW_ADMIN_USER", "AIRFLOW_PORT", "MLFLOW_PORT"}
        # What is named like a secret has no value of its own anywhere
        for name, value in re.findall(
            r"^ *([A-Z_]*(?:PASSWORD|SECRET|_KEY|AUTH)[A-Z_]*): (.+)$", text, re.MULTILINE
        ):
            assert "${" in value or name == "AIRFLOW__CORE__AUTH_MANAGER", name


class TestClient:
    @pytest.mark.parametrize("profiles", PROFILES)
    def test_it_accepts_every_choice_of_profiles(self, profiles: str, env_file: Path) -> None:
        found = set(resolved(env_file, profiles)["services"])
        assert ("airflow-scheduler-local" in found) == ("local" in profiles)
        assert ({"airflow-scheduler-celery", "airflow-worker", "redis"} <= found) == ("celery" in profiles)
        assert (found >= ROOT) == ("slurm" in profiles)
        assert {"airflow-api-server", "airflow-dag-processor", "airflow-triggerer", "mlflow"} <= found

    @pytest.mark.parametrize("name", sorted(name for name, value in example().items() if not value))
    def test_it_refuses_to_start_without_a_secret(self, name: str, env_file: Path, tmp_path: Path) -> None:
        lines = env_file.read_text().splitlines()
        poorer = tmp_path / ".env"
        poorer.write_text("\n".join(f"{name}=" if line.startswith(f"{name}=") else line for line in lines))
        done = client(poorer, "config", "--quiet")
        assert done.returncode != 0
        assert f"{name} is missing a value: run docker/make-secrets first" in done.stderr

    def test_connections_are_what_airflow_reads(self, env_file: Path) -> None:
        environment = resolved(env_file)["services"]["airflow-triggerer"]["environment"]
        mlflow = json.loads(environment["AIRFLOW_CONN_MLFLOW_DEFAULT"])
        assert (mlflow["conn_type"], mlflow["host"]) == ("mlflow", "http://mlflow:5000")
        assert mlflow["extra"]["ui_url"] == "http://127.0.0.1:5000"
        extra = json.loads(environment["AIRFLOW_CONN_SLURM_DEFAULT"])["extra"]
        key = paramiko.Ed25519Key.from_private_key(io.StringIO(extra["private_key"]))
        public = resolved(env_file)["services"]["slurm-login"]["environment"]["FLEET_PUBLIC_KEY"]
        assert key.get_base64() == public.split()[1]
        assert extra["host_key"].split()[0] == "ssh-ed25519"

    def test_mlflow_may_call_airflow_as_the_readme_says(self, env_file: Path, tmp_path: Path) -> None:
        services = resolved(env_file)["services"]
        settings = {
            name: value
            for name, value in services["mlflow"]["environment"].items()
            if name.startswith("MLFLOW_WEBHOOK_")
        }
        snippet = re.search(r"python - <<'EOF'\n(.+?)^EOF$", README.read_text(), re.DOTALL | re.MULTILINE)
        assert snippet
        # What the server would refuse, the same code refuses when it writes to a database of its own.
        connection = json.loads(services["airflow-api-server"]["environment"]["AIRFLOW_CONN_MLFLOW_DEFAULT"])
        here = {"AIRFLOW_CONN_MLFLOW_DEFAULT": json.dumps(connection | {"host": f"sqlite:///{tmp_path}/db"})}
        code = f"{snippet[1]}\n{TELL_WEBHOOKS.format(database=tmp_path / 'db')}"
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **settings, **here}
        done = subprocess.run(
            [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        url, secret = done.stdout.split()
        assert url == f"http://airflow-api-server:8080{PREFIX}/mlflow/mlflow_default"
        assert secret == connection["extra"]["webhook_secret"] != ""

    def test_all_of_airflow_shares_its_keys(self, env_file: Path) -> None:
        names = ("AIRFLOW__CORE__FERNET_KEY", "AIRFLOW__API__SECRET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET")
        found = [
            service["environment"]
            for name, service in resolved(env_file)["services"].items()
            if name.startswith("airflow-") and name != "airflow-db"
        ]
        assert len(found) == 7
        for name in names:
            assert len({environment[name] for environment in found}) == 1
        assert len(base64.urlsafe_b64decode(found[0][names[0]])) == 32

    def test_only_the_celery_profile_has_celery(self, env_file: Path) -> None:
        executors = {
            name: service["environment"]["AIRFLOW__CORE__EXECUTOR"]
            for name, service in resolved(env_file)["services"].items()
            if "scheduler" in name or "worker" in name
        }
        assert executors == {
            "airflow-scheduler-local": "LocalExecutor",
            "airflow-scheduler-celery": "CeleryExecutor",
            "airflow-worker": "CeleryExecutor",
        }


class TestMakeSecrets:
    def test_a_second_run_keeps_what_the_first_has_written(self, env_file: Path, tmp_path: Path) -> None:
        path = tmp_path / ".env"
        path.write_bytes(env_file.read_bytes())
        subprocess.run([str(DOCKER / "make-secrets"), str(path)], check=True, capture_output=True)
        assert path.read_bytes() == env_file.read_bytes()

    def test_only_its_owner_may_read_it(self, env_file: Path) -> None:
        assert env_file.stat().st_mode & 0o077 == 0

    def test_half_a_key_pair_is_refused(self, env_file: Path, tmp_path: Path) -> None:
        path = tmp_path / ".env"
        lines = env_file.read_text().splitlines()
        path.write_text("\n".join(line for line in lines if not line.startswith("SLURM_HOST_KEY_PUBLIC=")))
        done = subprocess.run(
            [str(DOCKER / "make-secrets"), str(path)], check=False, capture_output=True, text=True
        )
        assert done.returncode == 1
        assert "one half of SLURM_HOST_KEY" in done.stderr


def last_user(dockerfile: Path) -> str:
    users = re.findall(r"^USER (.+)$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
    return users[-1] if users else ""


class TestDockerfiles:
    FILES = sorted(DOCKER.glob("*.Dockerfile"))

    @pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
    def test_hadolint_finds_nothing(self, path: Path) -> None:
        hadolint = Path(sys.executable).parent / "hadolint"
        done = subprocess.run([str(hadolint), str(path)], check=False, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "")

    @pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
    def test_what_it_copies_is_in_the_build_context(self, path: Path) -> None:
        kept = [
            line[1:]
            for line in (REPOSITORY / ".dockerignore").read_text().splitlines()
            if line.startswith("!")
        ]
        copies = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", path.read_text(), re.MULTILINE)
        assert copies
        for source in " ".join(copies).split():
            assert (REPOSITORY / source).exists(), source
            assert any(source == name or source.startswith(f"{name}/") for name in kept), source

    def test_versions_are_those_that_the_project_is_tested_with(self) -> None:
        pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
        airflow = re.search(r"^apache-airflow==(.+)$", pins, re.MULTILINE)
        mlflow = re.search(r"^mlflow==(.+)$", pins, re.MULTILINE)
        assert airflow
        assert mlflow
        assert f"FROM apache/airflow:{airflow[1]}-python3.11\n" in (DOCKER / "airflow.Dockerfile").read_text()
        assert f"mlflow=={mlflow[1]} " in (DOCKER / "mlflow.Dockerfile").read_text()
        added = re.search(r"\^\((.+)\)==", (DOCKER / "airflow.Dockerfile").read_text())
        assert added
        assert [name for name in added[1].split("|") if f"\n{name}==" not in pins] == []
        images = {service["image"] for service in written()["services"].values()}
        assert {f"fleetsieve/airflow:{airflow[1]}", f"fleetsieve/mlflow:{mlflow[1]}"} <= images

    def test_base_images_are_pinned(self) -> None:
        for path in self.FILES:
            for image in re.findall(r"^FROM (\S+)", path.read_text(), re.MULTILINE):
                assert PINNED.fullmatch(image), image


@pytest.mark.parametrize("script", ["make-secrets", "slurm/entrypoint", "slurm/stand-in"])
def test_scripts_are_programs_that_a_shell_can_read(script: str) -> None:
    path = DOCKER / script
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_the_chart_values_name_secrets_and_hold_none() -> None:
    values = yaml.safe_load((DOCKER / "helm-values.yaml").read_text(encoding="utf-8"))
    assert values["createUserJob"]["defaultUser"]["enabled"] is False
    assert values["postgresql"]["enabled"] is False
    assert {name for name in values if name.endswith("SecretName")} == {
        "fernetKeySecretName",
        "jwtSecretName",
        "apiSecretKeySecretName",
    }
    assert yaml.safe_load(values["extraEnvFrom"]) == [{"secretRef": {"name": "fleetsieve-connections"}}]
    pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    assert f"apache-airflow=={values['airflowVersion']}\n" in pins
