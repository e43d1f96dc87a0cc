"""The grid of the FleetSieve paper, as shipped with the package, at three demands."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.fleets import Fleet
from benchmarks.grids import Run
from benchmarks.store import ROOT
from fleetsieve_airflow.backends.replay import ReplayBackend
from fleetsieve_airflow.core.verdict import judge
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint
from fleetsieve_airflow.records import Budget
from fleetsieve_airflow.serialization import points_of
from fleetsieve_airflow.spec import load_spec

FLEET = ROOT / "dags" / "fleets" / "chat_and_code_h100.yaml"
SCALES = (0.7, 1.0, 1.3)


@dataclass(frozen=True, slots=True)
class Published:
    """What the paper says of one demand scale; None where it says nothing."""

    oracle: str | None
    fleetsieve_window: float | None
    below_random: float | None  # share of uniform random's GPU-seconds saved, mean over 200 orders
    sparse_loss_rps: float  # what the plan chosen by a sparse independent rule loses


PUBLISHED = {
    0.7: Published(None, None, None, 0.0),
    1.0: Published("2 x TP4 chat + 2 x TP4 code", 22_200.0, 0.054, 0.73),
    1.3: Published(None, None, None, 1.93),
}


class PaperFleet(Fleet):
    """A fleet measured by the replay backend on the shipped grid."""

    __slots__ = ()

    def capacities(self) -> list[list[float]]:
        """Return each candidate's highest load up to which every load meets the SLO."""
        rows = []
        for workload in self.spec.workloads:
            row = []
            for candidate in self.spec.candidates_of(workload.name):
                capacity = 0.0
                for point in points_of(self.spec, candidate):
                    if judge(self.measure(point), workload.slo, self.spec.decision) != "met":
                        break
                    capacity = point.load
                row.append(capacity)
            rows.append(row)
        return rows

    def measure(self, point: MeasurementPoint, run: Run | None = None) -> Measurement:
        """Return the recorded measurement of a point; there is one run per cell."""
        if run is not None:
            raise ValueError("The paper's grid holds one run per cell.")
        return ReplayBackend().measure(self.spec, point)


def paper_fleets() -> list[Fleet]:
    """Build the paper's fleet at each demand scale."""
    spec = load_spec(FLEET)
    fleets: list[Fleet] = []
    for scale in SCALES:
        workloads = tuple(replace(w, demand_rps=w.demand_rps * scale) for w in spec.workloads)
        measurement = replace(spec.measurement, profiling_gpus=1, repeats=1)
        scaled = replace(spec, workloads=workloads, measurement=measurement, budget=Budget())
        fleets.append(PaperFleet("paper", f"paper {scale}x", scaled, {}, {}))
    return fleets
