"""Replay: a recorded grid as the measuring device.

Measuring a point means looking its cell up, so the same point always gives the same measurement. What was not
recorded is never made up: no interpolation, no second use of the same run.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleetsieve_airflow.backends.grid import Grid, GridRun, read_grid
from fleetsieve_airflow.errors import GridError, MeasurementError, SpecError
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint
from fleetsieve_airflow.records import Candidate, FleetSpec, Slo
from fleetsieve_airflow.serialization import sha256

#: Missing points that one message lists.
POINTS_SHOWN = 5


class ReplayBackend:
    """Answers points from the grid that the spec names under ``measurement.grid``."""

    def __init__(self) -> None:
        self._grids: dict[str, Grid] = {}

    def check(self, spec: FleetSpec) -> None:
        """Refuse a spec whose points or SLO limits the grid does not hold.

        :raises GridError: naming the first missing points or limits, and what the grid has.
        """
        grid = self._grid(spec)
        for workload in spec.workloads:
            candidates = spec.candidates_of(workload.name)
            problems = [
                *_wrong_load_kinds(grid, candidates),
                *_shared_rows(grid, spec, candidates),
                *_missing_limits(grid, workload.name, workload.slo),
            ]
            if problems:
                raise GridError("\n".join(f"{grid.path}: {problem}" for problem in problems))
        missing = [
            f"{candidate.label} at {load:g} (recorded: {_words(grid.loads(candidate.workload, config))})"
            for candidate in spec.candidates
            if not candidate.excluded
            for config in [spec.config(candidate.config)]
            for load in candidate.loads
            if not grid.cell(candidate.workload, config, load)
        ]
        if missing:
            shown = "; ".join(missing[:POINTS_SHOWN]) + ("; ..." if len(missing) > POINTS_SHOWN else "")
            raise GridError(
                f"{grid.path}: lacks {len(missing)} points of the spec: {shown}.",
                hint="Leave out the workload's loads to take the grid's own, or record these points.",
            )
        self._check_cells(grid, spec)

    def measure(self, spec: FleetSpec, point: MeasurementPoint) -> Measurement:
        """Return the recorded run of a point; the seed above the spec's own picks the repeated run.

        :raises MeasurementError: of kind ``missing_in_grid`` when the cell or that repeat was not recorded.
        """
        grid = self._grid(spec)
        runs = grid.cell(point.workload, spec.config(point.config), point.load)
        repeat = point.seed - spec.measurement.seed
        if not 0 <= repeat < len(runs):
            # Giving an earlier run again would count one observation twice.
            raise MeasurementError(
                f"{point.label}: run {repeat + 1} is not in {grid.path.name}, which holds {len(runs)} of it.",
                hint="Record more runs in the column repeat, or set measurement.repeats lower.",
                kind="missing_in_grid",
            )
        return _measurement(spec, grid, point, runs[repeat])

    def _grid(self, spec: FleetSpec) -> Grid:
        name = spec.measurement.option("grid")
        if not name:
            raise SpecError("measurement.grid: is missing.", hint="Name the CSV file that replay reads.")
        if name not in self._grids:
            self._grids[name] = read_grid(name)
        grid = self._grids[name]
        if spec.measurement.device != grid.device:
            raise GridError(
                f"{grid.path}: is {grid.device}, but the spec was made for {spec.measurement.device}: "
                "the file has changed since.",
                hint="Load the spec again, or bring the earlier file back.",
            )
        return grid

    def _check_cells(self, grid: Grid, spec: FleetSpec) -> None:
        problems: list[str] = []
        for candidate in spec.candidates:
            if candidate.excluded:
                continue
            slo, config = spec.workload(candidate.workload).slo, spec.config(candidate.config)
            for load in candidate.loads:
                for run in grid.cell(candidate.workload, config, load):
                    problems += _unusable(run, slo, spec.measurement.duration_s)
        if problems:
            shown = problems[:POINTS_SHOWN] + ["..."] * (len(problems) > POINTS_SHOWN)
            raise GridError("\n".join(f"{grid.path}: {problem}" for problem in shown))


def _wrong_load_kinds(grid: Grid, candidates: tuple[Candidate, ...]) -> Iterable[str]:
    for candidate in candidates:
        recorded = grid.load_kinds.get(candidate.workload)
        if recorded not in (None, candidate.load_kind):
            yield (
                f"{candidate.workload} was recorded by {recorded}, but the spec asks for "
                f"{candidate.load_kind}. Give the workload's loads as {recorded}."
            )
            return


def _shared_rows(grid: Grid, spec: FleetSpec, candidates: tuple[Candidate, ...]) -> Iterable[str]:
    """Two configs of one degree would both claim the same rows where the file has no labels."""
    first: dict[str | int, str] = {}
    for candidate in candidates:
        other = first.setdefault(grid.config_key(spec.config(candidate.config)), candidate.config)
        if other != candidate.config:
            yield (
                f"{other} and {candidate.config} have the same tensor_parallel degree, rows cannot tell them "
                "apart. Add a column engine_config with the spec's labels."
            )


def _missing_limits(grid: Grid, workload: str, slo: Slo) -> Iterable[str]:
    columns = [limit.name for limit in slo.limits if limit.name not in grid.columns]
    has_success = "success_rate" in grid.columns or {"sent", "failed"} <= set(grid.columns)
    if slo.success_rate is not None and not has_success:
        columns.append("success_rate")
    for column in columns:
        yield (
            f"lacks the column {column}, which the SLO of {workload} limits; it has "
            f"{', '.join(grid.columns)}. Record it, or take the limit out of the SLO."
        )


def _unusable(run: GridRun, slo: Slo, duration_s: float) -> Iterable[str]:
    """Say what keeps one recorded run from being judged by an SLO.

    An empty percentile means "not finite": more requests failed than it allows. The success rate must bear
    that out.
    """
    where = f"line {run.line}, column"
    if run.duration_s is not None and run.duration_s != duration_s:
        yield (
            f"{where} duration_s: {run.duration_s:g}, but measurement.duration_s is {duration_s:g}. "
            "Set the spec to the recorded length, or remove the column to count every run as one window."
        )
    if slo.success_rate is not None and run.success_rate is None:
        yield f"{where} success_rate: is empty, and the SLO limits it. Record it."
    known = dict(run.percentiles)
    for limit in slo.limits:
        failed_share = 1.0 - run.success_rate if run.success_rate is not None else 0.0
        if limit.name not in known and failed_share <= limit.allowed_miss_share:
            yield (
                f"{where} {limit.name}: is empty, though only {failed_share:.2%} of requests failed. "
                "Record it; only a percentile that failed requests push to infinity may stay empty."
            )


def _measurement(spec: FleetSpec, grid: Grid, point: MeasurementPoint, run: GridRun) -> Measurement:
    return Measurement(
        point=point,
        served_rps=run.served_rps,
        success_rate=run.success_rate,
        sent=run.sent,
        failed=run.failed,
        percentiles=run.percentiles,
        gpu_seconds_window=point.gpu_seconds_window,
        gpu_seconds_billed=point.gpus * (point.duration_s + spec.measurement.startup_s),
        samples_sha256=sha256(
            [
                grid.sha256,
                run.line,
                run.served_rps,
                run.success_rate,
                run.sent,
                run.failed,
                list(run.percentiles),
            ]
        ),
        versions=(("grid", grid.device), *([("provenance", run.provenance)] if run.provenance else [])),
    )


def _words(loads: tuple[float, ...]) -> str:
    return ", ".join(f"{load:g}" for load in loads) or "none"
