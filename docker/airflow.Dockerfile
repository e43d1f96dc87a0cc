# The official Airflow image with FleetSieve's wheel in it, held to the versions that image was released with.
FROM python:3.11.13-slim-bookworm AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY fleetsieve_airflow fleetsieve_airflow
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM apache/airflow:3.3.2-python3.11
COPY --from=wheel /wheels /wheels
# The image brings its constraints; naming Airflow itself keeps pip from replacing it
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" /wheels/fleetsieve_airflow-*.whl \
      --constraint "${HOME}/constraints.txt"
# airflow
USER 50000
