"""The errors of FleetSieve, sorted by what the reader can do about them.

Every message names what is wrong, which item, the actual value and what is allowed; ``hint`` names the
remedy. Outcomes of planning (infeasible, undetermined) are states of a decision, not errors: see
:mod:`.records`.
"""

from __future__ import annotations


class FleetsieveError(Exception):
    """Base of all errors raised on purpose by this package.

    :param message: what, which, actual, allowed.
    :param hint: the remedy, one sentence.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class RecordError(FleetsieveError):
    """A record was built from values it cannot hold."""


class SpecError(FleetsieveError):
    """The fleet file is wrong: edit it. The message starts with the key path."""


class GridError(FleetsieveError):
    """A recorded grid cannot serve as a measuring device: mend the file or the spec."""


class MeasurementError(FleetsieveError):
    """One point could not be measured this time: retrying may help.

    :param kind: what failed, as a :data:`fleetsieve_airflow.evidence.FailureKind`: ``infrastructure`` (the
        run broke), ``invalid_run`` (it ended, but its numbers may not be used), ``missing_in_grid`` (it was
        never recorded, retrying is no use).
    :param gpu_seconds_billed: what the failed attempt cost.
    """

    def __init__(
        self, message: str, *, hint: str = "", kind: str = "infrastructure", gpu_seconds_billed: float = 0.0
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.gpu_seconds_billed = gpu_seconds_billed


class EvidenceError(FleetsieveError):
    """Stored evidence cannot be read or contradicts its own digest: stop, never read it as "not measured"."""


class TrackingError(FleetsieveError):
    """The tracking store did not answer or refused a write after every retry."""


class SolverError(FleetsieveError):
    """The allocation solver returned no proven optimum."""


class CertificateError(FleetsieveError):
    """A certificate does not follow from its own evidence."""


class DeploymentError(FleetsieveError):
    """A plan cannot be deployed as asked: choose another form or name what is missing."""
