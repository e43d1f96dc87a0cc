"""What Airflow reads to list this provider: its modules, the connection form and its settings."""

from __future__ import annotations

from typing import Any

from fleetsieve_airflow import __version__

INTEGRATION = "FleetSieve"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "fleetsieve-airflow",
        "name": "FleetSieve",
        "description": (
            "Certified capacity planning for LLM fleets: measures only what can still change the decision."
        ),
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": INTEGRATION,
                "external-doc-url": "https://arxiv.org/abs/2608.19659",
                "tags": ["ml"],
            }
        ],
        "operators": [
            {
                "integration-name": INTEGRATION,
                "python-modules": [
                    f"fleetsieve_airflow.operators.{module}"
                    for module in ("allocate", "campaign", "decide", "fit", "profile", "publish")
                ],
            }
        ],
        "hooks": [{"integration-name": INTEGRATION, "python-modules": ["fleetsieve_airflow.hooks.mlflow"]}],
        "triggers": [
            {"integration-name": INTEGRATION, "python-modules": ["fleetsieve_airflow.triggers.measurement"]}
        ],
        "connection-types": [_mlflow_connection()],
        "extra-links": ["fleetsieve_airflow.links.MlflowRunLink"],
        "config": {"fleetsieve": _settings()},
    }


def _mlflow_connection() -> dict[str, Any]:
    return {
        "connection-type": "mlflow",
        "hook-class-name": "fleetsieve_airflow.hooks.mlflow.MlflowHook",
        "hook-name": "MLflow",
        "ui-field-behaviour": {
            "hidden-fields": ["schema"],
            "relabeling": {"host": "Tracking server", "login": "Username"},
            "placeholders": {"host": "https://mlflow.example.com", "port": "443"},
        },
    }


def _settings() -> dict[str, Any]:
    return {
        "description": "Settings of FleetSieve.",
        "options": {
            "mlflow_conn_ids": {
                "description": (
                    "Connections whose campaigns the page 'Fleet plans' lists, separated by commas. "
                    "Campaign reports are read only through these connections."
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": "mlflow_default,mlflow_staging",
                "default": "mlflow_default",
            }
        },
    }
