"""Build a certificate from a decision, and check one offline against its own evidence.

A certificate is self-contained: the spec, every measurement it rests on with its digest, the intervals with
their sources, both plans, gap, regret and what was skipped. Verification trusts nothing in it but the
measurements: it decides again from them and says, in words, what differs. Run ids, times and software
versions are recorded and left out of the digest, so a replayed campaign gives the same certificate.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from typing import Any

from fleetsieve_airflow import __version__
from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.errors import CertificateError, FleetsieveError
from fleetsieve_airflow.evidence import (
    Decision,
    Evidence,
    EvidenceItem,
    Measurement,
    PointFailure,
    PriorCapacity,
)
from fleetsieve_airflow.records import Candidate, FleetSpec
from fleetsieve_airflow.serialization import (
    SCHEMA_VERSION,
    canonical_json,
    from_plain,
    points_of,
    portable_spec,
    sha256,
    spec_digest,
    to_plain,
)

KIND = "Certificate"
#: Fields that differ between a campaign and its replay without the decision differing.
CIRCUMSTANCES = ("issued_at", "campaign_id", "software", "certificate_sha256")
#: Fields of one entry of the evidence list.
EVIDENCE_FIELDS = {
    "key",
    "label",
    "round",
    "reused",
    "run_id",
    "measured_at",
    "samples_sha256",
    "measurement_sha256",
    "measurement",
}
#: What a decision says that a certificate repeats and verification derives again.
DERIVED = (
    "state",
    "round",
    "reason",
    "intervals",
    "conservative",
    "optimistic",
    "gap",
    "regret",
    "points",
    "skipped",
    "warnings",
    "spend",
    "scenarios",
)


def build_certificate(
    spec: FleetSpec, evidence: Evidence, decision: Decision, *, campaign_id: str = "", issued_at: str = ""
) -> dict[str, Any]:
    """Write the certificate of a decision that stopped.

    :param issued_at: ISO 8601 time, given by the caller: the core has no clock.
    :return: a JSON-able document.
    :raises CertificateError: the decision asks to measure on, so there is nothing to certify.
    """
    if decision.state == "measure":
        raise CertificateError("The decision is not settled: it asks to measure on.")
    body = to_plain(decision)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "fleet": spec.fleet,
        "campaign_id": campaign_id,
        "issued_at": issued_at,
        "spec": to_plain(portable_spec(spec)),
        "spec_sha256": spec_digest(spec),
        "evidence": [_evidence_row(item) for item in evidence.items],
        "failures": to_plain(evidence.failures),
        "priors": to_plain(evidence.priors),
        "rounds_done": evidence.rounds_done,
        "tolerance": spec.decision.tolerance,
        "assumptions": assumptions_of(spec),
        **{name: body[name] for name in DERIVED},
        "software": _software(),
    }
    document["evidence_sha256"] = _evidence_digest(document)
    document["certificate_sha256"] = certificate_digest(document)
    return document


def assumptions_of(spec: FleetSpec) -> list[str]:
    """Return in words what the certificate takes for granted beyond its measurements."""
    words = {
        "monotone": "monotone: a load above a missed one is not met",
        "closed_loop": "closed_loop: the served rate does not fall with concurrency, nor grow faster than it",
        "interpolated": "interpolated: tails between measured loads follow their isotonic fit "
        "within its band",
        "interior_peak": "interior_peak: capacity per GPU rises to one peak over the parallel degrees "
        "and falls after it",
        "simulator": "simulator: calibrated simulated capacities, within their residual quantiles",
        "earlier_release": "earlier_release: the previous release's intervals, widened and rescaled",
    }
    idle = set() if spec.decision.interior_peak else {"interior_peak"}
    if not any(candidate.load_kind == "concurrency" for candidate in spec.candidates):
        idle.add("closed_loop")
    used = [words[source] for source in spec.decision.certify_on if source in words and source not in idle]
    if spec.decision.confidence is not None:
        used.append(
            "confidence: runs of one load differ from it about normally in the logarithm, "
            "by the spread that is declared and that this campaign showed"
        )
    return ["capacity is counted at the loads of each candidate's ladder", *used]


def certificate_digest(document: dict[str, Any]) -> str:
    """Return the SHA-256 of a certificate without its circumstances: run ids, times, software."""
    body = {name: value for name, value in document.items() if name not in CIRCUMSTANCES}
    body["evidence"] = [
        {name: value for name, value in row.items() if name not in ("run_id", "measured_at")}
        for row in document.get("evidence", [])
    ]
    return sha256(body)


def verify_certificate(document: Any) -> tuple[str, ...]:
    """Derive a certificate again from its own evidence and say where it differs.

    :return: one sentence per difference; empty where the certificate holds.
    """
    if not isinstance(document, dict) or document.get("kind") != KIND:
        return ("This is not a certificate: its kind is missing or another.",)
    if document.get("schema_version") != SCHEMA_VERSION:
        return (
            f"schema_version is {document.get('schema_version')!r}, this release reads {SCHEMA_VERSION}.",
        )
    try:
        return tuple(_differences(document))
    except (FleetsieveError, KeyError, TypeError, ValueError, AttributeError) as error:
        return (f"The certificate cannot be read: {type(error).__name__}: {error}",)


def evidence_from(document: dict[str, Any]) -> Evidence:
    """Read the evidence a certificate rests on.

    :raises EvidenceError: a record in it cannot be read.
    """
    items = tuple(
        EvidenceItem(
            measurement=from_plain(Measurement, row["measurement"]),
            round=row["round"],
            reused=row["reused"],
            run_id=row["run_id"],
            measured_at=row["measured_at"],
        )
        for row in document["evidence"]
    )
    return Evidence(
        items=items,
        failures=tuple(from_plain(PointFailure, row) for row in document["failures"]),
        priors=tuple(from_plain(PriorCapacity, row) for row in document["priors"]),
        rounds_done=document["rounds_done"],
    )


def _evidence_row(item: EvidenceItem) -> dict[str, Any]:
    measurement = to_plain(item.measurement)
    return {
        "key": item.measurement.point.key,
        "label": item.measurement.point.label,
        "round": item.round,
        "reused": item.reused,
        "run_id": item.run_id,
        "measured_at": item.measured_at,
        "samples_sha256": item.measurement.samples_sha256,
        "measurement_sha256": sha256(measurement),
        "measurement": measurement,
    }


def _evidence_digest(document: dict[str, Any]) -> str:
    rows = [
        [row["key"], row["round"], row["reused"], row["measurement_sha256"]] for row in document["evidence"]
    ]
    return sha256([rows, document["failures"], document["priors"], document["rounds_done"]])


def _software() -> dict[str, str]:
    names = ("numpy", "scipy", "pulp", "highspy")
    versions = {name: importlib.metadata.version(name) for name in names}
    return {"fleetsieve-airflow": __version__, "python": platform.python_version(), **versions}


def _differences(document: dict[str, Any]) -> Iterator[str]:
    spec = from_plain(FleetSpec, document["spec"])
    if spec_digest(spec) != document["spec_sha256"]:
        yield "spec_sha256 does not match the spec."
    for name, expected in (
        ("fleet", spec.fleet),
        ("tolerance", spec.decision.tolerance),
        ("assumptions", assumptions_of(spec)),
    ):
        if document[name] != expected:
            yield f"{name} is {document[name]!r}, the spec says {expected!r}."
    known = _known_keys(spec)
    for row in document["evidence"]:
        yield from _row_differences(row, known)
        if not 0 <= row["round"] <= document["rounds_done"]:
            yield f"Measurement {row['label']}: round {row['round']} of {document['rounds_done']}."
    if _evidence_digest(document) != document["evidence_sha256"]:
        yield "evidence_sha256 does not match the evidence list."
    derived = to_plain(decide(spec, evidence_from(document)))
    for name in DERIVED:
        yield from _compare(name, document[name], derived[name])
    if certificate_digest(document) != document["certificate_sha256"]:
        yield "certificate_sha256 does not match the certificate."
    if extra := sorted(set(document) - _allowed_fields()):
        yield f"Unknown fields: {', '.join(extra)}."


def _allowed_fields() -> set[str]:
    fixed = {
        "schema_version",
        "kind",
        "fleet",
        "spec",
        "spec_sha256",
        "evidence",
        "evidence_sha256",
        "failures",
    }
    return fixed | {"priors", "rounds_done", "tolerance", "assumptions", *CIRCUMSTANCES, *DERIVED}


def _known_keys(spec: FleetSpec) -> dict[str, tuple[Candidate, float]]:
    return {
        point.key: (candidate, point.load)
        for candidate in spec.candidates
        if not candidate.excluded
        for point in points_of(spec, candidate, spec.measurement.repeats)
    }


def _row_differences(row: dict[str, Any], known: dict[str, tuple[Candidate, float]]) -> Iterator[str]:
    measurement, label = row["measurement"], row["label"]
    if extra := sorted(set(row) - EVIDENCE_FIELDS):
        yield f"Measurement {label}: unknown fields: {', '.join(extra)}."
    if sha256(measurement) != row["measurement_sha256"]:
        yield f"Measurement {label}: its values do not match measurement_sha256."
    if measurement["samples_sha256"] != row["samples_sha256"]:
        yield f"Measurement {label}: samples_sha256 is not that of the measurement."
    point = from_plain(Measurement, measurement).point
    if point.key != row["key"] or point.label != label:
        yield f"Measurement {label}: it measured {point.label} (key {point.key}), not what the list says."
    if point.key not in known:
        yield f"Measurement {label}: key {point.key} is no point of this spec."
        return
    candidate, load = known[point.key]
    if (point.workload, point.config, point.load) != (candidate.workload, candidate.config, load):
        yield f"Measurement {label}: key {point.key} belongs to {candidate.label} at {load:g}."


def _compare(path: str, claimed: Any, derived: Any) -> Iterator[str]:
    """Say where two plain values differ, down to the field."""
    if isinstance(claimed, dict) and isinstance(derived, dict):
        for name in sorted(set(claimed) | set(derived)):
            if name not in claimed or name not in derived:
                yield f"{path}.{name}: {'missing' if name not in claimed else 'not derivable'}."
            else:
                yield from _compare(f"{path}.{name}", claimed[name], derived[name])
    elif isinstance(claimed, list) and isinstance(derived, list):
        if len(claimed) != len(derived):
            yield f"{path}: {len(claimed)} entries, derived {len(derived)}."
            return
        for index, (left, right) in enumerate(zip(claimed, derived, strict=True)):
            name = (
                f"{path}[{left.get('workload', index)} {left.get('config', '')}]"
                if isinstance(left, dict)
                else f"{path}[{index}]"
            )
            yield from _compare(name.replace(" ]", "]"), left, right)
    elif not _same(claimed, derived):
        yield f"{path}: the certificate says {claimed!r}, its evidence gives {derived!r}."


def _same(claimed: Any, derived: Any) -> bool:
    if isinstance(claimed, float) and isinstance(derived, float):
        # Another platform's arithmetic may differ in the last digits; a decision does not rest on them.
        return abs(claimed - derived) <= 1e-9 * max(1.0, abs(claimed), abs(derived))
    return type(claimed) is type(derived) and canonical_json(claimed) == canonical_json(derived)
