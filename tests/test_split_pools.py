"""A fleet of two pools at two prices whose replicas may prefill and decode apart: from its file to a plan."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetsieve_airflow.backends.base import backend_for
from fleetsieve_airflow.backends.grid import read_grid
from fleetsieve_airflow.backends.local import LocalBackend
from fleetsieve_airflow.campaign import CampaignResult, run_campaign
from fleetsieve_airflow.cli import main
from fleetsieve_airflow.core.certificate import verify_certificate
from fleetsieve_airflow.deployment.commands import render_commands
from fleetsieve_airflow.deployment.difference import differences
from fleetsieve_airflow.deployment.files import deployment_files
from fleetsieve_airflow.deployment.plan import plan_of_certificate, read_plan
from fleetsieve_airflow.errors import DeploymentError, FleetsieveError, GridError, SpecError
from fleetsieve_airflow.prior import simulated_priors
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting.layout import point_params
from fleetsieve_airflow.reporting.report import render_report
from fleetsieve_airflow.reporting.text import outcome_text
from fleetsieve_airflow.serialization import point_of
from fleetsieve_airflow.spec import load_spec, parse_spec
from tests.builders import REPOSITORY

FILE = REPOSITORY / "dags" / "fleets" / "split_pools.yaml"


def shipped(path: str = "", value: Any = None) -> dict[str, Any]:
    """Return the shipped fleet as data, with one dotted key path set to a value, or taken out by ``...``."""
    data: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    *parents, last = path.split(".")
    place = data
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    elif path:
        place[last] = value
    return data


def errors_of(data: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse_spec(data)
    return str(caught.value).splitlines()


@pytest.fixture(scope="module")
def spec() -> FleetSpec:
    return load_spec(FILE)


@pytest.fixture(scope="module")
def result(spec: FleetSpec) -> CampaignResult:
    return run_campaign(spec, backend_for(spec))


class TestTheShippedFleet:
    def test_it_is_planned_to_a_certificate_that_holds(self, result: CampaignResult) -> None:
        assert result.decision.state == "certified_feasible"
        assert result.decision.conservative.min_fulfilment == 1.0
        assert verify_certificate(json.loads(json.dumps(result.certificate))) == ()

    def test_chat_prefills_on_the_cheaper_gpu_and_decodes_on_the_larger(self, result: CampaignResult) -> None:
        plan = result.decision.conservative
        assert plan.replicas() == {"chat": {"mixed-split": 2}, "summaries": {"H100-TP4": 2}}
        assert plan.cost_per_hour == pytest.approx(16 * 2.8 + 8 * 3.5)

    def test_without_mixed_replicas_the_same_demand_costs_more(self, result: CampaignResult) -> None:
        data = shipped()
        data["workloads"]["chat"]["engine_configs"].remove("mixed-split")
        alike = parse_spec(data)
        other = run_campaign(alike, backend_for(alike)).decision.conservative
        assert other.min_fulfilment == 1.0
        assert (other.cost_per_hour or 0.0) > 1.05 * (result.decision.conservative.cost_per_hour or 0.0)

    def test_most_points_need_no_measurement(self, result: CampaignResult) -> None:
        assert result.decision.spend.points_measured < 0.25 * result.decision.spend.points_all

    def test_the_terminal_and_the_report_speak_of_money(
        self, spec: FleetSpec, result: CampaignResult
    ) -> None:
        told = outcome_text(spec, result.decisions)
        assert "(24 of 32 GPUs, 72.8 per hour)" in told
        built = "mixed-split: prefill 2 x TP2 in pool h100, decode 1 x TP4 in pool h200."
        assert told.count(built) == 1
        assert "No cheaper plan does so even at the highest." in told
        report = render_report(spec, result.decisions, result.evidence, result.certificate, verdicts={})
        assert "Cost per hour by round" in report and built in report
        assert "72.8 / 100.8" in report and "cost per hour / of all GPUs" in report

    def test_before_anything_is_sure_the_report_says_so(
        self, spec: FleetSpec, result: CampaignResult
    ) -> None:
        told = outcome_text(spec, result.decisions[:1])
        assert "No plan is sure to serve the demand yet" in told
        report = render_report(spec, result.decisions[:1], result.evidence, None, verdicts={})
        assert "? / 100.8" in report and "no plan is certain yet" in report

    def test_a_simulator_has_a_prior_of_split_replicas_too(self) -> None:
        spec = parse_spec({**shipped(), "prior": {"simulator": True}})
        priors = {(p.workload, p.config): p for p in simulated_priors(spec)}
        assert len(priors) == len(spec.candidates)
        mixed = priors["chat", "mixed-split"]
        assert 0.0 < mixed.lower_rps < (mixed.upper_rps or 0.0)

    def test_a_measured_point_names_the_engines_of_both_phases(self, spec: FleetSpec) -> None:
        candidate = spec.candidate("chat", "mixed-split")
        params = point_params(spec, point_of(spec, candidate, candidate.loads[0]))
        assert params["prefill"] == "2 x TP2 in pool h100"
        assert params["decode"] == "1 x TP4 in pool h200"
        assert params["gpu"] == "NVIDIA H100 80GB HBM3 + NVIDIA H200"
        assert params["gpus"] == "8" and "tensor_parallel" not in params


class TestExport:
    def test_commands_are_refused_with_what_is_missing_and_a_remedy(self, result: CampaignResult) -> None:
        plan = plan_of_certificate(result.certificate)
        with pytest.raises(
            DeploymentError, match=r"prefill 2 x TP2 in pool h100 and decode 1 x TP4"
        ) as caught:
            render_commands(plan)
        assert "--format json" in str(caught.value)

    def test_json_holds_both_phases_and_reads_back(self, result: CampaignResult) -> None:
        plan = plan_of_certificate(result.certificate)
        files = deployment_files(plan)
        document = json.loads(files["plan.json"])
        split = next(row for row in document["kinds"] if row["config"]["label"] == "mixed-split")
        assert split["config"]["decode"]["pool"] == "h200"
        assert "command" not in split
        assert read_plan(document) == plan
        assert all(text.startswith("# Not exported.") for name, text in files.items() if name != "plan.json")

    def test_a_phase_that_is_built_otherwise_is_a_change(self, result: CampaignResult) -> None:
        changed = copy.deepcopy(result.certificate)
        config = next(c for c in changed["spec"]["configs"] if c["label"] == "mixed-split")
        config["decode"]["pool"] = "h100"
        told = differences(plan_of_certificate(result.certificate), plan_of_certificate(changed))
        assert any("decode 1 x TP4 in pool h200 -> 1 x TP4 in pool h100" in line for line in told)

    def test_the_command_line_says_it_in_one_line(
        self, result: CampaignResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "certificate.json"
        path.write_text(json.dumps(result.certificate), encoding="utf-8")
        assert main(["export", str(path)]) == 2
        assert "disaggregated replica" in capsys.readouterr().err
        assert main(["export", str(path), "--format", "json"]) == 0

    def test_a_solvers_own_words_are_not_among_the_results(
        self, result: CampaignResult, tmp_path: Path
    ) -> None:
        path = tmp_path / "certificate.json"
        path.write_text(json.dumps(result.certificate), encoding="utf-8")
        command = [sys.executable, "-m", "fleetsieve_airflow.cli", "verify", str(path)]
        told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY)
        assert told.stdout == "holds\n"


class TestWhatCannotBeMeasured:
    def test_clients_in_a_closed_loop_are_refused_before_anything_is_simulated(self) -> None:
        spec = parse_spec(shipped("workloads.chat.loads", {"concurrency": [8, 16]}))
        with pytest.raises(SpecError, match=r"chat H100-split: .* offered loads only"):
            backend_for(spec).check(spec)

    def test_real_servers_are_refused_with_a_remedy(self) -> None:
        spec = parse_spec(shipped("measurement.backend", "local"))
        with pytest.raises(FleetsieveError, match="cannot be started yet") as caught:
            LocalBackend().check(spec)
        assert "simulate" in str(caught.value)

    def test_a_grid_by_degrees_cannot_mean_it(self, spec: FleetSpec, tmp_path: Path) -> None:
        path = tmp_path / "grid.csv"
        path.write_text("workload,tensor_parallel,offered_load_rps,served_rps,ttft_p99_s\nchat,4,1,1,0.5\n")
        with pytest.raises(GridError, match="engines of two phases"):
            read_grid(str(path)).config_key(spec.config("mixed-split"))

    def test_a_phase_without_memory_for_its_cache_is_a_refused_config(self, spec: FleetSpec) -> None:
        data = shipped("models", {"llama-3.1-70b": {"revision": "1"}})
        data["engine_configs"]["mixed-split"]["prefill"]["tensor_parallel"] = 1
        tight = parse_spec(data)
        candidate = tight.candidate("chat", "mixed-split")
        measured = backend_for(tight).measure(tight, point_of(tight, candidate, candidate.loads[0]))
        assert "TP1 leaves no memory" in measured.refused


class TestCandidatesThatCannotRun:
    def excluded(self, path: str, value: Any) -> str:
        return (
            parse_spec(shipped(f"engine_configs.mixed-split.{path}", value))
            .candidate("chat", "mixed-split")
            .excluded
        )

    def test_a_phase_is_held_to_the_models_heads(self) -> None:
        assert self.excluded("decode.tensor_parallel", 3).startswith("Decode: Tensor-parallel degree 3")

    def test_a_phase_that_does_not_hold_the_weights(self) -> None:
        data = shipped("models", {"llama-3.1-70b": {"revision": "1", "weights_gib": 140}})
        data["engine_configs"]["mixed-split"]["prefill"]["tensor_parallel"] = 1
        assert parse_spec(data).candidate("chat", "mixed-split").excluded.startswith("Prefill: The weights")

    def test_more_engines_than_the_pool_holds(self) -> None:
        assert self.excluded("prefill.engines", 9) == "Prefill: 9 engines, pool h100 has room for 8."

    def test_both_phases_together_exceed_their_pool(self) -> None:
        data = shipped("engine_configs.H100-split.prefill.engines", 7)
        assert (
            parse_spec(data).candidate("chat", "H100-split").excluded
            == "A replica takes 18 GPUs of pool h100, it has 16 to plan with."
        )


class TestABadFile:
    @pytest.mark.parametrize(
        ("path", "value", "said"),
        [
            ("decode", ..., "engine_configs.mixed-split: must describe both prefill and decode, or neither"),
            ("pool", "h100", "engine_configs.mixed-split: must give pool for prefill and for decode"),
            ("tensor_parallel", 2, "must give tensor_parallel for prefill and for decode, not beside them"),
            (
                "prefill.pool",
                "h300",
                "engine_configs.mixed-split.prefill.pool: must be a known pool (h100, h200)",
            ),
            ("prefill.pool", ..., "engine_configs.mixed-split.prefill.pool: is missing"),
            ("decode.engines", 0, "engine_configs.mixed-split.decode.engines: must be at least 1, got 0"),
        ],
    )
    def test_a_wrong_phase_is_named(self, path: str, value: Any, said: str) -> None:
        assert said in errors_of(shipped(f"engine_configs.mixed-split.{path}", value))[0]

    def test_a_config_without_pool_or_phases_is_said(self) -> None:
        (line,) = errors_of(shipped("engine_configs.H100-TP4.pool", ...))
        assert "engine_configs.H100-TP4: must name a pool, or describe prefill and decode" in line

    def test_the_least_money_needs_a_price_of_every_pool(self) -> None:
        data = shipped("pools.h200.price_per_gpu_hour", ...)
        del data["decision"]["cost_per_hour_max"]
        (line,) = errors_of(data)
        assert line.startswith("pools.h200.price_per_gpu_hour: is missing, and decision.objective")

    def test_pools_that_cost_nothing_have_no_least_money(self) -> None:
        data = shipped("pools.h200.price_per_gpu_hour", 0)
        data["pools"]["h100"]["price_per_gpu_hour"] = 0
        (line,) = errors_of(data)
        assert line.startswith("decision.objective: is lowest_cost, but no pool costs anything")
