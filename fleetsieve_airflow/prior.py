"""What steers a campaign's first measurements, as its fleet file asks for: an earlier release, a simulator.

Nothing of it proves anything unless the fleet file names its source under ``certify_on``.
"""

from __future__ import annotations

from typing import Any

from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.evidence import PriorCapacity
from fleetsieve_airflow.records import FleetSpec


def priors_for(spec: FleetSpec, certificate: Any = None) -> tuple[PriorCapacity, ...]:
    """Return what is believed of a fleet before it is measured, in the order of its sources.

    :param certificate: of a campaign that planned an earlier release of the fleet's models, as JSON gives it.
    :raises CertificateError: it is no certificate, or was changed after it was issued.
    :raises SpecError: the simulator is asked for and can price no candidate.
    """
    from fleetsieve_airflow.core.earlier import prior_of

    found: tuple[PriorCapacity, ...] = ()
    if certificate is not None and spec.prior.earlier_release:
        found = prior_of(spec, certificate)
    return (*found, *(simulated_priors(spec) if spec.prior.simulator else ()))


def simulated_priors(spec: FleetSpec) -> tuple[PriorCapacity, ...]:
    """Simulate the capacity of every candidate on the operator tables the fleet file names.

    :raises SpecError: no candidate can be priced.
    """
    from fleetsieve_airflow.backends.simulate import fleet_requests
    from fleetsieve_airflow.simulator.curves import PerfDataError
    from fleetsieve_airflow.simulator.fleet import FleetEngines
    from fleetsieve_airflow.simulator.prior import prior_capacities

    engines, why = FleetEngines(spec, spec.prior.simulator), "no candidate has a capacity"
    found = prior_capacities(spec, engines.replica, fleet_requests(spec, engines))
    if not found:
        for candidate in spec.candidates:
            try:
                engines.replica(candidate.workload, candidate.config)
            except PerfDataError as error:
                why = str(error)
                break
        raise SpecError(f"prior.simulator: {why}", hint="Set prior.simulator to false in the fleet file.")
    return found


def origin_of(priors: tuple[PriorCapacity, ...], campaign_id: str = "") -> str:
    """Say in words where priors come from.

    :param campaign_id: the campaign that planned the earlier release.
    """
    counts = {
        source: sum(prior.source == source for prior in priors) for source in ("earlier_release", "simulator")
    }
    parts = []
    if counts["earlier_release"]:
        parts.append(f"earlier release ({campaign_id}): {counts['earlier_release']} candidates")
    if counts["simulator"]:
        parts.append(f"simulator: {counts['simulator']} candidates")
    return "; ".join(parts) or "none"
