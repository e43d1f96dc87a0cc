"""Engines on data sheets: no operator tables are needed for the default tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleetsieve_airflow.simulator.engine import Constants, EngineModel
from fleetsieve_airflow.simulator.hardware import hardware_named
from fleetsieve_airflow.simulator.models import Precision, model_named
from fleetsieve_airflow.simulator.plans import EngineSettings, ParallelPlan
from fleetsieve_airflow.simulator.roofline_database import RooflineDatabase

FP8 = Precision(gemm="fp8", moe="fp8")
EngineOf = Callable[..., EngineModel]


@pytest.fixture(scope="session")
def engine_of() -> EngineOf:
    """Build an engine of a built-in model in fp8 on a GPU's roofline."""

    def build(
        plan: ParallelPlan | None = None,
        *,
        model: str = "llama-3.1-70b",
        gpu: str = "h100",
        settings: EngineSettings | None = None,
        constants: Constants | None = None,
    ) -> EngineModel:
        shape = model_named(model).with_precision(FP8)
        database = RooflineDatabase(hardware_named(gpu))
        return EngineModel(database, shape, plan or ParallelPlan(tp=4), settings, constants)

    return build
