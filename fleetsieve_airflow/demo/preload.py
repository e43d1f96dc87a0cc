"""What the tasks of a campaign import, loaded once: the scheduler's fork server imports this module first.

Every task is forked from there and finds the libraries in place, whose import takes seconds of a core. They
are hidden from the garbage collector then, which would walk over, and so copy, all of them in every task.
"""

from __future__ import annotations

import gc
import importlib

for _name in (
    "airflow.executors.local_executor",
    "airflow.providers.standard.operators.trigger_dagrun",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    "fleetsieve_airflow.hooks.mlflow",
    "mlflow",
    "pandas",
    "pulp",
    "scipy.stats",
):
    importlib.import_module(_name)
gc.collect()
gc.freeze()
