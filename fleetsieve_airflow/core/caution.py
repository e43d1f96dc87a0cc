"""What a prior may not do, right or wrong: give up the goal, or fill a batch, on its own word.

A wrong prior is unlearned by the first answers that it did not foretell. What it can cost is paid before: in
answers asked for at once, and in the many that prove a goal out of reach. Both wait until the belief without
priors, which only measurements move, agrees.
"""

from __future__ import annotations

from dataclasses import replace

from fleetsieve_airflow.core import proof
from fleetsieve_airflow.core.bounds import value_of
from fleetsieve_airflow.core.proof import Question, Scene


def hoped_value(scene: Scene, hope: float) -> float:
    """Return the fulfilment that capacities of at least this chance each reach, with priors or without them.

    A prior says how the goal may be reached. That it cannot be takes a dear proof, so a prior alone does not
    have it sought.
    """
    views = (scene,) if scene.unprompted is scene.belief else (scene, replace(scene, belief=scene.unprompted))
    return max(value_of(scene.problem, proof.expected_capacities(view, hope)) for view in views)


def least_chance(scene: Scene, question: Question) -> float:
    """Return the chance that a question is answered as hoped: the lower one of those with and without priors.

    A batch is paid for before any of its answers can contradict a prior.
    """
    met = float(scene.unprompted.met[question.ladder][question.load])
    return min(question.chance, met if question.hoped == "met" else 1.0 - met)
