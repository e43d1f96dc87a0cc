"""What a release is: an alias of MLflow's model registry that names another version of a model.

Plain data that the watcher, the webhook and the DAG that plans for releases agree on: how the asset is
called, what its events hold, which moves are news, and which campaign answers them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

#: Parts of a campaign's id that say more than this are cut, and told apart by a digest.
_ID_LENGTH = 150
_DIGEST_LENGTH = 8
_VERSION = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """An alias that names another version now.

    ``previous_version`` is None where it is not known, ``at`` is when it was seen, in seconds since 1970.
    """

    model: str
    version: str
    alias: str
    server: str = ""
    previous_version: str | None = None
    at: float = 0.0

    def as_event(self) -> dict[str, Any]:
        """Return it as an asset event holds it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a watcher has seen so far: the names and patterns it looked for, and the versions it found."""

    patterns: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def moved(self, found: Mapping[str, str], *, fire_on_first_sight: bool) -> tuple[str, ...]:
        """Return the models whose alias names another version than when it was last seen, sorted.

        An alias that appears where earlier looks found none is a release too. One that is there at the first
        look is not, unless asked for: it may be years old.
        """
        return tuple(
            model
            for model, version in sorted(found.items())
            if version != self.versions.get(model)
            and (model in self.versions or fire_on_first_sight or matches(model, self.patterns))
        )

    def after(self, patterns: Iterable[str], found: Mapping[str, str]) -> Seen:
        """Return what has been seen after another look; an alias that was deleted is remembered."""
        return Seen(patterns=tuple(sorted(set(patterns))), versions={**self.versions, **found})

    def to_json(self) -> dict[str, Any]:
        """Return it as Airflow stores it."""
        return {"patterns": list(self.patterns), "versions": dict(self.versions)}

    @classmethod
    def from_json(cls, stored: Any) -> Seen:
        """Return what was stored; nothing yet is a watcher that has seen nothing."""
        if not isinstance(stored, dict):
            return cls()
        return cls(patterns=tuple(stored.get("patterns", ())), versions=stored.get("versions", {}))


def matches(model: str, patterns: Iterable[str]) -> bool:
    """Return whether a model is one of those named, or fits a pattern such as ``chat-*``."""
    return any(fnmatchcase(model, pattern) for pattern in patterns)


def asset_names(mlflow_conn_id: str, alias: str) -> tuple[str, str]:
    """Return name and URI of the asset whose events are the releases of one alias of one MLflow server."""
    place = f"{quote(mlflow_conn_id, safe='')}/{quote(alias, safe='')}"
    return f"fleetsieve_release_{place.replace('/', '_')}", f"fleetsieve://release/{place}"


def read_release(extra: Any) -> Release | None:
    """Return the release that an asset event tells of, from the watcher or the webhook.

    None for what is no release: whoever may write to Airflow may record events of any content.
    """
    told = extra.get("payload", extra) if isinstance(extra, dict) else None
    if not isinstance(told, dict):
        return None
    model, version, alias = (str(told.get(name) or "") for name in ("model", "version", "alias"))
    at = told.get("at")
    if not model or not alias or not _VERSION.fullmatch(version):
        return None
    return Release(
        model=model,
        version=version,
        alias=alias,
        server=str(told.get("server") or ""),
        previous_version=str(told["previous_version"]) if told.get("previous_version") else None,
        at=float(at) if isinstance(at, (int, float)) else 0.0,
    )


def versions_in_force(releases: Iterable[Release]) -> dict[str, str]:
    """Return the version that each model was released at last."""
    return {release.model: release.version for release in sorted(releases, key=lambda item: item.at)}


def revision_of(version: str) -> str:
    """Return the revision that a version of the registry is in a fleet file, e.g. ``v7``."""
    return f"v{version}"


def version_of(revision: str) -> str | None:
    """Return the version of the registry that a revision is, or None where it is something else."""
    return revision[1:] if revision.startswith("v") and _VERSION.fullmatch(revision[1:]) else None


def campaign_id_of(fleet_file: str, versions: Mapping[str, str]) -> str:
    """Return the id of the campaign that plans a fleet for released versions: always the same one.

    :param fleet_file: path of the fleet file below the folder of fleets.
    :param versions: registered model -> version.
    """
    told = "-".join(f"{model}-{revision_of(version)}" for model, version in sorted(versions.items()))
    whole = f"release-{fleet_file.rpartition('.')[0] or fleet_file}-{told}"
    readable = re.sub(r"[^A-Za-z0-9_.~-]+", "-", whole)[:_ID_LENGTH]
    if readable == whole:
        return whole
    # Two names must not become one because neither fits into a run's id.
    return f"{readable}-{hashlib.sha256(whole.encode()).hexdigest()[:_DIGEST_LENGTH]}"
