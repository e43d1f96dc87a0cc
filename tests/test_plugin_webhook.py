from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from fleetsieve_airflow.plugin_webhook import BODY_BYTES_MAX, PREFIX, WINDOW_S
from fleetsieve_airflow.releases import asset_names, read_release
from tests.test_plugin import airflow_app

__all__ = ["airflow_app"]

CONN_ID, ALIAS = "mlflow_default", "production"
SECRET = "s3cret-of-the-webhook"
ADDRESS = f"{PREFIX}/mlflow/{CONN_ID}"
DATA = {"name": "chat-31b", "alias": ALIAS, "version": "7"}


@pytest.fixture(scope="module")
def server(airflow_app: FastAPI) -> FastAPI:
    """Airflow's API server with the receiver mounted as Airflow would."""
    from fleetsieve_airflow.plugin_webhook import app

    airflow_app.mount(PREFIX, app)
    airflow_app.router.routes.insert(0, airflow_app.router.routes.pop())
    return airflow_app


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    """The connection's secret."""
    set_secret(monkeypatch, SECRET)
    return SECRET


@pytest.fixture(scope="module")
def asset_of_a_dag(dags_folder: Path) -> int:
    """The release asset as Airflow keeps it for a DAG that is scheduled on it and not paused; its id."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    from airflow.models.asset import AssetModel
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    manager = DagBundlesManager()
    manager.sync_bundles_to_db()
    bundle = next(iter(manager.get_all_dag_bundles()))
    bag = BundleDagBag(dag_folder=dags_folder, bundle_path=dags_folder, bundle_name=bundle.name)
    sync_bag_to_db(bag, bundle.name, None)
    with create_session() as session:
        session.get_one(DagModel, "replan_on_release").is_paused = False
        name, _ = asset_names(CONN_ID, ALIAS)
        return session.scalars(select(AssetModel.id).where(AssetModel.name == name)).one()


@pytest.fixture
def asset(asset_of_a_dag: int, secret: str) -> Iterator[int]:
    """The release asset, without events: neither of other tests before nor of this one afterwards."""
    forget_events(asset_of_a_dag)
    yield asset_of_a_dag
    forget_events(asset_of_a_dag)


def forget_events(asset_id: int) -> None:
    from airflow.models.asset import AssetDagRunQueue, AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        for kept in (AssetEvent, AssetDagRunQueue):
            session.execute(delete(kept).where(kept.asset_id == asset_id))


def set_secret(monkeypatch: pytest.MonkeyPatch, secret: str | None) -> None:
    extra = {} if secret is None else {"webhook_secret": secret}
    connection = {"conn_type": "mlflow", "host": "https://mlflow.example.com", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_DEFAULT", json.dumps(connection))


def body_of(data: Any = DATA, entity: str = "model_version_alias", action: str = "created") -> bytes:
    """A delivery as MLflow 3.17 writes it."""
    told = {"entity": entity, "action": action, "timestamp": "2026-11-30T12:00:00+00:00", "data": data}
    return json.dumps(told).encode()


def signed(
    body: bytes, *, delivery_id: str = "d1", age_s: float = 0.0, secret: str = SECRET, scheme: str = "v1"
) -> dict[str, str]:
    """The headers of a delivery as MLflow 3.17 makes them."""
    timestamp = str(int(time.time() - age_s))
    digest = hmac.new(secret.encode(), f"{delivery_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return {
        "Content-Type": "application/json",
        "X-MLflow-Delivery-Id": delivery_id,
        "X-MLflow-Timestamp": timestamp,
        "X-MLflow-Signature": f"{scheme},{base64.b64encode(digest).decode()}",
    }


def post(server: FastAPI, body: bytes, headers: dict[str, str], address: str = ADDRESS) -> Any:
    return TestClient(server).post(address, content=body, headers=headers)


def events(asset_id: int) -> list[dict[str, Any]]:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        rows = session.scalars(select(AssetEvent).where(AssetEvent.asset_id == asset_id))
        return [row.extra for row in rows]


def queued_dags(asset_id: int) -> list[str]:
    from airflow.models.asset import AssetDagRunQueue
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        queue = select(AssetDagRunQueue.target_dag_id).where(AssetDagRunQueue.asset_id == asset_id)
        return list(session.scalars(queue))


def test_mlflow_signs_as_this_test_does() -> None:
    from mlflow.webhooks.delivery import _generate_hmac_signature

    headers = signed(b"{}", delivery_id="d9")
    made = _generate_hmac_signature(SECRET, "d9", headers["X-MLflow-Timestamp"], "{}")
    assert headers["X-MLflow-Signature"] == made


def test_a_signed_delivery_is_an_event_of_the_release_asset_and_queues_its_dag(
    server: FastAPI, asset: int
) -> None:
    body = body_of()
    answer = post(server, body, signed(body))
    assert (answer.status_code, answer.json()) == (202, {"status": "recorded"})
    (extra,) = events(asset)
    release = read_release(extra)
    assert (release.model, release.version, release.alias) == ("chat-31b", "7", ALIAS)
    assert release.server == "https://mlflow.example.com"
    assert abs(release.at - time.time()) < WINDOW_S
    assert queued_dags(asset) == ["replan_on_release"]


def test_a_repeated_delivery_is_answered_and_not_recorded_again(server: FastAPI, asset: int) -> None:
    body = body_of()
    headers = signed(body)
    answers = [post(server, body, headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 200, 200]
    assert answers[1].json() == {"status": "already"}
    assert len(events(asset)) == 1


def test_the_same_delivery_at_several_servers_at_once_is_recorded_once(server: FastAPI, asset: int) -> None:
    body = body_of()
    headers = signed(body)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: post(server, body, headers).json()["status"], range(8)))
    assert sorted(answers) == ["already"] * 7 + ["recorded"]
    assert len(events(asset)) == 1


def test_two_deliveries_are_two_events(server: FastAPI, asset: int) -> None:
    for number, model in enumerate(("chat-31b", "code-31b")):
        body = body_of({**DATA, "name": model})
        assert post(server, body, signed(body, delivery_id=f"d{number}")).status_code == 202
    assert [extra["model"] for extra in events(asset)] == ["chat-31b", "code-31b"]


@pytest.mark.parametrize(
    "changed",
    [
        {"X-MLflow-Signature": ""},
        {"X-MLflow-Signature": "v1,"},
        {"X-MLflow-Signature": "v1,not base64"},
        {"X-MLflow-Signature": "v1,bm90IGEgc2lnbmF0dXJl"},
        {"X-MLflow-Signature": "v1,\xe9"},
        {"X-MLflow-Delivery-Id": "another"},
        {"X-MLflow-Delivery-Id": ""},
        {"X-MLflow-Delivery-Id": "d" * 101},
        {"X-MLflow-Timestamp": str(int(time.time()) + 1)},
        {"X-MLflow-Timestamp": ""},
        {"X-MLflow-Timestamp": "now"},
        {"X-MLflow-Timestamp": "9" * 400},
    ],
)
def test_a_delivery_whose_headers_were_changed_is_refused(
    server: FastAPI, asset: int, changed: dict[str, str]
) -> None:
    body = body_of()
    headers = {name: text.encode("latin-1") for name, text in {**signed(body), **changed}.items()}
    assert TestClient(server).post(ADDRESS, content=body, headers=headers).status_code == 401
    assert events(asset) == []


def test_a_forged_body_and_a_forged_signature_are_refused(server: FastAPI, asset: int) -> None:
    body = body_of()
    assert post(server, body_of({**DATA, "version": "8"}), signed(body)).status_code == 401
    assert post(server, body, signed(body, secret="guessed")).status_code == 401
    assert post(server, body, signed(body, scheme="v0")).status_code == 401
    assert post(server, body, {}).status_code == 401
    assert events(asset) == []


@pytest.mark.parametrize("age_s", [WINDOW_S + 5, -WINDOW_S - 5])
def test_a_delivery_from_another_time_is_refused_although_it_is_signed(
    server: FastAPI, asset: int, age_s: float
) -> None:
    body = body_of()
    assert post(server, body, signed(body, age_s=age_s)).status_code == 401
    assert events(asset) == []


def test_a_secret_can_be_changed_without_losing_a_delivery(
    server: FastAPI, asset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_secret(monkeypatch, f"next-secret {SECRET}")
    for number, secret in enumerate(("next-secret", SECRET)):
        body = body_of()
        assert post(server, body, signed(body, delivery_id=f"d{number}", secret=secret)).status_code == 202
    both = signed(body, secret=f"next-secret {SECRET}")
    assert post(server, body, both).status_code == 401


@pytest.mark.parametrize("secret", [None, "", "  "])
def test_without_a_secret_it_is_closed_also_to_who_signs_with_nothing(
    server: FastAPI, asset: int, monkeypatch: pytest.MonkeyPatch, secret: str | None
) -> None:
    set_secret(monkeypatch, secret)
    body = body_of()
    assert post(server, body, signed(body, secret="")).status_code == 404
    assert events(asset) == []


def test_a_connection_that_is_not_named_in_the_settings_is_closed(
    server: FastAPI, asset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ANOTHER", json.dumps({"conn_type": "http", "host": "x"}))
    body = body_of()
    answers = [post(server, body, signed(body), f"{PREFIX}/mlflow/{name}") for name in ("another", "nowhere")]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].json() == answers[1].json()


def test_a_named_connection_that_is_missing_is_closed(
    server: FastAPI, asset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_MLFLOW_DEFAULT")
    body = body_of()
    assert post(server, body, signed(body)).status_code == 404


def test_a_long_body_is_not_read(server: FastAPI, asset: int) -> None:
    body = body_of({**DATA, "name": "x" * BODY_BYTES_MAX})
    assert post(server, body, signed(body)).status_code == 413


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b"null", b'{"entity": "model_version_alias"}', b"\xff", body_of([]), body_of({})],
)
def test_a_signed_body_that_is_none_of_mlflows_is_refused(server: FastAPI, asset: int, body: bytes) -> None:
    assert post(server, body, signed(body)).status_code == 400
    assert events(asset) == []


@pytest.mark.parametrize(
    "body",
    [
        body_of({"name": "chat-31b", "version": "7"}, "model_version"),
        body_of({"name": "chat-31b", "alias": ALIAS}, action="deleted"),
        body_of({**DATA, "alias": "challenger"}),
    ],
)
def test_other_news_of_the_registry_are_accepted_and_ignored(
    server: FastAPI, asset: int, body: bytes
) -> None:
    answer = post(server, body, signed(body))
    assert (answer.status_code, answer.json()["status"]) == (200, "ignored")
    assert events(asset) == []


def test_it_only_takes_deliveries(server: FastAPI) -> None:
    assert TestClient(server).get(ADDRESS).status_code == 405
    assert TestClient(server).post(f"{PREFIX}/openapi.json").status_code == 404


def test_the_secret_is_never_logged(
    server: FastAPI, asset: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    body = body_of()
    for headers in (signed(body), signed(body, secret="guessed"), {}):
        assert SECRET not in post(server, body, headers).text
    assert SECRET not in caplog.text + "".join(capfd.readouterr())


def test_the_receiver_is_mounted_apart_from_the_pages_that_need_a_login() -> None:
    from fleetsieve_airflow.plugin import FleetSievePlugin
    from fleetsieve_airflow.plugin_webhook import app

    mounted = {entry["url_prefix"]: entry["app"] for entry in FleetSievePlugin().fastapi_apps}
    assert mounted[PREFIX] is app
    assert [route.methods for route in app.routes] == [{"POST"}]
    assert not any(PREFIX.startswith(f"{prefix}/") for prefix in mounted)
