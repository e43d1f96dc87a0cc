from __future__ import annotations

from dataclasses import asdict

import pytest
from airflow.sdk.exceptions import AirflowFailException

from fleetsieve_airflow.core.bounds import allocate_both
from fleetsieve_airflow.core.decision import decide as core_decide
from fleetsieve_airflow.core.intervals import fit_intervals
from fleetsieve_airflow.evidence import CapacityInterval, Evidence, MeasurementPoint, Plan
from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from fleetsieve_airflow.hooks.mlflow_files import read_text
from fleetsieve_airflow.operators.base import read_evidence
from fleetsieve_airflow.operators.decide import DecideOperator
from fleetsieve_airflow.operators.fit import FitIntervalsOperator
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serialization import from_document, from_plain
from tests.builders import make_measurement, make_point, make_spec
from tests.fakes import make_context
from tests.operators.rounds import allocate, decide, fit


def measure(hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef, load: float, *, met: bool) -> None:
    claim = hook.claim_measurement(make_point(spec, load=load), campaign, 1)
    hook.finish_measurement(claim.run_id, make_measurement(spec, load=load, met=met), spec)


def test_fit_returns_what_the_core_fits_to_the_evidence_of_the_rounds_before(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    measure(hook, spec, campaign, 4.0, met=True)
    measure(hook, spec, campaign, 8.0, met=False)
    fitted = fit(campaign, 2)
    evidence = hook.load_evidence(spec, campaign, rounds_done=1)
    intervals = tuple(from_plain(CapacityInterval, row) for row in fitted["intervals"])
    assert (fitted["round"], fitted["measurements"], fitted["failures"]) == (2, 2, 0)
    assert intervals == fit_intervals(spec, evidence)
    assert next(i for i in intervals if i.label == "chat TP4").lower.value_rps == 4.0


def test_a_round_does_not_see_what_its_own_points_found(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    before = fit(campaign, 1)
    measure(hook, spec, campaign, 4.0, met=True)
    assert fit(campaign, 1) == before


def test_both_plans_are_those_of_the_core(hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef) -> None:
    measure(hook, spec, campaign, 4.0, met=True)
    fitted = fit(campaign, 2)
    plans = allocate(campaign, fitted, 2)
    intervals = [from_plain(CapacityInterval, row) for row in fitted["intervals"]]
    assert tuple(from_plain(Plan, plans[side]) for side in ("conservative", "optimistic")) == allocate_both(
        spec, intervals
    )
    assert from_plain(Plan, plans["conservative"]).served_rps == 12.0


def test_decide_returns_the_points_the_core_asks_for_and_logs_the_round(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    points = [from_document(MeasurementPoint, document) for document in decide(campaign)]
    expected = core_decide(spec, Evidence())
    assert points == [planned.point for planned in expected.points]
    assert points
    assert hook.load_round(campaign, 1) == expected
    assert "<html" in read_text(hook.client, campaign.run_id, "report.html")


def test_a_settled_decision_returns_no_points(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    decide(campaign, 1)
    measure(hook, spec, campaign, 8.0, met=True)
    assert decide(campaign, 2) == []
    assert hook.load_round(campaign, 2).state == "certified_feasible"


def test_a_decision_that_ran_out_of_rounds_returns_no_points_although_it_names_some(hook: MlflowHook) -> None:
    spec = make_spec(budget={"rounds": 1})
    campaign = hook.open_campaign(spec, "tight")
    decide(campaign, 1)
    assert decide(campaign, 2) == []
    assert hook.load_round(campaign, 2).state == "undetermined"
    assert hook.load_round(campaign, 2).points


def test_decide_rests_on_what_fit_kept_even_when_more_is_measured_meanwhile(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    decide(campaign, 1)
    fitted = fit(campaign, 2)
    plans = allocate(campaign, fitted, 2)
    measure(hook, spec, campaign, 8.0, met=True)
    operator = DecideOperator(
        task_id="decide", campaign=asdict(campaign), round=2, fitted=fitted, allocation=plans
    )
    operator.execute(make_context())
    assert hook.load_round(campaign, 2).state == "measure"
    assert read_evidence(hook, campaign, 2).items == ()


def test_decide_refuses_intervals_and_plans_that_are_not_those_of_its_evidence(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    fitted = fit(campaign)
    plans = allocate(campaign, fitted)
    fitted["intervals"][0]["lower"]["value_rps"] = 99.0
    operator = DecideOperator(
        task_id="decide", campaign=asdict(campaign), round=1, fitted=fitted, allocation=plans
    )
    with pytest.raises(AirflowFailException, match="decide found other intervals than the tasks before it"):
        operator.execute(make_context())


def test_more_points_than_airflow_maps_over_are_refused_with_the_remedy(
    campaign: CampaignRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "0")
    with pytest.raises(
        AirflowFailException, match=r"Airflow maps over 0\. Lower measurement\.profiling_gpus"
    ):
        decide(campaign)


def test_evidence_that_was_tampered_with_fails_the_task_at_once(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    measure(hook, spec, campaign, 8.0, met=True)
    run_id = hook.load_evidence(spec, campaign, rounds_done=1).items[0].run_id
    tag = hook.get_conn().get_run(run_id).data.tags["fleetsieve.measurement"]
    hook.get_conn().set_tag(run_id, "fleetsieve.measurement", tag.replace('"sent":null', '"sent":7'))
    operator = FitIntervalsOperator(task_id="fit", campaign=asdict(campaign), round=2)
    with pytest.raises(AirflowFailException, match="digest"):
        operator.execute(make_context())
