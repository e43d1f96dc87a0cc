"""An earlier release's campaign as a prior of the next one: what it showed, load by load, judged anew.

Its measurements are judged by the SLO of today, so a tightened limit needs no new campaign to be understood.
Its capacity intervals are widened by how far a release is expected to move a capacity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fleetsieve_airflow.core.certificate import KIND, certificate_digest, evidence_from
from fleetsieve_airflow.core.intervals import fit_intervals
from fleetsieve_airflow.core.verdict import margin
from fleetsieve_airflow.errors import CertificateError, EvidenceError
from fleetsieve_airflow.evidence import CapacityInterval, Evidence, Measurement, PriorCapacity, PriorLoad
from fleetsieve_airflow.records import Candidate, EngineConfig, FleetSpec, Slo
from fleetsieve_airflow.serialization import SCHEMA_VERSION, from_plain, profile_digest

#: Releases that a load which was not measured since is remembered for.
MOST_RELEASES = 3


def prior_of(spec: FleetSpec, certificate: Any) -> tuple[PriorCapacity, ...]:
    """Return what the certificate of an earlier campaign says of the candidates of a fleet.

    :raises CertificateError: it is none, or was changed after it was issued.
    :raises EvidenceError: a record in it cannot be read.
    """
    if not isinstance(certificate, dict) or certificate.get("kind") != KIND:
        raise CertificateError("This is not a certificate: its kind is missing or another.")
    if certificate.get("schema_version") != SCHEMA_VERSION:
        raise CertificateError(
            f"schema_version is {certificate.get('schema_version')!r}, this release reads {SCHEMA_VERSION}."
        )
    if certificate_digest(certificate) != certificate.get("certificate_sha256"):
        raise CertificateError(
            "certificate_sha256 does not match the certificate: it was changed after it was issued."
        )
    return earlier_release(spec, from_plain(FleetSpec, certificate["spec"]), evidence_from(certificate))


def earlier_release(spec: FleetSpec, earlier: FleetSpec, evidence: Evidence) -> tuple[PriorCapacity, ...]:
    """Return what an earlier campaign says of the candidates of a fleet whose models have been released anew.

    Candidates are matched by workload and engine config of the same GPUs. Left out are those that are the
    same to the revision (their measurements are reused, not believed), those of which nothing was measured,
    and measurements that lack what the SLO of today asks about.

    :param spec: the fleet that is to be planned; its ``prior.widening`` is the share by which the capacity
        intervals are widened on both sides.
    :param earlier: the fleet as the earlier campaign planned it, ``evidence`` what it knew in the end.
    """
    shared = [candidate for candidate in spec.candidates if _is_alike(spec, earlier, candidate)]
    slos = {workload.name: workload.slo for workload in spec.workloads}
    shown = _shown(evidence, slos)
    kept = {key for key, rows in shown.items() if rows}
    usable = replace(
        evidence,
        items=tuple(
            item
            for item in evidence.items
            if (item.measurement.point.workload, item.measurement.point.config) in kept
        ),
        priors=(),
    )
    judged = replace(
        earlier,
        workloads=tuple(replace(w, slo=slos[w.name]) if w.name in slos else w for w in earlier.workloads),
        candidates=tuple(c for c in earlier.candidates if (c.workload, c.config) in kept),
    )
    intervals = {(i.workload, i.config): i for i in fit_intervals(judged, usable)}
    carried = {
        (prior.workload, prior.config): prior.loads
        for prior in evidence.priors
        if prior.workload in slos and _slo_of(earlier, prior.workload) == slos[prior.workload]
    }
    found = []
    for candidate in shared:
        key = (candidate.workload, candidate.config)
        loads = (*shown[key], *_remembered(carried.get(key, ()), {row.load for row in shown[key]}))
        if loads:
            found.append(_prior(candidate, intervals.get(key), loads, spec.prior.widening))
    return tuple(found)


def _is_alike(spec: FleetSpec, earlier: FleetSpec, candidate: Candidate) -> bool:
    """Tell whether the earlier campaign had this candidate: what runs may differ, where it runs may not."""
    if candidate.excluded or candidate not in [
        replace(other, loads=candidate.loads, excluded="") for other in earlier.candidates
    ]:
        return False
    config, before = spec.config(candidate.config), earlier.config(candidate.config)
    return _hardware(spec, config) == _hardware(earlier, before) and profile_digest(
        spec, candidate
    ) != profile_digest(earlier, earlier.candidate(candidate.workload, candidate.config))


def _hardware(spec: FleetSpec, config: EngineConfig) -> list[tuple[str, str, int]]:
    return [(part.phase, spec.pool(part.engine.pool).gpu, part.gpus) for part in config.parts]


def _slo_of(spec: FleetSpec, workload: str) -> Slo | None:
    return next((item.slo for item in spec.workloads if item.name == workload), None)


def _shown(evidence: Evidence, slos: dict[str, Slo]) -> dict[tuple[str, str], list[PriorLoad]]:
    cells: dict[tuple[str, str, float], list[tuple[float, float]]] = defaultdict(list)
    for item in evidence.items:
        point = item.measurement.point
        if point.workload in slos and not item.measurement.refused:
            value = _margin(item.measurement, slos[point.workload])
            if value is not None:
                cells[point.workload, point.config, point.load].append((value, item.measurement.served_rps))
    rows: dict[tuple[str, str], list[PriorLoad]] = defaultdict(list)
    for (workload, config, load), repeats in sorted(cells.items()):
        mean_margin, rate = (sum(column) / len(repeats) for column in zip(*repeats, strict=True))
        rows[workload, config].append(PriorLoad(load=load, margin=mean_margin, rate_rps=rate))
    return rows


def _margin(measurement: Measurement, slo: Slo) -> float | None:
    try:
        return margin(measurement, slo)
    except EvidenceError:  # the SLO of today asks about something that was not recorded then
        return None


def _remembered(loads: Iterable[PriorLoad], known: set[float]) -> list[PriorLoad]:
    return [
        replace(row, releases_back=row.releases_back + 1)
        for row in loads
        if row.load not in known and row.releases_back < MOST_RELEASES
    ]


def _prior(
    candidate: Candidate, interval: CapacityInterval | None, loads: tuple[PriorLoad, ...], widening: float
) -> PriorCapacity:
    lower = interval.lower.value_rps if interval else None
    upper = interval.upper.value_rps if interval and interval.upper.source != "ladder" else None
    return PriorCapacity(
        workload=candidate.workload,
        config=candidate.config,
        source="earlier_release",
        lower_rps=(lower or 0.0) / (1.0 + widening),
        upper_rps=None if upper is None else upper * (1.0 + widening),
        loads=loads,
    )
