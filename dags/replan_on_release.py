"""Plan every fleet below fleets/ anew when a model that it serves gets the alias "production" in MLflow."""

from fleetsieve_airflow.dag_release import replan_on_release

dag = replan_on_release(fleets="fleets", alias="production")
