from __future__ import annotations

import json

import pytest

from fleetsieve_airflow.core.bounds import allocate_both
from fleetsieve_airflow.core.intervals import fit_intervals
from fleetsieve_airflow.deployment.plan import deployed, plan_document, plan_of_certificate, read_plan
from fleetsieve_airflow.errors import DeploymentError
from tests.builders import make_evidence, make_measurement, make_spec
from tests.deployment.plans import make_kind, make_plan, paper_certificate, paper_plan


def test_a_certificates_plan_says_what_runs_and_what_each_replica_serves() -> None:
    plan = paper_plan()
    assert [(kind.label, kind.replicas, kind.config.gpus, kind.capacity_rps) for kind in plan.kinds] == [
        ("chat TP4", 2, 4, 6.6),
        ("code TP4", 2, 4, 3.6),
    ]
    assert (plan.gpus, plan.certified, plan.min_fulfilment) == (16, True, 1.0)
    assert dict(plan.demand_rps) == {"chat": 12.0, "code": 6.5}
    assert plan.scenarios == (0.7, 1.0, 1.3)
    assert plan.certificate_sha256 == paper_certificate()["certificate_sha256"]


def test_a_plan_of_a_spec_is_deployed_as_its_certificate_would_be() -> None:
    spec = make_spec()
    evidence = make_evidence(make_measurement(spec, load=8.0))
    conservative, _ = allocate_both(spec, fit_intervals(spec, evidence))
    plan = deployed(spec, conservative, state="undetermined")
    assert [(kind.label, kind.replicas, kind.capacity_rps) for kind in plan.kinds] == [("chat TP4", 2, 8.0)]
    assert not plan.certified


def test_variables_and_start_time_of_measured_servers_go_with_the_plan() -> None:
    options = (("engine_env", "VLLM_ATTENTION_BACKEND=FLASHINFER"), ("ready_s", "900"))
    spec = make_spec(measurement={"backend": "slurm", "options": options})
    conservative, _ = allocate_both(spec, fit_intervals(spec, make_evidence(make_measurement(spec))))
    plan = deployed(spec, conservative, state="certified_feasible")
    assert plan.engine_env == (("VLLM_ATTENTION_BACKEND", "FLASHINFER"),)
    assert plan.ready_s == 900.0


def test_a_plan_comes_back_from_its_json() -> None:
    kind = make_kind(config={"engine_args": (("max-num-seqs", "256"),)})
    plan = make_plan(kind, engine_env=(("A", "b"),))
    assert read_plan(json.loads(json.dumps(plan_document(plan)))) == plan
    assert read_plan(paper_certificate()) == paper_plan()


@pytest.mark.parametrize(
    ("document", "match"),
    [
        ([], "Expected a JSON object, got list"),
        (
            {"kind": "Evidence", "schema_version": 1},
            "Expected a certificate of schema version 1, got 'Ev",
        ),
        ({"kind": "Certificate", "schema_version": 9}, "got 'Certificate' of version 9"),
        ({"kind": "Certificate", "schema_version": 1}, "The certificate cannot be read: 'spec'"),
        ({"kind": "DeploymentPlan", "schema_version": 1}, "The plan cannot be read: KeyError: 'kinds'"),
        ({**plan_document(make_plan()), "colour": "red"}, "unexpected keyword argument 'colour'"),
    ],
)
def test_what_is_no_plan_is_refused(document: object, match: str) -> None:
    with pytest.raises(DeploymentError, match=match):
        read_plan(document)


def test_a_certificate_whose_spec_was_edited_into_nonsense_is_refused() -> None:
    document = paper_certificate()
    edited = {**document, "spec": {**document["spec"], "pools": []}}
    with pytest.raises(DeploymentError, match="Unknown pool 'h100'"):
        plan_of_certificate(edited)
