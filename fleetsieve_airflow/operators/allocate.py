"""From capacity intervals to the plans at both their ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fleetsieve_airflow.evidence import CapacityInterval
from fleetsieve_airflow.operators.base import CampaignOperator, no_use_retrying
from fleetsieve_airflow.serialization import from_plain, to_plain

if TYPE_CHECKING:
    from airflow.sdk import Context


class DualAllocationOperator(CampaignOperator):
    """Solve the allocation twice: every capacity at its lower bound, and every capacity at its upper bound.

    Example::

        DualAllocationOperator(
            task_id="allocate", fitted=fit.output, campaign=opened.output, round="{{ params.round }}"
        )

    :param fitted: what :class:`~fleetsieve_airflow.operators.fit.FitIntervalsOperator` returned (templated).
    :return: the round and both plans, ``conservative`` and ``optimistic``.
    """

    template_fields: Sequence[str] = (*CampaignOperator.template_fields, "fitted")

    def __init__(self, *, fitted: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fitted = fitted

    def execute(self, context: Context) -> dict[str, Any]:
        """Solve both."""
        from fleetsieve_airflow.core.bounds import allocate_both

        with no_use_retrying():
            hook, campaign = self.enter()
            intervals = [from_plain(CapacityInterval, row) for row in self.fitted["intervals"]]
            conservative, optimistic = allocate_both(hook.load_spec(campaign), intervals)
        self.log.info(
            "Round %d: at least %.4g and at most %.4g of the worst-off demand can be served (%s, %s).",
            self.number,
            conservative.min_fulfilment,
            optimistic.min_fulfilment,
            conservative.solver,
            conservative.solver_status,
        )
        return {
            "round": self.number,
            "conservative": to_plain(conservative),
            "optimistic": to_plain(optimistic),
        }
