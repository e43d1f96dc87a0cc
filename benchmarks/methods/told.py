"""FleetSieve with beliefs that are the truth: what its rule of choice itself costs, apart from not knowing.

Certificates still rest on measurements only; what changes is where they are looked for. Against the
clairvoyant's bound this splits FleetSieve's loss in two: a rule that proves a right guess too dearly, and
guesses that are not right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.methods.base import Asked
from benchmarks.methods.ours import FleetSieve
from benchmarks.state import Board, State
from fleetsieve_airflow.core import acquisition
from fleetsieve_airflow.core.allocation import Problem
from fleetsieve_airflow.core.belief import Belief, bounded, implied
from fleetsieve_airflow.core.ladder import Ladder

#: How sure of the truth the beliefs are: certainty would leave no order among the questions of a proof.
SURE = 0.99


class ToldFleetSieve(FleetSieve):
    """Ask what the core asks while it believes the truth."""

    name = "FleetSieve, told"

    def batch(self, state: State, room: int | None) -> Sequence[Asked]:
        """Return the round that the core plans under true beliefs."""
        with _believing_the_truth(self.board):
            return super().batch(state, room)


@contextmanager
def _believing_the_truth(board: Board) -> Iterator[None]:
    """Put the truth in the place of what the core would believe; one fleet at a time in a process."""

    def told(_: Problem, ladders: Sequence[Ladder], priors: Any) -> Belief:
        truth = {full.candidate.label: full for full in board.full}
        return Belief(
            [implied(ladder, _met(truth, ladder)) for ladder in ladders],
            [bounded(ladder, _rates(truth, ladder)) for ladder in ladders],
        )

    usual = acquisition.believe_given
    acquisition.believe_given = told
    try:
        yield
    finally:
        acquisition.believe_given = usual


def _met(truth: Mapping[str, Ladder], ladder: Ladder) -> np.ndarray[Any, np.dtype[np.float64]]:
    edge = truth[ladder.candidate.label].met_upto
    return np.array([SURE if j <= edge else 1.0 - SURE for j in range(len(ladder.verdicts))])


def _rates(truth: Mapping[str, Ladder], ladder: Ladder) -> np.ndarray[Any, np.dtype[np.float64]]:
    full = truth[ladder.candidate.label]
    return np.array([full.rate_lower(j) for j in range(len(ladder.verdicts))])
