"""Certificates: self-contained, reproducible, and hard to change unnoticed."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.backends.replay import ReplayBackend
from fleetsieve_airflow.campaign import replay_campaign, run_campaign
from fleetsieve_airflow.core.certificate import (
    CIRCUMSTANCES,
    assumptions_of,
    build_certificate,
    certificate_digest,
    evidence_from,
    verify_certificate,
)
from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.errors import CertificateError, EvidenceError
from fleetsieve_airflow.evidence import Evidence, PriorCapacity
from fleetsieve_airflow.serialization import canonical_json, sha256
from tests.builders import make_evidence, make_failure, make_measurement, make_point, make_spec, paper_spec
from tests.core.worlds import TrueServer, servers

Document = dict[str, Any]


@pytest.fixture(scope="module")
def issued() -> Document:
    """The certificate of the paper's fleet at 1.0x."""
    return run_campaign(paper_spec(), ReplayBackend(), campaign_id="c1").certificate


@pytest.fixture
def document(issued: Document) -> Document:
    return copy.deepcopy(issued)


def redigested(document: Document) -> Document:
    """Return the document with every digest made to fit again, as a careful forger would."""
    for row in document["evidence"]:
        row["measurement_sha256"] = sha256(row["measurement"])
    rows = [
        [row["key"], row["round"], row["reused"], row["measurement_sha256"]] for row in document["evidence"]
    ]
    document["spec_sha256"] = sha256(document["spec"])
    document["evidence_sha256"] = sha256(
        [rows, document["failures"], document["priors"], document["rounds_done"]]
    )
    document["certificate_sha256"] = certificate_digest(document)
    return document


def numbers(value: Any) -> Iterator[float]:
    """Yield every number of a document."""
    if isinstance(value, dict):
        for part in value.values():
            yield from numbers(part)
    elif isinstance(value, list):
        for part in value:
            yield from numbers(part)
    elif isinstance(value, float):
        yield value


class TestBuilding:
    def test_it_holds_what_it_rests_on(self, document: Document) -> None:
        assert (document["kind"], document["fleet"], document["campaign_id"]) == (
            "Certificate",
            "chat-and-code-h100",
            "c1",
        )
        assert document["state"] == "certified_feasible"
        assert (
            document["conservative"]["solver_status"] == document["optimistic"]["solver_status"] == "Optimal"
        )
        assert {row["workload"] for row in document["conservative"]["allocations"]} == {"chat", "code"}
        assert len(document["evidence"]) == document["spend"]["points_measured"]
        assert len(document["evidence"]) + len(document["skipped"]) == 24
        assert all(row["reason"] for row in document["skipped"])
        assert set(document["software"]) >= {"fleetsieve-airflow", "python", "pulp", "highspy"}

    def test_it_survives_json_without_nan_or_infinity(self, document: Document) -> None:
        text = json.dumps(document, allow_nan=False)
        assert json.loads(text) == document
        assert all(math.isfinite(number) for number in numbers(document))
        assert verify_certificate(json.loads(text)) == ()

    def test_a_decision_that_measures_on_is_nothing_to_certify(self) -> None:
        with pytest.raises(CertificateError, match="not settled"):
            build_certificate(make_spec(), Evidence(), decide(make_spec(), Evidence()))

    def test_its_evidence_reads_back(self, document: Document) -> None:
        result = run_campaign(paper_spec(), ReplayBackend())
        assert evidence_from(document) == result.evidence

    @pytest.mark.parametrize(
        ("decision", "words"),
        [
            ({}, ["monotone", "closed_loop"]),
            ({"certify_on": ("measured",)}, []),
            ({"certify_on": ("interpolated",)}, ["interpolated"]),
            ({"certify_on": ("measured", "interior_peak")}, []),
            ({"certify_on": ("measured", "interior_peak"), "interior_peak": True}, ["interior_peak"]),
            ({"certify_on": ("simulator", "earlier_release")}, ["simulator", "earlier_release"]),
            ({"confidence": 0.95}, ["monotone", "closed_loop", "confidence"]),
        ],
    )
    def test_it_names_what_it_takes_for_granted(self, decision: dict[str, Any], words: list[str]) -> None:
        named = assumptions_of(make_spec(decision=decision, load_kind="concurrency"))
        assert [line.split(":")[0] for line in named[1:]] == words

    def test_offered_loads_need_no_law_of_concurrency(self) -> None:
        named = assumptions_of(make_spec())
        assert [line.split(":")[0] for line in named[1:]] == ["monotone"]


class TestVerifying:
    def test_what_was_issued_holds(self, document: Document) -> None:
        assert verify_certificate(document) == ()

    @settings(max_examples=15)
    @given(server=servers())
    def test_every_campaign_ends_with_one_that_holds(self, server: TrueServer) -> None:
        assert verify_certificate(run_campaign(server.spec, server).certificate) == ()

    def test_failures_priors_and_refusals_are_part_of_it(self) -> None:
        spec = make_spec(decision={"certify_on": ("measured", "monotone", "simulator")})
        refused = make_measurement(spec, config="TP8", refused="no memory", served_rps=0.0, percentiles={})
        prior = PriorCapacity(workload="chat", config="TP2", source="simulator", lower_rps=1.0, upper_rps=3.0)
        failures = [make_failure(make_point(spec, load=2.0))]
        evidence = make_evidence(make_measurement(spec), refused, failures=failures, priors=(prior,))
        document = build_certificate(spec, evidence, decide(spec, evidence))
        assert verify_certificate(document) == ()
        for part in ("failures", "priors"):
            without = {**document, part: []}
            assert any("evidence_sha256" in line for line in verify_certificate(without))

    def test_an_undetermined_one_holds_too(self) -> None:
        spec = replace(paper_spec(), budget=replace(paper_spec().budget, rounds=1))
        document = run_campaign(spec, ReplayBackend()).certificate
        assert document["state"] == "undetermined" and document["points"]
        assert verify_certificate(document) == ()

    def test_another_platforms_last_digits_do_not_matter_and_more_does(self, document: Document) -> None:
        document["gap"] += 1e-12
        assert [line for line in verify_certificate(document) if line.startswith("gap")] == []
        document["gap"] += 1e-6
        assert [line for line in verify_certificate(document) if line.startswith("gap")]


def set_in(*path: Any, to: Any) -> Callable[[Document], None]:
    """Return a change of one value of a document."""

    def change(document: Document) -> None:
        place: Any = document
        for step in path[:-1]:
            place = place[step]
        assert place[path[-1]] != to
        place[path[-1]] = to

    return change


def miss_the_first(document: Document) -> None:
    """Pretend that the first load measured had missed its SLO."""
    row = document["evidence"][0]["measurement"]
    row["percentiles"] = [[name, value * 100.0] for name, value in row["percentiles"]]


def drop_first(document: Document) -> None:
    del document["evidence"][0]


def reorder(document: Document) -> None:
    document["evidence"].reverse()


def add_row(document: Document) -> None:
    row = copy.deepcopy(document["evidence"][0])
    row["measurement"]["point"]["key"] = row["key"] = "0" * 32
    document["evidence"].append(row)


FIRST = ("evidence", 0)
LOWER, UPPER = ("intervals", 0, "lower"), ("intervals", 1, "upper")
REPLICAS = ("conservative", "allocations", 0, "replicas")
#: What was changed -> (how, what verification must name).
TAMPERED: dict[str, tuple[Callable[[Document], Any], str]] = {
    "a measured rate": (set_in(*FIRST, "measurement", "served_rps", to=99.0), "measurement_sha256"),
    "a measured verdict": (miss_the_first, "measurement_sha256"),
    "a measurement's digest": (set_in(*FIRST, "measurement_sha256", to="0" * 64), "measurement_sha256"),
    "a sample digest": (set_in(*FIRST, "samples_sha256", to="0" * 64), "samples_sha256"),
    "a label": (set_in(*FIRST, "label", to="chat TP2 99 req/s"), "not what the list says"),
    "a round": (set_in(*FIRST, "round", to=7), "evidence_sha256"),
    "a round to come": (set_in(*FIRST, "round", to=99), "round 99 of"),
    "a price": (set_in(*FIRST, "measurement", "gpu_seconds_window", to=1.0), "measurement_sha256"),
    "evidence removed": (drop_first, "evidence_sha256"),
    "evidence added": (add_row, "is no point of this spec"),
    "evidence reordered": (reorder, "evidence_sha256"),
    "a failure": (set_in("failures", to=[{"key": "x"}]), "cannot be read"),
    "a lower bound": (set_in(*LOWER, "value_rps", to=11.0), "intervals[chat TP2].lower.value_rps"),
    "an upper bound": (set_in(*UPPER, "value_rps", to=99.0), "intervals[chat TP4].upper.value_rps"),
    "a bound as text": (set_in(*LOWER, "value_rps", to="2.2"), "intervals[chat TP2].lower.value_rps"),
    "a source": (set_in(*UPPER, "source", to="simulator"), "intervals[chat TP4].upper.source"),
    "a bound left out": (lambda document: document["intervals"][0].pop("lower"), ".lower: missing"),
    "the plan": (set_in(*REPLICAS, to=3), "conservative.allocations[chat TP4].replicas"),
    "the plan left out": (set_in("conservative", "allocations", to=[]), "0 entries, derived 2"),
    "the other plan": (set_in("optimistic", "gpus", to=1), "optimistic.gpus"),
    "the gap": (set_in("gap", to=0.123), "gap"),
    "a gap that is no number": (set_in("gap", to=float("nan")), "cannot be read"),
    "the regret": (set_in("regret", to=0.123), "regret"),
    "the regret left out": (lambda document: document.pop("regret"), "cannot be read"),
    "the state": (set_in("state", to="certified_infeasible"), "state"),
    "the spend": (set_in("spend", "gpu_seconds_window", to=1.0), "spend.gpu_seconds_window"),
    "what was skipped": (set_in("skipped", to=[]), "skipped: 0 entries"),
    "a warning": (set_in("warnings", to=["all is well"]), "warnings: 1 entries"),
    "a scenario": (set_in("scenarios", 0, "lost_rps", to=0.5), "scenarios[0].lost_rps"),
    "an assumption": (set_in("assumptions", to=[]), "assumptions"),
    "the tolerance": (set_in("tolerance", to=0.5), "tolerance"),
    "the fleet": (set_in("fleet", to="another"), "fleet"),
    "a demand": (set_in("spec", "workloads", 0, "demand_rps", to=6.0), "spec_sha256"),
    "a field of the spec": (lambda document: document["spec"].update(note="x"), "unknown fields: note"),
    "the spec's digest": (set_in("spec_sha256", to="0" * 64), "spec_sha256"),
    "the evidence's digest": (set_in("evidence_sha256", to="0" * 64), "evidence_sha256"),
    "the certificate's digest": (set_in("certificate_sha256", to="0" * 64), "certificate_sha256"),
    "the rounds": (set_in("rounds_done", to=9), "round"),
    "the schema": (set_in("schema_version", to=99), "schema_version is 99"),
    "the kind": (set_in("kind", to="Receipt"), "not a certificate"),
}
#: Changes that show although a forger makes every digest fit again: the decision does not follow from them.
FORGED = [
    *(
        "a measured verdict",
        "a price",
        "evidence removed",
        "evidence added",
        "a lower bound",
        "an upper bound",
    ),
    *("a sample digest", "a round to come", "the plan", "the gap", "the regret", "the state", "the spend"),
    *("what was skipped", "a demand", "the rounds", "an assumption", "the tolerance"),
]


class TestTampering:
    @pytest.mark.parametrize("what", TAMPERED)
    def test_verification_names_what_was_changed(self, document: Document, what: str) -> None:
        change, named = TAMPERED[what]
        change(document)
        differences = verify_certificate(document)
        assert any(named in line for line in differences), differences

    @pytest.mark.parametrize("what", FORGED)
    def test_digests_that_fit_again_do_not_hide_it(self, document: Document, what: str) -> None:
        TAMPERED[what][0](document)
        assert verify_certificate(redigested(document))

    @pytest.mark.parametrize("place", [(), ("evidence", 0)], ids=["certificate", "evidence"])
    def test_an_unknown_field_is_named(self, document: Document, place: tuple[Any, ...]) -> None:
        target: Any = document
        for step in place:
            target = target[step]
        target["note"] = "approved"
        assert any("note" in line for line in verify_certificate(redigested(document)))

    @pytest.mark.parametrize("value", [None, [], "text", 7, {}, {"kind": "Certificate"}])
    def test_what_is_no_certificate_is_said_to_be_none(self, value: Any) -> None:
        assert len(verify_certificate(value)) == 1

    @settings(max_examples=25)
    @given(st.data())
    def test_any_number_of_the_decision_changed_is_found(self, issued: Document, data: st.DataObject) -> None:
        document = copy.deepcopy(issued)
        part = data.draw(
            st.sampled_from(["intervals", "conservative", "optimistic", "spend", "scenarios", "skipped"])
        )
        places = list(paths(document[part], (part,)))
        *path, last = data.draw(st.sampled_from(places))
        target: Any = document
        for step in path:
            target = target[step]
        target[last] = target[last] + data.draw(st.sampled_from([-1.0, 0.5, 1000.0]))
        assert verify_certificate(redigested(document))


def paths(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every number."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in parts:
        if isinstance(part, (int, float)) and not isinstance(part, bool):
            yield (*path, step)
        yield from paths(part, (*path, step))


class TestReplay:
    @pytest.mark.parametrize("scale", [0.7, 1.0, 1.3])
    def test_a_replayed_campaign_gives_the_same_certificate_to_the_byte(self, scale: float) -> None:
        spec = paper_spec(scale)
        result = run_campaign(spec, ReplayBackend(), campaign_id="first")
        later = "2030-01-01T00:00:00+00:00"
        items = tuple(replace(item, run_id="r", measured_at=later) for item in result.evidence.items)
        evidence = replace(result.evidence, items=items)
        decision = replay_campaign(spec, result.evidence)[-1]
        again = build_certificate(spec, evidence, decision, campaign_id="second", issued_at=later)
        assert again["certificate_sha256"] == result.certificate["certificate_sha256"]
        assert canonical_json(bare(again)) == canonical_json(bare(result.certificate))
        assert verify_certificate(again) == ()

    def test_other_evidence_gives_another_digest(self, document: Document) -> None:
        miss_the_first(document)
        assert certificate_digest(document) != document["certificate_sha256"]


def bare(document: Document) -> Document:
    """Return a certificate without run ids, times and software."""
    left_out = ("run_id", "measured_at")
    rows = [{k: v for k, v in row.items() if k not in left_out} for row in document["evidence"]]
    return {**{k: v for k, v in document.items() if k not in CIRCUMSTANCES}, "evidence": rows}


def test_evidence_that_cannot_be_read_is_an_error(issued: Document) -> None:
    broken = copy.deepcopy(issued)
    broken["evidence"][0]["measurement"]["served_rps"] = -1.0
    with pytest.raises(EvidenceError, match="served_rps"):
        evidence_from(broken)
    assert verify_certificate(broken)
