"""Before a campaign: let the simulator say which engine configs are worth measuring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from fleetsieve_airflow.operators.base import no_use_retrying

if TYPE_CHECKING:
    from airflow.sdk import Context


class SearchConfigsOperator(BaseOperator):
    """Narrow a fleet's engine configs from all that could be built to the few worth measuring.

    Everything is simulated: no GPU is used, nothing is measured, and nothing of it enters a certificate.

    Example::

        SearchConfigsOperator(task_id="search", fleet="/fleets/chat.yaml", tables="aiconfigurator", keep=12)

    :param fleet: path of the fleet file (templated).
    :param tables: ``roofline``, ``aiconfigurator``, or the path of one's own operator tables (templated).
    :param keep: most engine configs for each workload.
    :param degrees: tensor- and data-parallel degrees to try.
    :param disaggregated: whether replicas that prefill and decode on engines of their own, in one pool or
        two, are searched too; by default where the fleet's backend measures such replicas.
    :return: workload -> what to measure: ``engine_configs`` as a fleet file has them, each one's simulated
        capacity, and how many configurations were priced and left out for which reason.
    """

    template_fields: Sequence[str] = ("fleet", "tables")
    ui_color = "#e8f3e4"

    def __init__(
        self,
        *,
        fleet: str,
        tables: str = "roofline",
        keep: int = 12,
        degrees: Sequence[int] = (1, 2, 4, 8),
        disaggregated: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fleet = fleet
        self.tables = tables
        self.keep = keep
        self.degrees = degrees
        self.disaggregated = disaggregated

    def execute(self, context: Context) -> dict[str, Any]:
        """Search for every workload."""
        from fleetsieve_airflow.spec import load_spec

        with no_use_retrying():
            spec = load_spec(self.fleet)
            return {workload.name: self._narrowed(spec, workload.name) for workload in spec.workloads}

    def _narrowed(self, spec: Any, workload: str) -> dict[str, Any]:
        from fleetsieve_airflow.backends.simulate import fleet_requests
        from fleetsieve_airflow.simulator.narrowing import as_sections, narrow

        narrowed, searches = narrow(
            spec,
            workload,
            fleet_requests,
            tables=self.tables,
            keep=self.keep,
            degrees=self.degrees,
            disaggregated=_measurable(spec, workload) if self.disaggregated is None else self.disaggregated,
        )
        priced = sum(result.priced for result in searches.values())
        self.log.info(
            "%s: %d of %d priced configurations are worth measuring: %s.",
            workload,
            len(narrowed),
            priced,
            ", ".join(item.config.label for item in narrowed) or "none",
        )
        return {
            "engine_configs": as_sections(narrowed),
            "capacity_rps": {item.config.label: round(item.capacity_rps, 4) for item in narrowed},
            "priced": priced,
            "pruned": {name: result.pruned for name, result in searches.items()},
        }


def _measurable(spec: Any, workload: str) -> bool:
    """Say whether the fleet's backend measures disaggregated replicas under this workload's loads."""
    loads = {candidate.load_kind for candidate in spec.candidates_of(workload)}
    return spec.measurement.backend in ("simulate", "replay") and loads == {"offered_load_rps"}
