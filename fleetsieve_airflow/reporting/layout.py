"""The one place that knows how a fleet looks in MLflow: experiments, runs, tags, parameters, metrics, links.

Pure mapping from records to names and values. Two experiments per fleet: ``fleetsieve/<fleet>-plans`` has a
run per campaign (the metrics' step is the round), and ``fleetsieve/<fleet>-measurements`` a flat run per
measured point, because a measurement outlives the campaign that paid for it. Nothing that MLflow refuses or
spoils (infinity, odd names, cut values) passes this module.
"""

from __future__ import annotations

import colorsys
import hashlib
import math
import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote

from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.evidence import CapacityInterval, Decision, Measurement, MeasurementPoint, Plan
from fleetsieve_airflow.records import FleetSpec, Workload
from fleetsieve_airflow.serialization import sha256

#: Version of this layout. A reader refuses what a later layout wrote.
SCHEMA = "1"
#: Values above this length are cut by MLflow without a word; what may be longer goes into an artifact.
TAG_VALUE_MAX = 7_500
NAME_LENGTH_MAX = 80
EXPERIMENT_PREFIX = "fleetsieve/"
#: What MLflow's browser needs in a link to open runs: its default mode would show an empty page of traces.
WORKFLOW = "workflowType=machine_learning"

Kind = Literal["plans", "measurements"]
Verdict = Literal["running", "certified", "infeasible", "undetermined"]
PLANS: Kind = "plans"
MEASUREMENTS: Kind = "measurements"
_SISTERS: Mapping[Kind, Kind] = {PLANS: MEASUREMENTS, MEASUREMENTS: PLANS}
VERDICTS: Mapping[str, Verdict] = {
    "measure": "running",
    "certified_feasible": "certified",
    "certified_infeasible": "infeasible",
    "undetermined": "undetermined",
}

TAG_SCHEMA = "fleetsieve.schema"
TAG_KIND = "fleetsieve.kind"
TAG_FLEET = "fleetsieve.fleet"
TAG_VIEWS = "fleetsieve.views"
TAG_NOTE = "mlflow.note.content"
TAG_COLOR = "mlflow.runColor"
TAG_LOGGED_TABLES = "mlflow.loggedArtifacts"
TAG_SOURCE_TYPE, SOURCE_TYPE = "mlflow.source.type", "JOB"
TAG_SOURCE_NAME = "mlflow.source.name"
TAG_EXPERIMENT_KIND, EXPERIMENT_KIND = "mlflow.experimentKind", "custom_model_development"
TAG_AIRFLOW_PREFIX = "airflow."
# Of a plan: one campaign.
TAG_PLAN_KEY = "fleetsieve.plan_key"
TAG_CAMPAIGN_ID = "fleetsieve.campaign_id"
TAG_SPEC_SHA256 = "fleetsieve.spec_sha256"
TAG_VERDICT = "fleetsieve.verdict"
#: On the one run of a campaign; a run without it was begun while another task began the same.
TAG_OPENED = "fleetsieve.opened"
TAG_PLAN = "fleetsieve.plan"
TAG_ROUNDS_DONE = "fleetsieve.rounds_done"
TAG_TRIGGER = "fleetsieve.trigger"
TAG_CERTIFICATE_SHA256 = "fleetsieve.certificate_sha256"
TAG_STOPPED = "fleetsieve.stopped"
TAG_PRIOR = "fleetsieve.prior"
TAG_REUSE_MAX_AGE_S = "fleetsieve.reuse_max_age_s"
# Of a measurement: one point.
TAG_KEY = "fleetsieve.key"
TAG_FAMILY = "fleetsieve.family"
TAG_OWNER = "fleetsieve.owner"
TAG_CLAIM = "fleetsieve.claim"
TAG_LEASE_UNTIL = "fleetsieve.lease_until"
TAG_CAMPAIGN = "fleetsieve.campaign"
TAG_PLAN_RUN_ID = "fleetsieve.plan_run_id"
TAG_PLAN_NAME = "fleetsieve.plan_name"
TAG_PLANS_ID = "fleetsieve.plans_id"
TAG_ROUND = "fleetsieve.round"
TAG_MEASUREMENT = "fleetsieve.measurement"
TAG_MEASUREMENT_SHA256 = "fleetsieve.measurement_sha256"
TAG_SAMPLES_SHA256 = "fleetsieve.samples_sha256"
TAG_FAILURE = "fleetsieve.failure"
TAG_FAILURE_KIND = "fleetsieve.failure_kind"
TAG_CURTAILED = "fleetsieve.curtailed"
TAG_REFUSED = "fleetsieve.refused"
TAG_REUSED_PREFIX = "fleetsieve.reused."
TAG_VERSION_PREFIX = "fleetsieve.version."

KIND_PLAN = "plan"
KIND_MEASUREMENT = "measurement"
KIND_CLAIM_LOST = "claim-lost"

SPEC_FILE = "spec.json"
SPEC_TEXT_FILE = "spec.yaml"
REPORT_FILE = "report.html"
CERTIFICATE_FILE = "certificate.json"
PRIOR_FILE = "prior.json"
MEASUREMENT_FILE = "measurement.json"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\- ]*")
# One hue per workload, one shade per replica size: told apart by the eye in lists and scatter charts.
_HUES = (0.58, 0.06, 0.36, 0.78, 0.13, 0.93, 0.48, 0.68)
_LIGHTEST, _DARKEST = 0.68, 0.32


def check_names(spec: FleetSpec) -> None:
    """Refuse fleet and workload names that MLflow, its charts or links cannot hold, before anything is sent.

    :raises SpecError: naming the key, the name and what is allowed.
    """
    check_name("fleet", spec.fleet)
    for index, workload in enumerate(spec.workloads):
        check_name(f"workloads[{index}].name", workload.name)


def check_name(path: str, name: str) -> None:
    """Refuse one name; see :func:`check_names`."""
    if len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name) or name != name.strip() or ".." in name:
        raise SpecError(
            f"{path}: {name!r} cannot name a metric or experiment in MLflow; allowed: at most "
            f"{NAME_LENGTH_MAX} letters, digits, '_', '-', '.' and inner spaces, a letter or digit first.",
            hint="Rename it.",
        )


def experiment_name(fleet: str, kind: Kind) -> str:
    """Return the name of one of a fleet's two experiments; the fleet is in the part that breadcrumbs show."""
    return f"{EXPERIMENT_PREFIX}{fleet}-{kind}"


def experiment_note(fleet: str, kind: Kind, own_id: str, other_id: str) -> str:
    """Return an experiment's description: one line, with links that open it, and its sister, in their views.

    Lists show its first words as they are, and MLflow may have opened the experiment where it keeps traces:
    the links lead from there to what was decided.
    """
    own, other = (experiment_url("", own_id, kind), experiment_url("", other_id, _SISTERS[kind]))
    charts = experiment_url("", own_id, kind, charts=True)
    if kind == PLANS:
        return (
            f"Plans of fleet {fleet}: [verdicts and costs]({own}), [by round]({charts}), [evidence]({other})."
        )
    return f"Evidence of fleet {fleet}: [measurements]({own}), [by load]({charts}), [plans]({other})."


def plan_key(campaign_id: str) -> str:
    """Return the tag by which a campaign is found, 32 hex digits: ids may be long and hold any character."""
    return hashlib.sha256(campaign_id.encode()).hexdigest()[:32]


def owner_id(campaign_key: str, point_key: str) -> str:
    """Return who may continue a measurement that was begun: the campaign, for this point."""
    return f"{campaign_key[:16]}{point_key[:16]}"


def family(spec: FleetSpec, workload: Workload) -> str:
    """Return the tag that all measurements of a workload share, whatever the engine config: 32 hex digits.

    Points with one key are always of one family, so reading a family misses nothing; what older releases of
    the model left behind is not even read.
    """
    model, trace = spec.model(workload.model), workload.trace
    return sha256(
        [
            workload.name,
            [model.name, model.revision, model.source],
            [trace.name, trace.digest, trace.format, trace.isl_mean_tokens, trace.osl_mean_tokens],
            spec.measurement.device,
        ]
    )[:32]


def plan_run_name(date: str, reason: str) -> str:
    """Return a campaign's name in lists, e.g. ``2026-11-30-weekly``."""
    words = re.sub(r"[^A-Za-z0-9_.]+", "-", reason).strip("-")[:60]
    return f"{date}-{words or 'manual'}"


def significant(value: float) -> float:
    """Round to 4 significant digits, never coarser than whole numbers: full floats fill no list well."""
    return float(round(value)) if abs(value) >= 1000 else float(f"{value:.4g}")  # noqa: PLR2004


def loggable(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics that are known and finite, rounded; MLflow would store infinity as 1.8e308."""
    return {
        name: significant(value)
        for name, value in metrics.items()
        if value is not None and math.isfinite(value)
    }


def plan_params(spec: FleetSpec) -> dict[str, str]:
    """Return the immutable facts of a campaign: what it plans, with which settings."""
    decision, budget = spec.decision, spec.budget
    facts: dict[str, object] = {
        "fleet": spec.fleet,
        "gpus_total": sum(pool.gpus for pool in spec.pools),
        "objective": decision.objective,
        "required_fulfilment": decision.required_fulfilment,
        "tolerance": decision.tolerance,
        "stop_on": decision.stop_on,
        "confidence": decision.confidence,
        "backend": spec.measurement.backend,
        "device": spec.measurement.device,
        "duration_s": spec.measurement.duration_s,
        "budget_gpu_seconds": budget.gpu_seconds,
        "budget_rounds": budget.rounds,
        "budget_points": budget.points,
    }
    for workload in spec.workloads:
        facts |= _workload_params(spec, workload)
    return _texts(facts)


def _workload_params(spec: FleetSpec, workload: Workload) -> dict[str, object]:
    section, model = f"workload.{workload.name}", spec.model(workload.model)
    facts: dict[str, object] = {
        f"{section}/demand_rps": workload.demand_rps,
        f"{section}/model": model.name,
        f"{section}/model_revision": model.revision,
        f"{section}/trace": workload.trace.name,
        f"{section}/slo.success_rate": workload.slo.success_rate,
    }
    return facts | {f"{section}/slo.{limit.name}": limit.limit_s for limit in workload.slo.limits}


def plan_metrics(spec: FleetSpec, decision: Decision) -> dict[str, float]:
    """Return a round's metrics; a ``/`` makes a section of charts.

    ``gap`` and ``regret`` are in the objective's unit. Saved GPU-seconds are said once the campaign is
    settled: before that, what is not spent may still be.
    """
    low, high, spend = decision.conservative, decision.optimistic, decision.spend
    saved = spend.gpu_seconds_window_all - spend.gpu_seconds_window
    metrics: dict[str, float | None] = {
        "fleet/fulfilment_conservative": low.min_fulfilment,
        "fleet/fulfilment_optimistic": high.min_fulfilment,
        "fleet/gap": decision.gap,
        "fleet/regret": decision.regret,
        "fleet/gpus_conservative": low.gpus,
        "fleet/gpus_optimistic": high.gpus,
        "fleet/cost_per_hour": low.cost_per_hour,
        "fleet/points_measured": spend.points_measured,
        "fleet/points_reused": spend.points_reused,
        "fleet/points_next": len(decision.points),
        "fleet/points_skipped": len(decision.skipped),
        "fleet/gpu_seconds_window": spend.gpu_seconds_window,
        "fleet/gpu_seconds_billed": spend.gpu_seconds_billed,
        "fleet/gpu_seconds_window_saved": None if decision.state == "measure" else saved,
    }
    for workload in spec.workloads:
        metrics |= _workload_metrics(workload.name, decision)
    return loggable(metrics)


def _workload_metrics(workload: str, decision: Decision) -> dict[str, float | None]:
    section = f"workload.{workload}"
    metrics: dict[str, float | None] = {}
    for side, plan in (("conservative", decision.conservative), ("optimistic", decision.optimistic)):
        metrics[f"{section}/fulfilment_{side}"] = dict(plan.fulfilment).get(workload)
        metrics[f"{section}/gpus_{side}"] = gpus_of(plan, workload)
    if interval := chosen_interval(decision, workload):
        metrics[f"{section}/capacity_lower_rps"] = interval.lower.value_rps
        metrics[f"{section}/capacity_upper_rps"] = interval.upper.value_rps
    return metrics


def gpus_of(plan: Plan, workload: str) -> int:
    """Return the GPUs a plan gives to a workload; an allocation's ``gpus`` are those of all its replicas."""
    return sum(item.gpus for item in plan.allocations if item.workload == workload)


def chosen_interval(decision: Decision, workload: str) -> CapacityInterval | None:
    """Return the interval of the engine config on which the conservative plan runs most of a workload."""
    held = [item for item in decision.conservative.allocations if item.workload == workload and item.replicas]
    if not held:
        return None
    config = max(held, key=lambda item: item.gpus).config
    return next((i for i in decision.intervals if (i.workload, i.config) == (workload, config)), None)


def point_params(spec: FleetSpec, point: MeasurementPoint) -> dict[str, str]:
    """Return the immutable facts of a measured point: what was measured, on what, under which load."""
    workload, config = spec.workload(point.workload), spec.config(point.config)
    model, trace, parts = spec.model(workload.model), workload.trace, config.parts
    return _texts(
        {
            "workload": workload.name,
            "engine_config": config.label,
            "model": model.name,
            "model_revision": model.revision,
            "tensor_parallel": None if config.disaggregated else config.tensor_parallel,
            **{part.phase: part.words for part in parts if part.phase},
            "gpus": config.gpus,
            point.load_kind: f"{point.load:g}",
            "duration_s": f"{point.duration_s:g}",
            "seed": point.seed,
            "gpu": " + ".join(dict.fromkeys(spec.pool(part.engine.pool).gpu for part in parts)),
            "engine": config.engine,
            "engine_version": config.engine_version,
            "engine_args": " ".join(f"{name} {value}".strip() for name, value in config.engine_args),
            "trace": trace.name,
            "isl_mean_tokens": trace.isl_mean_tokens,
            "osl_mean_tokens": trace.osl_mean_tokens,
            "device": spec.measurement.device,
        }
    )


def measurement_metrics(measurement: Measurement) -> dict[str, float]:
    """Return a measurement's metrics; a percentile that is infinite is not there, as in the record."""
    metrics: dict[str, float | None] = {
        "served_rps": measurement.served_rps,
        "success_rate": measurement.success_rate,
        "requests_sent": measurement.sent,
        "requests_failed": measurement.failed,
        "gpu_seconds_window": measurement.gpu_seconds_window,
        "gpu_seconds_billed": measurement.gpu_seconds_billed,
    }
    metrics |= dict(measurement.percentiles)
    metrics |= {f"miss_share_{item.limit}": item.share for item in measurement.miss_shares}
    return loggable(metrics)


def run_color(spec: FleetSpec, point: MeasurementPoint) -> str:
    """Return ``#rrggbb``: a hue per workload, darker for larger replicas."""
    names = [workload.name for workload in spec.workloads]
    sizes = sorted({config.gpus for config in spec.configs})
    share = sizes.index(point.gpus) / max(1, len(sizes) - 1) if point.gpus in sizes else 0.0
    hue = _HUES[names.index(point.workload) % len(_HUES)]
    rgb = colorsys.hls_to_rgb(hue, _LIGHTEST + (_DARKEST - _LIGHTEST) * share, 0.65)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def round_folder(number: int) -> str:
    """Return the artifact folder of a round, e.g. ``rounds/03``."""
    return f"rounds/{number:02d}"


def run_url(base: str, experiment_id: str, run_id: str, artifact: str = "") -> str:
    """Return the browser's address of a run, or of one of its artifacts.

    :param base: address of the MLflow server as people see it; empty for a link from within MLflow.
    """
    tail = f"/artifacts/{quote(artifact)}" if artifact else ""
    return _page(base, f"experiments/{experiment_id}/runs/{run_id}{tail}", WORKFLOW)


def experiment_url(base: str, experiment_id: str, view: str = "", *, charts: bool = False) -> str:
    """Return the browser's address of an experiment's runs, opened in a saved view.

    :param charts: open the view's charts rather than its table.
    """
    query = WORKFLOW + (f"&viewStateShareKey={quote(view)}" if view else "")
    query += "&compareRunsMode=CHART" if charts else ""
    return _page(base, f"experiments/{experiment_id}/runs", query)


def _page(base: str, route: str, query: str) -> str:
    return (f"{base.rstrip('/')}/" if base else "") + f"#/{route}?{query}"


def _texts(facts: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}
