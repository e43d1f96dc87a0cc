"""Whole campaigns without Airflow: the loop, its failures, and its replay."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fleetsieve_airflow.backends.base import backend_for
from fleetsieve_airflow.backends.replay import ReplayBackend
from fleetsieve_airflow.campaign import known_after, replay_campaign, run_campaign, verdicts_of
from fleetsieve_airflow.core.certificate import verify_certificate
from fleetsieve_airflow.errors import GridError, MeasurementError
from fleetsieve_airflow.evidence import Decision, Evidence, Measurement, MeasurementPoint, MissShare
from fleetsieve_airflow.records import Budget, FleetSpec
from fleetsieve_airflow.serialization import canonical_json, to_plain
from tests.builders import make_evidence, make_failure, make_measurement, make_point, make_spec, paper_spec


class FlakyBackend(ReplayBackend):
    """Replays the grid, but fails chosen points for their first attempts."""

    def __init__(self, failures: dict[str, int], *, kind: str = "infrastructure") -> None:
        super().__init__()
        self.left = dict(failures)
        self.kind = kind
        self.asked: list[str] = []

    def measure(self, spec: FleetSpec, point: MeasurementPoint) -> Measurement:
        self.asked.append(point.label)
        if self.left.get(point.label, 0) > 0:
            self.left[point.label] -= 1
            raise MeasurementError(f"{point.label}: lost", kind=self.kind, gpu_seconds_billed=12.5)
        return super().measure(spec, point)


class TestRunCampaign:
    def test_the_paper_fleet_gets_the_plan_of_full_profiling(self) -> None:
        result = run_campaign(paper_spec(), backend_for(paper_spec()))
        assert result.decision.state == "certified_feasible"
        assert result.decision.conservative.replicas() == {"chat": {"TP4": 2}, "code": {"TP4": 2}}
        assert result.decision.spend.points_measured < 24
        assert verify_certificate(result.certificate) == ()

    def test_every_round_is_handed_out_with_what_it_knew(self) -> None:
        seen: list[tuple[Decision, Evidence]] = []
        result = run_campaign(paper_spec(), ReplayBackend(), on_round=lambda *round: seen.append(round))
        assert tuple(decision for decision, _ in seen) == result.decisions
        assert [evidence.rounds_done for _, evidence in seen] == list(range(len(seen)))
        assert [decision.round for decision in result.decisions] == [1 + i for i in range(len(seen))]

    def test_no_point_is_measured_twice(self) -> None:
        backend = FlakyBackend({})
        result = run_campaign(paper_spec(), backend)
        assert len(set(backend.asked)) == len(backend.asked) == len(result.evidence.items)

    def test_a_point_that_fails_is_asked_for_again_and_never_read_as_missed(self) -> None:
        steady = run_campaign(paper_spec(), ReplayBackend())
        label = steady.decisions[0].points[0].point.label
        result = run_campaign(paper_spec(), FlakyBackend({label: 1}))
        assert [(failure.label, failure.round, failure.kind) for failure in result.evidence.failures] == [
            (label, 1, "infrastructure")
        ]
        assert result.decision.conservative.replicas() == steady.decision.conservative.replicas()
        assert result.decision.spend.gpu_seconds_billed >= 12.5
        assert verify_certificate(result.certificate) == ()

    def test_a_campaign_without_money_ends_undetermined_with_both_plans(self) -> None:
        spec = replace(paper_spec(), budget=Budget(rounds=1))
        result = run_campaign(spec, ReplayBackend())
        assert result.decision.state == "undetermined"
        assert result.decision.optimistic.value >= result.decision.conservative.value
        assert result.certificate["state"] == "undetermined"

    def test_nothing_is_measured_when_the_backend_refuses_the_spec(self) -> None:
        spec = paper_spec()
        stale = replace(spec, measurement=replace(spec.measurement, device="replay:0000000000000000"))
        rounds: list[Decision] = []
        with pytest.raises(GridError):
            run_campaign(stale, ReplayBackend(), on_round=lambda decision, _: rounds.append(decision))
        assert rounds == []


class TestReplayCampaign:
    @pytest.mark.parametrize("scale", [0.7, 1.0, 1.3])
    def test_a_campaign_decides_the_same_again_from_what_it_had_revealed(self, scale: float) -> None:
        result = run_campaign(paper_spec(scale), ReplayBackend())
        again = replay_campaign(paper_spec(scale), result.evidence)
        assert canonical_json(to_plain(tuple(again))) == canonical_json(to_plain(result.decisions))

    def test_a_campaign_with_failures_decides_the_same_again(self) -> None:
        first = run_campaign(paper_spec(), ReplayBackend()).decisions[0].points[0].point.label
        result = run_campaign(paper_spec(), FlakyBackend({first: 2}))
        assert tuple(replay_campaign(paper_spec(), result.evidence)) == result.decisions

    def test_two_runs_give_the_same_certificate_to_the_byte(self) -> None:
        one, other = (run_campaign(paper_spec(), ReplayBackend()).certificate for _ in range(2))
        assert json.dumps(one) == json.dumps(other)

    def test_what_was_known_after_a_round_holds_nothing_later(self) -> None:
        spec = make_spec()
        early, late = make_measurement(spec, load=2.0), make_measurement(spec, load=4.0)
        evidence = make_evidence(early, failures=[make_failure(make_point(load=8.0), round=2)])
        late_items = make_evidence(late, round=2).items
        evidence = replace(evidence, items=evidence.items + late_items, rounds_done=2)
        known = known_after(evidence, 1)
        assert ([item.measurement for item in known.items], known.failures, known.rounds_done) == (
            [early],
            (),
            1,
        )
        assert known_after(evidence, 2) == evidence


def test_each_measurement_has_its_own_verdict_by_key() -> None:
    spec = make_spec()
    met, missed = make_measurement(spec, load=4.0), make_measurement(spec, load=8.0, met=False)
    assert verdicts_of(spec, make_evidence(met, missed)) == {met.point.key: "met", missed.point.key: "missed"}


def test_a_verdict_is_reported_at_the_confidence_that_the_decision_takes_it() -> None:
    spec = make_spec(decision={"confidence": 0.95})
    late = (MissShare(limit="ttft_p99_s", limit_s=2.0, share=0.0),)
    few, many = (
        make_measurement(spec, load=load, sent=sent, failed=0, miss_shares=late)
        for load, sent in ((4.0, 400), (8.0, 4000))  # 400 without a miss are enough for 95 % of one verdict
    )
    assert verdicts_of(spec, make_evidence(few, many)) == {few.point.key: "marginal", many.point.key: "met"}
