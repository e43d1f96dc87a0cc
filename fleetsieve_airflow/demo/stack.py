"""The servers of one local installation: MLflow, and Airflow as four processes, on loopback."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetsieve_airflow.demo import processes
from fleetsieve_airflow.demo.home import LOOPBACK, USER, Home, Settings, password_file, settle
from fleetsieve_airflow.demo.processes import Service
from fleetsieve_airflow.demo.rest import AirflowApi, fetch_json

AIRFLOW_COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
START_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One MLflow server and one Airflow, with their settings.

    ``extra`` is put over the environment of every process, as one would in a deployment. Both databases are
    SQLite files, unless the SQLAlchemy address of another one is given.
    """

    home: Home
    settings: Settings
    dags_folder: Path
    extra: Mapping[str, str] = field(default_factory=dict)
    airflow_database: str = ""
    mlflow_database: str = ""

    @classmethod
    def at(cls, root: Path, dags_folder: Path, extra: Mapping[str, str] | None = None) -> Stack:
        """Prepare folders and settings; nothing is started yet."""
        home = Home(root=root.resolve())
        home.make()
        running = any(processes.find(pid_file) for pid_file in home.pids.glob("*.pid"))
        return cls(
            home=home,
            settings=settle(home, running=running),
            dags_folder=dags_folder.resolve(),
            extra=extra or {},
        )

    def environment(self) -> dict[str, str]:
        """Return the environment of every process: ours without what belongs to other installations."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW", "_AIRFLOW", "MLFLOW", "PYTHONDONTWRITE"))
        }
        # The programs beside this interpreter come first, whether or not its environment is activated.
        path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
        return {**inherited, "PATH": path, **_airflow_options(self), **_mlflow_options(self), **self.extra}

    def service(self, name: str) -> Service:
        """Return one server by name: ``mlflow`` or one of :data:`AIRFLOW_COMPONENTS`."""
        command = _mlflow_command(self) if name == "mlflow" else _airflow_command(name)
        return Service(
            name=name,
            command=command,
            environment=self.environment(),
            log=self.home.logs / f"{name}.log",
            pid_file=self.home.pids / f"{name}.pid",
        )

    def services(self) -> list[Service]:
        """Return all servers, in the order in which they start."""
        return [self.service(name) for name in ("mlflow", *AIRFLOW_COMPONENTS)]

    def start(self) -> None:
        """Migrate both databases, start what does not run, and wait until all are healthy.

        MLflow first: it starts while Airflow's database is migrated; each needs one core for some seconds.
        """
        services = self.services()
        if not all(processes.find(service.pid_file) for service in services):
            self._prepare_mlflow_database()
            processes.start(services[0])
            if not self.airflow_database:
                _let_readers_and_a_writer_work_together(self.home.airflow / "airflow.db")
            command = [_program("airflow"), "db", "migrate"]
            processes.run(command, self.environment(), self.home.logs / "airflow-migrate.log")
        for service in services:
            processes.start(service)
        self.wait_until_healthy(services)

    def _prepare_mlflow_database(self) -> None:
        if self.mlflow_database:
            return
        database = self.home.mlflow / "mlflow.db"
        existed = database.exists()
        _let_readers_and_a_writer_work_together(database)
        # A server makes the tables of a new database itself, but refuses those of an earlier release.
        if existed and processes.find(self.service("mlflow").pid_file) is None:
            command = [_program("mlflow"), "db", "upgrade", _sqlite(database)]
            processes.run(command, self.environment(), self.home.logs / "mlflow-migrate.log")

    def wait_until_healthy(self, services: list[Service]) -> None:
        """Wait until MLflow answers and Airflow says that each of its components is alive."""
        # The API for tasks is built at its first request, for which the whole server stands still for some
        # seconds: better now, while the others start, than in front of the first task.
        pages = (f"{self.settings.airflow_url}/execution/health", f"{self.settings.mlflow_url}/health")
        processes.wait_until(
            lambda: all(processes.answers(page) for page in pages) and self.airflow_is_healthy(),
            "MLflow and Airflow to become healthy",
            services,
            timeout_s=START_TIMEOUT_S,
        )

    def airflow_is_healthy(self) -> bool:
        """Return whether Airflow's health page reports each component as healthy."""
        health = fetch_json(f"{self.settings.airflow_url}/api/v2/monitor/health")
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return health is not None and all(
            (health.get(part) or {}).get("status") == "healthy" for part in parts
        )

    def running(self) -> list[str]:
        """Return the names of the servers that run now."""
        return [service.name for service in self.services() if processes.find(service.pid_file) is not None]

    def stop(self) -> list[str]:
        """End all servers, those that write first; return the names of those that ran."""
        return stop_all(self.home)

    def api(self) -> AirflowApi:
        """Return a client of Airflow's REST API, logged in."""
        return AirflowApi.login(self.settings.airflow_url, USER, self.settings.password)


def stop_all(home: Home) -> list[str]:
    """End whatever was started from this home, also half of it; return the names of what ran."""
    return processes.stop(sorted(home.pids.glob("*.pid")))


def _airflow_options(stack: Stack) -> dict[str, str]:
    home, settings = stack.home, stack.settings
    options: dict[str, dict[str, Any]] = {
        "core": {
            "dags_folder": stack.dags_folder,
            "load_examples": False,
            "executor": "LocalExecutor",
            "parallelism": 4,
            "fernet_key": settings.fernet_key,
            "hostname_callable": "socket.gethostname",
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_all_admins": False,
            "simple_auth_manager_passwords_file": password_file(home),
            "execution_api_server_url": f"{settings.airflow_url}/execution/",
        },
        "database": {
            "sql_alchemy_conn": stack.airflow_database or f"{_sqlite(home.airflow / 'airflow.db')}?timeout=60"
        },
        "api": {
            "host": LOOPBACK,
            "port": settings.airflow_port,
            "base_url": settings.airflow_url,
            "workers": 1,
            "secret_key": settings.api_secret,
        },
        "api_auth": {"jwt_secret": settings.jwt_secret},
        # A campaign is a chain of short tasks: waiting a second between two looks would be most of its time.
        "scheduler": {
            "scheduler_idle_sleep_time": 0.5,
            # On a busy machine half a minute without a heartbeat does not mean death.
            "scheduler_health_check_threshold": 120,
            "mp_start_method": "forkserver",
            "mp_forkserver_preload": "fleetsieve_airflow.demo.preload",
        },
        # Two cores may be busy for longer than the five seconds that a task waits for an answer by default.
        "workers": {"execution_api_timeout": 60},
        "dag_processor": {"parsing_processes": 1, "refresh_interval": 15, "min_file_process_interval": 20},
        "triggerer": {"triggerer_health_check_threshold": 120},
        "usage_data_collection": {"enabled": False},
        "logging": {"colored_console_log": False},
    }
    named = {
        f"AIRFLOW__{section.upper()}__{name.upper()}": str(value)
        for section, values in options.items()
        for name, value in values.items()
    }
    return {"AIRFLOW_HOME": str(home.airflow), **named}


def _mlflow_options(stack: Stack) -> dict[str, str]:
    return {
        "MLFLOW_TRACKING_URI": stack.settings.mlflow_url,
        "AIRFLOW_CONN_MLFLOW_DEFAULT": json.dumps({"conn_type": "mlflow", "host": stack.settings.mlflow_url}),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Several tasks write at the same time, and each holds a connection while it does.
        "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "20",
        "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW": "40",
        # Its job runner is seven processes for features that nothing here uses.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "DO_NOT_TRACK": "true",
        # A forked task has none of the threads that numerical libraries start when they are imported.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def _airflow_command(component: str) -> tuple[str, ...]:
    # Logs are read from disk here; the log servers of these two would listen on every address.
    quiet = ("--skip-serve-logs",) if component in ("scheduler", "triggerer") else ()
    return (_program("airflow"), component, *quiet)


def _mlflow_command(stack: Stack) -> tuple[str, ...]:
    return (
        _program("mlflow"), "server",
        "--backend-store-uri", stack.mlflow_database or _sqlite(stack.home.mlflow / "mlflow.db"),
        "--artifacts-destination", str(stack.home.mlflow / "artifacts"),
        "--host", LOOPBACK,
        "--port", str(stack.settings.mlflow_port),
        "--workers", "1",
    )  # fmt: skip


def _program(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise processes.DemoError(
            f"The program {name!r} is not installed beside {sys.executable}.",
            hint="Install fleetsieve-airflow[server] there.",
        )
    return found


def _sqlite(path: Path) -> str:
    return f"sqlite:///{path}"


def _let_readers_and_a_writer_work_together(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
