"""Plan the example fleet on demand; another fleet file can be named in the trigger form."""

from fleetsieve_airflow.dag import fleet_plan

dag = fleet_plan(fleet="fleets/chat_and_code_h100.yaml")
