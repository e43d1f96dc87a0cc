"""Ways to choose what to measure, each a small class; the registry of all."""

from __future__ import annotations

from benchmarks.methods.bandit import FeasibleSetBandit
from benchmarks.methods.base import Method
from benchmarks.methods.bayes import BayesianOptimisation
from benchmarks.methods.bisection import CheapestBisection, IndependentBest, LargestInterval
from benchmarks.methods.halving import SuccessiveHalving
from benchmarks.methods.orders import AllPoints, Coverage, RandomUndetermined, UniformRandom
from benchmarks.methods.ours import FleetSieve
from benchmarks.methods.told import ToldFleetSieve

__all__ = [
    "ALL",
    "BY_NAME",
    "RANDOM",
    "BayesianOptimisation",
    "CheapestBisection",
    "FleetSieve",
    "Method",
    "ToldFleetSieve",
    "UniformRandom",
]

ALL: tuple[type[Method], ...] = (
    FleetSieve,
    AllPoints,
    UniformRandom,
    RandomUndetermined,
    Coverage,
    LargestInterval,
    CheapestBisection,
    IndependentBest,
    SuccessiveHalving,
    BayesianOptimisation,
    FeasibleSetBandit,
)
#: Methods whose cost on a fleet is a mean over random orders.
RANDOM: tuple[type[Method], ...] = (UniformRandom, RandomUndetermined)
BY_NAME = {method.name: method for method in (*ALL, ToldFleetSieve)}
