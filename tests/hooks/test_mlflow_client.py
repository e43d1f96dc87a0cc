"""Reaching MLflow: connections, credentials, and patience with a server that is down, full or wrong."""

from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from airflow.sdk import Connection

from fleetsieve_airflow.errors import TrackingError
from fleetsieve_airflow.hooks.mlflow import MlflowHook
from fleetsieve_airflow.hooks.mlflow_client import TrackingClient, server_at, server_of

PASSWORD = "kept-to-itself"
POOL_LIMIT = {
    "error_code": "BAD_REQUEST",
    "message": "QueuePool limit of size 5 overflow 10 reached, connection timed out, timeout 30.00",
}


class ScriptedMlflow:
    """An MLflow server that answers from a script, then with an empty list; keeps who asked."""

    def __init__(self) -> None:
        self.script: list[tuple[int, dict[str, Any]]] = []
        self.logins: list[str] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                scripted.logins.append(self.headers.get("Authorization", ""))
                status, body = scripted.script.pop(0) if scripted.script else (200, {})
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *args: object) -> None:
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def scripted() -> Iterator[ScriptedMlflow]:
    server = ScriptedMlflow()
    yield server
    server.close()


def search(client: TrackingClient) -> list[Any]:
    return list(client.call("list experiments", lambda mlflow: mlflow.search_experiments()))


class Waits(list[float]):
    """Remembers how long it was asked to wait, and does not."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


class TestPatience:
    def test_a_full_connection_pool_passes_although_it_is_said_with_400(
        self, scripted: ScriptedMlflow
    ) -> None:
        scripted.script = [(400, POOL_LIMIT), (400, POOL_LIMIT)]
        waits = Waits()
        assert search(TrackingClient(server_at(scripted.url), sleep=waits)) == []
        assert len(scripted.logins) == 3
        assert 0.25 <= waits[0] <= 0.5 <= waits[1] <= 1.0

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_a_server_in_trouble_is_asked_again(self, scripted: ScriptedMlflow, status: int) -> None:
        scripted.script = [(status, {})]
        assert search(TrackingClient(server_at(scripted.url), sleep=Waits())) == []
        assert len(scripted.logins) == 2

    @pytest.mark.parametrize(
        ("status", "code", "hint"),
        [
            (401, "UNAUTHENTICATED", "Check login and password"),
            (403, "PERMISSION_DENIED", "--allowed-hosts"),
            (400, "INVALID_PARAMETER_VALUE", "bad filter"),
        ],
    )
    def test_a_refusal_is_told_at_once(
        self, scripted: ScriptedMlflow, status: int, code: str, hint: str
    ) -> None:
        scripted.script = [(status, {"error_code": code, "message": "bad filter"})]
        waits = Waits()
        with pytest.raises(TrackingError, match="refused to list experiments") as raised:
            search(TrackingClient(server_at(scripted.url), sleep=waits))
        assert hint in str(raised.value)
        assert waits == []

    def test_a_server_that_stays_away_is_given_up_with_a_remedy(self, scripted: ScriptedMlflow) -> None:
        scripted.script = [(503, {})] * 99
        with pytest.raises(TrackingError, match=r"could not list experiments within 0 s: .*Retry the task"):
            search(TrackingClient(server_at(scripted.url), retry_for_s=0.0))

    def test_a_try_whose_answer_was_lost_is_followed_by_a_look(self, scripted: ScriptedMlflow) -> None:
        scripted.script = [(503, {})]
        client = TrackingClient(server_at(scripted.url), sleep=Waits())
        made = client.call(
            "create",
            lambda mlflow: mlflow.search_experiments() and "created twice",
            again=lambda mlflow: "found",
        )
        assert made == "found"

    def test_an_error_of_our_own_is_not_tried_again(self, scripted: ScriptedMlflow) -> None:
        client = TrackingClient(server_at(scripted.url), sleep=Waits())
        with pytest.raises(KeyError):
            client.call("stumble", lambda mlflow: {}["nothing"])

    def test_nobody_there_fails_the_connection_test_without_waiting(self) -> None:
        hook = MlflowHook(tracking_uri="http://127.0.0.1:9")
        works, words = hook.test_connection()
        assert works is False
        assert "127.0.0.1:9" in words


class TestConnections:
    @pytest.mark.parametrize(
        ("fields", "uri"),
        [
            ({"host": "https://mlflow.example.com/base/"}, "https://mlflow.example.com/base"),
            ({"host": "mlflow", "port": 5000}, "http://mlflow:5000"),
            ({"host": "mlflow", "schema": "https"}, "https://mlflow"),
            ({"host": "http://mlflow:5000", "port": 80}, "http://mlflow:5000"),
            ({"host": "http://mlflow/ml", "port": 5000}, "http://mlflow:5000/ml"),
            ({"host": "sqlite:////var/lib/mlflow.db"}, "sqlite:////var/lib/mlflow.db"),
        ],
    )
    def test_its_host_is_the_tracking_server(self, fields: dict[str, Any], uri: str) -> None:
        assert server_of(Connection(conn_id="m", conn_type="mlflow", **fields)).uri == uri

    @pytest.mark.parametrize("host", ["", None])
    def test_a_connection_without_host_is_an_error(self, host: str | None) -> None:
        with pytest.raises(TrackingError, match="Connection 'm' has no host"):
            server_of(Connection(conn_id="m", conn_type="mlflow", host=host))

    @pytest.mark.parametrize("uri", ["", "mlruns", "http://", "  "])
    def test_a_uri_that_is_no_address_is_an_error(self, uri: str) -> None:
        with pytest.raises(TrackingError, match="is no address"):
            server_at(uri)

    def test_links_use_the_address_that_people_know(self) -> None:
        extra = json.dumps({"ui_url": "https://mlflow.example.com/"})
        server = server_of(
            Connection(conn_id="m", conn_type="mlflow", host="http://mlflow:5000", extra=extra)
        )
        assert (server.uri, server.ui_url) == ("http://mlflow:5000", "https://mlflow.example.com")
        assert server_at("sqlite:////a.db").ui_url == ""

    def test_extra_settings_become_those_of_mlflow(self) -> None:
        extra = json.dumps({"insecure_tls": True, "server_cert_path": "/etc/ca.pem"})
        server = server_of(Connection(conn_id="m", conn_type="mlflow", host="https://m", extra=extra))
        environment = server.environment()
        assert environment["MLFLOW_TRACKING_INSECURE_TLS"] == "true"
        assert environment["MLFLOW_TRACKING_SERVER_CERT_PATH"] == "/etc/ca.pem"

    def test_the_hook_reads_its_connection_by_id(
        self, scripted: ScriptedMlflow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        uri = f"mlflow://ada:{PASSWORD}@{scripted.url.removeprefix('http://')}"
        monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_TEAM", uri)
        assert MlflowHook("mlflow_team").test_connection()[0]
        assert scripted.logins == [basic("ada", PASSWORD)]


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class TestSecrets:
    def test_they_reach_the_server_and_nothing_else(
        self, scripted: ScriptedMlflow, caplog: pytest.LogCaptureFixture
    ) -> None:
        scripted.script = [(503, {}), (401, {"error_code": "UNAUTHENTICATED", "message": "no"})]
        server = server_at(scripted.url.replace("http://", f"http://ada:{PASSWORD}@"))
        client = TrackingClient(server, sleep=Waits())
        with caplog.at_level(logging.DEBUG), pytest.raises(TrackingError) as raised:
            search(client)
        assert scripted.logins == [basic("ada", PASSWORD)] * 2
        assert "trying again" in caplog.text
        for text in (caplog.text, str(raised.value), repr(server), repr(client), server.shown_uri):
            assert PASSWORD not in text
        assert PASSWORD not in " ".join(os.environ.values())

    def test_a_token_is_sent_instead_of_what_the_process_has(
        self, scripted: ScriptedMlflow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "somebody")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "else")
        extra = json.dumps({"token": "t0k3n"})
        connection = Connection(conn_id="m", conn_type="mlflow", host=scripted.url, extra=extra)
        search(TrackingClient(server_of(connection)))
        assert scripted.logins == ["Bearer t0k3n"]
        assert os.environ["MLFLOW_TRACKING_USERNAME"] == "somebody"

    def test_a_server_without_credentials_uses_what_the_process_has(
        self, scripted: ScriptedMlflow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "worker")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "own")
        search(TrackingClient(server_at(scripted.url)))
        assert scripted.logins == [basic("worker", "own")]

    def test_two_servers_used_at_once_never_get_each_others_password(self) -> None:
        servers = [ScriptedMlflow() for _ in range(3)]
        clients = [
            TrackingClient(server_at(server.url, username=f"user-{n}", password=f"word-{n}"))
            for n, server in enumerate(servers)
        ]

        def use(client: TrackingClient) -> None:
            for _ in range(10):
                search(client)

        threads = [threading.Thread(target=use, args=(client,)) for client in clients for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        for n, server in enumerate(servers):
            assert server.logins == [basic(f"user-{n}", f"word-{n}")] * 20
            server.close()

    def test_a_password_inside_a_database_uri_is_not_shown(self) -> None:
        server = server_at("postgresql+psycopg2://mlflow:hidden@db/mlflow")
        assert server.uri.count("hidden") == 1
        assert server.shown_uri == "postgresql+psycopg2://db/mlflow"
        assert "hidden" not in repr(server)


def test_a_dag_file_that_imports_the_hook_does_not_import_mlflow() -> None:
    code = (
        "import sys, fleetsieve_airflow.hooks.mlflow;"
        "print(sorted({'mlflow', 'pandas', 'scipy'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip().splitlines()[-1] == "[]"
