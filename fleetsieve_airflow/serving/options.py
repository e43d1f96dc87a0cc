"""What a spec may say under ``measurement.options`` for the backends ``slurm`` and ``local``.

Options are text. None of them is ever run by a shell but ``setup``, which the fleet's owner writes for that
purpose. A secret belongs in none of them: ``env_file`` names a file that is read on the node.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.records import MeasurementSettings

RUNTIMES = ("none", "pyxis", "apptainer")
#: A value of an sbatch option: one line of printable text that is no option of its own.
_SAFE = re.compile(r"[^\s\x00-\x1f\x7f-][^\x00-\x1f\x7f]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """How a measuring job is run. Field names are the option names; times are in seconds."""

    conn_id: str = "slurm_default"
    # --- programs on the node
    vllm: str = "vllm"
    aiperf: str = "aiperf"
    python: str = "python3"
    tokenizer: str = ""
    setup: str = ""
    env_file: str = ""
    engine_env: tuple[tuple[str, str], ...] = ()
    # --- container
    runtime: str = "none"
    image: str = ""
    mounts: tuple[str, ...] = ()
    # --- measuring
    ready_s: float = 1800.0
    token_s: float = 60.0
    request_timeout_s: float | None = None
    lateness_p99_s: float | None = None
    curtail: bool = True
    warm_up_requests: int = 8
    workers: int = 2
    ports: tuple[int, int] = (20000, 32000)
    # --- sbatch
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    exclude: str = ""
    gres: str = "gpu"
    cpus: int | None = None
    mem: str = "0"
    exclusive: bool = True
    extra_sbatch: tuple[str, ...] = ()
    queue_deadline_s: float = 86400.0
    poll_s: float = 15.0

    def __post_init__(self) -> None:
        if self.runtime not in RUNTIMES:
            raise SpecError(
                f"measurement.options.runtime: {self.runtime!r} is not one of {', '.join(RUNTIMES)}."
            )
        if (self.runtime == "none") == bool(self.image):
            raise SpecError(
                f"measurement.options: runtime {self.runtime!r} does not go with image {self.image!r}.",
                hint="Name both a runtime (pyxis or apptainer) and an image, or neither.",
            )
        if not 1024 <= self.ports[0] <= self.ports[1] - 100 <= 65000:  # noqa: PLR2004 - the range of user ports
            raise SpecError(
                f"measurement.options.ports: {self.ports[0]}-{self.ports[1]} is no range of 100 ports."
            )
        for name in (
            "partition",
            "account",
            "qos",
            "constraint",
            "reservation",
            "exclude",
            "gres",
            "mem",
            "image",
        ):
            _require_safe(name, getattr(self, name))
        for extra in self.extra_sbatch:
            _require_safe("extra_sbatch", extra.removeprefix("--"))
            if not extra.startswith("--"):
                raise SpecError(
                    f"measurement.options.extra_sbatch: {extra!r} must be of the form --name=value."
                )


def job_options(settings: MeasurementSettings) -> JobOptions:
    """Read the options of a spec.

    :raises SpecError: an unknown option, with the known ones, or a value that cannot be read.
    """
    known = {field.name: field for field in fields(JobOptions)}
    values: dict[str, Any] = {}
    for name, text in settings.options:
        if name not in known:
            raise SpecError(f"measurement.options.{name} is unknown; known: {', '.join(sorted(known))}.")
        try:
            values[name] = _READERS.get(name, str)(text)
        except ValueError as error:
            raise SpecError(f"measurement.options.{name}: {text!r} cannot be read: {error}.") from error
    return JobOptions(**values)


def _require_safe(name: str, value: str) -> None:
    if value and not _SAFE.fullmatch(value):
        raise SpecError(
            f"measurement.options.{name}: {value!r} must be one line of printable text, not starting with"
            " a blank or a dash."
        )


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in shlex.split(text)]
    bad = [
        name for name, equals, _ in pairs if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    ]
    if bad:
        raise ValueError(f"{bad[0]!r} is not of the form NAME=value")
    secret = [name for name, _, _ in pairs if re.search(r"TOKEN|SECRET|PASSWORD|API_?KEY", name.upper())]
    if secret:
        raise ValueError(f"{secret[0]} looks like a secret, which belongs in env_file on the node")
    return tuple((name, value) for name, _, value in pairs)


def _ports(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return int(low), int(high)


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


_READERS: dict[str, Callable[[str], Any]] = {
    "engine_env": _pairs,
    "mounts": _words,
    "extra_sbatch": _words,
    "ports": _ports,
    "curtail": _boolean,
    "exclusive": _boolean,
    "cpus": int,
    "warm_up_requests": int,
    "workers": int,
    **dict.fromkeys(
        ("ready_s", "token_s", "request_timeout_s", "lateness_p99_s", "queue_deadline_s", "poll_s"), float
    ),
}
