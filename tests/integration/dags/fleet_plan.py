"""The product's DAG as a user would write it in Airflow, but for the paced backend and short waits."""

from datetime import timedelta

import paced_replay  # noqa: F401 - takes the place of replay when it is imported

from fleetsieve_airflow.dag import fleet_plan

dag = fleet_plan(
    fleet="fleets/base.yaml",
    default_args={"retries": 3, "retry_delay": timedelta(seconds=2)},
    profile_args={"retries": 1, "retry_delay": timedelta(seconds=1)},
)
