"""Measure one point, at most once: whatever is retried, cleared or asked for by two campaigns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, cast

from fleetsieve_airflow.errors import MeasurementError, TrackingError
from fleetsieve_airflow.evidence import FailureKind, MeasurementPoint, PointFailure
from fleetsieve_airflow.operators.base import CampaignOperator, airflow_facts, no_use_retrying
from fleetsieve_airflow.serialization import from_document

if TYPE_CHECKING:
    from airflow.sdk import Context

    from fleetsieve_airflow.backends.base import Backend
    from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
    from fleetsieve_airflow.records import FleetSpec

RENEW_EVERY_S = 300.0


class ProfileOperator(CampaignOperator):
    """Measure one point with the backend that the fleet names, and keep the measurement in MLflow.

    The point is claimed first. If it is measured already, that measurement is used and nothing is paid; if
    another campaign is measuring it, the task waits for that without holding a worker. A point that cannot be
    measured this time is a row that says so, not a failed task: the round goes on and a later one may ask
    again.

    Example::

        ProfileOperator.partial(
            task_id="profile", map_index_template="{{ point_label }}", campaign=opened.output,
            round="{{ params.round }}", pool="h100", retries=2,
        ).expand(point=decide.output)

    :param point: a point as :class:`~fleetsieve_airflow.operators.decide.DecideOperator` returns it
        (templated).
    :param poll_s: seconds between two looks at another campaign's claim.
    :return: ``key``, ``label``, ``run_id``, and ``outcome``: ``measured``, ``reused`` or ``failed``; a failed
        row has a ``message``.
    """

    template_fields: Sequence[str] = (*CampaignOperator.template_fields, "point")

    def __init__(self, *, point: Any, poll_s: float = 20.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.point = point
        self.poll_s = poll_s
        self._cancel: Callable[[], None] | None = None

    def backend(self, spec: FleetSpec) -> Backend:
        """Return what measures."""
        from fleetsieve_airflow.backends.base import backend_for

        return backend_for(spec)

    def execute(self, context: Context, event: dict[str, Any] | None = None) -> dict[str, Any]:
        """Claim, then use, wait or measure; after waiting, all over again."""
        from fleetsieve_airflow.triggers.measurement import MeasurementWaitTrigger

        with no_use_retrying():
            point = from_document(MeasurementPoint, self.point)
            cast(dict[str, Any], context)["point_label"] = point.label
            hook, campaign = self.enter()
            claim = hook.claim_measurement(point, campaign, self.number, airflow=airflow_facts(context))
            self.mlflow_run_url = hook.measurement_url(campaign, claim.run_id)
            row = {"key": point.key, "label": point.label, "run_id": claim.run_id}
            if claim.state == "theirs":
                self.log.info("%s is being measured by another campaign: waiting for it.", point.label)
                trigger = MeasurementWaitTrigger(
                    mlflow_conn_id=self.mlflow_conn_id, run_id=claim.run_id, poll_s=self.poll_s
                )
                self.defer(trigger=trigger, method_name="execute")
            if claim.state == "finished":
                self.log.info("%s is measured already: nothing is paid.", point.label)
                return {**row, "outcome": "reused"}
            failure = self._measure(hook, campaign, point, claim.run_id, context, event)
        if failure is not None:
            self.log.warning("%s was not measured: %s", point.label, failure.message)
            return {**row, "outcome": "failed", "message": failure.message}
        return {**row, "outcome": "measured"}

    def on_kill(self) -> None:
        """Cancel the job of a task that is ended while it holds a worker; else its trigger does so."""
        if self._cancel is not None:
            self._cancel()

    def _measure(
        self,
        hook: MlflowHook,
        campaign: CampaignRef,
        point: MeasurementPoint,
        run_id: str,
        context: Context,
        event: dict[str, Any] | None,
    ) -> PointFailure | None:
        from fleetsieve_airflow.operators.jobs import Waiting, measure

        spec, last_try = hook.load_spec(campaign), is_last_try(context)
        try:
            with kept_alive(hook, run_id):
                done = measure(
                    self.backend(spec),
                    spec,
                    point,
                    scope=campaign.run_id,
                    event=event if event and "job" in event else None,
                    state=cast(dict[str, Any], context).get("task_state_store"),
                    on_job=partial(setattr, self, "_cancel"),
                )
        except MeasurementError as error:
            if getattr(error, "retryable", False) and not last_try:
                raise
            failure = self._failure(point, error, error.kind, error.gpu_seconds_billed)
            hook.fail_measurement(run_id, failure)
            return failure
        except Exception as error:
            # Airflow tries again; only the last try leaves a failure behind, else one mishap would count
            # several times.
            if last_try:
                hook.fail_measurement(run_id, self._failure(point, error, "infrastructure"))
            raise
        if isinstance(done, Waiting):
            hook.renew_lease(run_id, lease_s=done.lease_s)
            self.defer(trigger=done.trigger, method_name="execute")
        hook.finish_measurement(run_id, done.measurement, spec, files=done.files)
        return None

    def _failure(
        self, point: MeasurementPoint, error: Exception, kind: str, gpu_seconds_billed: float = 0.0
    ) -> PointFailure:
        return PointFailure(
            key=point.key,
            label=point.label,
            round=self.number,
            kind=cast(FailureKind, kind),
            message=str(error) or type(error).__name__,
            gpu_seconds_billed=gpu_seconds_billed,
        )


def is_last_try(context: Context) -> bool:
    """Return whether Airflow would not try the task again; clearing a task gives it its retries anew."""
    ti = context["ti"]
    return bool(ti.try_number > ti.max_tries)


@contextmanager
def kept_alive(hook: MlflowHook, run_id: str, every_s: float = RENEW_EVERY_S) -> Iterator[None]:
    """Renew the claim on a point while it is measured: a window may be longer than a lease.

    A renewal that fails is not ours to act on: finishing the run says whether the claim was lost.
    """
    done = Event()

    def renew() -> None:
        while not done.wait(every_s):
            try:
                hook.renew_lease(run_id)
            except TrackingError as error:
                hook.log.warning("The claim %s could not be renewed: %s", run_id, error)

    thread = Thread(target=renew, name=f"renew-{run_id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
