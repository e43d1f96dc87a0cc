"""The program that runs on the node: one server, warmed and proven, then one window after another.

``agent.py RUN_FOLDER``. Standard library only, sent to the node with :mod:`.node_server`, :mod:`.samples` and
``job.json``. Its exit status says what failed, the file ``reason`` says it in words, and every file it writes
appears whole or not at all. Judging is the worker's: here misses are only counted, to end a window that is
already lost.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

if __package__:
    from fleetsieve_airflow.serving import node_server, samples
else:  # on the node they lie beside this file
    import node_server  # type: ignore[import-not-found,no-redef]
    import samples  # type: ignore[import-not-found,no-redef]

HEARTBEAT_S = 10.0
POLL_S = 0.5
#: Time a load generator may take to start and to write its summary, on top of the window and its last
#: time-out.
GENERATOR_SLACK_S = 180.0


class Window:
    """One point: its trace replayed against the running server."""

    def __init__(
        self, job: dict[str, Any], point: dict[str, Any], run: Path, server: node_server.Server
    ) -> None:
        self.job, self.point, self.run, self.server = job, point, run, server
        self.folder = run / "points" / point["key"]
        self.records = self.folder / "out" / job["records_file"]
        rows = [json.loads(line) for line in (self.folder / "trace.jsonl").read_text().splitlines()]
        self.requested = [row["output_length"] for row in rows]
        limits = [samples.Limit(*limit) for limit in point["limits"]]
        self.counter = samples.MissCounter(limits, point["allowed_failures"])
        self.offset = 0
        self.first_start_s: float | None = None

    def measure(self) -> None:
        """Replay the window and write ``result.json``, also when the server dies under it.

        :raises StopError: the server died or hangs, or the load generator failed.
        """
        result: dict[str, Any] = {"key": self.point["key"], "began_s": time.time(), "curtailed_after_s": None}
        before = self._metrics()
        failure: node_server.StopError | None = None
        try:
            result.update(self._replay())
        except node_server.StopError as stop:
            failure = stop
            result["failed"] = stop.reason
        result["ended_s"] = time.time()
        result["metrics"] = counter_deltas(before, self._metrics())
        node_server.write(self.folder / "result.json", json.dumps(result))
        if failure:
            raise failure
        self.server.one_token()

    def _replay(self) -> dict[str, Any]:
        port, run = str(self.server.port), str(self.run)
        command = [part.replace("@PORT@", port).replace("@RUN@", run) for part in self.point["command"]]
        environment = {**os.environ, **self.job["generator_env"]}
        for name, value in self.job["generator_env"].items():
            if not value:
                environment.pop(name, None)
        with (self.folder / "generator.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        try:
            return self._watch(process)
        finally:
            end_group(process)

    def _watch(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Follow the records until the generator ends, the window is lost, or the server dies."""
        limit_s = self.point["duration_s"] + self.point["timeout_s"] + GENERATOR_SLACK_S
        end = time.monotonic() + limit_s
        while process.poll() is None:
            time.sleep(POLL_S)
            self._read_records()
            lost = self.counter.settled() if self.point["curtail"] else ""
            if lost and self.first_start_s is not None:
                # Once all is sent, waiting for the answers costs GPUs too and decides nothing any more
                elapsed = min(time.time() - self.first_start_s, self.point["duration_s"])
                return {"curtailed_after_s": elapsed, "curtailed_by": lost}
            if not self.server.alive():
                raise node_server.StopError(
                    "server_died",
                    f"The server died under load: {node_server.last_line(node_server.tail(self.server.log))}",
                )
            if time.monotonic() > end:
                raise node_server.StopError(
                    "load_generator", f"The load generator did not end within {limit_s:g} s."
                )
        self._read_records()
        if not self.records.exists():
            said = node_server.last_line(node_server.tail(self.folder / "generator.log"))
            raise node_server.StopError(
                "load_generator", f"The load generator left no records (exit {process.returncode}): {said}"
            )
        return {"generator_exit": process.returncode}

    def _read_records(self) -> None:
        """Count the records that are new, whole lines only."""
        if not self.records.exists():
            return
        with self.records.open("rb") as file:
            file.seek(self.offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.decode().splitlines():
            sample = samples.parse_aiperf(line, self.requested)
            if sample is None:
                continue
            if self.first_start_s is None or sample.start_s < self.first_start_s:
                self.first_start_s = sample.start_s
            self.counter.add(sample)

    def _metrics(self) -> str:
        try:
            return node_server.get(f"{self.server.url}/metrics")
        except OSError:
            return ""


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a load generator and its workers."""
    for sent, grace_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, sent)
            process.wait(grace_s)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def counter_deltas(before: str, after: str) -> dict[str, float]:
    """Return what vLLM's counters rose by in a window, and the gauges' last values, summed over labels."""

    def read(text: str) -> dict[str, float]:
        values: dict[str, float] = {}
        for line in text.splitlines():
            found = re.match(r"(vllm:[a-z0-9_:]+)(?:\{[^}]*\})?\s+([-+0-9.eE]+)", line)
            if found and not found.group(1).endswith(("_bucket", "_created", "_info")):
                values[found.group(1)] = values.get(found.group(1), 0.0) + float(found.group(2))
        return values

    first, last = read(before), read(after)
    rising = ("_total", "_count", "_sum")
    return {
        name: value - first.get(name, 0.0) if name.endswith(rising) else value for name, value in last.items()
    }


def beat(run: Path) -> None:
    """Write the time to ``heartbeat`` for as long as this process lives."""
    while True:
        node_server.write(run / "heartbeat", f"{time.time():.0f}\n")
        time.sleep(HEARTBEAT_S)


def facts(
    job: dict[str, Any], run: Path, server: node_server.Server, gpus: list[dict[str, str]]
) -> dict[str, Any]:
    """Return what identifies the engine that was measured."""
    try:
        version = json.loads(node_server.get(f"{server.url}/version")).get("version", "")
    except (OSError, ValueError):
        version = ""
    cache = re.findall(r"KV cache size: ([\d,]+) tokens", node_server.tail(server.log, 200_000))
    return {
        "engine_version": version,
        "node": socket.gethostname(),
        "gpu": gpus[0]["name"] if gpus else "",
        "gpus_seen": len(gpus),
        "driver": gpus[0]["driver_version"] if gpus else "",
        "kv_cache_tokens": int(cache[-1].replace(",", "")) if cache else None,
        "slurm_job": os.environ.get("SLURM_JOB_ID", ""),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }


def perform(run: Path, job: dict[str, Any], server: node_server.Server) -> None:
    """Do the whole job.

    :raises StopError: the first thing that failed.
    """
    missing = [tool for tool in job["tools"] if not shutil.which(tool)]
    if missing:
        raise node_server.StopError(
            "tools_missing", f"Not found on {socket.gethostname()}: {', '.join(missing)}."
        )
    gpus = node_server.require_clean_gpus()
    times = {"began_s": time.time()}
    server.start()
    times["ready_s"] = time.time()
    server.warm_up(job["warm_up"])
    server.one_token()
    times["warm_s"] = time.time()
    node_server.write(run / "facts.json", json.dumps({**facts(job, run, server, gpus), **times}))
    for point in job["points"]:
        Window(job, point, run, server).measure()


def main(run: Path) -> int:
    """Run the job of a run folder and return the exit status."""
    job = json.loads((run / "job.json").read_text())
    server = node_server.Server(job, run)

    def on_signal(number: int, _: FrameType | None) -> None:
        # The scheduler gives few seconds between TERM and KILL: the server must be gone before this process
        # is
        server.stop(grace_s=0.0)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    threading.Thread(target=beat, args=(run,), daemon=True).start()
    try:
        perform(run, job, server)
    except node_server.StopError as stop:
        node_server.write(run / "reason", f"{stop.reason}\n")
        print(stop.reason, flush=True)
        return stop.status
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
