"""How a fleet looks in MLflow: names, values and links, all of which MLflow must take as they are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.evidence import Evidence, MissShare
from fleetsieve_airflow.records import EngineConfig
from fleetsieve_airflow.reporting import layout
from tests.builders import make_evidence, make_measurement, make_point, make_slo, make_spec

TWO = make_spec(demand={"chat": 12.0, "code": 5.0})


def allowed_by_mlflow(name: str) -> bool:
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(name)
    return True


class TestNames:
    @given(st.text(max_size=90))
    def test_a_name_passes_or_is_refused_and_what_passes_mlflow_takes(self, name: str) -> None:
        try:
            layout.check_name("workloads[0].name", name)
        except SpecError as error:
            assert str(error).startswith("workloads[0].name: ")
        else:
            assert allowed_by_mlflow(f"workload.{name}/gpus_conservative")

    @pytest.mark.parametrize("name", ["chat", "rag-v2", "long context", "a.b_c", "8b", "x" * 80])
    def test_names_that_people_use_pass(self, name: str) -> None:
        layout.check_names(replace(make_spec(demand={name: 1.0}), fleet=name))

    def test_the_fleet_is_in_the_part_of_the_name_that_breadcrumbs_show(self) -> None:
        name = layout.experiment_name("h100-pool-a", layout.PLANS)
        assert name.rpartition("/")[2] == "h100-pool-a-plans"

    def test_two_campaign_ids_never_share_a_key(self) -> None:
        keys = {layout.plan_key(name) for name in ("a", "a ", "A", "a/b", "", "é" * 5000)}
        assert len(keys) == 6
        assert all(len(key) == 32 for key in keys)

    @pytest.mark.parametrize(
        ("reason", "name"),
        [
            ("weekly", "2026-11-30-weekly"),
            ("release qwen3/32b", "2026-11-30-release-qwen3-32b"),
            ("", "2026-11-30-manual"),
        ],
    )
    def test_a_campaign_is_named_by_day_and_reason(self, reason: str, name: str) -> None:
        assert layout.plan_run_name("2026-11-30", reason) == name


class TestFamilies:
    @given(st.sampled_from(["revision", "device", "trace", "demand", "engine_version", "slo", "gpu"]))
    def test_points_with_one_key_are_of_one_family(self, changed: str) -> None:
        spec = make_spec()
        other = {
            "revision": replace(spec, models=(replace(spec.models[0], revision="r2"),)),
            "device": replace(spec, measurement=replace(spec.measurement, device="live")),
            "trace": replace(
                spec,
                workloads=(replace(spec.workloads[0], trace=replace(spec.workloads[0].trace, digest="d")),),
            ),
            "demand": make_spec(demand={"chat": 99.0}),
            "engine_version": replace(
                spec, configs=tuple(replace(config, engine_version="9") for config in spec.configs)
            ),
            "slo": make_spec(slo=make_slo(e2e_p99_s=9.0)),
            "gpu": replace(spec, pools=(replace(spec.pools[0], gpu="NVIDIA A100"),)),
        }[changed]
        same_family = layout.family(spec, spec.workloads[0]) == layout.family(other, other.workloads[0])
        same_key = make_point(spec).key == make_point(other).key
        assert same_family or not same_key
        assert same_family == (changed not in ("revision", "device", "trace"))


class TestValues:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (0.04489247, 0.04489),
            (1.23456, 1.235),
            (999.96, 1000.0),
            (33612.4, 33612.0),
            (0.0, 0.0),
            (-0.123456, -0.1235),
        ],
    )
    def test_they_keep_four_digits_and_whole_numbers(self, value: float, shown: float) -> None:
        assert layout.significant(value) == shown

    @given(st.dictionaries(st.text(max_size=5), st.none() | st.floats(allow_nan=True, allow_infinity=True)))
    def test_only_finite_numbers_are_logged(self, metrics: dict[str, float | None]) -> None:
        logged = layout.loggable(metrics)
        assert all(math.isfinite(value) for value in logged.values())
        assert set(logged) == {name for name, v in metrics.items() if v is not None and math.isfinite(v)}


class TestPlans:
    def test_parameters_say_what_is_planned(self) -> None:
        params = layout.plan_params(make_spec(slo=make_slo(0.99, ttft_p99_s=2.0, e2e_p99_s=30.0)))
        assert params["workload.chat/demand_rps"] == "12.0"
        assert params["workload.chat/slo.success_rate"] == "0.99"
        assert params["workload.chat/slo.e2e_p99_s"] == "30.0"
        assert params["gpus_total"] == "16"
        assert "budget_rounds" not in params
        assert all(allowed_by_mlflow(name) for name in params)

    def test_metrics_say_both_bounds_and_what_was_spent(self) -> None:
        evidence = make_evidence(
            make_measurement(TWO, "chat", "TP4", 8.0), make_measurement(TWO, "code", "TP4", 8.0)
        )
        decision = decide(TWO, evidence)
        metrics = layout.plan_metrics(TWO, decision)
        assert metrics["fleet/fulfilment_conservative"] == layout.significant(
            decision.conservative.min_fulfilment
        )
        assert metrics["fleet/gap"] == layout.significant(decision.gap)
        assert metrics["fleet/points_measured"] == 2
        assert metrics["fleet/gpu_seconds_window"] == 2 * 4 * 300
        held = sum(metrics[f"workload.{name}/gpus_conservative"] for name in ("chat", "code"))
        assert metrics["fleet/gpus_conservative"] == held == decision.conservative.gpus
        assert metrics["workload.code/capacity_lower_rps"] == 8.0
        assert all(allowed_by_mlflow(name) for name in metrics)

    def test_what_is_saved_is_said_only_when_nothing_more_will_be_spent(self) -> None:
        spec = make_spec()
        running = decide(spec, Evidence())
        done = make_evidence(make_measurement(spec, load=8.0), make_measurement(spec, load=12.0))
        settled = decide(spec, done)
        assert (running.state, settled.state) == ("measure", "certified_feasible")
        assert "fleet/gpu_seconds_window_saved" not in layout.plan_metrics(spec, running)
        spend = settled.spend
        assert layout.plan_metrics(spec, settled)["fleet/gpu_seconds_window_saved"] == (
            spend.gpu_seconds_window_all - spend.gpu_seconds_window
        )

    def test_the_gpus_of_a_fewest_gpus_plan_are_logged_from_both_ends(self) -> None:
        spec = make_spec(decision={"objective": "fewest_gpus", "tolerance": 0.0})
        decision = decide(spec, make_evidence(make_measurement(spec, load=8.0)))
        metrics = layout.plan_metrics(spec, decision)
        assert metrics["fleet/gpus_conservative"] == decision.conservative.gpus
        assert metrics["fleet/gpus_optimistic"] == decision.optimistic.gpus

    def test_a_hundred_workloads_stay_within_one_batch(self) -> None:
        spec = make_spec(
            demand={f"w{n}": 1.0 for n in range(100)}, configs={"TP4": 4}, loads=(4.0,), gpus=800
        )
        assert len(layout.plan_metrics(spec, decide(spec, Evidence()))) < 1000


class TestMeasurements:
    def test_parameters_name_the_load_by_its_kind(self) -> None:
        assert layout.point_params(make_spec(), make_point(load=8.0))["offered_load_rps"] == "8"
        closed = make_spec(load_kind="concurrency", loads=(8.0, 16.0))
        assert layout.point_params(closed, make_point(closed, load=16.0))["concurrency"] == "16"

    def test_engine_arguments_read_as_on_the_command_line(self) -> None:
        config = EngineConfig(
            label="TP4",
            pool="h100",
            tensor_parallel=4,
            engine_args=(("--max-num-seqs", "64"), ("--enable-chunked-prefill", "")),
        )
        spec = replace(make_spec(), configs=(config,), candidates=make_spec().candidates[1:2])
        params = layout.point_params(spec, make_point(spec, load=8.0))
        assert params["engine_args"] == "--max-num-seqs 64 --enable-chunked-prefill"

    def test_metrics_are_named_like_the_slo(self) -> None:
        measurement = make_measurement(
            load=8.0,
            percentiles={"ttft_p99_s": 0.98765432, "tpot_p50_s": 0.021},
            sent=2400,
            failed=3,
            miss_shares=(MissShare(limit="ttft_p99_s", limit_s=2.0, share=0.00125),),
        )
        metrics = layout.measurement_metrics(measurement)
        assert metrics["ttft_p99_s"] == 0.9877
        assert metrics["miss_share_ttft_p99_s"] == 0.00125
        assert (metrics["requests_sent"], metrics["requests_failed"]) == (2400, 3)
        assert "e2e_p99_s" not in metrics
        assert all(allowed_by_mlflow(name) for name in metrics)

    def test_colours_tell_workloads_by_hue_and_sizes_by_shade(self) -> None:
        colours = {
            (name, config): layout.run_color(TWO, make_point(TWO, name, config))
            for name in ("chat", "code")
            for config in ("TP2", "TP4", "TP8")
        }
        assert len(set(colours.values())) == 6
        assert all(len(colour) == 7 and int(colour[1:], 16) >= 0 for colour in colours.values())

        def brightness(colour: str) -> int:
            return sum(int(colour[i : i + 2], 16) for i in (1, 3, 5))

        for name in ("chat", "code"):
            shades = [brightness(colours[name, config]) for config in ("TP2", "TP4", "TP8")]
            assert shades == sorted(shades, reverse=True)


class TestLinks:
    @pytest.mark.parametrize("base", ["https://mlflow.example.com", "https://mlflow.example.com/"])
    def test_a_run_opens_in_the_mode_that_shows_runs(self, base: str) -> None:
        assert layout.run_url(base, "7", "abc") == (
            "https://mlflow.example.com/#/experiments/7/runs/abc?workflowType=machine_learning"
        )

    def test_a_server_below_a_path_keeps_it(self) -> None:
        assert layout.run_url("https://x.org/ml", "7", "abc", "plots/a b.png") == (
            "https://x.org/ml/#/experiments/7/runs/abc/artifacts/plots/a%20b.png?workflowType=machine_learning"
        )

    def test_an_experiment_opens_in_its_view(self) -> None:
        assert layout.experiment_url("http://m", "7", "plans", charts=True) == (
            "http://m/#/experiments/7/runs?workflowType=machine_learning"
            "&viewStateShareKey=plans&compareRunsMode=CHART"
        )

    def test_a_link_within_mlflow_needs_no_address(self) -> None:
        note = layout.experiment_note("a", layout.PLANS, "8", "9")
        assert "(#/experiments/9/runs?workflowType=machine_learning&viewStateShareKey=measurements)" in note

    def test_a_description_leads_to_the_view_of_its_own_experiment_and_starts_with_plain_words(self) -> None:
        for kind, first in ((layout.PLANS, "Plans of fleet a"), (layout.MEASUREMENTS, "Evidence of fleet a")):
            note = layout.experiment_note("a", kind, "8", "9")
            assert f"(#/experiments/8/runs?workflowType=machine_learning&viewStateShareKey={kind})" in note
            assert note.startswith(first)
            assert "\n" not in note
