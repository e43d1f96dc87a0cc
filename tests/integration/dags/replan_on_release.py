"""What plans for releases: one alias is watched, one is told by webhooks only, and both act on plans."""

from airflow.sdk import DAG, task

from fleetsieve_airflow.dag import plan_asset
from fleetsieve_airflow.dag_release import replan_on_release

watched = replan_on_release(fleets="fleets", alias="production")
told = replan_on_release(fleets="fleets", alias="live", dag_id="replan_on_webhook", watch=False)

with DAG("deploy_fleet", schedule=[plan_asset("fleet_plan")]) as deploy:

    @task
    def deployed(triggering_asset_events=None):
        """Return what a deployment is told: the plans that were certified."""
        return [event.extra for events in triggering_asset_events.values() for event in events]

    deployed()
