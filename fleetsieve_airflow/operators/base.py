"""What the operators of a campaign share: where they work, MLflow, and which errors no retry can mend."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from fleetsieve_airflow.errors import FleetsieveError, MeasurementError, TrackingError
from fleetsieve_airflow.evidence import Evidence
from fleetsieve_airflow.links import MlflowRunLink
from fleetsieve_airflow.serialization import from_document, to_document

if TYPE_CHECKING:
    from airflow.sdk import Context

    from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook


@contextmanager
def no_use_retrying() -> Iterator[None]:
    """Fail the task at once where our own error says that trying again cannot help.

    An MLflow that does not answer and a point that was not measured may do better next time: those stay as
    they are.

    :raises AirflowFailException: with the error's message and remedy.
    """
    try:
        yield
    except (TrackingError, MeasurementError):
        raise
    except FleetsieveError as error:
        raise AirflowFailException(str(error)) from error


def airflow_facts(context: Context) -> dict[str, Any]:
    """Return which task this is, for the tags of what it writes to MLflow."""
    ti = context["ti"]
    names = ("dag_id", "run_id", "task_id", "map_index", "try_number")
    return {name: getattr(ti, name) for name in names} | {"url": ti.log_url}


class TrackingOperator(BaseOperator):
    """An operator that keeps its evidence in MLflow.

    :param mlflow_conn_id: Airflow connection of the MLflow server.
    """

    operator_extra_links = (MlflowRunLink(),)
    ui_color = "#e4f0f6"

    def __init__(self, *, mlflow_conn_id: str = "mlflow_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mlflow_conn_id = mlflow_conn_id
        self.mlflow_run_url = ""

    def tracking(self) -> MlflowHook:
        """Return the hook; its module is imported only now, never when a DAG file is parsed."""
        from fleetsieve_airflow.hooks.mlflow import MlflowHook

        return MlflowHook(self.mlflow_conn_id)


class CampaignOperator(TrackingOperator):
    """An operator that works in one round of an open campaign.

    :param campaign: what :class:`~fleetsieve_airflow.operators.campaign.OpenCampaignOperator` returned
        (templated).
    :param round: number of the round, from 1 (templated).
    """

    template_fields: Sequence[str] = ("campaign", "round")

    def __init__(self, *, campaign: Any, round: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.campaign = campaign
        self.round = round

    @property
    def number(self) -> int:
        """The round; a rendered template is text."""
        return int(self.round)

    def enter(self) -> tuple[MlflowHook, CampaignRef]:
        """Return the hook and the campaign, and let the task link to the campaign's run."""
        from fleetsieve_airflow.hooks.mlflow import CampaignRef

        hook, campaign = self.tracking(), CampaignRef(**self.campaign)
        self.mlflow_run_url = hook.campaign_url(campaign)
        return hook, campaign


def write_evidence(hook: MlflowHook, campaign: CampaignRef, number: int, evidence: Evidence) -> None:
    """Keep what a round rests on, so that all its tasks see the same whatever is measured meanwhile."""
    from fleetsieve_airflow.hooks.mlflow_files import json_text, write_files

    write_files(hook.client, campaign.run_id, {evidence_file(number): json_text(to_document(evidence))})


def read_evidence(hook: MlflowHook, campaign: CampaignRef, number: int) -> Evidence:
    """Return what a round rests on.

    :raises EvidenceError: the round was not fitted, or what is stored cannot be read.
    """
    from fleetsieve_airflow.hooks.mlflow_files import read_text

    document: Mapping[str, Any] = json.loads(read_text(hook.client, campaign.run_id, evidence_file(number)))
    return from_document(Evidence, document)


def evidence_file(number: int) -> str:
    """Return the artifact that holds what a round rests on."""
    from fleetsieve_airflow.reporting.layout import round_folder

    return f"{round_folder(number)}/evidence.json"
