"""A campaign as files in a folder: what it knows and decided after every round, its certificate, its report.

Written round by round and each file in one step, so a campaign that is stopped leaves what it had paid for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleetsieve_airflow.campaign import verdicts_of
from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.evidence import Decision, Evidence
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting.report import render_report
from fleetsieve_airflow.serialization import to_document


class CampaignFolder:
    """The files of one campaign: ``rounds/NN/decision.json``, evidence, certificate and ``report.html``.

    :param folder: made where it is missing; files of an earlier campaign in it are replaced.
    :raises SpecError: the folder cannot be written.
    """

    def __init__(self, folder: Path, spec: FleetSpec) -> None:
        self._spec = spec
        self._folder = folder
        self._decisions: list[Decision] = []
        self._evidence = Evidence()
        self.certificate = folder / "certificate.json"
        self.report = folder / "report.html"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # A shorter campaign must not keep the last rounds or the certificate of a longer one.
            for stale in (*folder.glob("rounds/*/decision.json"), self.certificate):
                stale.unlink(missing_ok=True)
        except OSError as error:
            raise SpecError(
                f"--out {folder}: cannot be written: {error}.", hint="Name another folder."
            ) from error

    def write_round(self, decision: Decision, evidence: Evidence) -> None:
        """Write one decision and all that was known when it was made."""
        self._decisions.append(decision)
        self._evidence = evidence
        _write_json(
            self._folder / "rounds" / f"{decision.round:02d}" / "decision.json", to_document(decision)
        )
        _write_json(self._folder / "evidence.json", to_document(evidence))
        self._write_report(None)

    def write_certificate(self, certificate: Mapping[str, Any]) -> None:
        """Write the certificate, and the report that holds it."""
        _write_json(self.certificate, certificate)
        self._write_report(certificate)

    def _write_report(self, certificate: Mapping[str, Any] | None) -> None:
        verdicts = verdicts_of(self._spec, self._evidence)
        text = render_report(self._spec, self._decisions, self._evidence, certificate, verdicts=verdicts)
        _write(self.report, text)


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    _write(path, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
