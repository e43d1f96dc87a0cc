"""From what a campaign has measured to capacity intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetsieve_airflow.operators.base import CampaignOperator, no_use_retrying, write_evidence
from fleetsieve_airflow.serialization import to_plain

if TYPE_CHECKING:
    from airflow.sdk import Context


class FitIntervalsOperator(CampaignOperator):
    """Load a campaign's evidence from MLflow and fit the capacity interval of every candidate.

    What was loaded is kept as the round's evidence; the later tasks of the round read it from there.

    Example::

        FitIntervalsOperator(task_id="fit", campaign=opened.output, round="{{ params.round }}")

    :return: the round, counts of measurements and failures, and the intervals.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Load, keep, fit."""
        from fleetsieve_airflow.core.intervals import fit_intervals

        with no_use_retrying():
            hook, campaign = self.enter()
            spec = hook.load_spec(campaign)
            evidence = hook.load_evidence(spec, campaign, rounds_done=self.number - 1)
            write_evidence(hook, campaign, self.number, evidence)
            intervals = fit_intervals(spec, evidence)
        self.log.info(
            "Round %d: %d intervals from %d measurements (%d reused); %d failures.",
            self.number,
            len(intervals),
            len(evidence.items),
            sum(item.reused for item in evidence.items),
            len(evidence.failures),
        )
        return {
            "round": self.number,
            "measurements": len(evidence.items),
            "failures": len(evidence.failures),
            "intervals": to_plain(intervals),
        }
