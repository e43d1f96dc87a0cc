# MLflow's server with a driver for PostgreSQL, in the versions that FleetSieve is tested with.
FROM python:3.11.13-slim-bookworm
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt mlflow==3.17.2 psycopg2-binary==2.9.13 \
    && useradd --system --uid 10001 --create-home --home-dir /var/lib/mlflow mlflow \
    && mkdir /var/lib/mlflow/artifacts \
    && chown mlflow: /var/lib/mlflow/artifacts
USER 10001
WORKDIR /var/lib/mlflow
EXPOSE 5000
# Hosts are matched with their port, and a name that is not listed is turned away
CMD ["mlflow", "server", "--host", "0.0.0.0", "--port", "5000", "--workers", "2", \
     "--artifacts-destination", "/var/lib/mlflow/artifacts", "--allowed-hosts", "mlflow:5000,localhost:*,127.0.0.1:*"]
