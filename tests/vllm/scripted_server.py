"""A scripted completions server with known truth, to check a load generator's clock and its counting of
successes.

``scripted_server.py PORT [--faults]``: the first token after 50 ms, then one every 10 ms. With ``--faults``,
of every ten requests one is answered by HTTP 500, one by an error event inside a 200 stream, one is cut, one
is empty: 60 % are good. ``GET /seen`` tells when each request arrived and what became of it.
"""

import argparse
import asyncio
import json
import time
from typing import Any

from aiohttp import web

TTFT_S, GAP_S = 0.05, 0.01
FAULTS = {3: "http_500", 5: "error_event", 7: "cut", 9: "empty"}
DEAD = {"error": {"message": "EngineDeadError", "type": "InternalServerError", "code": 500}}


class Script:
    """The server's state: what arrived when, and how it was answered."""

    def __init__(self, faults: bool) -> None:
        self.faults = faults
        self.seen: list[tuple[float, str]] = []

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer one completion as the script says."""
        arrived, body = time.time(), await request.json()
        fault = FAULTS.get(len(self.seen) % 10, "") if self.faults and body.get("stream") else ""
        self.seen.append((arrived, fault or "good"))
        if fault == "http_500":
            return web.json_response(DEAD, status=500)
        if not body.get("stream"):
            return web.json_response({"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        tokens = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        if fault != "empty" and not await self._stream(request, response, tokens, fault):
            return response
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _stream(
        self, request: web.Request, response: web.StreamResponse, tokens: int, fault: str
    ) -> bool:
        async def event(value: dict[str, Any]) -> None:
            await response.write(
                b"data: " + json.dumps({"id": "c", "model": "tiny", **value}).encode() + b"\n\n"
            )

        start = asyncio.get_running_loop().time()
        for index in range(tokens):
            due = start + TTFT_S + index * GAP_S - asyncio.get_running_loop().time()
            if due > 0:
                await asyncio.sleep(due)
            if index == tokens // 2 and fault == "error_event":
                await event(DEAD)
                return True
            if index == tokens // 2 and fault == "cut":
                assert request.transport is not None
                request.transport.close()
                return False
            finish = "length" if index == tokens - 1 else None
            await event(
                {"object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": finish}]}
            )
        await event(
            {
                "choices": [],
                "usage": {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1},
            }
        )
        return True

    async def report(self, _: web.Request) -> web.Response:
        """Tell the truth."""
        return web.json_response([{"at": at, "answer": answer} for at, answer in self.seen])


async def models(_: web.Request) -> web.Response:
    """Name the one model."""
    return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model"}]})


async def empty(_: web.Request) -> web.Response:
    """Answer health checks and metrics."""
    return web.Response()


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--faults", action="store_true")
    arguments = parser.parse_args()
    script = Script(arguments.faults)
    app = web.Application(client_max_size=2**26)
    app.add_routes(
        [
            web.post("/v1/completions", script.complete),
            web.get("/seen", script.report),
            web.get("/v1/models", models),
            web.get("/health", empty),
            web.get("/metrics", empty),
        ]
    )
    web.run_app(app, host="127.0.0.1", port=arguments.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
