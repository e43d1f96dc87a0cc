"""What every tracking store must do for the hook: tried on a SQLite file and on a real MLflow server."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest

from fleetsieve_airflow.core.certificate import build_certificate
from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.errors import EvidenceError, SpecError, TrackingError
from fleetsieve_airflow.evidence import Evidence, MissShare, PointFailure
from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting import layout, tables, views
from fleetsieve_airflow.serialization import from_plain, spec_digest, to_plain
from tests.builders import make_measurement, make_point, make_spec
from tests.servers import MlflowServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def sqlite_uri(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> str:
    """A tracking store that is a file: no server, no artifacts server."""
    return f"sqlite:///{shutil.copy(mlflow_database, tmp_path_factory.mktemp('sqlite') / 'mlflow.db')}"


@pytest.fixture(params=["sqlite", pytest.param("server", marks=pytest.mark.integration)])
def tracking_uri(request: pytest.FixtureRequest) -> str:
    """Every store the hook is used with."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_uri"))
    server: MlflowServer = request.getfixturevalue("mlflow_server")
    return server.url


@pytest.fixture
def hook(tracking_uri: str) -> MlflowHook:
    return MlflowHook(tracking_uri=tracking_uri)


@pytest.fixture
def spec() -> FleetSpec:
    """A fleet of this test's own, so that tests share a store without meeting."""
    return fleet_of_its_own(make_spec())


def fleet_of_its_own(spec: FleetSpec) -> FleetSpec:
    return replace(spec, fleet=f"fleet-{os.getpid()}-{next(_numbers)}")


def measure(hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef, load: float, round: int = 1) -> str:
    """Claim and finish one point of ``chat TP4``; returns its run."""
    claim = hook.claim_measurement(make_point(spec, load=load), campaign, round)
    assert claim.state == "ours"
    hook.finish_measurement(claim.run_id, make_measurement(spec, load=load), spec)
    return claim.run_id


def run_of(hook: MlflowHook, run_id: str) -> Any:
    return hook.get_conn().get_run(run_id)


def steps_of(hook: MlflowHook, run_id: str, metric: str) -> list[tuple[int, float]]:
    return [(row.step, row.value) for row in hook.get_conn().get_metric_history(run_id, metric)]


class TestFleets:
    def test_both_experiments_are_made_once_and_described(self, hook: MlflowHook, spec: FleetSpec) -> None:
        first = hook.ensure_fleet(spec.fleet)
        assert hook.ensure_fleet(spec.fleet) == first
        plans = hook.get_conn().get_experiment(first.plans_id)
        assert plans.name == f"fleetsieve/{spec.fleet}-plans"
        assert plans.tags["mlflow.experimentKind"] == "custom_model_development"
        assert f"#/experiments/{first.measurements_id}/runs?" in plans.tags["mlflow.note.content"]
        assert "workflowType=machine_learning" in plans.tags["mlflow.note.content"]
        measurements = hook.get_conn().get_experiment(first.measurements_id)
        assert measurements.name == f"fleetsieve/{spec.fleet}-measurements"
        assert spec.fleet in hook.list_fleets()

    def test_campaigns_of_all_fleets_are_read_newest_first(self, hook: MlflowHook, spec: FleetSpec) -> None:
        opened = {hook.open_campaign(fleet_of_its_own(spec), f"c{number}") for number in range(3)}
        found = [item.campaign for item in hook.newest_campaigns()]
        assert opened <= set(found)
        started = [campaign.started_ms for campaign in found]
        assert started == sorted(started, reverse=True)
        newest = max(campaign.started_ms for campaign in opened)
        older = [item.campaign for item in hook.newest_campaigns(before_ms=newest)]
        assert older == [campaign for campaign in found if campaign.started_ms < newest]

    def test_both_experiments_have_a_saved_view(self, hook: MlflowHook, spec: FleetSpec) -> None:
        fleet = hook.ensure_fleet(spec.fleet)
        for kind, experiment_id in (("plans", fleet.plans_id), ("measurements", fleet.measurements_id)):
            tags = hook.get_conn().get_experiment(experiment_id).tags
            assert views.read_state(tags[f"mlflow.sharedViewState.{kind}"])["selectedColumns"]

    def test_what_people_wrote_into_an_experiment_stays(self, hook: MlflowHook, spec: FleetSpec) -> None:
        fleet, view = hook.ensure_fleet(spec.fleet), "mlflow.sharedViewState.plans"
        hook.get_conn().set_experiment_tag(fleet.plans_id, "mlflow.note.content", "Ask Ada first.")
        hook.get_conn().set_experiment_tag(fleet.plans_id, view, "edited")
        hook.ensure_fleet(spec.fleet)
        tags = hook.get_conn().get_experiment(fleet.plans_id).tags
        assert (tags["mlflow.note.content"], tags[view]) == ("Ask Ada first.", "edited")

    def test_many_that_make_a_fleet_at_once_get_the_same(self, tracking_uri: str, spec: FleetSpec) -> None:
        with ThreadPoolExecutor(6) as pool:
            made = list(
                pool.map(lambda _: MlflowHook(tracking_uri=tracking_uri).ensure_fleet(spec.fleet), range(6))
            )
        assert len(set(made)) == 1

    def test_a_deleted_experiment_is_an_error_with_its_remedy(
        self, hook: MlflowHook, spec: FleetSpec
    ) -> None:
        fleet = hook.ensure_fleet(spec.fleet)
        hook.get_conn().delete_experiment(fleet.measurements_id)
        with pytest.raises(TrackingError, match=r"was deleted in MLflow.*restore"):
            hook.ensure_fleet(spec.fleet)
        assert hook.list_campaigns(spec.fleet) == ()

    def test_a_layout_of_a_later_release_is_refused(self, hook: MlflowHook, spec: FleetSpec) -> None:
        fleet = hook.ensure_fleet(spec.fleet)
        hook.get_conn().set_experiment_tag(fleet.plans_id, layout.TAG_SCHEMA, "2")
        with pytest.raises(TrackingError, match="has layout 2, this release writes 1"):
            hook.ensure_fleet(spec.fleet)

    @pytest.mark.parametrize("name", ["a/b", "", "chat[1]", "x" * 81, " chat", "..", "a\nb"])
    def test_a_name_that_mlflow_refuses_never_reaches_it(self, hook: MlflowHook, name: str) -> None:
        before = hook.list_fleets()
        with pytest.raises(SpecError, match=r"^fleet: .* Rename it"):
            hook.open_campaign(replace(make_spec(), fleet=name), "c")
        if name:
            odd = fleet_of_its_own(make_spec(demand={name: 1.0}))
            with pytest.raises(SpecError, match=r"^workloads\[0\].name: .* Rename it"):
                hook.open_campaign(odd, "c")
        assert hook.list_fleets() == before


class TestCampaigns:
    def test_a_campaign_is_found_by_its_id_or_opened(self, hook: MlflowHook, spec: FleetSpec) -> None:
        assert hook.find_campaign(spec.fleet, "weekly/2026 49") is None
        campaign = hook.open_campaign(
            spec,
            "weekly/2026 49",
            reason="weekly",
            spec_text="fleet: x\n",
            airflow={"dag_id": "plan", "url": ""},
        )
        assert hook.open_campaign(spec, "weekly/2026 49", reason="weekly") == campaign
        assert hook.find_campaign(spec.fleet, "weekly/2026 49") == campaign
        assert from_plain(CampaignRef, json.loads(json.dumps(to_plain(campaign)))) == campaign
        assert hook.load_spec(campaign) == spec
        run = run_of(hook, campaign.run_id)
        assert run.info.run_name.endswith("-weekly")
        assert run.data.params["workload.chat/slo.ttft_p99_s"] == "2.0"
        assert run.data.tags["fleetsieve.verdict"] == "running"
        assert run.data.tags["fleetsieve.spec_sha256"] == spec_digest(spec)
        assert (run.data.tags["airflow.dag_id"], "airflow.url" in run.data.tags) == ("plan", False)
        assert hook.get_conn().list_artifacts(campaign.run_id)[-1].path == "spec.yaml"

    def test_a_campaign_keeps_the_spec_it_began_with(self, hook: MlflowHook, spec: FleetSpec) -> None:
        hook.open_campaign(spec, "c")
        with pytest.raises(SpecError, match="was opened with another fleet spec"):
            hook.open_campaign(replace(make_spec(demand={"chat": 13.0}), fleet=spec.fleet), "c")

    def test_a_campaign_opened_by_many_at_once_is_one(self, tracking_uri: str, spec: FleetSpec) -> None:
        MlflowHook(tracking_uri=tracking_uri).ensure_fleet(spec.fleet)
        with ThreadPoolExecutor(5) as pool:
            opened = list(
                pool.map(lambda _: MlflowHook(tracking_uri=tracking_uri).open_campaign(spec, "c"), range(5))
            )
        hook = MlflowHook(tracking_uri=tracking_uri)
        assert {campaign.run_id for campaign in opened} == {hook.open_campaign(spec, "c").run_id}
        assert len(hook.list_campaigns(spec.fleet)) == 1

    def test_a_campaign_that_was_broken_off_goes_on(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign = hook.open_campaign(spec, "c")
        hook.stop_campaign(campaign, "scheduler lost")
        hook.stop_campaign(campaign, "scheduler lost")
        assert run_of(hook, campaign.run_id).info.status == "FAILED"
        assert hook.open_campaign(spec, "c") == campaign
        assert run_of(hook, campaign.run_id).info.status == "RUNNING"

    def test_a_round_is_written_once_however_often_it_is_logged(
        self, hook: MlflowHook, spec: FleetSpec
    ) -> None:
        campaign = hook.open_campaign(spec, "c")
        decision = decide(spec, Evidence())
        hook.log_round(campaign, spec, decision, Evidence())
        hook.log_round(campaign, spec, decision, Evidence())
        assert len(steps_of(hook, campaign.run_id, "fleet/gap")) == 1
        assert steps_of(hook, campaign.run_id, "fleet/points_next") == [(1, len(decision.points))]
        assert hook.load_round(campaign, 1) == decision
        assert hook.load_rounds(campaign) == (decision,)
        assert hook.rounds_done(campaign) == 1
        files = {entry.path for entry in hook.get_conn().list_artifacts(campaign.run_id, "rounds/01")}
        assert files == {
            f"rounds/01/{name}.json"
            for name in (
                "allocation_conservative",
                "allocation_optimistic",
                "decision",
                "intervals",
                "next_points",
            )
        }

    def test_unknown_bounds_are_not_logged(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign = hook.open_campaign(spec, "c")
        measure(hook, spec, campaign, 8.0)
        evidence = hook.load_evidence(spec, campaign, rounds_done=1)
        decision = decide(spec, evidence)
        unbounded = tuple(
            replace(item, upper=replace(item.upper, value_rps=None)) for item in decision.intervals
        )
        hook.log_round(campaign, spec, replace(decision, intervals=unbounded), evidence)
        logged = run_of(hook, campaign.run_id).data.metrics
        assert logged["workload.chat/capacity_lower_rps"] == 8.0
        assert "workload.chat/capacity_upper_rps" not in logged

    def test_a_round_done_again_does_not_turn_the_page_back(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign, first = hook.open_campaign(spec, "c"), decide(spec, Evidence())
        hook.log_round(campaign, spec, first, Evidence())
        measure(hook, spec, campaign, 8.0)
        evidence = hook.load_evidence(spec, campaign, rounds_done=1)
        hook.log_round(campaign, spec, decide(spec, evidence), evidence)
        note = run_of(hook, campaign.run_id).data.tags["mlflow.note.content"]
        hook.log_round(campaign, spec, first, Evidence())
        tags = run_of(hook, campaign.run_id).data.tags
        assert (tags["fleetsieve.round"], tags["mlflow.note.content"]) == ("2", note)
        assert len(hook.load_rounds(campaign)) == 2

    def test_tables_open_as_tables(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign = hook.open_campaign(spec, "c")
        run_id = measure(hook, spec, campaign, 8.0)
        evidence = hook.load_evidence(spec, campaign, rounds_done=1)
        key = evidence.items[0].measurement.point.key
        hook.log_round(campaign, spec, decide(spec, evidence), evidence, verdicts={key: "met"})
        stored = hook.get_conn().download_artifacts(campaign.run_id, tables.MEASUREMENTS_TABLE)
        frame = pandas.read_json(stored, orient="split")
        assert frame[["point", "verdict", "round", "run_id"]].to_numpy().tolist() == [
            ["chat TP4 8 req/s", "met", 1, run_id]
        ]
        announced = json.loads(run_of(hook, campaign.run_id).data.tags["mlflow.loggedArtifacts"])
        assert [entry["path"] for entry in announced] == [tables.MEASUREMENTS_TABLE, tables.SKIPPED_TABLE]

    def test_a_campaign_ends_with_its_verdict_and_certificate(
        self, hook: MlflowHook, spec: FleetSpec
    ) -> None:
        campaign = hook.open_campaign(spec, "c", reason="weekly")
        assert hook.load_certificate(campaign) is None
        for load in (8.0, 12.0):
            measure(hook, spec, campaign, load)
        evidence = hook.load_evidence(spec, campaign, rounds_done=1)
        decision = decide(spec, evidence)
        assert decision.state == "certified_feasible"
        certificate = build_certificate(spec, evidence, decision)
        hook.log_round(campaign, spec, decision, evidence)
        hook.log_report(campaign, "<p>1</p>")
        hook.log_report(campaign, "<p>2</p>", files={"plots/bounds.png": b"\x89PNG"})
        hook.finish_campaign(campaign, certificate, decision.state)
        ended = run_of(hook, campaign.run_id).info.end_time
        hook.finish_campaign(campaign, certificate, decision.state)
        assert run_of(hook, campaign.run_id).info.end_time == ended
        assert hook.load_certificate(campaign) == certificate
        (line,) = hook.list_campaigns(spec.fleet)
        assert (line.campaign, line.verdict, line.status) == (campaign, "certified", "FINISHED")
        assert (line.round, line.gpus, line.plan) == (2, decision.conservative.gpus, "chat 1 x TP4")
        assert run_of(hook, campaign.run_id).data.tags["mlflow.note.content"].startswith("**Decided: chat")
        assert hook.open_campaign(spec, "c") == campaign
        assert run_of(hook, campaign.run_id).info.status == "FINISHED"

    @pytest.mark.parametrize(
        ("state", "verdict"),
        [("certified_infeasible", "infeasible"), ("undetermined", "undetermined")],
    )
    def test_every_verdict_is_an_end(
        self, hook: MlflowHook, spec: FleetSpec, state: Any, verdict: str
    ) -> None:
        campaign = hook.open_campaign(spec, "c")
        hook.finish_campaign(campaign, None, state)
        (line,) = hook.list_campaigns(spec.fleet)
        assert (line.verdict, line.status) == (verdict, "FINISHED")

    def test_a_campaign_with_points_to_measure_cannot_end(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign = hook.open_campaign(spec, "c")
        with pytest.raises(TrackingError, match="points are to be measured"):
            hook.finish_campaign(campaign, None, "measure")

    def test_a_round_that_was_not_logged_is_an_error(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign = hook.open_campaign(spec, "c")
        assert hook.load_rounds(campaign) == ()
        with pytest.raises(EvidenceError, match=r"no artifact rounds/01/decision.json"):
            hook.load_round(campaign, 1)


class TestMeasurements:
    def test_a_measurement_comes_back_as_it_was(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign = hook.open_campaign(spec, "c")
        measurement = make_measurement(
            spec,
            load=8.0,
            sent=2400,
            failed=3,
            miss_shares=(MissShare(limit="ttft_p99_s", limit_s=2.0, share=0.004),),
            versions=(("vllm", "0.31.1"), ("driver", "580.95")),
        )
        run_id = hook.claim_measurement(measurement.point, campaign, 1).run_id
        hook.finish_measurement(run_id, measurement, spec, files={"logs/vllm.log": "ready\n"})
        (item,) = hook.load_evidence(spec, campaign, rounds_done=1).items
        assert item.measurement == measurement
        assert (item.round, item.reused, item.run_id) == (1, False, run_id)
        assert item.measured_at.endswith("+00:00")
        run = run_of(hook, run_id)
        assert run.info.run_name == "chat TP4 8 req/s"
        assert run.data.params["offered_load_rps"] == "8"
        assert run.data.metrics["miss_share_ttft_p99_s"] == 0.004
        assert run.data.tags["fleetsieve.version.vllm"] == "0.31.1"

    def test_finishing_twice_changes_nothing(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign = hook.open_campaign(spec, "c")
        run_id = measure(hook, spec, campaign, 8.0)
        before = run_of(hook, run_id)
        hook.finish_measurement(run_id, make_measurement(spec, load=8.0), spec)
        after = run_of(hook, run_id)
        assert (after.info.end_time, after.data.tags) == (before.info.end_time, before.data.tags)
        assert len(steps_of(hook, run_id, "served_rps")) == 1

    def test_a_finished_measurement_is_never_changed(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign = hook.open_campaign(spec, "c")
        run_id = measure(hook, spec, campaign, 8.0)
        with pytest.raises(EvidenceError, match="already holds measurement"):
            hook.finish_measurement(run_id, make_measurement(spec, load=8.0, met=False), spec)
        failure = PointFailure(key="k", label="p", round=1, kind="infrastructure", message="late")
        with pytest.raises(EvidenceError, match="it cannot fail"):
            hook.fail_measurement(run_id, failure)

    def test_a_run_takes_only_the_point_it_was_claimed_for(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign = hook.open_campaign(spec, "c")
        claim = hook.claim_measurement(make_point(spec, load=8.0), campaign, 1)
        with pytest.raises(EvidenceError, match="claimed for another point than chat TP4 4 req/s"):
            hook.finish_measurement(claim.run_id, make_measurement(spec, load=4.0), spec)

    def test_a_trace_is_kept_as_dataset_once(self, hook: MlflowHook) -> None:
        trace = replace(make_spec().workloads[0].trace, digest="ab" * 32)
        spec = fleet_of_its_own(make_spec(workload={}))
        spec = replace(spec, workloads=(replace(spec.workloads[0], trace=trace),))
        campaign = hook.open_campaign(spec, "c")
        run_id = measure(hook, spec, campaign, 8.0)
        (dataset,) = run_of(hook, run_id).inputs.dataset_inputs
        assert (dataset.dataset.name, dataset.dataset.digest) == ("trace:chat", "ab" * 16)

    def test_words_too_long_for_a_tag_are_kept_whole(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign = hook.open_campaign(spec, "c")
        measurement = make_measurement(
            spec, load=8.0, refused="CUDA out of memory. " * 800, served_rps=0.0, percentiles={}
        )
        run_id = hook.claim_measurement(measurement.point, campaign, 1).run_id
        hook.finish_measurement(run_id, measurement, spec)
        assert hook.load_evidence(spec, campaign, rounds_done=1).items[0].measurement == measurement

    def test_a_failure_is_evidence_of_nothing_and_the_point_can_be_claimed_again(
        self, hook: MlflowHook, spec: FleetSpec
    ) -> None:
        campaign, point = hook.open_campaign(spec, "c"), make_point(spec, load=8.0)
        claim = hook.claim_measurement(point, campaign, 1)
        failure = PointFailure(
            key=point.key, label=point.label, round=1, kind="infrastructure", message='"node\n' * 4000
        )
        hook.fail_measurement(claim.run_id, failure)
        hook.fail_measurement(claim.run_id, failure)
        evidence = hook.load_evidence(spec, campaign, rounds_done=1)
        assert evidence.items == ()
        (kept,) = evidence.failures
        assert replace(kept, message="") == replace(failure, message="")
        assert failure.message.startswith(kept.message)
        assert len(kept.message) > 3000
        again = hook.claim_measurement(point, campaign, 2)
        assert (again.state, again.run_id == claim.run_id) == ("ours", False)

    def test_a_run_that_people_ended_as_failed_is_a_failure_too(
        self, hook: MlflowHook, spec: FleetSpec
    ) -> None:
        campaign = hook.open_campaign(spec, "c")
        claim = hook.claim_measurement(make_point(spec, load=8.0), campaign, 1)
        hook.get_conn().set_terminated(claim.run_id, "FAILED")
        (failure,) = hook.load_evidence(spec, campaign, rounds_done=1).failures
        assert (failure.key, failure.kind) == (make_point(spec, load=8.0).key, "infrastructure")

    def test_a_killed_point_is_free_again_and_what_was_left_is_swept(
        self, hook: MlflowHook, spec: FleetSpec
    ) -> None:
        campaign, other = hook.open_campaign(spec, "c"), hook.open_campaign(spec, "other")
        claim = hook.claim_measurement(make_point(spec, load=8.0), campaign, 1)
        hook.kill_measurement(claim.run_id)
        hook.kill_measurement(claim.run_id)
        assert hook.claim_measurement(make_point(spec, load=8.0), other, 1).state == "ours"
        left = hook.claim_measurement(make_point(spec, load=4.0), campaign, 1).run_id
        done = measure(hook, spec, campaign, 2.0)
        assert hook.sweep(campaign) == (left,)
        assert hook.sweep(campaign) == ()
        assert run_of(hook, left).info.status == "KILLED"
        assert run_of(hook, done).info.status == "FINISHED"
        assert hook.claim_measurement(make_point(spec, load=4.0), other, 1).state == "ours"


class TestEvidence:
    def test_it_counts_only_the_rounds_that_are_done(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign = hook.open_campaign(spec, "c")
        for number, load in enumerate((12.0, 4.0, 8.0), start=1):
            measure(hook, spec, campaign, load, round=number)
        loads = [
            [item.measurement.point.load for item in hook.load_evidence(spec, campaign, rounds_done=n).items]
            for n in range(4)
        ]
        assert loads == [[], [12.0], [12.0, 4.0], [12.0, 4.0, 8.0]]

    def test_it_is_ordered_by_round_and_then_by_key(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign = hook.open_campaign(spec, "c")
        for load in (12.0, 8.0, 4.0, 2.0):
            measure(hook, spec, campaign, load)
        keys = [
            item.measurement.point.key for item in hook.load_evidence(spec, campaign, rounds_done=1).items
        ]
        assert keys == sorted(keys)

    def test_what_an_earlier_campaign_measured_is_known_before_the_first_round(
        self, hook: MlflowHook, spec: FleetSpec
    ) -> None:
        first = hook.open_campaign(spec, "first")
        run_id = measure(hook, spec, first, 8.0, round=3)
        time.sleep(0.002)
        second = hook.open_campaign(spec, "second")
        (item,) = hook.load_evidence(spec, second, rounds_done=0).items
        assert (item.round, item.reused, item.run_id) == (0, True, run_id)
        assert hook.claim_measurement(item.measurement.point, second, 1).state == "finished"

    def test_two_campaigns_at_once_share_what_they_measure(self, hook: MlflowHook, spec: FleetSpec) -> None:
        payer, waiter = hook.open_campaign(spec, "payer"), hook.open_campaign(spec, "waiter")
        point = make_point(spec, load=8.0)
        ours = hook.claim_measurement(point, payer, 1)
        theirs = hook.claim_measurement(point, waiter, 2)
        assert (ours.state, theirs.state, theirs.run_id) == ("ours", "theirs", ours.run_id)
        hook.finish_measurement(ours.run_id, make_measurement(spec, load=8.0), spec)
        assert hook.load_evidence(spec, waiter, rounds_done=9).items == ()
        assert hook.claim_measurement(point, waiter, 2).state == "finished"
        assert hook.load_evidence(spec, waiter, rounds_done=1).items == ()
        (item,) = hook.load_evidence(spec, waiter, rounds_done=2).items
        assert (item.round, item.reused) == (2, True)
        (item,) = hook.load_evidence(spec, payer, rounds_done=1).items
        assert (item.round, item.reused) == (1, False)

    def test_another_profile_is_not_evidence(self, hook: MlflowHook, spec: FleetSpec) -> None:
        measure(hook, spec, hook.open_campaign(spec, "first"), 8.0)
        newer = replace(spec, models=(replace(spec.models[0], revision="r2"),))
        assert hook.load_evidence(newer, hook.open_campaign(newer, "second"), rounds_done=0).items == ()

    def test_a_renamed_engine_config_is_the_same_point(self, hook: MlflowHook, spec: FleetSpec) -> None:
        measure(hook, spec, hook.open_campaign(spec, "first"), 8.0)
        renamed = replace(make_spec(configs={"four": 4}), fleet=spec.fleet)
        campaign = hook.open_campaign(renamed, "second")
        (item,) = hook.load_evidence(renamed, campaign, rounds_done=0).items
        assert item.measurement.point.label == "chat four 8 req/s"

    def test_what_is_too_old_is_not_used(self, hook: MlflowHook, spec: FleetSpec) -> None:
        measure(hook, spec, hook.open_campaign(spec, "first"), 8.0)
        time.sleep(0.05)
        strict = replace(spec, measurement=replace(spec.measurement, reuse_max_age_s=0.01))
        campaign = hook.open_campaign(strict, "second")
        assert campaign.reuse_max_age_s == 0.01
        assert hook.load_evidence(strict, campaign, rounds_done=0).items == ()
        assert hook.claim_measurement(make_point(strict, load=8.0), campaign, 1).state == "ours"

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda tags: {layout.TAG_MEASUREMENT: tags[layout.TAG_MEASUREMENT].replace("8.0", "9.0")},
                "digest",
            ),
            (lambda tags: {layout.TAG_MEASUREMENT_SHA256: "0" * 64}, "digest"),
            (lambda tags: {layout.TAG_ROUND: "soon"}, "round number"),
        ],
    )
    def test_a_changed_measurement_is_an_error_not_a_gap(
        self,
        hook: MlflowHook,
        spec: FleetSpec,
        change: Callable[[dict[str, str]], dict[str, str]],
        message: str,
    ) -> None:
        campaign = hook.open_campaign(spec, "c")
        run_id = measure(hook, spec, campaign, 8.0)
        for name, value in change(run_of(hook, run_id).data.tags).items():
            hook.get_conn().set_tag(run_id, name, value)
        with pytest.raises(EvidenceError, match=message):
            hook.load_evidence(spec, campaign, rounds_done=1)

    def test_a_measurement_filed_under_another_point_is_an_error(
        self, hook: MlflowHook, spec: FleetSpec
    ) -> None:
        campaign = hook.open_campaign(spec, "c")
        run_id = measure(hook, spec, campaign, 8.0)
        hook.get_conn().set_tag(run_id, layout.TAG_KEY, make_point(spec, load=4.0).key)
        with pytest.raises(EvidenceError, match="is filed under point"):
            hook.load_evidence(spec, campaign, rounds_done=1)


class TestLeases:
    @pytest.fixture
    def clock(self) -> Iterator[list[float]]:
        yield [time.time()]

    def test_an_expired_claim_is_taken_over_and_its_owner_learns_so(
        self, tracking_uri: str, spec: FleetSpec, clock: list[float]
    ) -> None:
        hook = MlflowHook(tracking_uri=tracking_uri, clock=lambda: clock[0])
        slow, quick = hook.open_campaign(spec, "slow"), hook.open_campaign(spec, "quick")
        point = make_point(spec, load=8.0)
        first = hook.claim_measurement(point, slow, 1, lease_s=100.0)
        clock[0] += 90.0
        assert hook.claim_measurement(point, quick, 1).state == "theirs"
        hook.renew_lease(first.run_id, lease_s=100.0)
        clock[0] += 90.0
        assert hook.claim_measurement(point, quick, 1).state == "theirs"
        clock[0] += 90.0
        second = hook.claim_measurement(point, quick, 1)
        assert (second.state, second.run_id == first.run_id) == ("ours", False)
        with pytest.raises(TrackingError, match="cannot be renewed: its run is KILLED"):
            hook.renew_lease(first.run_id)

    def test_a_late_measurement_is_kept_and_the_first_to_end_counts(
        self, tracking_uri: str, spec: FleetSpec, clock: list[float]
    ) -> None:
        hook = MlflowHook(tracking_uri=tracking_uri, clock=lambda: clock[0])
        slow, quick = hook.open_campaign(spec, "slow"), hook.open_campaign(spec, "quick")
        first = hook.claim_measurement(make_point(spec, load=8.0), slow, 1, lease_s=100.0)
        clock[0] += 200.0
        second = hook.claim_measurement(make_point(spec, load=8.0), quick, 1)
        hook.finish_measurement(first.run_id, make_measurement(spec, load=8.0), spec)
        time.sleep(0.002)
        hook.finish_measurement(second.run_id, make_measurement(spec, load=8.0), spec)
        later = hook.open_campaign(spec, "later")
        (item,) = hook.load_evidence(spec, later, rounds_done=0).items
        assert item.run_id == first.run_id


class TestLinks:
    def test_links_open_runs_and_not_an_empty_page(self, hook: MlflowHook, spec: FleetSpec) -> None:
        campaign = hook.open_campaign(spec, "c")
        url = hook.campaign_url(campaign, artifact="report.html")
        base = hook.client.server.ui_url
        expected = (
            f"{base}/#/experiments/{campaign.plans_id}/runs/{campaign.run_id}/artifacts/report.html"
            "?workflowType=machine_learning"
        )
        assert url == (expected if base else "")
        fleet = hook.ensure_fleet(spec.fleet)
        expected = (
            f"{base}/#/experiments/{fleet.measurements_id}/runs"
            "?workflowType=machine_learning&viewStateShareKey=measurements&compareRunsMode=CHART"
        )
        assert hook.experiment_url(fleet, layout.MEASUREMENTS, charts=True) == (expected if base else "")

    def test_the_connection_test_says_where_it_reached(self, hook: MlflowHook) -> None:
        works, words = hook.test_connection()
        assert (works, hook.client.server.shown_uri in words) == (True, True)


def _claim_all(uri: str, spec: FleetSpec, name: str, start: Any, results: Any) -> None:
    hook = MlflowHook(tracking_uri=uri)
    campaign = hook.find_campaign(spec.fleet, name)
    assert campaign is not None
    for point in _twenty_points(spec):
        start.wait(timeout=300)
        try:
            results.append((point.key, hook.claim_measurement(point, campaign, 1).state))
        except TrackingError as error:
            # Told by its result: whoever leaves would keep the others waiting for it.
            results.append((point.key, str(error)))


def _twenty_points(spec: FleetSpec) -> list[Any]:
    return [make_point(spec, load=2.0, repeat=number) for number in range(20)]


def _campaigns(uri: str, spec: FleetSpec, count: int) -> list[str]:
    names = [f"campaign-{number}" for number in range(count)]
    hook = MlflowHook(tracking_uri=uri)
    for name in names:
        hook.open_campaign(spec, name)
    return names


def _assert_one_owner_each(uri: str, spec: FleetSpec, results: list[tuple[str, str]]) -> None:
    points = _twenty_points(spec)
    assert len(results) == len(points) * 8
    assert {state for _, state in results} == {"ours", "theirs"}
    hook = MlflowHook(tracking_uri=uri)
    fleet = hook.ensure_fleet(spec.fleet)
    for point in points:
        assert results.count((point.key, "ours")) == 1
        query = f"tags.`fleetsieve.key` = '{point.key}' AND attributes.status = 'RUNNING'"
        assert len(hook.get_conn().search_runs([fleet.measurements_id], query)) == 1


@pytest.mark.integration
def test_of_eight_threads_that_claim_twenty_points_at_once_one_gets_each(
    mlflow_server: MlflowServer, spec: FleetSpec
) -> None:
    start, results = threading.Barrier(8), []  # type: ignore[var-annotated]
    with ThreadPoolExecutor(8) as pool:
        names = _campaigns(mlflow_server.url, spec, 8)
        jobs = [pool.submit(_claim_all, mlflow_server.url, spec, name, start, results) for name in names]
        for job in jobs:
            job.result()
    _assert_one_owner_each(mlflow_server.url, spec, results)


@pytest.mark.integration
def test_of_eight_processes_that_claim_twenty_points_at_once_one_gets_each(
    sqlite_uri: str, spec: FleetSpec
) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        start, results = manager.Barrier(8), manager.list()
        claimers = [
            context.Process(target=_claim_all, args=(sqlite_uri, spec, name, start, results))
            for name in _campaigns(sqlite_uri, spec, 8)
        ]
        for claimer in claimers:
            claimer.start()
        for claimer in claimers:
            claimer.join(timeout=400)
        _assert_one_owner_each(sqlite_uri, spec, list(results))


def _claim_and_die(uri: str, spec: FleetSpec) -> None:
    hook = MlflowHook(tracking_uri=uri)
    campaign = hook.open_campaign(spec, "c")
    hook.claim_measurement(make_point(spec, load=8.0), campaign, 1)
    os._exit(9)


@pytest.mark.integration
def test_a_worker_killed_while_measuring_leaves_one_run_that_its_retry_finishes(
    mlflow_server: MlflowServer, spec: FleetSpec
) -> None:
    worker = multiprocessing.get_context("spawn").Process(
        target=_claim_and_die, args=(mlflow_server.url, spec)
    )
    worker.start()
    worker.join(timeout=120)
    assert worker.exitcode == 9
    hook = MlflowHook(tracking_uri=mlflow_server.url)
    campaign = hook.open_campaign(spec, "c")
    (left,) = hook.get_conn().search_runs([campaign.measurements_id])
    claim = hook.claim_measurement(make_point(spec, load=8.0), campaign, 1)
    assert (claim.state, claim.run_id) == ("ours", left.info.run_id)
    hook.finish_measurement(claim.run_id, make_measurement(spec, load=8.0), spec)
    (only,) = hook.get_conn().search_runs([campaign.measurements_id])
    assert only.info.status == "FINISHED"
    assert len(hook.load_evidence(spec, campaign, rounds_done=1).items) == 1


@pytest.mark.integration
def test_a_server_that_is_gone_for_ten_seconds_is_waited_for(
    mlflow_server: MlflowServer, spec: FleetSpec
) -> None:
    hook = MlflowHook(tracking_uri=mlflow_server.url)
    campaign = hook.open_campaign(spec, "c")
    claim = hook.claim_measurement(make_point(spec, load=8.0), campaign, 1)
    mlflow_server.stop()
    back = threading.Timer(10.0, mlflow_server.start)
    back.start()
    hook.finish_measurement(claim.run_id, make_measurement(spec, load=8.0), spec)
    back.join()
    (item,) = hook.load_evidence(spec, campaign, rounds_done=1).items
    assert item.run_id == claim.run_id
    assert len(steps_of(hook, claim.run_id, "served_rps")) == 1
