"""Deliveries of webhooks that MLflow did not send."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import urllib.error
import urllib.request

from fleetsieve_airflow.plugin_webhook import PREFIX
from tests.integration.lab import WEBHOOK_SECRET


def signed(
    body: bytes, delivery_id: str, *, age_s: float = 0.0, secret: str = WEBHOOK_SECRET
) -> dict[str, str]:
    """The headers of a delivery."""
    sent = str(int(time.time() - age_s))
    digest = hmac.new(secret.encode(), f"{delivery_id}.{sent}.".encode() + body, hashlib.sha256).digest()
    return {
        "X-MLflow-Delivery-Id": delivery_id,
        "X-MLflow-Timestamp": sent,
        "X-MLflow-Signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def post(airflow_url: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    """Deliver a body; return the status, and what became of it where it was accepted."""
    url = f"{airflow_url}{PREFIX}/mlflow/mlflow_default"
    request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback
            return answer.status, json.load(answer)["status"]
    except urllib.error.HTTPError as error:
        return error.code, ""
