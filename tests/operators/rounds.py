"""Carry out parts of a round by calling operators as Airflow would."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fleetsieve_airflow.hooks.mlflow import CampaignRef
from fleetsieve_airflow.operators.allocate import DualAllocationOperator
from fleetsieve_airflow.operators.decide import DecideOperator
from fleetsieve_airflow.operators.fit import FitIntervalsOperator
from fleetsieve_airflow.operators.profile import ProfileOperator
from tests.fakes import make_context


def through_xcom(value: Any) -> Any:
    """Return a value as the next task gets it: through JSON that holds no NaN or infinity."""
    return json.loads(json.dumps(value, allow_nan=False))


def fit(campaign: CampaignRef, number: int = 1) -> dict[str, Any]:
    """Run the fit task of a round."""
    operator = FitIntervalsOperator(task_id="fit", campaign=asdict(campaign), round=number)
    return through_xcom(operator.execute(make_context()))


def allocate(campaign: CampaignRef, fitted: dict[str, Any], number: int = 1) -> dict[str, Any]:
    """Run the allocate task of a round."""
    operator = DualAllocationOperator(
        task_id="allocate", campaign=asdict(campaign), round=number, fitted=fitted
    )
    return through_xcom(operator.execute(make_context()))


def decide(campaign: CampaignRef, number: int = 1) -> list[dict[str, Any]]:
    """Run a round up to its decision."""
    fitted = fit(campaign, number)
    operator = DecideOperator(
        task_id="decide",
        campaign=asdict(campaign),
        round=str(number),
        fitted=fitted,
        allocation=allocate(campaign, fitted, number),
    )
    return through_xcom(operator.execute(make_context()))


def profile(campaign: CampaignRef, point: dict[str, Any], number: int = 1, **context: Any) -> dict[str, Any]:
    """Run one profile task of a round."""
    operator = ProfileOperator(task_id="profile", campaign=asdict(campaign), round=number, point=point)
    return through_xcom(operator.execute(make_context(**context)))
