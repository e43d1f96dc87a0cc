"""A small client of Airflow's public REST API, standard library only."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fleetsieve_airflow.demo.processes import DemoError

TIMEOUT_S = 30.0
GET_TRIES = 4
GET_WAIT_S = 2.0


class _NoAnswerError(DemoError):
    """Airflow could not answer, whatever it was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowApi:
    """Airflow at one address, as one logged-in user."""

    url: str
    token: str

    @classmethod
    def login(cls, url: str, user: str, password: str) -> AirflowApi:
        """Exchange name and password for a token."""
        reply = _call("POST", f"{url}/auth/token", body={"username": user, "password": password})
        return cls(url=url, token=reply["access_token"])

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """Return the answer to a GET under ``/api/v2``."""
        suffix = f"?{urllib.parse.urlencode(query, doseq=True)}" if query else ""
        for _ in range(GET_TRIES - 1):
            try:
                return self._call("GET", path + suffix)
            except (_NoAnswerError, urllib.error.URLError, TimeoutError, ConnectionError):
                # A small machine that starts tasks may be slow to answer, and SQLite be locked for a moment;
                # asking again changes nothing.
                time.sleep(GET_WAIT_S)
        return self._call("GET", path + suffix)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the answer to a POST under ``/api/v2``."""
        return self._call("POST", path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the answer to a PATCH under ``/api/v2``."""
        return self._call("PATCH", path, body)

    def knows_dag(self, dag_id: str) -> bool:
        """Return whether the DAG processor has written this DAG down.

        :raises DemoError: a DAG file cannot be imported.
        """
        broken = self.get("importErrors")["import_errors"]
        if broken:
            raise DemoError(f"{broken[0]['filename']} cannot be imported.\n{broken[0]['stack_trace']}")
        return any(dag["dag_id"] == dag_id for dag in self.get("dags", {"limit": 100})["dags"])

    def trigger(self, dag_id: str, conf: Mapping[str, Any], run_id: str | None = None) -> str:
        """Let a DAG run now and return the run's id; an unpaused DAG is a precondition."""
        body: dict[str, Any] = {"logical_date": None, "conf": dict(conf)}
        if run_id is not None:
            body["dag_run_id"] = run_id
        return str(self.post(f"dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler run a DAG."""
        self.patch(f"dags/{dag_id}", {"is_paused": False})

    def dag_runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return the DAG's runs, oldest first."""
        runs: list[dict[str, Any]] = self.get(f"dags/{dag_id}/dagRuns", {"limit": 100, "order_by": "id"})[
            "dag_runs"
        ]
        return runs

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return all task instances of a run, mapped ones one by one."""
        path = f"dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id)}/taskInstances"
        rows: list[dict[str, Any]] = []
        while True:
            page = self.get(path, {"limit": 100, "offset": len(rows)})
            rows += page["task_instances"]
            if len(rows) >= page["total_entries"] or not page["task_instances"]:
                return rows

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return _call(method, f"{self.url}/api/v2/{path}", body=body, token=self.token)


def fetch_json(url: str) -> dict[str, Any] | None:
    """Return the JSON object at an address, or None while nobody answers there."""
    try:
        with urllib.request.urlopen(url, timeout=5.0) as response:  # noqa: S310 - loopback http only
            document: dict[str, Any] = json.load(response)
            return document
    except (urllib.error.URLError, OSError, ValueError):
        return None


def _call(method: str, url: str, *, body: Mapping[str, Any] | None = None, token: str = "") -> Any:
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            text = response.read()
    except urllib.error.HTTPError as error:
        words = error.read().decode(errors="replace")[:500]
        kind = _NoAnswerError if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR else DemoError
        raise kind(f"Airflow refused {method} {url}: {error.code} {words}") from error
    return json.loads(text) if text else None
