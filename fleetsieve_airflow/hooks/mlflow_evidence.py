"""Measurements as MLflow runs, and back: what is written when a point ends, what a campaign may read of it.

A measurement travels as one compact JSON text in a tag, so that a thousand are read in one search. Its
SHA-256 stands beside it; a text that does not match, or is of another point, is an error and never read as
"not measured yet".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fleetsieve_airflow.errors import EvidenceError
from fleetsieve_airflow.evidence import Evidence, EvidenceItem, Measurement, MeasurementPoint, PointFailure
from fleetsieve_airflow.hooks.claims import is_usable
from fleetsieve_airflow.hooks.mlflow_client import TrackingClient
from fleetsieve_airflow.hooks.mlflow_files import read_text
from fleetsieve_airflow.hooks.mlflow_priors import read_priors
from fleetsieve_airflow.hooks.mlflow_refs import CampaignRef
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting import layout
from fleetsieve_airflow.serialization import canonical_json, from_document, points_of, to_document

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_PAGE = 1000
_CLOCK_SKEW_S = 3600.0
#: Stands in the tag where the text is too long for it and is kept as an artifact only.
IN_FILE = "in-file"


def measurement_text(measurement: Measurement) -> str:
    """Return a measurement as the JSON text whose digest is kept."""
    return canonical_json(to_document(measurement))


def digest(text: str) -> str:
    """Return the hex SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def measurement_tags(measurement: Measurement) -> dict[str, str]:
    """Return the tags that hold a measurement and what lists show of it."""
    text = measurement_text(measurement)
    tags = {
        layout.TAG_MEASUREMENT: text if len(text) <= layout.TAG_VALUE_MAX else IN_FILE,
        layout.TAG_MEASUREMENT_SHA256: digest(text),
        layout.TAG_SAMPLES_SHA256: measurement.samples_sha256,
        layout.TAG_CURTAILED: "yes" if measurement.curtailed else "",
        layout.TAG_REFUSED: measurement.refused[:500],
    }
    tags |= {layout.TAG_VERSION_PREFIX + name: version for name, version in measurement.versions}
    return {name: value for name, value in tags.items() if value}


def failure_tags(failure: PointFailure) -> dict[str, str]:
    """Return the tags that hold a failure; its message is cut where MLflow would cut the whole text."""
    room = layout.TAG_VALUE_MAX - len(canonical_json(to_document(replace(failure, message=""))))
    message = failure.message
    while len(json.dumps(message)) > room:
        message = message[: max(0, len(message) * 9 // 10 - 1)]
    text = canonical_json(to_document(replace(failure, message=message)))
    return {layout.TAG_FAILURE: text, layout.TAG_FAILURE_KIND: failure.kind}


class EvidenceReader:
    """Reads what a campaign knows: its own measurements and failures, and usable ones of other campaigns."""

    def __init__(self, client: TrackingClient) -> None:
        self._client = client

    def load(self, spec: FleetSpec, campaign: CampaignRef, rounds_done: int) -> Evidence:
        """Return the evidence after ``rounds_done`` rounds, ordered by round and point key.

        :raises EvidenceError: a stored measurement does not match its digest or its point.
        """
        points = {
            point.key: point
            for candidate in spec.candidates
            for point in points_of(spec, candidate, spec.measurement.repeats)
        }
        known: dict[str, tuple[tuple[int, int, str], Run]] = {}
        for run in self._finished(spec, campaign):
            key = run.data.tags.get(layout.TAG_KEY, "")
            number = _round_of(run, campaign) if key in points else None
            if number is None or number > rounds_done:
                continue
            rank = (number, int(run.info.end_time), str(run.info.run_id))
            if key not in known or rank < known[key][0]:
                known[key] = (rank, run)
        ordered = sorted((rank[0], key, run) for key, (rank, run) in known.items())
        items = tuple(self._item(run, points[key], number, campaign) for number, key, run in ordered)
        return Evidence(
            items=items,
            failures=tuple(self._failures(campaign, rounds_done)),
            priors=read_priors(self._client, campaign) or (),
            rounds_done=rounds_done,
        )

    def measurement(self, run: Run) -> Measurement:
        """Rebuild the measurement that a run holds.

        :raises EvidenceError: it is not there, cannot be read, or does not match its digest.
        """
        run_id, tags = str(run.info.run_id), run.data.tags
        text, expected = tags.get(layout.TAG_MEASUREMENT, ""), tags.get(layout.TAG_MEASUREMENT_SHA256, "")
        if text == IN_FILE:
            text = read_text(self._client, run_id, layout.MEASUREMENT_FILE)
        if not text or digest(text) != expected:
            raise EvidenceError(
                f"MLflow run {run_id} ({run.info.run_name}): its measurement has digest "
                f"{digest(text)[:16] if text else 'none'}, the run says {expected[:16] or 'none'}.",
                hint="The run was changed after it ended: delete it and the point is measured again.",
            )
        measurement = from_document(Measurement, json.loads(text))
        if measurement.point.key != tags.get(layout.TAG_KEY):
            raise EvidenceError(
                f"MLflow run {run_id} ({run.info.run_name}) is filed under point {tags.get(layout.TAG_KEY)}, "
                f"its measurement is of point {measurement.point.key}.",
                hint="The run was changed after it ended: delete it and the point is measured again.",
            )
        return measurement

    def _item(self, run: Run, point: MeasurementPoint, number: int, campaign: CampaignRef) -> EvidenceItem:
        # The spec's own point: labels may have been renamed since, and say nothing about what was measured.
        measurement = replace(self.measurement(run), point=point)
        return EvidenceItem(
            measurement=measurement,
            round=number,
            reused=run.data.tags.get(layout.TAG_CAMPAIGN) != campaign.key,
            run_id=str(run.info.run_id),
            measured_at=utc_text(run.info.end_time),
        )

    def _finished(self, spec: FleetSpec, campaign: CampaignRef) -> Iterator[Run]:
        # By family and not all at once: a fleet's history is mostly of models that are gone.
        young = ""
        if campaign.reuse_max_age_s is not None:
            # Only leaves unread what is judged to be too old below, whatever the clocks of two workers say.
            oldest_ms = campaign.started_ms - 1000 * (campaign.reuse_max_age_s + _CLOCK_SKEW_S)
            young = f" AND attributes.end_time >= {round(oldest_ms)}"
        for workload in spec.workloads:
            family = f"tags.`{layout.TAG_FAMILY}` = '{layout.family(spec, workload)}'"
            yield from self._pages(campaign, f"attributes.status = 'FINISHED' AND {family}{young}")

    def _failures(self, campaign: CampaignRef, rounds_done: int) -> list[PointFailure]:
        own = f"tags.`{layout.TAG_CAMPAIGN}` = '{campaign.key}'"
        found = []
        for run in self._pages(campaign, f"attributes.status = 'FAILED' AND {own}"):
            failure = _failure(run)
            if failure.round <= rounds_done:
                found.append(((failure.round, failure.key, run.info.start_time, run.info.run_id), failure))
        return [failure for _, failure in sorted(found, key=lambda pair: pair[0])]

    def _pages(self, campaign: CampaignRef, query: str) -> Iterator[Run]:
        token: str | None = None
        while True:
            page = self._client.call("read measurements", _page_reader(campaign, query, token))
            yield from page
            token = page.token
            if not token:
                return


def _page_reader(campaign: CampaignRef, query: str, token: str | None) -> Any:
    def read(client: MlflowClient) -> Any:
        experiments = [campaign.measurements_id]
        return client.search_runs(experiments, query, max_results=_PAGE, page_token=token)

    return read


def _round_of(run: Run, campaign: CampaignRef) -> int | None:
    """Return the round in which a campaign came to know a measurement; None: it must not use it."""
    tags = run.data.tags
    if tags.get(layout.TAG_CAMPAIGN) == campaign.key:
        return _number(run, layout.TAG_ROUND)
    if not is_usable(run, campaign):
        return None
    if run.info.end_time <= campaign.started_ms:
        return 0
    waited = layout.TAG_REUSED_PREFIX + campaign.key
    return _number(run, waited) if waited in tags else None


def _failure(run: Run) -> PointFailure:
    text = run.data.tags.get(layout.TAG_FAILURE, "")
    if text:
        return from_document(PointFailure, json.loads(text))
    # Ended as failed by something else than this hook: the point was not measured, and the reader must know.
    return PointFailure(
        key=run.data.tags.get(layout.TAG_KEY, ""),
        label=str(run.info.run_name),
        round=_number(run, layout.TAG_ROUND),
        kind="infrastructure",
        message="The run was ended as failed without a reason.",
    )


def _number(run: Run, tag: str) -> int:
    text = run.data.tags.get(tag, "")
    if not text.isdecimal():
        raise EvidenceError(
            f"MLflow run {run.info.run_id} ({run.info.run_name}): tag {tag} must be a round number, "
            f"got {text!r}.",
            hint="The run was changed by hand: mend the tag, or delete the run.",
        )
    return int(text)


def utc_text(milliseconds: int) -> str:
    """Return a time as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
