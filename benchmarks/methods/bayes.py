"""Bayesian optimisation of each workload alone: constrained expected improvement on rate per GPU.

Per workload two Gaussian processes (scikit-learn, Matern 5/2) over (ln GPUs, ln load) model the log margin to
the SLO and the log served rate per GPU. The next point maximises expected improvement times the probability
of meeting the SLO (Gardner et al. 2014). Workloads take turns. Points whose verdict is implied are not
offered; when nothing improves any more, the largest acquisition still decides, so that the common stop rule
is reached in the end.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern, WhiteKernel

from benchmarks.methods.base import Method, middle
from benchmarks.state import Board, Cell, State
from fleetsieve_airflow.core.verdict import margin

Array = NDArray[np.float64]


class BayesianOptimisation(Method):
    """One optimiser per workload, in turn."""

    name = "Bayesian optimisation"

    def __init__(self, board: Board, seed: int = 0) -> None:
        super().__init__(board, seed)
        workloads = range(len(board.problem.names))
        self._members = [[i for i, (w, _) in enumerate(board.places) if w == owner] for owner in workloads]
        self._turn = 0
        self._kernels: dict[int, tuple[Kernel, Kernel]] = {}
        self._known: dict[int, tuple[int, Cell]] = {}  # per workload: its choice at so many measurements

    def next_cell(self, state: State) -> Cell | None:
        """Return the choice of the next workload in turn that has an open load."""
        count = len(self._members)
        for step in range(count):
            w = (self._turn + step) % count
            cells = [(i, j) for i in self._members[w] for j in state.askable(i)]
            if cells:
                self._turn = (w + 1) % count
                return self._choice(state, w, cells)
        return None

    def _choice(self, state: State, w: int, cells: list[Cell]) -> Cell:
        seen = [cell for cell in state.measured if cell[0] in self._members[w]]
        if len(seen) < 2:  # too little to fit: the middle of the smallest and of the largest config
            sizes = sorted({i for i, _ in cells}, key=lambda i: (self.board.blank[i].gpus, i))
            i = sizes[0] if not seen else sizes[-1]
            return i, middle([j for k, j in cells if k == i])
        known = self._known.get(w)
        if known is not None and known[0] == len(seen) and known[1] in cells:
            return known[1]
        slo = self.board.spec.workloads[w].slo
        margins = np.array([np.mean([margin(m, slo) for m in state.measured[cell]]) for cell in seen])
        rates = np.array([self._rate(state, cell) for cell in seen])
        where, asked = self._inputs(seen), self._inputs(cells)
        old_rate, old_late = self._kernels.get(w, (None, None))
        if len(seen) & (len(seen) - 1) == 0:  # parameters are fitted anew at 2, 4, 8, ... points
            old_rate, old_late = None, None
        rate, spread, new_rate = _predict(where, rates, asked, old_rate)
        late, doubt, new_late = _predict(where, margins, asked, old_late)
        self._kernels[w] = (new_rate, new_late)
        feasible = rates[margins <= 0.0]
        best = float(feasible.max()) if len(feasible) else float(rates.min()) - 1.0
        z = (rate - best) / spread
        gain = spread * (z * norm.cdf(z) + norm.pdf(z))
        choice = cells[int(np.argmax(gain * norm.cdf(-late / doubt)))]
        self._known[w] = (len(seen), choice)
        return choice

    def _rate(self, state: State, cell: Cell) -> float:
        ladder = self.board.blank[cell[0]]
        served = float(np.mean([m.served_rps for m in state.measured[cell]]))
        offered = ladder.candidate.load_kind == "offered_load_rps"
        return math.log(max(ladder.candidate.loads[cell[1]] if offered else served, 1e-9) / ladder.gpus)

    def _inputs(self, cells: list[Cell]) -> Array:
        rows = [
            (math.log(self.board.blank[i].gpus), math.log(self.board.blank[i].candidate.loads[j]))
            for i, j in cells
        ]
        return np.array(rows)


def _predict(where: Array, values: Array, asked: Array, kernel: Kernel | None) -> tuple[Array, Array, Kernel]:
    """Fit a process and return mean and standard deviation at the asked rows.

    :param kernel: of an earlier fit, taken as it is; None fits its parameters too.
    """
    start = ConstantKernel(1.0, (0.05, 20.0)) * Matern(
        length_scale=[1.0, 1.0], length_scale_bounds=(0.3, 10.0), nu=2.5
    ) + WhiteKernel(1e-3, (1e-5, 1e-1))
    process = GaussianProcessRegressor(
        kernel=kernel or start,
        optimizer=None if kernel else "fmin_l_bfgs_b",
        normalize_y=True,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(where, values)
    mean, spread = process.predict(asked, return_std=True)
    return np.asarray(mean), np.maximum(np.asarray(spread), 1e-6), process.kernel_
