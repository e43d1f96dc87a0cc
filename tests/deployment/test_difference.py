from __future__ import annotations

import pytest

from fleetsieve_airflow.deployment.difference import differences
from fleetsieve_airflow.errors import DeploymentError
from tests.deployment.plans import make_kind, make_plan, paper_plan


def test_the_sparse_plan_of_the_paper_against_the_certified_one() -> None:
    sparse = make_plan(
        make_kind(label="TP8", replicas=1, model={"name": "open-weight-31b"}),
        *(kind for kind in paper_plan().kinds if kind.workload == "code"),
    )
    assert differences(sparse, paper_plan()) == (
        "chat: 1 x TP8 -> 2 x TP4, frees 0 GPUs, +1.93 req/s at 1.3x",
        "code: 2 x TP4 stays",
        "fleet: 16 -> 16 GPUs; served the same at 0.7x, +0.73 req/s at 1x, +1.93 req/s at 1.3x",
    )


def test_the_same_plan_changes_nothing() -> None:
    assert differences(paper_plan(), paper_plan()) == (
        "chat: 2 x TP4 stays",
        "code: 2 x TP4 stays",
        "fleet: 16 -> 16 GPUs; served the same at 0.7x, the same at 1x, the same at 1.3x",
    )


def test_gpus_are_freed_or_taken_and_a_loss_is_a_loss() -> None:
    larger, smaller = make_plan(make_kind(replicas=2)), make_plan(make_kind(replicas=1))
    assert differences(larger, smaller)[0] == "chat: 2 x TP4 -> 1 x TP4, frees 4 GPUs, -6.6 req/s at 1.3x"
    assert differences(smaller, larger)[0] == (
        "chat: 1 x TP4 -> 2 x TP4, takes 4 GPUs more, +6.6 req/s at 1.3x"
    )


def test_workloads_come_go_and_want_more() -> None:
    old = make_plan(make_kind("rank", "TP1", 1), demand_rps=(("rank", 4.0),), scenarios=(1.0,))
    new = make_plan(
        make_kind("rank", "TP1", 2),
        make_kind("chat"),
        demand_rps=(("rank", 8.0), ("chat", 12.0)),
        scenarios=(1.0,),
    )
    assert differences(old, new) == (
        "rank: 1 x TP1 -> 2 x TP1, takes 1 GPU more, +3 req/s at 1x, demand 4 -> 8 req/s",
        "chat: none -> 2 x TP4, takes 8 GPUs more, +12 req/s at 1x",
        "fleet: 1 -> 10 GPUs; served +15 req/s at 1x",
    )
    assert differences(new, old)[1] == "chat: 2 x TP4 -> none, frees 8 GPUs, -12 req/s at 1x"


def test_replicas_of_the_same_label_that_are_built_otherwise_are_told() -> None:
    old = make_plan(make_kind(config={"engine_args": (("max-num-seqs", "256"),), "engine_version": "0.31.1"}))
    new = make_plan(make_kind(config={"engine_version": "0.32.0"}, model={"revision": "r2"}))
    assert differences(old, new)[0] == (
        "chat: 2 x TP4 stays, TP4 restarts with engine_version 0.31.1 -> 0.32.0, revision r1 -> r2, "
        "max-num-seqs 256 -> none"
    )


def test_plans_of_two_fleets_are_not_compared() -> None:
    with pytest.raises(DeploymentError, match="two fleets, 'a' and 'b'"):
        differences(make_plan(fleet="a"), make_plan(fleet="b"))
