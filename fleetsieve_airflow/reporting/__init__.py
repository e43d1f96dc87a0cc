"""What people see of a campaign: MLflow names and tables, charts, the report. No Airflow, MLflow or I/O."""
