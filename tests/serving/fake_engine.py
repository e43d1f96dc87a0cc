"""A stand-in for the two programs on a node, for tests of what the agent does with them: ``fake_engine.py
serve|profile``.

``serve``: answers as a server of model ``base`` does; its behaviour is chosen by engine arguments.
``profile``: writes one record per row of the trace, as fast as it can. Both read and write what the real
programs do; tests against those are in ``tests/vllm``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

#: How long a slow server takes to be ready: long enough for something to break meanwhile.
SLOW_START_S = 12.0


def option(name: str, default: str = "") -> str:
    """Return an option's value, given as ``--name=value`` or ``--name value``."""
    for place, word in enumerate(sys.argv):
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
        if word == f"--{name}":
            return sys.argv[place + 1]
    return default


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of the agent."""

    tokens = 0
    born_s = time.monotonic()

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        """Answer health, models, version and metrics."""
        starting = option("behaviour") == "slow-start" and time.monotonic() - Handler.born_s < SLOW_START_S
        if self.path == "/health" and (starting or option("behaviour") == "never-ready"):
            self.send_error(503)
            return
        model = option("answers-for") or option("served-model-name")
        self._answer(
            {
                "/v1/models": json.dumps({"data": [{"id": model}]}),
                "/version": json.dumps({"version": "0.0.fake"}),
                "/metrics": f'vllm:generation_tokens_total{{engine="0"}} {Handler.tokens}\n'
                "vllm:kv_cache_usage_perc 0.25\n",
            }.get(self.path, "")
        )

    def do_POST(self) -> None:
        """Generate."""
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/die":
            os._exit(137)
        Handler.tokens += 1
        self._answer(json.dumps({"choices": [{"text": "a"}]}))

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


def serve() -> None:
    """Serve, or fail in the way asked for."""
    behaviour = option("behaviour")
    if behaviour == "refuse":
        sys.exit(
            "ValueError: Total number of attention heads (4) must be divisible by tensor parallel size (3)."
        )
    if behaviour == "crash":
        sys.exit("RuntimeError: something else")
    if behaviour == "leave-child":
        subprocess.Popen(["sleep", "300"], start_new_session=True)
    if behaviour == "other-server":
        subprocess.Popen(
            [sys.executable, *[word for word in sys.argv if "behaviour" not in word]],
            env={name: value for name, value in os.environ.items() if name != "FLEETSIEVE_SERVER"},
            start_new_session=True,
        )
        time.sleep(300)
    server = ThreadingHTTPServer((option("host"), int(option("port"))), Handler)
    print("GPU KV cache size: 12,345 tokens", flush=True)
    server.serve_forever()


def profile() -> None:
    """Write records: good, or late from the first on, or none; and kill the server half way if asked to."""
    behaviour = os.environ.get("FAKE_GENERATOR", "")
    rows = [json.loads(line) for line in Path(option("input-file")).read_text().splitlines()]
    if behaviour == "fail":
        sys.exit("the generator cannot start")
    folder = Path(option("output-artifact-dir"))
    folder.mkdir(parents=True)
    start = time.time()
    with (folder / "profile_export.jsonl").open("w") as out:
        for number, row in enumerate(rows):
            if behaviour == "slow-misses" and number % 10 == 0:
                time.sleep(0.4)
            if behaviour == "kill-server" and number == len(rows) // 2:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{option('url')}/die", data=b"{}")  # noqa: S310 - loopback
                time.sleep(30)
            record = {
                "metadata": {
                    "conversation_id": f"session_{number:06}",
                    "request_start_ns": int((start + row["timestamp"] / 1000) * 1e9),
                    "benchmark_phase": "profiling",
                },
                "metrics": {
                    "time_to_first_token": {"value": 9000.0 if behaviour == "slow-misses" else 50.0},
                    "request_latency": {"value": 9500.0 if behaviour == "slow-misses" else 150.0},
                    "output_sequence_length": {"value": row["output_length"]},
                    "input_sequence_length": {"value": row["input_length"]},
                },
                "error": None,
            }
            out.write(json.dumps(record) + "\n")
            out.flush()


if __name__ == "__main__":
    {"serve": serve, "profile": profile}[sys.argv[1]]()
