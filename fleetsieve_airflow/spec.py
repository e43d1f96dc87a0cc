"""Fleet files: YAML in, a :class:`FleetSpec` out, or one error that says everything that is wrong.

Two passes: first the shape of every section and every name that refers to another, then, on a sound file,
what follows from it: what can run at all, the ladders, the measuring device. Nothing is started or paid for
here; files that the fleet file names (grid, trace, config.json) are read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fleetsieve_airflow.backends.grid import PACKAGE_PREFIX, Grid, read_grid
from fleetsieve_airflow.feasibility import replica_exclusion, replicas_at_most
from fleetsieve_airflow.ladders import listed_loads
from fleetsieve_airflow.records import (
    PERCENTILE_NAMES,
    Budget,
    Candidate,
    DecisionSettings,
    EngineConfig,
    EngineGroup,
    FleetSpec,
    LatencyLimit,
    MeasurementSettings,
    Pool,
    PriorSettings,
    Slo,
    Workload,
)
from fleetsieve_airflow.spec_checks import check_candidates, check_references
from fleetsieve_airflow.spec_files import read_model, read_trace, simulated_device
from fleetsieve_airflow.spec_problems import Problems
from fleetsieve_airflow.spec_schema import (
    DecisionSection,
    EngineConfigSection,
    EngineGroupSection,
    FleetFile,
    MeasurementSection,
    PriorSection,
    SloSection,
)
from fleetsieve_airflow.spec_yaml import read_yaml

#: Stands for the model's revision in its source, e.g. ``/models/chat/{revision}``.
REVISION = "{revision}"
#: Backends that load no weights.
WITHOUT_WEIGHTS = ("replay", "simulate")


def load_spec(
    path: str | Path,
    *,
    demand_scale: float = 1.0,
    measurement: Mapping[str, Any] | None = None,
    revisions: Mapping[str, str] | None = None,
) -> FleetSpec:
    """Read a fleet file.

    :param path: the YAML file; relative paths inside it start at its folder.
    :param demand_scale: factor on every workload's demand, e.g. 1.3 to plan for 30 % more.
    :param measurement: keys that replace those of the file's ``measurement`` section.
    :param revisions: model -> revision that replaces the file's, to plan for a release.
    :raises SpecError: one line per problem, each with key path, line, value, what is allowed and the remedy.
    :raises GridError: the recorded grid cannot be used.
    """
    path = Path(path)
    document = read_yaml(path)
    problems = Problems(str(path), document.lines)
    for place in document.duplicates:
        problems.add(place, "is given twice", "Keep one, or give the second another name.")
    data = _at_revisions(document.data, revisions or {}, problems)
    return _parse(data, path.resolve().parent, problems, demand_scale, measurement)


def parse_spec(
    mapping: Any,
    base_dir: str | Path = ".",
    *,
    demand_scale: float = 1.0,
    measurement: Mapping[str, Any] | None = None,
) -> FleetSpec:
    """Read a fleet that is plain data already: what a fleet file holds.

    :param base_dir: where relative paths start.
    :raises SpecError: one line per problem; see :func:`load_spec`.
    :raises GridError: the recorded grid cannot be used.
    """
    return _parse(mapping, Path(base_dir).resolve(), Problems(), demand_scale, measurement)


def _at_revisions(data: Any, revisions: Mapping[str, str], problems: Problems) -> Any:
    """Return a fleet file's data with other revisions of some models.

    A model that real servers load must say where each revision is: else its certificate would be about
    weights that nobody measured.
    """
    models = data.get("models") if isinstance(data, dict) else None
    if not isinstance(models, dict) or not revisions:
        return data
    section = data.get("measurement")
    backend = section.get("backend", "replay") if isinstance(section, dict) else "replay"
    changed = dict(models)
    for name, revision in revisions.items():
        model = models.get(name)
        if name not in models:
            problems.add_unknown(("revisions", name), "model", name, map(str, models))
        elif isinstance(model, dict):
            changed[name] = {**model, "revision": revision}
            if backend not in WITHOUT_WEIGHTS and REVISION not in str(model.get("source", "")):
                problems.add_value(
                    ("models", name, "source"),
                    f"must hold {REVISION} to be measured at another revision",
                    model.get("source", ""),
                    f"Say where each revision is, e.g. /models/{name}/{REVISION}.",
                )
    return {**data, "models": changed}


def _parse(
    data: Any, base_dir: Path, problems: Problems, demand_scale: float, measurement: Mapping[str, Any] | None
) -> FleetSpec:
    if not math.isfinite(demand_scale) or demand_scale <= 0:
        problems.add_value(("demand_scale",), "must be above 0", demand_scale, "Give a factor, e.g. 1.3.")
    if not isinstance(data, dict):
        problems.add_value((), "must be a mapping", data, "Start from a copy of chat_and_code_h100.yaml.")
        problems.raise_any()
    if measurement:
        given = data.get("measurement") or {}
        data = {**data, "measurement": {**given, **measurement} if isinstance(given, dict) else given}
    check_references(data, problems)
    try:
        file = FleetFile.model_validate(data)
    except ValidationError as error:
        problems.add_validation(error, FleetFile)
    problems.raise_any()
    return _Builder(file, base_dir, problems, demand_scale).build()


class _Builder:
    """Turns the sections of a valid fleet file into records, collecting what does not fit together."""

    def __init__(self, file: FleetFile, base_dir: Path, problems: Problems, demand_scale: float) -> None:
        self._file = file
        self._base_dir = base_dir
        self._problems = problems
        self._demand_scale = demand_scale
        self._grid: Grid | None = None

    def build(self) -> FleetSpec:
        """Return the spec.

        :raises SpecError: one line per problem.
        """
        file, problems = self._file, self._problems
        measurement = self._measurement(file.measurement)
        self._pools = {name: Pool(name=name, **section.model_dump()) for name, section in file.pools.items()}
        self._models = {
            name: read_model(name, section, self._base_dir, problems) for name, section in file.models.items()
        }
        self._configs = {
            label: _engine_config(label, section) for label, section in file.engine_configs.items()
        }
        workloads = tuple(self._workload(name) for name in file.workloads)
        candidates = tuple(
            candidate
            for workload in workloads
            for label in file.workloads[workload.name].engine_configs
            if (candidate := self._candidate(workload, label))
        )
        problems.raise_any()
        spec = FleetSpec(
            fleet=file.fleet,
            pools=tuple(self._pools.values()),
            models=tuple(self._models.values()),
            configs=tuple(self._configs.values()),
            workloads=workloads,
            candidates=candidates,
            decision=_decision(file.decision),
            measurement=measurement,
            budget=Budget(**file.budget.model_dump()),
            prior=_prior(file.prior),
        )
        check_candidates(spec, problems)
        problems.raise_any()
        return spec

    def _measurement(self, section: MeasurementSection) -> MeasurementSettings:
        """Return the settings with the device that will answer; a grid is read here, once."""
        options, place = dict(section.options), ("measurement", "grid")
        device = "live"
        if section.backend == "replay" and section.grid is None:
            self._problems.add(
                place, "is missing, and replay reads from it", "Give a CSV, e.g. package:paper_grid.csv."
            )
        elif section.backend == "replay" and section.grid is not None:
            is_path = not section.grid.startswith(PACKAGE_PREFIX)
            options["grid"] = str(self._base_dir / section.grid) if is_path else section.grid
            self._grid = read_grid(options["grid"])
            device = self._grid.device
        elif section.grid is not None:
            self._problems.add_value(
                place, "is read by replay only", section.grid, "Remove it, or set backend: replay."
            )
        if section.backend == "simulate":
            device = simulated_device(options, self._base_dir)
        return MeasurementSettings(
            device=device,
            options=tuple(sorted(options.items())),
            reuse_max_age_s=section.reuse_max_age,
            **section.model_dump(exclude={"grid", "options", "reuse_max_age"}),
        )

    def _workload(self, name: str) -> Workload:
        section = self._file.workloads[name]
        return Workload(
            name=name,
            model=section.model,
            # Twelve digits: 12.0 x 1.3 is 15.6 to the person who wrote it.
            demand_rps=float(f"{section.demand_rps * self._demand_scale:.12g}"),
            slo=_slo(section.slo),
            trace=read_trace(name, section.trace, self._base_dir, self._problems),
            min_replicas=section.min_replicas,
            max_replicas=section.max_replicas,
        )

    def _candidate(self, workload: Workload, label: str) -> Candidate | None:
        section = self._file.workloads[workload.name]
        config = self._configs[label]
        loads = section.loads_by_config.get(label, section.loads)
        own = label in section.loads_by_config
        path = ("workloads", workload.name, *(("loads_by_config", label) if own else ("loads",)))
        excluded = replica_exclusion(config, self._pools, self._models[workload.model])
        if loads is None:
            return self._recorded_candidate(workload, config, excluded)
        fitting = replicas_at_most(config, self._pools)
        ladder = listed_loads(loads, workload, label, fitting, self._file.decision)
        if isinstance(ladder, str):
            self._problems.add(path, ladder, "Raise the resolution or narrow from and to.")
            return None
        return Candidate(
            workload=workload.name, config=label, load_kind=loads.kind, loads=ladder, excluded=excluded
        )

    def _recorded_candidate(
        self, workload: Workload, config: EngineConfig, excluded: str
    ) -> Candidate | None:
        """Take the ladder from the grid; what can never run needs no rows there."""
        name, label, grid = workload.name, config.label, self._grid
        if grid is None:
            if self._file.measurement.backend != "replay":
                self._problems.add(
                    ("workloads", name, "loads"),
                    "is missing",
                    "Give loads, e.g. {offered_load_rps: [2, 4, 8]}.",
                )
            return None
        loads = grid.loads(name, config) or (grid.all_loads(name) if excluded else ())
        if not loads:
            self._problems.add(
                ("workloads", name, "engine_configs"),
                f"holds {label}, which {grid.path.name} has no rows for; for {name} it has "
                f"{', '.join(grid.configs(name)) or 'none'}",
                "Record it, or take it out.",
            )
            return None
        return Candidate(
            workload=name, config=label, load_kind=grid.load_kinds[name], loads=loads, excluded=excluded
        )


def _engine_config(label: str, section: EngineConfigSection) -> EngineConfig:
    values = section.model_dump(exclude={"pool", "engine_args", "prefill", "decode"})
    return EngineConfig(
        label=label,
        pool=section.pool or "",
        engine_args=tuple(section.engine_args.items()),
        prefill=_group(section.prefill),
        decode=_group(section.decode),
        **values,
    )


def _group(section: EngineGroupSection | None) -> EngineGroup | None:
    if section is None:
        return None
    values = section.model_dump(exclude={"engine_args"})
    return EngineGroup(engine_args=tuple(section.engine_args.items()), **values)


def _slo(section: SloSection) -> Slo:
    given = section.model_dump(exclude_none=True)
    limits = []
    for name in PERCENTILE_NAMES:
        if name in given:
            metric, percentile, _ = name.split("_")
            limits.append(LatencyLimit(metric=metric, percentile=int(percentile[1:]), limit_s=given[name]))
    return Slo(success_rate=section.success_rate, limits=tuple(limits))


def _decision(section: DecisionSection) -> DecisionSettings:
    values = section.model_dump(exclude={"assumptions"})
    return DecisionSettings(
        **{
            **values,
            "certify_on": tuple(section.certify_on),
            "demand_scenarios": tuple(section.demand_scenarios),
        },
        interior_peak=section.assumptions.interior_peak,
    )


def _prior(section: PriorSection) -> PriorSettings:
    return PriorSettings(
        earlier_release=section.earlier_release,
        simulator=section.simulator.tables if section.simulator else "",
        widening=section.widening,
    )
