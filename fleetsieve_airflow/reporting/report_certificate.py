"""The certificate's part of a report: what was proved, with what, and the command that checks it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleetsieve_airflow.evidence import Decision
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting.charts_svg import count, cut, escape
from fleetsieve_airflow.serialization import spec_digest


def certificate_html(
    spec: FleetSpec, certificate: Mapping[str, Any] | None, rounds: Sequence[Decision]
) -> str:
    """Return digests, solver status, versions and assumptions, with the command that derives them again.

    :param certificate: the certificate document, or None while the campaign runs.
    """
    entries = [("spec", _digest(spec_digest(spec)))]
    if certificate is None:
        note = (
            "<p>There is none yet: it is written when the campaign ends, and can be checked without GPUs.</p>"
        )
    else:
        command = "<code>fleetsieve verify certificate.json</code>"
        note = f"<p>Check it again without Airflow, MLflow or GPUs: {command}</p>"
        entries += _entries(certificate)
    if rounds:
        plans = (("conservative", rounds[-1].conservative), ("optimistic", rounds[-1].optimistic))
        solved = "; ".join(f"{name}: {plan.solver}, {plan.solver_status}" for name, plan in plans)
        entries.append(("solver", escape(solved)))
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in entries)
    return f"{note}<dl>{listed}</dl>"


def _entries(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the certificate's own facts; a field that another release left out is left out here."""
    measurements = count(len(certificate.get("evidence", ())), "measurement")
    software = ", ".join(f"{name} {version}" for name, version in certificate.get("software", {}).items())
    circumstances = " ".join(str(certificate.get(name, "")) for name in ("campaign_id", "issued_at")).strip()
    entries = [
        ("certificate", _digest(certificate.get("certificate_sha256", ""))),
        ("evidence", f"{_digest(certificate.get('evidence_sha256', ''))} over {measurements}"),
        ("campaign", escape(circumstances)),
        ("software", escape(software)),
        ("assumed", "<br>".join(escape(cut(str(text), 400)) for text in certificate.get("assumptions", ()))),
    ]
    return [(name, value) for name, value in entries if value]


def _digest(value: str) -> str:
    return f"<code>sha256:{escape(value)}</code>"
