"""The campaign of an earlier release as a prior of the next: what of it counts, and what it can never do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.campaign import CampaignResult, replay_campaign, run_campaign
from fleetsieve_airflow.core.allocation import problem_of
from fleetsieve_airflow.core.bounds import fulfilments, value_of
from fleetsieve_airflow.core.certificate import verify_certificate
from fleetsieve_airflow.core.earlier import MOST_RELEASES, earlier_release, prior_of
from fleetsieve_airflow.errors import CertificateError
from fleetsieve_airflow.evidence import PriorCapacity, PriorLoad
from fleetsieve_airflow.records import FleetSpec, LatencyLimit, PriorSettings, Slo
from tests.builders import make_evidence, make_measurement, make_spec
from tests.core.worlds import TrueServer, servers


def released(spec: FleetSpec, revision: str = "r2") -> FleetSpec:
    return replace(spec, models=tuple(replace(model, revision=revision) for model in spec.models))


def at(margin_factor: float) -> dict[str, Any]:
    """A measurement whose TTFT p99 is so many times the limit of 2 s."""
    return {"percentiles": {"ttft_p99_s": 2.0 * margin_factor}}


class TestWhatCounts:
    def test_measured_candidates_come_with_their_loads_and_a_widened_interval(self) -> None:
        spec = make_spec()
        known = make_evidence(
            make_measurement(spec, "chat", "TP4", 4.0), make_measurement(spec, "chat", "TP4", 8.0, met=False)
        )
        (prior,) = earlier_release(released(spec), spec, known)
        assert (prior.workload, prior.config, prior.source) == ("chat", "TP4", "earlier_release")
        assert prior.lower_rps == pytest.approx(4.0 / 1.15)
        assert prior.upper_rps == pytest.approx(4.0 * 1.15)
        assert [(row.load, round(row.margin, 3), row.releases_back) for row in prior.loads] == [
            (4.0, -0.693, 1),
            (8.0, 0.693, 1),
        ]

    def test_the_fleet_file_says_how_far_a_release_may_move_a_capacity(self) -> None:
        spec = make_spec()
        after = replace(released(spec), prior=PriorSettings(widening=0.5))
        (prior,) = earlier_release(after, spec, make_evidence(make_measurement(spec, "chat", "TP4", 4.0)))
        assert (prior.lower_rps, prior.upper_rps) == (pytest.approx(4.0 / 1.5), None)

    def test_measurements_are_judged_by_the_slo_of_today(self) -> None:
        spec = make_spec()
        tighter = Slo(limits=(LatencyLimit(metric="ttft", percentile=99, limit_s=0.5),))
        after = released(replace(spec, workloads=(replace(spec.workloads[0], slo=tighter),)))
        (prior,) = earlier_release(after, spec, make_evidence(make_measurement(spec, "chat", "TP4", 4.0)))
        assert prior.loads[0].margin > 0.0  # 1 s met 2 s and misses 0.5 s
        assert prior.lower_rps == 0.0

    def test_an_slo_that_asks_for_what_was_not_recorded_makes_the_measurement_useless(self) -> None:
        spec = make_spec()
        other = Slo(limits=(LatencyLimit(metric="tpot", percentile=99, limit_s=0.05),))
        after = released(replace(spec, workloads=(replace(spec.workloads[0], slo=other),)))
        assert earlier_release(after, spec, make_evidence(make_measurement(spec))) == ()

    def test_a_candidate_that_is_the_same_to_the_revision_is_left_to_its_measurements(self) -> None:
        spec = make_spec()
        assert earlier_release(spec, spec, make_evidence(make_measurement(spec))) == ()

    @pytest.mark.parametrize("change", ["other GPUs per replica", "another GPU", "gone", "cannot run"])
    def test_a_candidate_that_runs_on_something_else_is_left_out(self, change: str) -> None:
        spec = make_spec()
        after = released(spec)
        if change == "other GPUs per replica":
            after = released(make_spec(configs={"TP2": 2, "TP4": 2, "TP8": 8}))
        elif change == "another GPU":
            after = replace(after, pools=(replace(after.pools[0], gpu="NVIDIA H200"),))
        elif change == "gone":
            after = replace(after, candidates=tuple(c for c in after.candidates if c.config != "TP4"))
        else:
            after = released(make_spec(excluded={"chat TP4": "does not fit"}))
        assert earlier_release(after, spec, make_evidence(make_measurement(spec, "chat", "TP4"))) == ()

    def test_a_refused_config_says_nothing_of_its_loads(self) -> None:
        spec = make_spec()
        refused = make_measurement(spec, refused="CUDA out of memory", percentiles=(), served_rps=0.0)
        assert earlier_release(released(spec), spec, make_evidence(refused)) == ()

    def test_loads_that_were_not_measured_since_are_remembered_for_some_releases(self) -> None:
        spec = make_spec()
        back = {2.0: 1, 8.0: 1, 12.0: MOST_RELEASES}
        carried = PriorCapacity(
            workload="chat",
            config="TP4",
            source="earlier_release",
            lower_rps=1.0,
            upper_rps=None,
            loads=tuple(
                PriorLoad(load=load, margin=0.1, rate_rps=load, releases_back=n) for load, n in back.items()
            ),
        )
        known = make_evidence(make_measurement(spec, "chat", "TP4", 8.0), priors=(carried,))
        (prior,) = earlier_release(released(spec), spec, known)
        assert [(row.load, row.releases_back) for row in prior.loads] == [(8.0, 1), (2.0, 2)]


@pytest.fixture(scope="module")
def first() -> CampaignResult:
    """The campaign of the release before."""
    spec = make_spec(demand={"chat": 14.0})
    return run_campaign(spec, TrueServer(spec, {"chat TP2": 0, "chat TP4": 2, "chat TP8": 2}))


class TestACertificate:
    def test_it_is_all_that_the_next_release_needs(self, first: CampaignResult) -> None:
        spec = released(make_spec(demand={"chat": 14.0}))
        assert prior_of(spec, first.certificate)

    @pytest.mark.parametrize("what", ["no document", "another kind", "another version", "edited"])
    def test_anything_else_is_refused(self, first: CampaignResult, what: str) -> None:
        document: Any = {
            "no document": [],
            "another kind": {**first.certificate, "kind": "Plan"},
            "another version": {**first.certificate, "schema_version": 99},
            "edited": {**first.certificate, "gap": 0.5},
        }[what]
        with pytest.raises(CertificateError):
            prior_of(make_spec(), document)

    def test_the_next_certificate_holds_and_names_what_steered_it(self, first: CampaignResult) -> None:
        spec = released(make_spec(demand={"chat": 14.0}))
        priors = prior_of(spec, first.certificate)
        server = TrueServer(spec, {"chat TP2": 0, "chat TP4": 2, "chat TP8": 2})
        second = run_campaign(spec, server, priors=priors)
        assert verify_certificate(second.certificate) == ()
        assert [row["source"] for row in second.certificate["priors"]] == ["earlier_release"] * len(priors)
        document = {**second.certificate, "priors": []}
        assert any("evidence_sha256" in line for line in verify_certificate(document))
        assert replay_campaign(spec, second.evidence) == list(second.decisions)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_however_wrong_the_earlier_release_is_the_next_ones_certificate_is_right(data: st.DataObject) -> None:
    """Both releases are worlds of their own; the second campaign believes the first."""
    before: TrueServer = data.draw(servers())
    spec = released(before.spec)
    first = run_campaign(before.spec, before)
    highest = {
        candidate.label: data.draw(st.integers(-1, len(candidate.loads) - 1)) for candidate in spec.candidates
    }
    after = TrueServer(spec, highest)
    second = run_campaign(spec, after, priors=earlier_release(spec, before.spec, first.evidence))
    assert second.decision.state.startswith("certified")
    problem, truth = problem_of(spec), after.capacities()
    replicas = second.decision.conservative.replicas()
    counts = [
        [replicas.get(name, {}).get(label, 0) for label in labels]
        for name, labels in zip(problem.names, problem.labels, strict=True)
    ]
    served = min(*fulfilments(problem, truth, counts), problem.ceiling)
    assert value_of(problem, truth) - served <= spec.decision.tolerance + 1e-9
