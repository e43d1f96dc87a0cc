"""A PostgreSQL of the tests' own, on a free loopback port, in a folder that goes away with it."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.servers import free_port

USER = "postgres"
START_TIMEOUT_S = 60.0


class PostgresServer:
    """One cluster. PostgreSQL refuses to run as root, so root hands it to the user ``postgres``."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fleetsieve-postgres-", dir="/tmp"))
        self.port = free_port()
        self.log = self.folder / "server.log"
        self._password = secrets.token_hex(16)
        self._bin = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make the cluster, start it, and wait until it answers."""
        secret = self.folder / "password"
        secret.write_text(self._password)
        self._hand_over()
        data = self.folder / "data"
        self._run("initdb", "-D", str(data), "-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}", "-N")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                # Nothing here has to survive a power cut.
                [
                    *(str(self._bin / "postgres"), "-D", str(data), "-p", str(self.port)),
                    *("-k", str(self.folder), "-c", "listen_addresses=127.0.0.1"),
                    *("-c", "max_connections=300", "-c", "fsync=off"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._as_postgres(),
            )
        give_up = time.monotonic() + START_TIMEOUT_S
        while self._run("pg_isready", "-h", "127.0.0.1", "-p", str(self.port), check=False):
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log.read_text()}")
            time.sleep(0.2)

    def database(self, name: str) -> str:
        """Make a database and return its SQLAlchemy address."""
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, name)
        return f"postgresql+psycopg2://{USER}:{self._password}@127.0.0.1:{self.port}/{name}"

    def stop(self) -> None:
        """End it and remove its folder."""
        if self._process is not None:
            # The signal that does not wait for clients to leave.
            self._process.send_signal(signal.SIGINT)
            self._process.wait(timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _hand_over(self) -> None:
        if os.geteuid() == 0:
            owner = pwd.getpwnam(USER)
            for path in (self.folder, *self.folder.iterdir()):
                os.chown(path, owner.pw_uid, owner.pw_gid)

    def _as_postgres(self) -> dict[str, object]:
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PGPASSWORD": self._password}
        common: dict[str, object] = {"cwd": self.folder, "env": environment, "start_new_session": True}
        return common | ({"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {})

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            **self._as_postgres(),
        )
        if check and done.returncode:
            raise RuntimeError(f"{program}: {done.stdout}\n{done.stderr}")
        return done.returncode
