"""``fleetsieve export`` and ``fleetsieve diff``: what a certified plan is used for."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fleetsieve_airflow.errors import CertificateError, DeploymentError

FORMATS = ("commands", "kubernetes", "production-stack", "json")


def add_deployment_commands(subparsers: Any) -> None:
    """Add ``export`` and ``diff`` to the ``fleetsieve`` command line; the rest is imported when they run."""
    export = subparsers.add_parser(
        "export", help="write a certified plan as commands, Kubernetes manifests, chart values or JSON"
    )
    export.add_argument("file", metavar="certificate.json", type=Path, help="the certificate")
    export.add_argument("--format", choices=FORMATS, default="commands", help="default: %(default)s")
    export.add_argument("--out", type=Path, metavar="DIR", help="write a file there instead of to stdout")
    export.add_argument("--image", default="", metavar="REPOSITORY:TAG", help="image of the servers")
    export.add_argument("--namespace", default="", help="Kubernetes namespace")
    export.add_argument(
        "--hf-token-secret",
        default="",
        metavar="NAME:KEY",
        help="existing Secret of the Hugging Face token",
    )
    export.add_argument(
        "--model-volume", default="", metavar="CLAIM:/PATH", help="existing volume claim with the weights"
    )
    export.add_argument(
        "--allow-uncertified",
        action="store_true",
        help="export a plan too that no certificate stands behind, and a certificate that does not hold",
    )
    export.set_defaults(run=run_export)
    diff = subparsers.add_parser("diff", help="say what changes from one plan of a fleet to the next")
    diff.add_argument("file", metavar="old.json", type=Path, help="certificate or exported JSON in force")
    diff.add_argument("new", metavar="new.json", type=Path, help="certificate or exported JSON to come")
    diff.set_defaults(run=run_diff)


def run_export(arguments: argparse.Namespace) -> int:
    """Write a plan in one form.

    :return: the exit code.
    :raises FleetsieveError: the certificate does not hold, or the plan cannot have that form.
    """
    from fleetsieve_airflow.deployment.commands import headline
    from fleetsieve_airflow.deployment.files import FORMATS as KNOWN
    from fleetsieve_airflow.deployment.options import ExportOptions
    from fleetsieve_airflow.deployment.plan import plan_of_certificate

    options = ExportOptions(
        image=arguments.image,
        namespace=arguments.namespace,
        hf_token_secret=arguments.hf_token_secret,
        model_volume=arguments.model_volume,
    )
    document = _read(arguments.file)
    plan = plan_of_certificate(document)
    if not arguments.allow_uncertified:
        _require_certified(document, plan.certified, plan.state)
    name, render = KNOWN[arguments.format]
    text = render(plan, options)
    if plan.state != "certified_feasible":
        print(f"fleetsieve export: {headline(plan)[-1]}", file=sys.stderr)
    if arguments.out is None:
        print(text, end="")
        return 0
    path = arguments.out / name
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DeploymentError(
            f"--out {arguments.out}: cannot be written: {error}.", hint="Name another folder."
        ) from error
    print(path)
    return 0


def run_diff(arguments: argparse.Namespace) -> int:
    """Print what changes between two plans.

    :return: the exit code.
    :raises FleetsieveError: a file cannot be read, or they are of two fleets.
    """
    from fleetsieve_airflow.deployment.difference import differences
    from fleetsieve_airflow.deployment.plan import read_plan

    old, new = read_plan(_read(arguments.file)), read_plan(_read(arguments.new))
    print("\n".join(differences(old, new)))
    return 0


def _read(path: Path) -> dict[str, Any]:
    from fleetsieve_airflow.deployment.files import load_json

    try:
        return load_json(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DeploymentError(f"{path} cannot be read: {error}.") from error


def _require_certified(document: dict[str, Any], certified: bool, state: str) -> None:
    from fleetsieve_airflow.core.certificate import verify_certificate

    remedy = "With --allow-uncertified it is exported all the same."
    if not certified:
        raise CertificateError(f"The plan is {state}: no certificate stands behind it.", hint=remedy)
    if differences := verify_certificate(document):
        raise CertificateError(f"The certificate does not hold: {differences[0]}", hint=remedy)
