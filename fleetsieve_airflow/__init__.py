"""FleetSieve: certified capacity planning for LLM fleets, as an Apache Airflow provider."""

__version__ = "0.1.0"
