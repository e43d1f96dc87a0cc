"""Fleet files: what a good one becomes, and the one clear error of every bad one."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetsieve_airflow.errors import GridError, SpecError
from fleetsieve_airflow.records import ROUNDS_MAX, FleetSpec, PriorSettings
from fleetsieve_airflow.serialization import points_of, spec_digest
from fleetsieve_airflow.spec import load_spec, parse_spec
from fleetsieve_airflow.spec_schema import FleetFile
from tests.builders import PAPER_FLEET, paper_spec

FLEET: dict[str, Any] = {
    "fleet": "team-a",
    "pools": {"h100": {"gpu": "NVIDIA H100", "gpus": 16, "gpus_per_node": 8}},
    "models": {"base": {"revision": "r1"}},
    "engine_configs": {
        "TP2": {"pool": "h100", "tensor_parallel": 2},
        "TP4": {"pool": "h100", "tensor_parallel": 4},
    },
    "workloads": {
        "chat": {
            "model": "base",
            "demand_rps": 12.0,
            "slo": {"ttft_p99_s": 2.0},
            "engine_configs": ["TP2", "TP4"],
        }
    },
    "measurement": {"backend": "replay", "grid": "package:paper_grid.csv"},
}


def fleet(path: str = "", value: Any = None) -> dict[str, Any]:
    """Return the small fleet, with one dotted key path set to a value."""
    data = copy.deepcopy(FLEET)
    *parents, last = path.split(".")
    place = data
    for key in parents:
        place = place.setdefault(key, {})
    if path:
        place[last] = value
    return data


def errors_of(data: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse_spec(data, **kwargs)
    return str(caught.value).splitlines()


def chat(**changes: Any) -> FleetSpec:
    data = fleet()
    data["workloads"]["chat"].update(changes)
    return parse_spec(data)


class TestAGoodFile:
    def test_the_shipped_fleet_has_the_demands_and_limits_of_its_comments(self) -> None:
        spec = paper_spec()
        assert [(w.name, w.demand_rps) for w in spec.workloads] == [("chat", 12.0), ("code", 6.5)]
        assert [limit.name for limit in spec.workload("chat").slo.limits] == ["ttft_p99_s", "e2e_p99_s"]
        assert spec.workload("code").slo.success_rate == 0.99
        assert [config.gpus for config in spec.configs] == [2, 4, 8]
        assert spec.decision.demand_scenarios == (0.7, 1.0, 1.3)
        assert (spec.decision.tolerance, spec.measurement.profiling_gpus) == (0.01, 16)
        assert spec.measurement.reuse_max_age_s == 30 * 86400
        assert all(not candidate.excluded for candidate in spec.candidates)

    def test_the_shipped_fleet_names_every_key_that_a_fleet_file_may_hold(self) -> None:
        text = PAPER_FLEET.read_text()
        schema = FleetFile.model_json_schema(by_alias=True)
        sections = [schema, *schema["$defs"].values()]
        keys = {key for section in sections for key in section.get("properties", {})}
        latencies = {key for key in keys if key.startswith(("ttft_", "tpot_", "e2e_"))}
        explained_elsewhere = {"isl_mean_tokens", "osl_mean_tokens", "digest", "resolution", "path", "format"}
        assert {key for key in keys - latencies - explained_elsewhere if f"{key}:" not in text} == set()

    def test_replay_takes_each_ladder_from_the_grid_when_the_file_gives_none(self) -> None:
        assert parse_spec(fleet()).candidate("chat", "TP4").loads == (2.2, 4.4, 6.6, 11.27)
        assert parse_spec(fleet()).candidate("chat", "TP4").load_kind == "offered_load_rps"

    def test_the_device_of_a_replay_is_the_digest_of_its_grid(self) -> None:
        grid = PAPER_FLEET.parents[2] / "fleetsieve_airflow" / "data" / "paper_grid.csv"
        digest = hashlib.sha256(grid.read_bytes()).hexdigest()
        assert paper_spec().measurement.device == f"replay:{digest[:16]}"
        assert paper_spec().measurement.option("grid") == "package:paper_grid.csv"

    def test_the_same_file_gives_the_same_digest_from_any_folder(self, tmp_path: Path) -> None:
        moved = tmp_path / "elsewhere.yaml"
        moved.write_text(PAPER_FLEET.read_text())
        assert spec_digest(load_spec(moved)) == spec_digest(load_spec(PAPER_FLEET))

    def test_a_demand_scale_moves_every_demand_and_nothing_else(self) -> None:
        scaled = paper_spec(1.3)
        assert [workload.demand_rps for workload in scaled.workloads] == [15.6, 8.45]
        assert scaled.candidates == paper_spec().candidates

    def test_measurement_keys_can_be_replaced_without_editing_the_file(self) -> None:
        spec = load_spec(PAPER_FLEET, measurement={"duration_s": 120, "seed": 7})
        assert (spec.measurement.duration_s, spec.measurement.seed) == (120.0, 7)
        assert spec.measurement.startup_s == 180.0

    def test_relative_paths_start_at_the_folder_of_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "grid.csv").write_text(
            "workload,engine_config,concurrency,served_rps,ttft_p99_s\nchat,TP2,8,3,1\nchat,TP4,8,5,1\n"
        )
        (tmp_path / "trace.jsonl").write_text("{}\n")
        data = fleet("measurement.grid", "grid.csv")
        data["workloads"]["chat"]["trace"] = {"name": "w47", "path": "trace.jsonl", "format": "mooncake"}
        (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(data))
        spec = load_spec(tmp_path / "fleet.yaml")
        assert spec.candidate("chat", "TP2").load_kind == "concurrency"
        assert spec.workload("chat").trace.digest == hashlib.sha256(b"{}\n").hexdigest()
        assert Path(spec.workload("chat").trace.path) == tmp_path / "trace.jsonl"

    def test_engine_arguments_become_text(self) -> None:
        data = fleet(
            "engine_configs.TP4.engine_args", {"max-num-seqs": 256, "enforce-eager": True, "dtype": "fp8"}
        )
        assert parse_spec(data).config("TP4").engine_args == (
            ("max-num-seqs", "256"),
            ("enforce-eager", "true"),
            ("dtype", "fp8"),
        )

    def test_numbers_and_words_are_read_as_yaml_1_2_says(self, tmp_path: Path) -> None:
        text = yaml.safe_dump(fleet()).replace("demand_rps: 12.0", "demand_rps: 1.2e1")
        text = text.replace("revision: r1", "revision: no")
        (tmp_path / "fleet.yaml").write_text(text)
        spec = load_spec(tmp_path / "fleet.yaml")
        assert (spec.workload("chat").demand_rps, spec.model("base").revision) == (12.0, "no")

    @pytest.mark.parametrize(
        ("age", "seconds"), [("45s", 45), ("90m", 5400), ("12h", 43200), ("2w", 1209600)]
    )
    def test_an_age_is_read_in_its_unit(self, age: str, seconds: float) -> None:
        assert parse_spec(fleet("measurement.reuse_max_age", age)).measurement.reuse_max_age_s == seconds


class TestLadders:
    def test_one_config_may_have_a_ladder_of_its_own(self) -> None:
        spec = chat(
            loads={"offered_load_rps": [4.4, 6.6]}, loads_by_config={"TP2": {"offered_load_rps": [2.2]}}
        )
        assert spec.candidate("chat", "TP2").loads == (2.2,)
        assert spec.candidate("chat", "TP4").loads == (4.4, 6.6)

    def test_an_automatic_ladder_holds_the_loads_where_the_replica_count_changes(self) -> None:
        loads = chat(loads={"offered_load_rps": "auto", "from": 1, "to": 15}).candidate("chat", "TP4").loads
        assert {12.0, 6.0, 4.0, 3.0} <= set(loads)
        assert (loads[0], loads[-1]) == (1.0, 15.0)
        assert max(high / low for low, high in pairwise(loads)) <= 1.05**2

    def test_a_load_that_the_decision_asks_about_never_falls_short_by_rounding(self) -> None:
        loads = chat(demand_rps=10.0, loads={"offered_load_rps": "auto", "from": 1, "to": 15})
        assert any(
            load * 7 >= 10.0 and load * 7 < 10.0 * 1.00001 for load in loads.candidate("chat", "TP2").loads
        )

    def test_the_decision_loads_follow_the_scaled_demand_and_the_required_share(self) -> None:
        data = fleet("decision.required_fulfilment", 0.9)
        data["workloads"]["chat"]["loads"] = {
            "offered_load_rps": "auto",
            "from": 1,
            "to": 30,
            "resolution": 0.2,
        }
        loads = parse_spec(data, demand_scale=2.0).candidate("chat", "TP4").loads
        assert {21.6, 10.8, 7.2, 5.4} <= set(loads)

    def test_no_load_is_asked_for_more_replicas_than_fit(self) -> None:
        auto = {"offered_load_rps": "auto", "from": 1, "to": 15, "resolution": 0.2}
        free, bounded = chat(loads=auto), chat(loads=auto, max_replicas=2)
        assert 3.0 in free.candidate("chat", "TP4").loads
        assert 3.0 not in bounded.candidate("chat", "TP4").loads

    def test_an_automatic_ladder_of_concurrency_doubles(self) -> None:
        spec = chat(loads={"concurrency": "auto", "from": 1, "to": 64})
        assert spec.candidate("chat", "TP4").loads == (1, 2, 4, 8, 16, 32, 64)

    @pytest.mark.parametrize(
        ("loads", "said"),
        [
            ({"offered_load_rps": [4, 2]}, "strictly increase"),
            ({"offered_load_rps": [2, 2]}, "strictly increase"),
            ({"offered_load_rps": []}, "list of finite numbers above 0"),
            ({"offered_load_rps": [0, 2]}, "list of finite numbers above 0"),
            ({"offered_load_rps": [1, math.nan]}, "list of finite numbers above 0"),
            ({"offered_load_rps": [10**400]}, "list of finite numbers above 0"),
            ({"offered_load_rps": ["2"]}, "list of finite numbers above 0"),
            ({"offered_load_rps": [1, math.inf]}, "list of finite numbers above 0"),
            ({"offered_load_rps": "automatic"}, "list of finite numbers above 0, or auto"),
            ({"concurrency": [1.5, 2]}, "whole numbers of requests in flight"),
            ({"concurrency": "auto", "from": 1.5, "to": 8}, "whole numbers of requests in flight"),
            ({}, "exactly one of offered_load_rps and concurrency"),
            ({"offered_load_rps": [1], "concurrency": [1]}, "exactly one of"),
            ({"offered_load_rps": "auto", "from": 1}, "'from' and 'to'"),
            ({"offered_load_rps": "auto", "from": 4, "to": 2}, "'from' and 'to' with from < to"),
            ({"offered_load_rps": [1, 2], "to": 2}, "only when the loads are auto"),
            ({"offered_load_rps": "auto", "from": 0.001, "to": 1000, "resolution": 0.01}, "at most 500"),
        ],
    )
    def test_loads_that_make_no_ladder_are_refused(self, loads: dict[str, Any], said: str) -> None:
        lines = errors_of(fleet("workloads.chat.loads", loads))
        assert all(line.startswith("workloads.chat.loads") for line in lines)
        assert said in lines[0]

    def test_a_workload_is_measured_by_one_kind_of_load(self) -> None:
        data = fleet("workloads.chat.loads", {"offered_load_rps": [2.2]})
        data["workloads"]["chat"]["loads_by_config"] = {"TP2": {"concurrency": [8]}}
        assert errors_of(data) == [
            "workloads.chat.engine_configs: mixes concurrency and offered_load_rps. "
            "Give all configs of a workload one kind of load."
        ]

    def test_replay_names_the_configs_that_the_grid_has_when_one_is_missing(self) -> None:
        data = fleet("engine_configs.TP1", {"pool": "h100"})
        data["workloads"]["chat"]["engine_configs"] = ["TP1", "TP2"]
        (line,) = errors_of(data)
        assert "holds TP1" in line
        assert "it has TP2, TP4, TP8" in line


class TestCandidatesThatCannotRun:
    def excluded(self, config: dict[str, Any], model: dict[str, Any] | None = None, **pool: Any) -> str:
        data = fleet("engine_configs.X", {"pool": "h100", **config})
        data["workloads"]["chat"].update(engine_configs=["X", "TP2"], loads={"offered_load_rps": [2.2]})
        data["models"]["base"].update(model or {})
        data["pools"]["h100"].update(pool)
        return parse_spec(data).candidate("chat", "X").excluded

    def test_a_degree_that_does_not_divide_the_heads(self) -> None:
        assert "does not divide the 6 attention heads" in self.excluded(
            {"tensor_parallel": 4}, {"num_attention_heads": 6}
        )

    @pytest.mark.parametrize(("degree", "kv_heads", "runs"), [(4, 8, True), (8, 4, True), (8, 12, False)])
    def test_key_value_heads_are_divided_or_copied(self, degree: int, kv_heads: int, runs: bool) -> None:
        model = {"num_attention_heads": 96, "num_key_value_heads": kv_heads}
        assert (self.excluded({"tensor_parallel": degree}, model) == "") is runs

    def test_weights_that_leave_no_room(self) -> None:
        reason = self.excluded({"tensor_parallel": 1}, {"weights_gib": 120}, gpu_memory_gib=80)
        assert "120 GiB" in reason
        assert "no room for the KV cache" in reason

    def test_data_parallel_ranks_hold_a_copy_each_unless_they_share_experts(self) -> None:
        whole = {"tensor_parallel": 1, "data_parallel": 2}
        assert self.excluded(whole, {"weights_gib": 120}, gpu_memory_gib=80)
        assert not self.excluded({**whole, "expert_parallel": True}, {"weights_gib": 120}, gpu_memory_gib=80)

    def test_a_replica_larger_than_a_node(self) -> None:
        assert "multi_node is off" in self.excluded({"tensor_parallel": 16})
        assert self.excluded({"tensor_parallel": 8, "pipeline_parallel": 2, "multi_node": True}) == ""

    def test_a_replica_over_nodes_takes_whole_nodes(self) -> None:
        assert "whole nodes" in self.excluded({"tensor_parallel": 12, "multi_node": True})

    def test_a_replica_larger_than_what_spare_nodes_leave(self) -> None:
        assert "pool h100 has 8" in self.excluded({"tensor_parallel": 16, "multi_node": True}, spare_nodes=1)

    def test_head_counts_come_from_the_models_own_file(self, tmp_path: Path) -> None:
        nested = {"text_config": {"num_attention_heads": 6, "num_key_value_heads": 2}, "vision_config": {}}
        (tmp_path / "config.json").write_text(json.dumps(nested))
        data = fleet("models.base.config_json", "config.json")
        spec = parse_spec(data, tmp_path)
        assert (spec.model("base").num_attention_heads, spec.model("base").num_key_value_heads) == (6, 2)
        assert "6 attention heads" in spec.candidate("chat", "TP4").excluded
        assert spec.candidate("chat", "TP2").excluded == ""

    @pytest.mark.parametrize(
        ("content", "kv_heads"),
        [
            ({"n_head": 48, "multi_query": True}, 1),
            ({"num_attention_heads": 48}, 48),
            ({"num_attention_heads": 48, "num_kv_heads": 8}, 8),
        ],
    )
    def test_older_files_name_their_heads_otherwise(
        self, tmp_path: Path, content: dict[str, Any], kv_heads: int
    ) -> None:
        (tmp_path / "config.json").write_text(json.dumps(content))
        model = parse_spec(fleet("models.base.config_json", "config.json"), tmp_path).model("base")
        assert (model.num_attention_heads, model.num_key_value_heads) == (48, kv_heads)

    def test_a_workload_whose_candidates_all_cannot_run_is_an_error(self) -> None:
        data = fleet("models.base.num_attention_heads", 7)
        (line,) = errors_of(data)
        assert line.startswith("workloads.chat.engine_configs: holds no candidate that can run.")
        assert "TP2: Tensor-parallel degree 2 does not divide" in line
        assert "TP4: Tensor-parallel degree 4 does not divide" in line


class TestABadFile:
    """One clear line per mistake: key path, what is allowed, the value, the remedy."""

    @pytest.mark.parametrize(
        ("path", "value", "said"),
        [
            ("workloads.chat.demand_rps", 0, "must be above 0, got 0"),
            ("workloads.chat.demand_rps", -3.5, "must be above 0, got -3.5"),
            ("workloads.chat.demand_rps", math.nan, "must be a finite number, got nan"),
            ("workloads.chat.demand_rps", math.inf, "must be a finite number, got inf"),
            ("workloads.chat.demand_rps", "12", "must be a number, got '12'"),
            ("workloads.chat.demand_rps", True, "must be a number, got True"),
            ("workloads.chat.demand_rps", None, "must be a number, got nothing"),
            ("workloads.chat.slo", {}, "must hold at least one limit: success_rate or a percentile"),
            ("workloads.chat.slo.success_rate", 99, "must be at most 1, got 99"),
            ("workloads.chat.slo.ttft_p99_s", 0, "must be above 0, got 0"),
            ("workloads.chat.slo.ttft_p42_s", 2.0, "is not a known key"),
            (
                "workloads.chat.model",
                "bass",
                "must be a known model (base), got 'bass'. Did you mean base?",
            ),
            ("workloads.chat.engine_configs", [], "must not be empty"),
            ("workloads.chat.engine_configs", ["TP2", "TP2"], "must name each entry once, but repeats TP2"),
            ("workloads.chat.max_replicas", 0, "must be at least 1, got 0"),
            ("workloads.chat.min_replicas", -1, "must be at least 0, got -1"),
            ("workloads.chat.demand", 3, "is not a known key"),
            ("pools.h100.gpus", 2.5, "must be a whole number, got 2.5"),
            ("pools.h100.gpus_per_node", 0, "must be at least 1, got 0"),
            ("pools.h100.price_per_gpu_hour", -1, "must be at least 0, got -1"),
            (
                "pools.h100",
                {"gpu": "H100", "gpus": 8, "gpus_per_node": 8, "spare_nodes": 1},
                "keep all 8 free",
            ),
            ("pools.h100", "16", "must be a mapping, got '16'"),
            ("pools", {}, "must not be empty"),
            ("engine_configs.TP4.pool", "h200", "must be a known pool (h100), got 'h200'"),
            ("engine_configs.TP4.tensor_parallel", 0, "must be at least 1, got 0"),
            ("engine_configs.TP4.expert_parallel", "yes", "must be true or false, got 'yes'"),
            ("engine_configs.TP4.engine_args.seed", math.nan, "must be finite, got nan"),
            ("engine_configs.TP4.engine_args.seed", [1], "must be text, a number, true or false"),
            ("engine_configs.TP4.engine_args", {"--seed": 1}, "without leading dashes"),
            ("models.base.revision", 1.0, "must be text (put it in quotes), got 1.0"),
            ("models.base.revision", "", "must not be empty"),
            ("models.base.config_json", "nowhere.json", "must be a readable JSON file"),
            (
                "decision.objective",
                "max_min",
                "must be 'max_min_fulfilment', 'fewest_gpus' or 'lowest_cost', got 'max_min'",
            ),
            ("decision.tolerance", -0.1, "must be at least 0, got -0.1"),
            ("decision.tolerance", math.nan, "must be a finite number, got nan"),
            ("decision.confidence", 0.5, "must be above 0.5, got 0.5"),
            ("decision.confidence", 1, "must be below 1, got 1"),
            ("decision.required_fulfilment", 1.2, "must be at most 1, got 1.2"),
            ("decision.stop_on", "never", "must be 'regret' or 'gap', got 'never'"),
            ("decision.certify_on", ["ladder"], "must be one of measured, monotone"),
            (
                "decision.certify_on",
                ["measured", "interior_peak"],
                "names interior_peak, which is not assumed",
            ),
            ("decision.demand_scenarios", [0.7, -1], "must be above 0, got -1"),
            ("decision.run_to_run_cv", 1.5, "must be below 1, got 1.5"),
            ("measurement.backend", "replai", "must be one of replay"),
            ("measurement.duration_s", 0, "must be above 0, got 0"),
            ("measurement.seed", -1, "must be at least 0, got -1"),
            ("measurement.reuse_max_age", "soon", "must be a length of time such as '12h' or '30d'"),
            ("measurement.reuse_max_age", 30, "must be a length of time such as '12h' or '30d'"),
            (
                "measurement.profiling_gpus",
                2,
                "must hold one replica of every candidate, too few for chat TP4",
            ),
            ("measurement.grid", None, "is missing, and replay reads from it"),
            ("budget.rounds", 0, "must be at least 1, got 0"),
            ("budget.gpu_seconds", math.inf, "must be a finite number, got inf"),
            ("fleet", "", "must be 1 to 63 letters"),
        ],
    )
    def test_a_wrong_value_is_named_with_its_place_and_remedy(self, path: str, value: Any, said: str) -> None:
        (line,) = errors_of(fleet(path, value))
        assert line.startswith(path.rpartition(".")[0])
        assert said in line
        assert line.endswith((".", "?"))

    @pytest.mark.parametrize(
        "name", ["a/b", "", "-a", "chat room", "a" * 64, "a..b", "a@b", "a{b}", "naïve", "a:b", "x\ny"]
    )
    @pytest.mark.parametrize("section", ["pools", "models", "engine_configs", "workloads"])
    def test_a_name_that_mlflow_or_airflow_refuse_is_refused(self, section: str, name: str) -> None:
        data = fleet()
        data[section][name] = next(iter(data[section].values()))
        (line,) = errors_of(data)
        assert line.startswith(f"{section}.")
        assert "MLflow or Airflow would refuse it" in line

    @pytest.mark.parametrize("key", ["fleet", "pools", "models", "engine_configs", "workloads"])
    def test_a_missing_section_is_named(self, key: str) -> None:
        data = fleet()
        del data[key]
        lines = errors_of(data)
        assert any(
            line.startswith((f"{key}: is missing. Give", f"{key}: is missing. Name")) for line in lines
        )

    def test_everything_that_is_wrong_is_said_at_once(self) -> None:
        data = fleet("workloads.chat.demand_rps", 0)
        data["workloads"]["chat"]["engine_configs"] = ["TP2", "TP9"]
        data["decision"] = {"tolerance": -1}
        data["engine_configs"]["TP4"]["pool"] = "h200"
        data["colour"] = "red"
        starts = sorted(line.partition(":")[0] for line in errors_of(data))
        assert starts == [
            "colour",
            "decision.tolerance",
            "engine_configs.TP4.pool",
            "workloads.chat.demand_rps",
            "workloads.chat.engine_configs[1]",
        ]

    def test_a_key_close_to_a_known_one_is_suggested(self) -> None:
        (line,) = errors_of(fleet("measurement.duration", 300))
        assert line.endswith("Did you mean duration_s?")

    def test_fewest_replicas_that_no_pool_holds_are_refused(self) -> None:
        (line,) = errors_of(fleet("workloads.chat.min_replicas", 9))
        assert "at least 18 GPUs, the pools have 16" in line

    def test_a_cost_limit_needs_prices(self) -> None:
        (line,) = errors_of(fleet("decision.cost_per_hour_max", 10))
        assert line.startswith(
            "pools.h100.price_per_gpu_hour: is missing, and decision.cost_per_hour_max needs it."
        )

    def test_a_demand_scale_must_be_a_factor(self) -> None:
        for scale in (0.0, -1.0, math.nan, math.inf):
            assert errors_of(fleet(), demand_scale=scale)[0].startswith("demand_scale: must be above 0")

    def test_head_counts_that_disagree_with_the_models_file_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"num_attention_heads": 32}')
        data = fleet("models.base.config_json", "config.json")
        data["models"]["base"]["num_attention_heads"] = 16
        (line,) = errors_of(data, base_dir=tmp_path)
        assert line.startswith(
            "models.base.num_attention_heads: must agree with config_json, which says 32, got 16"
        )

    def test_a_config_file_without_heads_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("[]")
        (line,) = errors_of(fleet("models.base.config_json", "config.json"), base_dir=tmp_path)
        assert "must hold num_attention_heads" in line

    def test_a_trace_that_is_not_here_needs_its_digest(self) -> None:
        data = fleet("workloads.chat.trace", {"path": "/gpu-node/trace.jsonl"})
        (line,) = errors_of(data)
        assert line.startswith(
            "workloads.chat.trace.path: must be readable here, or be given with its digest"
        )
        data["workloads"]["chat"]["trace"]["digest"] = "ab" * 32
        assert parse_spec(data).workload("chat").trace.path == "/gpu-node/trace.jsonl"

    def test_a_trace_that_is_not_the_one_of_its_digest_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "trace.csv").write_text("other")
        data = fleet("workloads.chat.trace", {"path": "trace.csv", "digest": "ab" * 32})
        (line,) = errors_of(data, base_dir=tmp_path)
        assert "must be the file's SHA-256" in line

    def test_a_grid_is_for_replay_only(self) -> None:
        data = fleet("measurement.backend", "simulate")
        data["workloads"]["chat"]["loads"] = {"offered_load_rps": [2]}
        (line,) = errors_of(data)
        assert line.startswith("measurement.grid: is read by replay only, got 'package:paper_grid.csv'")

    def test_only_replay_can_do_without_loads(self) -> None:
        (line,) = errors_of(fleet("measurement", {"backend": "simulate"}))
        assert line.startswith("workloads.chat.loads: is missing. Give loads, e.g. {offered_load_rps: [2")

    def test_other_loads_for_a_config_that_the_workload_does_not_use_are_refused(self) -> None:
        data = fleet("workloads.chat.loads_by_config", {"TP44": {"offered_load_rps": [2]}})
        (line,) = errors_of(data)
        assert line.startswith("workloads.chat.loads_by_config.TP44: must be a known engine config")

    def test_a_grid_that_is_not_there_is_named(self) -> None:
        with pytest.raises(GridError, match=r"nowhere\.csv: no such grid file"):
            parse_spec(fleet("measurement.grid", "nowhere.csv"))
        with pytest.raises(GridError, match=r"it has paper_grid\.csv"):
            parse_spec(fleet("measurement.grid", "package:other.csv"))

    @pytest.mark.parametrize("data", [None, [], "fleet", 3])
    def test_what_is_no_mapping_is_no_fleet(self, data: Any) -> None:
        assert errors_of(data)[0].startswith("the fleet file: must be a mapping")


class TestABadYamlFile:
    def load(self, tmp_path: Path, text: str) -> list[str]:
        file = tmp_path / "fleet.yaml"
        file.write_text(text)
        with pytest.raises(SpecError) as caught:
            load_spec(file)
        return str(caught.value).replace(str(file), "fleet.yaml").splitlines()

    def test_a_problem_names_file_and_line(self, tmp_path: Path) -> None:
        text = PAPER_FLEET.read_text().replace("demand_rps: 6.5", "demand_rps: 0")
        number = next(i for i, line in enumerate(text.splitlines(), 1) if "demand_rps: 0" in line)
        assert self.load(tmp_path, text) == [
            f"workloads.code.demand_rps (fleet.yaml line {number}): must be above 0, got 0. "
            "Give the rate that the fleet must serve, in requests per second."
        ]

    def test_a_workload_name_given_twice_is_refused_with_its_line(self, tmp_path: Path) -> None:
        text = PAPER_FLEET.read_text().replace("  code:\n    model", "  chat:\n    model")
        number = [i for i, line in enumerate(text.splitlines(), 1) if line.startswith("  chat:")][1]
        assert self.load(tmp_path, text) == [
            f"workloads.chat (fleet.yaml line {number}): is given twice. "
            "Keep one, or give the second another name."
        ]

    def test_problems_are_listed_in_the_order_of_the_file(self, tmp_path: Path) -> None:
        text = PAPER_FLEET.read_text().replace("tolerance: 0.01", "tolerance: -1")
        text = text.replace("    gpus: 16 ", "    gpus: 0 ").replace(
            "  code:\n    model", "  chat:\n    model"
        )
        starts = [line.partition(" ")[0] for line in self.load(tmp_path, text)]
        assert starts == ["pools.h100.gpus", "workloads.chat", "decision.tolerance"]

    def test_text_that_is_no_yaml_is_refused_with_its_line(self, tmp_path: Path) -> None:
        (line, *_) = self.load(tmp_path, "fleet: a\npools: {h100: [\n")
        assert line.startswith("fleet.yaml, line 3")
        assert "is not valid YAML" in line

    def test_a_missing_key_points_at_the_mapping_that_lacks_it(self, tmp_path: Path) -> None:
        text = "fleet: a\npools:\n  h100: {gpu: H100, gpus: 8}\n"
        lines = self.load(tmp_path, text)
        assert any(
            line.startswith("pools.h100.gpus_per_node (fleet.yaml line 3): is missing.") for line in lines
        )

    @pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n"])
    def test_an_empty_file_or_a_list_is_refused(self, tmp_path: Path, text: str) -> None:
        assert "must be a mapping" in self.load(tmp_path, text)[0]

    @pytest.mark.parametrize(
        "text", ["a: &x [*x]\n", "a: 1\n---\nb: 2\n", "{[1]: 2}", "!!python/object:os.system {}"]
    )
    def test_odd_yaml_is_refused_without_a_traceback(self, tmp_path: Path, text: str) -> None:
        assert self.load(tmp_path, text)

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=r"none\.yaml: cannot be read"):
            load_spec(tmp_path / "none.yaml")


def test_a_fleet_without_a_limit_of_rounds_still_ends_and_null_takes_the_limit_away() -> None:
    assert parse_spec(FLEET).budget.rounds == ROUNDS_MAX
    assert parse_spec({**FLEET, "budget": {"rounds": None}}).budget.rounds is None


class TestPrior:
    """What may steer the first measurements."""

    def test_by_default_an_earlier_release_steers_and_a_simulator_does_not(self) -> None:
        assert parse_spec(fleet()).prior == PriorSettings(earlier_release=True, simulator="", widening=0.15)

    @pytest.mark.parametrize(
        ("said", "tables"),
        [(False, ""), (True, "roofline"), ({}, "roofline"), ({"tables": "aiconfigurator"}, "aiconfigurator")],
    )
    def test_the_simulator_is_switched_on_or_named(self, said: Any, tables: str) -> None:
        assert parse_spec(fleet("prior.simulator", said)).prior.simulator == tables

    @pytest.mark.parametrize(
        ("path", "value", "start"),
        [
            ("prior.simulator", "yes", "prior.simulator: must be a mapping"),
            ("prior.simulator", {"tables": "mine"}, "prior.simulator.tables: must be 'roofline' or"),
            ("prior.earlier_release", "r1", "prior.earlier_release: must be true or false"),
            ("prior.widening", 1.0, "prior.widening: must be below 1"),
            ("prior.earlier", True, "prior.earlier: is not a known key"),
        ],
    )
    def test_anything_else_is_refused(self, path: str, value: Any, start: str) -> None:
        (line,) = errors_of(fleet(path, value))
        assert line.startswith(start)


class TestRevisions:
    """A release plans the same file with another revision of a model."""

    def at(self, tmp_path: Path, revisions: dict[str, str], **changes: Any) -> FleetSpec:
        data = fleet()
        data["models"]["base"] |= changes
        (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(data))
        return load_spec(tmp_path / "fleet.yaml", revisions=revisions)

    def test_a_revision_replaces_the_files_and_makes_other_points(self, tmp_path: Path) -> None:
        before, after = self.at(tmp_path, {}), self.at(tmp_path, {"base": "v7"})
        assert after.model("base").revision == "v7"
        keys = [{point.key for point in points_of(spec, spec.candidates[0])} for spec in (before, after)]
        assert not keys[0] & keys[1]
        assert replace(after, models=before.models) == before

    def test_the_revision_says_where_the_weights_are(self, tmp_path: Path) -> None:
        source = "/models/base/{revision}/weights"
        assert (
            self.at(tmp_path, {"base": "v7"}, source=source).model("base").source == "/models/base/v7/weights"
        )

    def test_a_model_that_the_file_does_not_have_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(
            SpecError, match=r"revisions.bass .*: must be a known model \(base\).* mean base\?"
        ):
            self.at(tmp_path, {"bass": "v7"})

    def test_real_servers_must_not_load_the_weights_of_another_revision(self, tmp_path: Path) -> None:
        data = fleet("models.base.source", "org/base")
        data["measurement"] = {"backend": "slurm"}
        (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(data))
        with pytest.raises(SpecError, match=r"models.base.source .*must hold \{revision\}.*/models/base/"):
            load_spec(tmp_path / "fleet.yaml", revisions={"base": "v7"})

    def test_a_model_may_have_another_name_in_the_registry(self, tmp_path: Path) -> None:
        assert self.at(tmp_path, {}).model("base").registered_model == ""
        named = self.at(tmp_path, {}, registered_model="Base 31B")
        assert named.model("base").registered_model == "Base 31B"
