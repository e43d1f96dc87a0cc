"""What steers a campaign's first measurements, as its fleet file asks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleetsieve_airflow.campaign import CampaignResult, run_campaign
from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.prior import origin_of, priors_for
from fleetsieve_airflow.records import FleetSpec, Model, PriorSettings, Trace
from tests.builders import make_slo, make_spec
from tests.core.worlds import TrueServer


def fleet(model: str = "llama-3.1-70b", revision: str = "r1", **prior: Any) -> FleetSpec:
    spec = make_spec(
        demand={"chat": 14.0},
        configs={"TP4": 4, "TP8": 8},
        slo=make_slo(0.99, ttft_p90_s=0.6, e2e_p90_s=9.0),
        measurement={"duration_s": 60.0},
    )
    trace = Trace(name="chat", format="poisson", isl_mean_tokens=1000, osl_mean_tokens=250)
    return replace(
        spec,
        models=(Model(name=model, revision=revision),),
        workloads=tuple(replace(item, model=model, trace=trace) for item in spec.workloads),
        prior=PriorSettings(**prior),
    )


@pytest.fixture(scope="module")
def first() -> CampaignResult:
    """The campaign of the release before."""
    spec = fleet()
    return run_campaign(spec, TrueServer(spec, {"chat TP4": 1, "chat TP8": 2}))


def test_without_an_earlier_release_nothing_is_believed() -> None:
    assert priors_for(fleet()) == ()
    assert origin_of(()) == "none"


def test_an_earlier_release_is_believed_unless_the_fleet_file_says_not(first: CampaignResult) -> None:
    priors = priors_for(fleet(revision="r2"), first.certificate)
    assert {prior.source for prior in priors} == {"earlier_release"}
    assert origin_of(priors, "weekly") == f"earlier release (weekly): {len(priors)} candidates"
    assert priors_for(fleet(revision="r2", earlier_release=False), first.certificate) == ()


def test_the_simulator_is_asked_where_the_fleet_file_says_so(first: CampaignResult) -> None:
    spec = fleet(revision="r2", simulator="roofline")
    assert origin_of(priors_for(spec)) == "simulator: 2 candidates"
    both = priors_for(spec, first.certificate)
    assert {prior.source for prior in both} == {"earlier_release", "simulator"}
    server = TrueServer(spec, {"chat TP4": 1, "chat TP8": 2})
    assert run_campaign(spec, server, priors=both).decision.state.startswith("certified")


def test_a_model_that_the_simulator_does_not_know_is_said_in_one_line() -> None:
    with pytest.raises(SpecError, match=r"prior\.simulator: Model 'unheard-of'"):
        priors_for(fleet(model="unheard-of", simulator="roofline"))
