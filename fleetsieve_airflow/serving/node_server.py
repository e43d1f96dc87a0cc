"""The engine on the node: start it on clean GPUs and a free port, prove it is ours, end it whole.

Standard library only: this file is sent to the node beside :mod:`.agent`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

#: Exit status -> kind of failure; 0 is success, 128 + n a signal.
EXIT_KINDS = {
    81: "dirty_node",
    82: "no_free_port",
    83: "tools_missing",
    84: "engine_refused",
    85: "server_not_ready",
    86: "server_died",
    87: "load_generator",
    88: "wrong_server",
    89: "second_copy",
}
#: An engine that says one of these at start cannot run this config here: evidence, not a failure.
REFUSALS = (
    r"must be divisible by tensor parallel size",
    r"is greater than the derived max_model_len",
    r"To serve at least one request",
    r"No available memory for the cache blocks",
    r"[Ff]ree memory on device .* is less than desired GPU memory utilization",
    r"CUDA out of memory|OutOfMemoryError",
    r"(?:ValueError|NotImplementedError|AssertionError)\b.*(?:not (?:yet )?supported|does not support)",
    r"unrecognized arguments|invalid choice",
)
PORT_TAKEN = r"Address already in use"
CLEAN_GPU_MIB = 1024.0


class StopError(Exception):
    """Ends the job with an exit status and a reason in words."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.status = next(status for status, name in EXIT_KINDS.items() if name == kind)
        self.reason = reason


def write(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or none."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def tail(path: Path, count: int = 8000) -> str:
    """Return the last characters of a log."""
    return path.read_text(encoding="utf-8", errors="replace")[-count:] if path.exists() else ""


def get(url: str, body: dict[str, Any] | None = None, timeout_s: float = 10.0) -> str:
    """Ask the local server; never through a proxy of the site's environment."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 - loopback
    with opener.open(request, timeout=timeout_s) as answer:
        text: str = answer.read().decode("utf-8", "replace")
        return text


def gpu_rows() -> list[dict[str, str]]:
    """Return this job's GPUs as nvidia-smi tells them; an empty list where there is no nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return []
    names = ("index", "uuid", "name", "driver_version", "memory.used", "memory.total")
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    mine = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if mine:
        command += ["-i", mine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise StopError("dirty_node", f"nvidia-smi failed: {done.stdout} {done.stderr}".strip()[:500])
    parts = (line.split(", ") for line in done.stdout.splitlines() if line.strip())
    return [dict(zip(names, row)) for row in parts]  # noqa: B905 - runs on any Python 3


def require_clean_gpus() -> list[dict[str, str]]:
    """Refuse GPUs that another process holds memory of: it would falsify every number."""
    rows = gpu_rows()
    held = [row for row in rows if float(row["memory.used"] or 0) > CLEAN_GPU_MIB]
    if held:
        said = "; ".join(f"GPU {row['index']} holds {row['memory.used']} MiB" for row in held)
        raise StopError(
            "dirty_node", f"{socket.gethostname()} is not clean: {said} before this job started anything."
        )
    return rows


def free_port(first: int, count: int, taken: set[int]) -> int:
    """Return the first port of a range that nothing listens on."""
    for port in range(first, first + count):
        if port in taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise StopError(
        "no_free_port", f"No free port from {first} to {first + count - 1} on {socket.gethostname()}."
    )


def listeners(port: int) -> set[str]:
    """Return the inodes of the sockets that listen on a port, from /proc."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(table):
            for line in Path(table).read_text().splitlines()[1:]:
                parts = line.split()
                if int(parts[1].rsplit(":", 1)[1], 16) == port and parts[3] == "0A":
                    found.add(parts[9])
    return found


def family(mark: str, session: int = -1) -> list[int]:
    """Return every live process of a server, whoever its parent is by now.

    By the mark in the environment, which also finds those that made a session of their own, and by the
    session: a process that changes its title, as vLLM's workers do, overwrites what its environment says.
    """
    wanted, found = f"FLEETSIEVE_SERVER={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, _, belongs_to = (entry / "stat").read_text().rpartition(") ")[2].split()[:4]
            ours = int(belongs_to) == session or wanted in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if ours and state != "Z":
            found.append(int(entry.name))
    return found


class Server:
    """The engine under measurement, as a process group of its own."""

    def __init__(self, job: dict[str, Any], run: Path) -> None:
        self.job, self.run = job, run
        self.log = run / "server.log"
        self.mark = f"{job['name']}.{os.getpid()}"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it answers as the one asked for.

        :raises StopError: it refused its config, died, is not ready in time, or another server answers in its
            place.
        """
        taken: set[int] = set()
        spread = int(os.environ.get("SLURM_JOB_ID", str(os.getpid()))) * 20
        low, high = self.job["ports"]
        for _ in range(3):
            self.port = free_port(low + spread % max(1, high - low - 40), 20, taken)
            taken.add(self.port)
            write(self.run / "endpoint", f"{socket.gethostname()} {self.port}\n")
            self._launch()
            if self._wait_ready():
                self._prove()
                return
            self.stop()
        raise StopError(
            "no_free_port", "Three ports in a row were taken between the check and the server's own start."
        )

    def _launch(self) -> None:
        command = [part.replace("@PORT@", str(self.port)) for part in self.job["engine"]]
        environment = {**os.environ, **self.job["engine_env"], "FLEETSIEVE_SERVER": self.mark}
        # vLLM opens ports of its own from VLLM_PORT on: 20 for each job, above its HTTP port
        environment.setdefault("VLLM_PORT", str(self.port + 20))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )

    def _wait_ready(self) -> bool:
        """Wait for /health; False when the port was taken after all."""
        limit_s = float(self.job["ready_s"])
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if not self.alive():
                said = tail(self.log)
                if re.search(PORT_TAKEN, said):
                    return False
                raise self._refusal(said)
            try:
                get(f"{self.url}/health", timeout_s=5)
            except (OSError, urllib.error.URLError):
                time.sleep(0.5)
                continue
            return True
        said = last_line(tail(self.log))
        raise StopError(
            "server_not_ready", f"The server was not ready after {limit_s:g} s. Its last words: {said}"
        )

    def _refusal(self, said: str) -> StopError:
        for pattern in REFUSALS:
            found = [(line, match) for line in said.splitlines() if (match := re.search(pattern, line))]
            if found:
                line, match = found[-1]
                # The reason itself, with the sentence it stands in; some lines go on for a page.
                return StopError("engine_refused", line[max(0, match.start() - 200) :][:500].strip())
        return StopError("server_died", f"The server ended at start. Its last words: {last_line(said)}")

    def _prove(self) -> None:
        """Prove that what answers is the server started here: by socket, by model, by one token."""
        inodes = {f"socket:[{inode}]" for inode in listeners(self.port)}
        owned = {target for pid in self.family() for target in file_descriptors(pid)}
        if not inodes & owned:
            raise StopError(
                "wrong_server", f"Port {self.port} is answered by a process that this job did not start."
            )
        models = [item["id"] for item in json.loads(get(f"{self.url}/v1/models"))["data"]]
        if self.job["model"] not in models:
            raise StopError("wrong_server", f"The server serves {models}, not {self.job['model']!r}.")
        self.one_token()

    def one_token(self) -> None:
        """Have one token generated: a hung engine still answers /health.

        :raises StopError: it does not answer within its time.
        """
        body = {"model": self.job["model"], "prompt": "a", "max_tokens": 1, "temperature": 0}
        try:
            answer = json.loads(get(f"{self.url}/v1/completions", body, timeout_s=float(self.job["token_s"])))
        except (OSError, ValueError) as error:
            raise StopError("server_died", f"The server did not generate one token: {error}") from error
        if not answer.get("choices"):
            raise StopError("server_died", f"The server answered no token: {str(answer)[:300]}")

    def warm_up(self, shapes: list[list[int]]) -> None:
        """Send requests of the windows' lengths, so that no window pays for compiling and allocating."""

        def send(shape: list[int]) -> None:
            prompt = [5 + (7 * place) % 90 for place in range(shape[0])]
            body = {"model": self.job["model"], "prompt": prompt, "max_tokens": shape[1], "ignore_eos": True}
            try:
                get(f"{self.url}/v1/completions", body, timeout_s=float(self.job["token_s"]))
            except (OSError, ValueError) as error:
                print(f"warm-up request of {shape}: {error}", flush=True)

        threads = [threading.Thread(target=send, args=(shape,), daemon=True) for shape in shapes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def family(self) -> list[int]:
        """Return the server's own process and all that it started."""
        return family(self.mark, -1 if self.process is None else self.process.pid)

    def alive(self) -> bool:
        """Tell whether the server's own process still runs."""
        return self.process is not None and self.process.poll() is None

    def stop(self, grace_s: float = 20.0) -> None:
        """End the server and everything it started, orphans too.

        :param grace_s: how long it may take to end by itself; 0 ends it at once.
        """
        if self.process is None:
            return
        if grace_s > 0 and self.alive():
            self.process.terminate()
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                print(f"the server did not end within {grace_s:g} s", flush=True)
        for _ in range(50):
            left = self.family()
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.poll()
            if not left:
                break
            time.sleep(0.1)


def file_descriptors(pid: int) -> list[str]:
    """Return what a process's open files are, none where it has gone."""
    try:
        return [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


def last_line(text: str) -> str:
    """Return the last line that says something."""
    return next((line.strip()[-400:] for line in reversed(text.splitlines()) if line.strip()), "nothing")
