"""The entry in Airflow's UI: pages, tabs and the webhook.

Airflow loads plugins in every task, where nobody asks for pages: what they need is imported when the API
server takes them.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin


class FleetSievePlugin(AirflowPlugin):
    """The pages' entry in Airflow; hrefs without a leading slash start at Airflow's own base path."""

    name = "fleetsieve"
    # Airflow declares it as an instance attribute.
    external_views: list[Any] = [  # noqa: RUF012
        {
            "name": "Fleet plans",
            "href": "fleetsieve/plans",
            "destination": "nav",
            "category": "browse",
            "url_route": "fleet-plans",
        },
        {
            "name": "Fleet plan",
            "href": "fleetsieve/dag-run?dag_id={DAG_ID}&run_id={RUN_ID}",
            "destination": "dag_run",
            "url_route": "fleet-plan",
        },
    ]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The applications, which only the API server asks for."""
        from fleetsieve_airflow import plugin_app, plugin_webhook

        return [
            {"app": plugin_app.app, "url_prefix": plugin_app.PREFIX, "name": "FleetSieve"},
            # Apart from the pages: its callers have a signature instead of a login.
            {"app": plugin_webhook.app, "url_prefix": plugin_webhook.PREFIX, "name": "FleetSieve webhooks"},
        ]
