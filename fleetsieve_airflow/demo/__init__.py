"""A real Airflow and a real MLflow on loopback: ``make demo``, ``make up``, ``make down``, integration tests.

For trying FleetSieve on one machine, not for production. Nobody in the package imports this room.
"""
