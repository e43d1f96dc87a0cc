"""What Airflow reads to list this provider."""

from __future__ import annotations

from typing import Any

from fleetsieve_airflow import __version__


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "fleetsieve-airflow",
        "name": "FleetSieve",
        "description": "Certified capacity planning for LLM fleets: measures only what can still change the decision.",
        "versions": [__version__],
    }
