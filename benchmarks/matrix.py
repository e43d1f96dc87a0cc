"""Which results an evaluation consists of."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.methods import ALL, RANDOM, BayesianOptimisation, FleetSieve, ToldFleetSieve
from benchmarks.tasks import Setting, Task, fleets_of

OURS = FleetSieve.name
TOLD = ToldFleetSieve.name
BAYES = BayesianOptimisation.name
#: Largest fleets, in workloads, that are played with several rooms for profiling, with noise, and told.
ROOMS_UPTO, NOISE_UPTO, TOLD_UPTO = 5, 5, 8
STEPWISE = tuple(method.name for method in ALL if method not in RANDOM)
DRAWN = tuple(method.name for method in RANDOM)


def tasks_of(setting: Setting) -> list[Task]:
    """Return all tasks of an evaluation."""
    tasks = [
        *_noise_free(setting, "real"),
        *_noise_free(setting, "synthetic"),
        *_noise_free(setting, "paper"),
    ]
    for name, fleet in fleets_of(setting, "real").items():
        count = len(fleet.spec.workloads)
        if count <= TOLD_UPTO:
            tasks.append(Task("real", name, "play", TOLD, 0.5 * _cost(OURS, count)))
        if count <= ROOMS_UPTO:
            tasks += [Task("real", name, "rooms", m.name, 3 * _cost(m.name, count)) for m in ALL]
        if count <= NOISE_UPTO:
            tasks += [Task("real", name, "noise", m.name, setting.draws * _cost(m.name, count)) for m in ALL]
    for name, count in zip(fleets_of(setting, "growth"), setting.growth, strict=True):
        tasks += [Task("growth", name, "play", m.name, _cost(m.name, count)) for m in ALL]
    return tasks


def _noise_free(setting: Setting, group: str) -> Iterator[Task]:
    for name, fleet in fleets_of(setting, group).items():
        count = len(fleet.spec.workloads)
        yield Task(group, name, "limit", "", 0.5 * count)
        for method in STEPWISE:
            yield Task(group, name, "play", method, _cost(method, count))
        for method in DRAWN:
            yield Task(group, name, "orders", method, setting.orders * count * 0.015)


def _cost(method: str, workloads: int) -> float:
    """Guess the CPU seconds of one play."""
    if method == OURS:
        return 0.2 * workloads + 0.07 * workloads**2
    if method == BAYES:
        return 0.15 * workloads
    return 0.02 * workloads + 0.005 * workloads**2
