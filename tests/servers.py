"""Real servers for tests, each on a free loopback port, in a folder of its own, ended by its process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

START_TIMEOUT_S = 240.0


def free_port() -> int:
    """Return a loopback port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class MlflowServer:
    """One ``mlflow server``; it can be stopped and started again, address and data stay.

    :param database: an empty SQLite database, of which it takes a copy.
    :param store: the address of another database to use instead.
    """

    def __init__(self, folder: Path, database: Path, *, store: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "server.log"
        self._store = store or f"sqlite:///{shutil.copy(database, folder / 'mlflow.db')}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", self._store, "--workers", "1"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={
                    **os.environ,
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                    # Its job runner is seven processes for features that nothing here uses.
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                    "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "20",
                    "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW": "40",
                },
                start_new_session=True,
            )
        wait_for_http(f"{self.url}/health", self._process, self.log)

    def stop(self) -> None:
        """End it and its workers."""
        if self._process is not None:
            end_group(self._process)
            self._process = None


def wait_for_http(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until an address answers 200; fail with the log where the process ends first."""
    give_up = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - loopback
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    end_group(process)
    raise RuntimeError(f"{url} did not answer:\n{log.read_text()[-4000:]}")


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all it started, by its own process group."""
    for signal in (15, 9):
        try:
            os.killpg(process.pid, signal)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=10)
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty, migrated MLflow database to copy from: migrating one takes seconds."""
    path = tmp_path_factory.mktemp("mlflow-empty") / "mlflow.db"
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> Iterator[MlflowServer]:
    """An MLflow server for the whole session: take a fleet name of your own."""
    server = MlflowServer(tmp_path_factory.mktemp("mlflow-server"), mlflow_database)
    server.start()
    yield server
    server.stop()
