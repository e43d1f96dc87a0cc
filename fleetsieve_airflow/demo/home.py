"""Where the local servers keep their files, ports and secrets."""

from __future__ import annotations

import json
import os
import secrets
import socket
from base64 import urlsafe_b64encode
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
USER = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The folder of one local installation: databases, logs, pid files and ``settings.json``."""

    root: Path

    @property
    def airflow(self) -> Path:
        """``AIRFLOW_HOME``: the metadata database, task logs and the generated password."""
        return self.root / "airflow"

    @property
    def mlflow(self) -> Path:
        """The tracking database and the artifacts."""
        return self.root / "mlflow"

    @property
    def logs(self) -> Path:
        """What each server printed."""
        return self.root / "logs"

    @property
    def pids(self) -> Path:
        """One pid file per running server."""
        return self.root / "pids"

    def make(self) -> None:
        """Create the folders, closed to other users: they hold secrets."""
        for folder in (self.root, self.airflow, self.mlflow, self.logs, self.pids):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Ports and secrets of one installation, made once: a later start has the same addresses and login.

    ``base_path`` is what Airflow's paths begin with, e.g. ``/airflow`` behind a proxy of several servers.
    """

    airflow_port: int
    mlflow_port: int
    password: str
    fernet_key: str
    jwt_secret: str
    api_secret: str
    base_path: str = ""

    @property
    def airflow_url(self) -> str:
        """Address of Airflow's UI and API."""
        return f"http://{LOOPBACK}:{self.airflow_port}{self.base_path}"

    @property
    def mlflow_url(self) -> str:
        """Address of MLflow's UI and API."""
        return f"http://{LOOPBACK}:{self.mlflow_port}"


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now; all are held open together so that they differ."""
    listeners = [socket.socket() for _ in range(count)]
    try:
        for listener in listeners:
            listener.bind((LOOPBACK, 0))
        return [int(listener.getsockname()[1]) for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port."""
    with socket.socket() as listener:
        # As servers do: a connection of an earlier server that is still closing does not hold the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def load_settings(home: Home) -> Settings | None:
    """Return the remembered settings, or None where nothing was ever started."""
    path = home.root / "settings.json"
    return Settings(**json.loads(path.read_text())) if path.is_file() else None


def settle(home: Home, *, running: bool) -> Settings:
    """Return settings to start with: the remembered ones, with new ports where another program took them.

    :param running: our own servers hold the remembered ports.
    """
    remembered = load_settings(home)
    kept: dict[str, Any] = asdict(remembered) if remembered else _new_secrets()
    ports = ("airflow_port", "mlflow_port")
    if not running and any(name not in kept or not is_free(kept[name]) for name in ports):
        kept |= dict(zip(ports, free_ports(len(ports)), strict=True))
    settings = Settings(**kept)
    write_private(home.root / "settings.json", json.dumps(asdict(settings), indent=2) + "\n")
    write_private(password_file(home), json.dumps({USER: settings.password}) + "\n")
    return settings


def password_file(home: Home) -> Path:
    """Return the file from which Airflow's simple auth manager reads passwords."""
    return home.airflow / "passwords.json"


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _new_secrets() -> dict[str, Any]:
    return {
        "password": secrets.token_urlsafe(12),
        "fernet_key": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "jwt_secret": secrets.token_urlsafe(48),
        "api_secret": secrets.token_urlsafe(32),
    }
