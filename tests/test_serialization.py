"""The written form: what is written is read back, nothing else is, and keys tell points apart."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsieve_airflow.errors import EvidenceError
from fleetsieve_airflow.evidence import (
    Allocation,
    Bound,
    CapacityInterval,
    Decision,
    Evidence,
    EvidenceItem,
    Measurement,
    MissShare,
    Plan,
    PlannedPoint,
    PriorCapacity,
    PriorLoad,
    Scenario,
    SkippedPoint,
    Spend,
    TailInterval,
)
from fleetsieve_airflow.records import EngineConfig, EngineGroup, FleetSpec, Trace
from fleetsieve_airflow.serialization import (
    canonical_json,
    from_document,
    from_plain,
    point_of,
    points_of,
    portable_spec,
    profile_digest,
    sha256,
    spec_digest,
    to_document,
    to_plain,
)
from tests.builders import (
    make_evidence,
    make_failure,
    make_measurement,
    make_point,
    make_slo,
    make_spec,
    paper_spec,
)

PLAN = Plan(
    allocations=(Allocation(workload="chat", config="TP4", replicas=2, gpus=8, capacity_rps=6.6),),
    fulfilment=(("chat", 1.0),),
    min_fulfilment=1.0,
    served_rps=12.0,
    gpus=8,
    cost_per_hour=None,
    value=1.0,
    solver="dp",
    solver_status="optimal",
)
INTERVAL = CapacityInterval(
    workload="chat",
    config="TP4",
    lower=Bound(value_rps=6.6, source="measured", evidence=("ab",)),
    upper=Bound(value_rps=None, source="none"),
    operating_load=6.6,
    contradiction=(4.4, 6.6),
    tails=(TailInterval(load=6.6, metric="ttft_p99_s", lower_s=0.9, upper_s=None, source="measured"),),
)
SPEND = Spend(
    gpu_seconds_window=1.0,
    gpu_seconds_billed=2.0,
    points_measured=1,
    points_reused=0,
    points_all=24,
    gpu_seconds_window_all=9.0,
)
DECISION = Decision(
    state="measure",
    round=1,
    reason="why",
    intervals=(INTERVAL,),
    conservative=PLAN,
    optimistic=PLAN,
    gap=0.5,
    regret=0.25,
    points=(
        PlannedPoint(
            point=make_point(),
            reason="may settle it",
            probability_met=0.5,
            expected_fall_per_gpu_second=0.1,
            gpu_seconds_billed=1200.0,
            job=0,
        ),
    ),
    skipped=(
        SkippedPoint(workload="chat", config="TP8", load=2.0, reason="implied", gpu_seconds_window=2400.0),
    ),
    warnings=("look",),
    spend=SPEND,
    scenarios=(Scenario(demand_scale=1.3, min_fulfilment=0.8, lost_rps=1.0),),
)
MEASUREMENT = make_measurement(
    sent=100,
    failed=1,
    miss_shares=(MissShare(limit="ttft_p99_s", limit_s=2.0, share=0.01),),
    refused="out of memory",
    curtailed=True,
    versions=(("vllm", "0.11"),),
)
RECORDS = [
    make_spec(price_per_gpu_hour=2.5, excluded={"chat TP8": "too large"}, budget={"rounds": 3}),
    paper_spec(),
    EngineConfig(
        label="P2D8",
        prefill=EngineGroup(pool="h200", tensor_parallel=2, engine_args=(("max-num-seqs", "8"),)),
        decode=EngineGroup(pool="h100", engines=2, tensor_parallel=4),
    ),
    make_point(),
    MEASUREMENT,
    make_evidence(MEASUREMENT, failures=[make_failure(make_point(load=12.0))]),
    Evidence(
        priors=(
            PriorCapacity(workload="chat", config="TP4", source="simulator", lower_rps=1.0, upper_rps=2.0),
            PriorCapacity(
                workload="chat",
                config="TP8",
                source="earlier_release",
                lower_rps=1.0,
                upper_rps=None,
                loads=(PriorLoad(load=2.0, margin=-0.5, rate_rps=2.0),),
            ),
        )
    ),
    EvidenceItem(measurement=MEASUREMENT, round=0, reused=True, run_id="r", measured_at="2026-11-30"),
    make_failure(make_point()),
    INTERVAL,
    PLAN,
    SPEND,
    DECISION,
]


class TestRoundTrip:
    @pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
    def test_a_document_is_read_back_as_the_same_record(self, record: Any) -> None:
        text = json.dumps(to_document(record), allow_nan=False)
        assert from_document(type(record), json.loads(text)) == record

    def test_every_kind_of_record_is_tried(self) -> None:
        from fleetsieve_airflow import evidence, records

        seen: set[type] = set()

        def collect(value: Any) -> None:
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                seen.add(type(value))
                for field in dataclasses.fields(value):
                    collect(getattr(value, field.name))
            elif isinstance(value, tuple):
                for item in value:
                    collect(item)

        for record in RECORDS:
            collect(record)
        known = {
            kind
            for module in (records, evidence)
            for kind in vars(module).values()
            if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        }
        assert known - seen == set()

    @given(st.floats(allow_nan=False, allow_infinity=False, min_value=0.0))
    def test_no_digit_of_a_number_is_lost(self, served_rps: float) -> None:
        measurement = make_measurement(served_rps=served_rps)
        assert from_plain(Measurement, json.loads(canonical_json(to_plain(measurement)))) == measurement


class TestWhatCannotBeRead:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"schema_version": 2}, "schema version 1, got 'EngineConfig' of version 2"),
            ({"kind": "Pool"}, "Expected a EngineConfig document of schema version 1, got 'Pool'"),
            ({"colour": "red"}, "unknown fields: colour"),
            ({"label": None}, "EngineConfig.label must be of type str"),
            ({"tensor_parallel": True}, "must be a whole number"),
            ({"tensor_parallel": "4"}, "must be of type int"),
            ({"tensor_parallel": 0}, "degrees must be at least 1"),
            ({"engine_args": "none"}, "must be a list"),
            ({"engine_args": [["a", "b", "c"]]}, "must hold 2 values, got 3"),
        ],
    )
    def test_an_odd_document_is_refused_with_the_field(self, changes: dict[str, Any], said: str) -> None:
        document = {**to_document(EngineConfig(label="TP4", pool="h100")), **changes}
        with pytest.raises(EvidenceError) as caught:
            from_document(EngineConfig, document)
        assert said in str(caught.value)

    def test_a_missing_field_is_named(self) -> None:
        document = to_document(EngineConfig(label="TP4", pool="h100"))
        del document["label"]
        with pytest.raises(EvidenceError, match="lacks fields: label"):
            from_document(EngineConfig, document)

    def test_a_word_outside_its_vocabulary_is_refused(self) -> None:
        document = to_document(INTERVAL)
        document["lower"]["source"] = "guessed"
        with pytest.raises(EvidenceError, match="must be one of measured"):
            from_document(CapacityInterval, document)

    @pytest.mark.parametrize("document", [None, [], "text", 3])
    def test_what_is_no_document_is_refused(self, document: Any) -> None:
        with pytest.raises(EvidenceError, match="Expected a Decision document"):
            from_document(Decision, document)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_infinity_is_never_written(self, value: float) -> None:
        with pytest.raises(EvidenceError, match="JSON cannot hold"):
            to_plain((1.0, value))
        with pytest.raises(ValueError, match="not JSON compliant"):
            canonical_json(value)


class TestDigests:
    def test_canonical_json_has_one_text_per_value(self) -> None:
        assert canonical_json({"b": [1.50, None], "a": "é"}) == '{"a":"é","b":[1.5,null]}'
        assert sha256({"b": 1, "a": 2}) == sha256({"a": 2, "b": 1})

    def test_a_spec_digest_follows_everything_the_spec_says(self) -> None:
        assert spec_digest(make_spec()) == spec_digest(make_spec())
        assert spec_digest(make_spec()) != spec_digest(make_spec(demand={"chat": 12.1}))

    def test_a_spec_digest_does_not_follow_the_folders_of_files_whose_content_is_known(self) -> None:
        def at(folder: str, digest: str) -> FleetSpec:
            trace = Trace(name="chat", path=f"{folder}/chat.csv", digest=digest)
            spec = _changed("workloads", trace=trace)
            grid = dataclasses.replace(spec.measurement, options=(("grid", f"{folder}/grid.csv"),))
            return dataclasses.replace(spec, measurement=grid)

        assert spec_digest(at("/here", "d1")) == spec_digest(at("/there", "d1"))
        assert spec_digest(at("/here", "d1")) != spec_digest(at("/here", "d2"))
        assert "/here" not in canonical_json(to_plain(portable_spec(at("/here", "d1"))))


def _key(spec: FleetSpec, load: float = 8.0, repeat: int = 0) -> str:
    return point_of(spec, spec.candidate("chat", "TP4"), load, repeat).key


def _changed(field: str, **changes: Any) -> FleetSpec:
    """Return the default fleet with fields of every record of one kind changed."""
    spec = make_spec()
    return dataclasses.replace(
        spec, **{field: tuple(dataclasses.replace(item, **changes) for item in getattr(spec, field))}
    )


def _in_pool(name: str) -> FleetSpec:
    """Return the default fleet in a pool of another name but of the same GPUs."""
    renamed = _changed("pools", name=name)
    return dataclasses.replace(renamed, configs=_changed("configs", pool=name).configs)


class TestPointKeys:
    @pytest.mark.parametrize(
        "spec",
        [
            make_spec(demand={"chat": 99.0}),
            make_spec(slo=make_slo(0.5)),
            make_spec(gpus=64, budget={"rounds": 1}, decision={"tolerance": 0.5}),
            make_spec(loads=(8.0, 9.0)),
            dataclasses.replace(make_spec(), fleet="another"),
            _changed("workloads", trace=Trace(name="chat", path="/elsewhere")),
        ],
    )
    def test_what_does_not_change_the_outcome_leaves_the_key(self, spec: FleetSpec) -> None:
        assert _key(spec) == _key(make_spec())

    @pytest.mark.parametrize(
        "spec",
        [
            _in_pool("h200"),
            _changed("models", revision="r2"),
            _changed("models", source="elsewhere"),
            _changed("pools", gpu="H200"),
            _changed("pools", driver="580"),
            _changed("configs", engine_version="0.12"),
            _changed("configs", engine_args=(("max-num-seqs", "64"),)),
            _changed("configs", pipeline_parallel=2),
            _changed("configs", expert_parallel=True),
            _changed("workloads", trace=Trace(name="chat", digest="other")),
            make_spec(measurement={"device": "live"}),
            make_spec(measurement={"duration_s": 60.0}),
            make_spec(measurement={"seed": 1}),
        ],
    )
    def test_what_can_change_the_outcome_changes_the_key(self, spec: FleetSpec) -> None:
        assert _key(spec) != _key(make_spec())

    def test_the_order_of_engine_arguments_does_not_matter(self) -> None:
        one = _changed("configs", engine_args=(("a", "1"), ("b", "2")))
        other = _changed("configs", engine_args=(("b", "2"), ("a", "1")))
        assert _key(one) == _key(other)

    def test_all_points_of_a_candidate_have_different_keys(self) -> None:
        spec = make_spec()
        keys = [point.key for candidate in spec.candidates for point in points_of(spec, candidate, repeats=3)]
        assert len(set(keys)) == len(keys) == 3 * 4 * 3
        assert all(len(key) == 32 for key in keys)

    def test_one_point_is_the_same_alone_and_among_all(self) -> None:
        spec = make_spec()
        candidate = spec.candidate("chat", "TP4")
        assert points_of(spec, candidate, repeats=2)[3] == point_of(spec, candidate, 4.0, repeat=1)
        assert point_of(spec, candidate, 4.0).profile == profile_digest(spec, candidate)

    def test_a_load_off_the_ladder_is_no_point(self) -> None:
        with pytest.raises(EvidenceError, match=r"load 3\.0 is not on its ladder"):
            _key(make_spec(), load=3.0)
