# The official Airflow image with FleetSieve's wheel in it.
FROM python:3.11.13-slim-bookworm AS wheel
WORKDIR /source
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY fleetsieve_airflow fleetsieve_airflow
RUN mkdir /wheels \
    && pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && grep -E '^(highspy|mlflow-skinny|pulp|scipy)==' constraints.txt > /wheels/pins.txt

FROM apache/airflow:3.3.2-python3.11
COPY --from=wheel /wheels /wheels
# What the image has stays as it is wherever it will do; what it lacks comes in the versions that are tested. Naming
# Airflow itself keeps pip from replacing it
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" /wheels/fleetsieve_airflow-*.whl \
      --constraint /wheels/pins.txt \
    && python -c "import mlflow, fleetsieve_airflow.core.decision, fleetsieve_airflow.dag, fleetsieve_airflow.hooks.mlflow"
# airflow
USER 50000
