"""Links from a task in Airflow's UI to what it wrote elsewhere."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink


class MlflowRunLink(BaseOperatorLink):
    """The MLflow run of a task: a point's measurement, or the campaign.

    Airflow asks for the link at the end of the task, in the worker, with the operator that ran: what the
    operator found in ``execute`` is still there, also after a deferral.
    """

    name = "MLflow run"

    @property
    def xcom_key(self) -> str:
        """The XCom that keeps the link for the UI."""
        return "fleetsieve_mlflow_run"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the run, or nothing before it is known."""
        return str(getattr(operator, "mlflow_run_url", "") or "")
