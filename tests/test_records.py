"""Records refuse on construction what no later step could mend."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from fleetsieve_airflow.errors import RecordError
from fleetsieve_airflow.evidence import Evidence, EvidenceItem
from fleetsieve_airflow.records import Candidate, EngineConfig, LatencyLimit, Pool, Slo, Trace, Workload
from tests.builders import make_measurement, make_point, make_slo, make_spec

NOT_FINITE = (math.nan, math.inf, -math.inf)


def make_pool(**fields: Any) -> Pool:
    return Pool(**{"name": "h100", "gpu": "H100", "gpus": 16, "gpus_per_node": 8, **fields})


def make_candidate(**fields: Any) -> Candidate:
    known = {"workload": "chat", "config": "TP4", "load_kind": "offered_load_rps", "loads": (1.0, 2.0)}
    return Candidate(**{**known, **fields})


class TestLatencyLimit:
    def test_its_name_is_the_key_of_the_spec(self) -> None:
        assert LatencyLimit(metric="ttft", percentile=99, limit_s=2.0).name == "ttft_p99_s"

    @pytest.mark.parametrize(("percentile", "share"), [(50, 0.5), (90, 0.1), (95, 0.05), (99, 0.01)])
    def test_it_allows_the_share_above_its_percentile_to_miss(self, percentile: int, share: float) -> None:
        assert LatencyLimit(metric="e2e", percentile=percentile, limit_s=1.0).allowed_miss_share == share

    @pytest.mark.parametrize(("metric", "percentile"), [("itl", 99), ("ttft", 42)])
    def test_an_unknown_percentile_is_refused_with_the_known_ones(self, metric: str, percentile: int) -> None:
        with pytest.raises(RecordError, match=f"{metric}_p{percentile}_s.*allowed: ttft_p50_s"):
            LatencyLimit(metric=metric, percentile=percentile, limit_s=1.0)

    @pytest.mark.parametrize("limit_s", [0.0, -1.0, *NOT_FINITE])
    def test_a_limit_is_a_positive_time(self, limit_s: float) -> None:
        with pytest.raises(RecordError, match="ttft_p99_s must be"):
            LatencyLimit(metric="ttft", percentile=99, limit_s=limit_s)


class TestSlo:
    def test_it_limits_something(self) -> None:
        with pytest.raises(RecordError, match="at least one limit"):
            Slo()

    @pytest.mark.parametrize("success_rate", [0.0, -0.5, 1.01, *NOT_FINITE])
    def test_a_success_rate_is_a_share(self, success_rate: float) -> None:
        with pytest.raises(RecordError, match="success_rate must be"):
            Slo(success_rate=success_rate)

    def test_it_names_each_limit_once(self) -> None:
        limit = LatencyLimit(metric="ttft", percentile=99, limit_s=1.0)
        with pytest.raises(RecordError, match="each limit once"):
            Slo(limits=(limit, dataclasses.replace(limit, limit_s=2.0)))


class TestPool:
    def test_spare_nodes_are_kept_out_of_the_plan(self) -> None:
        assert make_pool(gpus=32, spare_nodes=1).usable_gpus == 24

    @pytest.mark.parametrize(
        "fields",
        [
            {"gpus": 0},
            {"gpus_per_node": 0},
            {"spare_nodes": 2},
            {"spare_nodes": -1},
            {"price_per_gpu_hour": -1},
        ],
    )
    def test_a_pool_that_holds_nothing_is_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(RecordError, match="h100"):
            make_pool(**fields)


class TestEngineConfig:
    def test_a_replica_holds_the_product_of_its_degrees(self) -> None:
        config = EngineConfig(label="x", pool="h100", tensor_parallel=4, pipeline_parallel=2, data_parallel=2)
        assert config.gpus == 16

    def test_a_degree_below_one_is_refused(self) -> None:
        with pytest.raises(RecordError, match="degrees must be at least 1"):
            EngineConfig(label="x", pool="h100", tensor_parallel=0)


class TestWorkload:
    @pytest.mark.parametrize("demand_rps", [0.0, -1.0, *NOT_FINITE])
    def test_a_demand_is_a_positive_rate(self, demand_rps: float) -> None:
        with pytest.raises(RecordError, match="workload 'chat' demand_rps must be"):
            Workload(name="chat", model="m", demand_rps=demand_rps, slo=make_slo(), trace=Trace(name="t"))

    @pytest.mark.parametrize(("least", "most"), [(-1, None), (3, 2), (0, 0)])
    def test_replica_limits_that_leave_no_choice_are_refused(self, least: int, most: int | None) -> None:
        with pytest.raises(RecordError, match="leave no choice"):
            Workload(
                name="chat",
                model="m",
                demand_rps=1.0,
                slo=make_slo(),
                trace=Trace(name="t"),
                min_replicas=least,
                max_replicas=most,
            )


class TestCandidate:
    @pytest.mark.parametrize(
        ("loads", "said"),
        [
            ((), "at least one load"),
            ((2.0, 1.0), "strictly increase"),
            ((1.0, 1.0), "strictly increase"),
            ((0.0, 1.0), "greater than 0"),
            ((1.0, math.inf), "finite"),
            ((math.nan,), "finite"),
        ],
    )
    def test_loads_that_are_no_ladder_are_refused(self, loads: tuple[float, ...], said: str) -> None:
        with pytest.raises(RecordError, match=f"(?i)candidate chat TP4.*{said}"):
            make_candidate(loads=loads)

    def test_an_unknown_kind_of_load_is_refused(self) -> None:
        with pytest.raises(RecordError, match="load_kind 'users'"):
            make_candidate(load_kind="users")


class TestFleetSpec:
    def test_things_are_found_by_name(self) -> None:
        spec = make_spec()
        assert spec.pool("h100").gpus == 16
        assert spec.model("base").revision == "r1"
        assert spec.config("TP4").gpus == 4
        assert spec.workload("chat").demand_rps == 12.0
        assert spec.candidate("chat", "TP8").label == "chat TP8"

    @pytest.mark.parametrize("kind", ["pool", "model", "config", "workload"])
    def test_an_unknown_name_is_refused_with_the_known_ones(self, kind: str) -> None:
        with pytest.raises(RecordError, match=r"Unknown .* 'nope'; known: "):
            getattr(make_spec(), kind)("nope")

    @pytest.mark.parametrize("field", ["pools", "models", "configs", "workloads", "candidates"])
    def test_a_name_given_twice_is_refused(self, field: str) -> None:
        spec = make_spec()
        with pytest.raises(RecordError, match="Duplicate"):
            dataclasses.replace(spec, **{field: getattr(spec, field) * 2})

    def test_excluded_candidates_are_left_out_of_those_that_can_run(self) -> None:
        spec = make_spec(excluded={"chat TP8": "too large"})
        assert [candidate.config for candidate in spec.candidates_of("chat")] == ["TP2", "TP4"]


class TestPointsAndMeasurements:
    def test_a_point_says_its_load_with_its_unit(self) -> None:
        assert make_point(load=8.0).label == "chat TP4 8 req/s"
        users = make_spec(load_kind="concurrency", loads=(8, 32))
        assert make_point(users, load=32.0, repeat=1).label == "chat TP4 32 users seed 1"

    def test_a_window_costs_every_gpu_of_the_replica(self) -> None:
        assert make_point(config="TP8").gpu_seconds_window == 8 * 300.0

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"served_rps": math.nan}, "served_rps"),
            ({"served_rps": -1.0}, "served_rps"),
            ({"success_rate": 1.5}, r"success_rate must be in \[0, 1\]"),
            ({"sent": 10, "failed": 11}, "cannot be counts"),
            ({"sent": -1}, "cannot be counts"),
            ({"percentiles": {"ttft_p42_s": 1.0}}, "unknown percentile 'ttft_p42_s'"),
            ({"percentiles": {"ttft_p99_s": math.inf}}, "ttft_p99_s must be a finite number"),
            ({"gpu_seconds_billed": -1.0}, "gpu_seconds_billed"),
        ],
    )
    def test_numbers_that_cannot_be_measured_are_refused(self, fields: dict[str, Any], said: str) -> None:
        with pytest.raises(RecordError, match=f"chat TP4 8 req/s.*{said}"):
            make_measurement(**fields)

    def test_a_percentile_that_was_not_recorded_is_none(self) -> None:
        assert make_measurement().percentile("ttft_p99_s") == 1.0
        assert make_measurement().percentile("e2e_p99_s") is None

    def test_evidence_holds_a_point_once(self) -> None:
        item = EvidenceItem(measurement=make_measurement(), round=1)
        with pytest.raises(RecordError, match="holds a point twice"):
            Evidence(items=(item, dataclasses.replace(item, round=2)))

    def test_a_repeat_is_a_point_of_its_own(self) -> None:
        items = tuple(EvidenceItem(measurement=make_measurement(repeat=repeat), round=1) for repeat in (0, 1))
        assert len(Evidence(items=items).items) == 2

    def test_records_cannot_be_changed(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            make_measurement().served_rps = 3.0  # type: ignore[misc]
