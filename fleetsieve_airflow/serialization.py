"""Records to JSON and back, canonical JSON, digests, point keys: only this module knows the written form.

Imports the records and errors only. A top-level document carries ``schema_version`` and ``kind``; an unknown
version, kind or field is refused, because evidence that is half understood must never be read as evidence.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import types
import typing
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import PurePath
from typing import Any, TypeVar, cast

from fleetsieve_airflow import evidence as evidence_records
from fleetsieve_airflow import records as spec_records
from fleetsieve_airflow.errors import EvidenceError, FleetsieveError
from fleetsieve_airflow.evidence import MeasurementPoint
from fleetsieve_airflow.records import Candidate, EngineConfig, FleetSpec

SCHEMA_VERSION = 1
#: Options of backends that are paths of files whose content is part of ``measurement.device``.
FILE_OPTIONS = ("grid", "tables")
Record = TypeVar("Record")


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, shortest floats, no NaN or infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256(value: Any) -> str:
    """Return the hex SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def to_plain(value: Any) -> Any:
    """Turn a record, or a tuple of records, into plain dicts, lists and scalars, without the head."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name))
            for field in fields(value)
            if not (field.metadata.get("omitted_by_default") and getattr(value, field.name) == field.default)
        }
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise EvidenceError(f"JSON cannot hold {value}.", hint="Use None for a bound that is not known.")
    return value


def to_document(record: Any) -> dict[str, Any]:
    """Turn a record into a JSON-able document with ``schema_version`` and ``kind``."""
    head, body = {"schema_version": SCHEMA_VERSION, "kind": type(record).__name__}, to_plain(record)
    # A record with a field called like the head is written one level deeper: neither may hide the other.
    return {**head, "record": body} if head.keys() & body.keys() else {**head, **body}


def from_document(kind: type[Record], document: Any) -> Record:
    """Read a document written by :func:`to_document`.

    :raises EvidenceError: another schema version or kind, a missing or unknown field, or a value the record
        refuses.
    """
    if not isinstance(document, dict):
        raise EvidenceError(f"Expected a {kind.__name__} document, got {type(document).__name__}.")
    version, name = document.get("schema_version"), document.get("kind")
    if version != SCHEMA_VERSION or name != kind.__name__:
        raise EvidenceError(
            f"Expected a {kind.__name__} document of schema version {SCHEMA_VERSION}, "
            f"got {name!r} of version {version!r}.",
            hint="It was written by another release or is not ours.",
        )
    body = {key: value for key, value in document.items() if key not in ("schema_version", "kind")}
    return from_plain(kind, body["record"] if list(body) == ["record"] else body)


def from_plain(kind: type[Record], body: Any) -> Record:
    """Read what :func:`to_plain` wrote, strictly.

    :raises EvidenceError: naming the field that is missing, unknown or refused.
    """
    return cast(Record, _decode(kind, body, kind.__name__))


@functools.cache
def _field_types(kind: type) -> dict[str, Any]:
    names = {**vars(spec_records), **vars(evidence_records)}
    return typing.get_type_hints(kind, globalns=names)


def _decode(kind: Any, value: Any, path: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _decode_record(kind, value, path)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _decode(next(arg for arg in args if arg is not type(None)), value, path)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise EvidenceError(f"{path} must be a list, got {type(value).__name__}.")
        kinds = [args[0]] * len(value) if args[1:] == (Ellipsis,) else list(args)
        if len(kinds) != len(value):
            raise EvidenceError(f"{path} must hold {len(kinds)} values, got {len(value)}.")
        return tuple(
            _decode(item, part, f"{path}[{i}]")
            for i, (item, part) in enumerate(zip(kinds, value, strict=True))
        )
    if origin is typing.Literal:
        if value not in args:
            raise EvidenceError(f"{path} must be one of {', '.join(map(str, args))}, got {value!r}.")
        return value
    return _decode_scalar(kind, value, path)


def _decode_scalar(kind: Any, value: Any, path: str) -> Any:
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, bool):
        raise EvidenceError(f"{path} must be a whole number, got {value!r}.")
    if not isinstance(value, kind):
        raise EvidenceError(f"{path} must be of type {kind.__name__}, got {value!r}.")
    return value


def _decode_record(kind: type, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise EvidenceError(f"{path} must be a mapping, got {type(value).__name__}.")
    known = {field.name: field for field in fields(kind)}
    if unknown := sorted(set(value) - set(known)):
        raise EvidenceError(f"{path} has unknown fields: {', '.join(unknown)}.")
    missing = [
        name
        for name, field in known.items()
        if name not in value and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise EvidenceError(f"{path} lacks fields: {', '.join(missing)}.")
    hints = _field_types(kind)
    try:
        return kind(**{name: _decode(hints[name], part, f"{path}.{name}") for name, part in value.items()})
    except EvidenceError:
        raise
    except FleetsieveError as error:
        raise EvidenceError(f"{path} cannot be read: {error}") from error


def portable_spec(spec: FleetSpec) -> FleetSpec:
    """Return the spec with files named, not placed: what they hold has digests, where they lie differs."""
    options = tuple(
        (name, PurePath(text).name if name in FILE_OPTIONS else text)
        for name, text in spec.measurement.options
    )
    workloads = tuple(
        replace(workload, trace=replace(workload.trace, path=PurePath(workload.trace.path).name))
        if workload.trace.digest
        else workload
        for workload in spec.workloads
    )
    return replace(spec, workloads=workloads, measurement=replace(spec.measurement, options=options))


def spec_digest(spec: FleetSpec) -> str:
    """Return the SHA-256 of everything a fleet spec says, but for the folders that its files lie in."""
    return sha256(to_plain(portable_spec(spec)))


def profile_digest(spec: FleetSpec, candidate: Candidate) -> str:
    """Return the identity of a candidate's measuring conditions, 32 hex digits.

    Two points share a profile only when model and revision, trace content, parallel degrees, engine with its
    version and arguments, pool with its GPU kind and driver, and measuring device are all the same; of a
    disaggregated replica, for each phase. Demand, SLO and fleet name are left out on purpose.
    """
    workload, config = spec.workload(candidate.workload), spec.config(candidate.config)
    model, trace = spec.model(workload.model), workload.trace
    identity: dict[str, Any] = {
        "workload": workload.name,
        "model": [model.name, model.revision, model.source],
        "trace": [trace.name, trace.digest, trace.format, trace.isl_mean_tokens, trace.osl_mean_tokens],
        "device": [spec.measurement.device],
    }
    if config.disaggregated:
        identity["phases"] = [
            [part.phase, part.engines, _engine_identity(spec, part.engine)] for part in config.parts
        ]
    else:
        identity |= _engine_identity(spec, config)
    return sha256(identity)[:32]


def _engine_identity(spec: FleetSpec, config: EngineConfig) -> dict[str, Any]:
    """Return what can change the outcome of measuring one engine."""
    pool = spec.pool(config.pool)
    return {
        "degrees": [
            config.tensor_parallel,
            config.pipeline_parallel,
            config.data_parallel,
            config.expert_parallel,
        ],
        "engine": [config.engine, config.engine_version, sorted(config.engine_args)],
        "gpu": [pool.name, pool.gpu, pool.driver, pool.gpus_per_node if config.multi_node else None],
    }


def point_of(spec: FleetSpec, candidate: Candidate, load: float, repeat: int = 0) -> MeasurementPoint:
    """Return the point that measures one load of a candidate; ``repeat`` counts from 0 and moves the seed.

    :raises EvidenceError: the load is not on the candidate's ladder.
    """
    if load not in candidate.loads:
        raise EvidenceError(f"{candidate.label}: load {load} is not on its ladder {list(candidate.loads)}.")
    gpus = spec.config(candidate.config).gpus
    return _point_of(spec, candidate, load, repeat, gpus, profile_digest(spec, candidate))


def points_of(spec: FleetSpec, candidate: Candidate, repeats: int = 1) -> tuple[MeasurementPoint, ...]:
    """Return all points of a candidate in ladder order, each with its first ``repeats`` seeds."""
    gpus, profile = spec.config(candidate.config).gpus, profile_digest(spec, candidate)
    return tuple(
        _point_of(spec, candidate, load, repeat, gpus, profile)
        for load in candidate.loads
        for repeat in range(repeats)
    )


def _point_of(
    spec: FleetSpec, candidate: Candidate, load: float, repeat: int, gpus: int, profile: str
) -> MeasurementPoint:
    settings = spec.measurement
    seed = settings.seed + repeat
    key = sha256([profile, candidate.load_kind, load, settings.duration_s, seed])[:32]
    return MeasurementPoint(
        workload=candidate.workload,
        config=candidate.config,
        load_kind=candidate.load_kind,
        load=load,
        duration_s=settings.duration_s,
        seed=seed,
        gpus=gpus,
        profile=profile,
        key=key,
    )
