# Airflow and MLflow on PostgreSQL. Needs root once, to install Debian's package; the server is the tests' own.

.PHONY: test-postgres

test-postgres: $(VENV)/.dev  ## test Airflow and MLflow with their databases in PostgreSQL (installs Debian's package)
	bash tests/postgres/install.sh
	FLEETSIEVE_TEST_POSTGRES=1 $(BIN)/python -m pytest -v tests/postgres
