"""What can never run is known from arithmetic alone."""

from __future__ import annotations

import pytest

from fleetsieve_airflow.feasibility import exclusion_reason, most_replicas
from fleetsieve_airflow.records import EngineConfig, Model, Pool

POOL = Pool(name="h100", gpu="H100", gpus=20, gpus_per_node=8, gpu_memory_gib=80.0)


@pytest.mark.parametrize(
    ("size", "replicas"),
    [(1, 20), (2, 10), (3, 5), (4, 5), (5, 2), (8, 2), (16, 1)],
)
def test_replicas_are_counted_node_by_node(size: int, replicas: int) -> None:
    config = EngineConfig(label="x", pool="h100", tensor_parallel=size, multi_node=size > 8)
    assert most_replicas(config, POOL) == replicas


def test_facts_that_are_not_known_exclude_nothing() -> None:
    config = EngineConfig(label="x", pool="h100", tensor_parallel=7)
    assert exclusion_reason(config, POOL, Model(name="m", revision="r")) == ""


@pytest.mark.parametrize(("weights_gib", "runs"), [(159.9, True), (160.0, False)])
def test_weights_need_less_than_all_memory(weights_gib: float, runs: bool) -> None:
    config = EngineConfig(label="x", pool="h100", tensor_parallel=2)
    model = Model(name="m", revision="r", weights_gib=weights_gib)
    assert (exclusion_reason(config, POOL, model) == "") is runs
