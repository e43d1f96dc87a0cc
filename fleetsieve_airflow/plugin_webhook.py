"""Receive MLflow's registry webhooks: an alias that moves is an event of the release asset within a second.

MLflow can send no credentials of Airflow, so this address is not behind Airflow's login. What it believes is
signed: an HMAC over delivery id, time and body with a secret that only MLflow and the connection hold.
Without a secret it is closed. All it can do is to record that a release happened, on an asset that a DAG
watches already; what is planned then, and whether anything is, is that DAG's to say.

A delivery counts once: the asset's recent events are its memory, read under a lock on the asset. So it holds
for any number of API servers and over restarts, and there is nothing to clean up: a delivery that is too old
to be remembered is too old to be believed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from airflow.configuration import conf
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse

from fleetsieve_airflow.releases import Release, asset_names, read_release

PREFIX = "/fleetsieve-webhooks"
#: Seconds that a delivery's time may differ from ours, before or after.
WINDOW_S = 300
#: A delivery of an alias takes less than one KiB.
BODY_BYTES_MAX = 16_384
_DELIVERY_LENGTH_MAX = 100
_SECONDS = re.compile(r"[0-9]{1,12}")
_SCHEME = "v1,"
#: What MLflow calls the one event that is a release: an alias is set, or set to another version.
RELEASED = ("model_version_alias", "created")

app = FastAPI(title="FleetSieve webhooks", docs_url=None, redoc_url=None, openapi_url=None)


async def body_of(request: Request) -> bytes:
    """Return the body, read no further than it may be long.

    :raises HTTPException: 413 where it is longer.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise HTTPException(413, f"A delivery has at most {BODY_BYTES_MAX} bytes.")
    return bytes(body)


@app.post("/mlflow/{mlflow_conn_id}")
def receive(
    mlflow_conn_id: str,
    body: Annotated[bytes, Depends(body_of)],
    delivery_id: Annotated[str, Header(alias="X-MLflow-Delivery-Id")] = "",
    timestamp: Annotated[str, Header(alias="X-MLflow-Timestamp")] = "",
    signature: Annotated[str, Header(alias="X-MLflow-Signature")] = "",
) -> JSONResponse:
    """Record the release that a delivery tells of, once."""
    server, secrets = sender(mlflow_conn_id)
    if not is_fresh(timestamp) or not 0 < len(delivery_id) <= _DELIVERY_LENGTH_MAX:
        raise HTTPException(401, "The delivery has no id, or its time is too far from ours.")
    if not is_signed(secrets, signature, f"{delivery_id}.{timestamp}.".encode() + body):
        raise HTTPException(401, "The signature is wrong.")
    release = read_delivery(body, server, float(timestamp))
    if release is None:
        return JSONResponse({"status": "ignored", "reason": "It tells of no alias that was set."})
    outcome = record(mlflow_conn_id, release, delivery_id)
    return JSONResponse(outcome, 202 if outcome["status"] == "recorded" else 200)


def sender(mlflow_conn_id: str) -> tuple[str, tuple[str, ...]]:
    """Return the server behind a connection and the secrets its deliveries may be signed with.

    Read anew for every delivery, so that a changed secret holds at once; two, separated by a space, let
    MLflow's be changed without losing a delivery.

    :raises HTTPException: 404 where nothing may come from, and does not say why.
    """
    from fleetsieve_airflow.errors import TrackingError
    from fleetsieve_airflow.hooks.mlflow_client import server_of

    closed = HTTPException(404, "No webhook is set up here.")
    allowed = conf.get("fleetsieve", "mlflow_conn_ids", fallback="mlflow_default")
    if mlflow_conn_id not in {name.strip() for name in allowed.split(",")}:
        raise closed
    try:
        connection = BaseHook.get_connection(mlflow_conn_id)
        server = server_of(connection).shown_uri
    except (AirflowNotFoundException, TrackingError):
        raise closed from None
    secrets = tuple(str(connection.extra_dejson.get("webhook_secret") or "").split())
    if not secrets:
        raise closed
    return server, secrets


def is_fresh(timestamp: str) -> bool:
    """Return whether a delivery was sent just now, by its own signed word."""
    return bool(_SECONDS.fullmatch(timestamp)) and abs(time.time() - int(timestamp)) <= WINDOW_S


def is_signed(secrets: tuple[str, ...], signature: str, content: bytes) -> bool:
    """Return whether one of the secrets made the signature, in a time that tells nothing about them."""
    scheme, text = signature[: len(_SCHEME)], signature[len(_SCHEME) :]
    try:
        given = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    made = [hmac.new(secret.encode(), content, hashlib.sha256).digest() for secret in secrets]
    # A list, not a generator: every secret is compared, whichever fits.
    return scheme == _SCHEME and any([hmac.compare_digest(given, expected) for expected in made])


def read_delivery(body: bytes, server: str, at: float) -> Release | None:
    """Return the release that a signed body tells of, or None for other news.

    :raises HTTPException: 400 where it is not what MLflow sends.
    """
    try:
        told = json.loads(body)
        kind, data = (told["entity"], told["action"]), told["data"]
    except (ValueError, KeyError, TypeError):
        raise HTTPException(400, "The body is not a delivery of MLflow.") from None
    if kind != RELEASED:
        return None
    release = read_release({**data, "model": data.get("name")} if isinstance(data, dict) else None)
    if release is None:
        raise HTTPException(400, "The body does not name a model, an alias and a version.")
    return Release(model=release.model, version=release.version, alias=release.alias, server=server, at=at)


def record(mlflow_conn_id: str, release: Release, delivery_id: str) -> dict[str, Any]:
    """Record a release as an event of its asset, unless this delivery was recorded before.

    This one function writes through what Airflow keeps for its own use: its public API takes a login that
    MLflow does not have.
    """
    from airflow.assets.manager import resolve_asset_manager
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select, update

    name, uri = asset_names(mlflow_conn_id, release.alias)
    is_asset = (AssetModel.name == name) & (AssetModel.uri == uri)
    # A delivery from the far end of the window may come again at the near end.
    since = datetime.now(UTC) - timedelta(seconds=2 * WINDOW_S + 1)
    with create_session() as session:
        # Changes nothing, and holds the row: the same delivery on another server waits here.
        session.execute(update(AssetModel).where(is_asset).values(updated_at=AssetModel.updated_at))
        asset = session.scalars(select(AssetModel).where(is_asset)).one_or_none()
        if asset is None or not asset.scheduled_dags:
            return {"status": "ignored", "reason": f"No DAG plans for releases of alias {release.alias!r}."}
        recent = select(AssetEvent.extra).where(
            AssetEvent.asset_id == asset.id, AssetEvent.timestamp >= since
        )
        if any((extra or {}).get("delivery_id") == delivery_id for extra in session.scalars(recent)):
            return {"status": "already"}
        resolve_asset_manager().register_asset_change(
            asset=asset,
            extra={**release.as_event(), "delivery_id": delivery_id},
            source_is_api=True,
            session=session,
        )
    return {"status": "recorded"}
