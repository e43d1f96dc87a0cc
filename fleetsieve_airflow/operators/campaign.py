"""Open a campaign: what is wrong with a fleet is said here, before anything is started or paid for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.operators.base import TrackingOperator, airflow_facts, no_use_retrying
from fleetsieve_airflow.operators.priors import settle_priors
from fleetsieve_airflow.records import FleetSpec

if TYPE_CHECKING:
    from airflow.sdk import Context

    from fleetsieve_airflow.hooks.mlflow import MlflowHook


class OpenCampaignOperator(TrackingOperator):
    """Check a fleet file and its measuring backend, then open the campaign in MLflow or find it open already.

    Example::

        OpenCampaignOperator(
            task_id="open_campaign", fleet="fleets/chat_and_code_h100.yaml", fleet_folder="/opt/airflow/dags",
            campaign_id="{{ run_id }}",
        )

    :param fleet: path of the fleet file below ``fleet_folder`` (templated).
    :param fleet_folder: the only folder that fleet files are read from: whoever may trigger a DAG names the
        file.
    :param campaign_id: identity of the campaign within its fleet (templated); characters that a run id cannot
        hold become ``-``.
    :param demand_scale: multiplies every demand of the file (templated).
    :param max_rounds: lowers the file's budget of measuring rounds (templated); None leaves it.
    :param reason: why the fleet is planned, part of the run's name (templated).
    :param revisions: model -> revision that replaces the file's, as a mapping or its JSON (templated).
    :param round: the round that begins (templated); from the second on, the campaign keeps the spec it began
        with, whatever has become of the file.
    :return: the campaign, as the other operators take it.
    """

    template_fields: Sequence[str] = (
        "fleet",
        "campaign_id",
        "demand_scale",
        "max_rounds",
        "reason",
        "revisions",
        "round",
    )

    def __init__(
        self,
        *,
        fleet: str,
        fleet_folder: str,
        campaign_id: str,
        demand_scale: float | str = 1.0,
        max_rounds: int | str | None = None,
        reason: str = "manual",
        revisions: Mapping[str, str] | str | None = None,
        round: int | str = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fleet = fleet
        self.fleet_folder = fleet_folder
        self.campaign_id = campaign_id
        self.demand_scale = demand_scale
        self.max_rounds = max_rounds
        self.reason = reason
        self.revisions = revisions
        self.round = round

    def execute(self, context: Context) -> dict[str, Any]:
        """Validate, then open."""
        from fleetsieve_airflow.backends.base import backend_for
        from fleetsieve_airflow.spec import load_spec

        with no_use_retrying():
            path = _inside(Path(self.fleet_folder), self.fleet)
            revisions = revisions_of(self.revisions)
            spec = load_spec(path, demand_scale=float(self.demand_scale), revisions=revisions)
            spec = limit_rounds(spec, int(self.max_rounds) if self.max_rounds else None)
            hook, name = self.tracking(), campaign_name(self.campaign_id)
            spec = self._as_it_began(hook, spec, name)
            backend_for(spec).check(spec)
            campaign = hook.open_campaign(
                spec,
                name,
                reason=self.reason,
                spec_text=path.read_text(encoding="utf-8"),
                airflow=airflow_facts(context),
            )
            if origin := settle_priors(hook, campaign, spec):
                self.log.info("The first measurements are steered by: %s", origin)
        self.mlflow_run_url = hook.campaign_url(campaign)
        self.log.info("Campaign %s of fleet %s: %s", campaign.campaign_id, spec.fleet, self.mlflow_run_url)
        return asdict(campaign)

    def _as_it_began(self, hook: MlflowHook, spec: FleetSpec, name: str) -> FleetSpec:
        """Return the spec of a campaign that is under way: an edited file is for the next one."""
        known = hook.find_campaign(spec.fleet, name) if int(self.round) > 1 else None
        began_with = hook.load_spec(known) if known else spec
        if began_with != spec:
            self.log.warning("%s has changed; the campaign goes on with what it began with.", self.fleet)
        return began_with


def campaign_name(text: str) -> str:
    """Return a campaign id that can be part of a DAG run's id: what it cannot hold becomes ``-``."""
    return re.sub(r"[^A-Za-z0-9_.~-]+", "-", text)


def revisions_of(given: Mapping[str, str] | str | None) -> dict[str, str]:
    """Return the revisions of models that were asked for.

    :raises SpecError: it is no mapping of names to texts.
    """
    try:
        found = json.loads(given or "{}") if isinstance(given, str) or given is None else given
    except ValueError:
        found = given
    if not isinstance(found, Mapping) or not all(text and isinstance(text, str) for text in found.values()):
        raise SpecError(
            f"revisions: must be a mapping of models to texts, got {given!r}.",
            hint='E.g. {"chat-31b": "v7"}.',
        )
    return dict(found)


def limit_rounds(spec: FleetSpec, max_rounds: int | None) -> FleetSpec:
    """Return the spec with at most this many measuring rounds; a tighter budget of its own stays."""
    if max_rounds is None:
        return spec
    rounds = min(max_rounds, spec.budget.rounds or max_rounds)
    return replace(spec, budget=replace(spec.budget, rounds=rounds))


def _inside(folder: Path, file: str) -> Path:
    folder = folder.resolve()
    path = (folder / file).resolve()
    if not path.is_relative_to(folder):
        raise SpecError(
            f"fleet: {file!r} is not below {folder}.", hint="Name a fleet file inside that folder."
        )
    return path
