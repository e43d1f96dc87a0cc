"""Fixtures of the hooks' tests."""

from __future__ import annotations

from tests.servers import mlflow_database, mlflow_server

__all__ = ["mlflow_database", "mlflow_server"]
