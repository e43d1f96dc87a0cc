"""What Airflow reads to list this provider: its modules, the connection form and its settings."""

from __future__ import annotations

from typing import Any

from fleetsieve_airflow import __version__

INTEGRATION = "FleetSieve"
OPERATOR_MODULES = (
    "allocate",
    "campaign",
    "decide",
    "fit",
    "profile",
    "publish",
    "release",
    "rounds",
    "search",
)


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
                "python-modules": [f"fleetsieve_airflow.operators.{module}" for module in OPERATOR_MODULES],
            }
        ],
        "hooks": [
            {
                "integration-name": INTEGRATION,
                "python-modules": ["fleetsieve_airflow.hooks.mlflow", "fleetsieve_airflow.hooks.slurm"],
            }
        ],
        "triggers": [
            {
                "integration-name": INTEGRATION,
                "python-modules": [
                    "fleetsieve_airflow.triggers.measurement",
                    "fleetsieve_airflow.triggers.release",
                    "fleetsieve_airflow.triggers.slurm",
                ],
            }
        ],
        "connection-types": [_mlflow_connection(), _slurm_connection()],
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
        "conn-fields": {
            "webhook_secret": _field(
                "Webhook secret", "What this server signs its registry webhooks with.", secret=True
            ),
        },
    }


def _slurm_connection() -> dict[str, Any]:
    """Return the form of a login node: the fields of an SSH connection, and where Slurm is."""
    return {
        "connection-type": "slurm",
        "hook-class-name": "fleetsieve_airflow.hooks.slurm.SlurmHook",
        "hook-name": "Slurm",
        "ui-field-behaviour": {
            "hidden-fields": ["schema"],
            "relabeling": {"host": "Login node", "login": "User"},
            "placeholders": {"host": "login.cluster.example.com", "port": "22"},
        },
        "conn-fields": {
            "host_key": _field("Host key", "Type and key of the login node, as ssh-keyscan prints them."),
            "key_file": _field("Key file", "Private key on workers and triggerers; or give the key itself."),
            "private_key": _field("Private key", "Text of a private key.", secret=True),
            "private_key_passphrase": _field("Passphrase", "Of the private key.", secret=True),
            "transport": _field("Transport", "ssh (default), or local on a worker that is the login node."),
            "run_root": _field(
                "Run folder", "Folder that login and compute nodes share; ~/fleetsieve by default."
            ),
            "slurm_bin": _field("Slurm's commands", "Folder of sbatch, where it is not on the PATH."),
            "setup": _field("Setup", "Shell lines that run before every command, e.g. module load slurm."),
        },
    }


def _field(label: str, description: str, *, secret: bool = False) -> dict[str, Any]:
    schema = {"type": ["string", "null"], **({"format": "password"} if secret else {})}
    return {"label": label, "schema": schema, "description": description}


def _settings() -> dict[str, Any]:
    return {
        "description": "Settings of FleetSieve.",
        "options": {
            "mlflow_conn_ids": {
                "description": (
                    "Connections whose campaigns the page 'Fleet plans' lists, separated by commas. "
                    "Campaign reports are read only through these connections, and webhooks are taken only "
                    "for those that have a webhook_secret in their extra."
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": "mlflow_default,mlflow_staging",
                "default": "mlflow_default",
            }
        },
    }
