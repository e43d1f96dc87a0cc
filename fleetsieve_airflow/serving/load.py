"""Load generators: how one replays a window against a server, and how its per-request records are read.

Only the command and the reading of records belong to a generator. Which requests are sent when is decided by
:mod:`.trace`, and whether they were good enough by :mod:`.judge`: no generator's own verdict is ever used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.serving.samples import Sample, parse_aiperf
from fleetsieve_airflow.serving.trace import TraceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """One window to replay: all that a generator's command line depends on. Paths are on the node."""

    url: str
    model: str
    tokenizer: str
    trace_path: str
    output_folder: str
    request_timeout_s: float
    seed: int
    workers: int = 2


class LoadGenerator(Protocol):
    """Replays a trace of arrivals and lengths, open loop, and records every request."""

    name: str
    records_file: str
    environment: tuple[tuple[str, str], ...]

    def command(self, program: str, job: LoadJob) -> tuple[str, ...]:
        """Return the command that replays one window, as an argument list."""
        ...

    def samples(self, lines: Iterable[str], rows: Sequence[TraceRow]) -> list[Sample]:
        """Read its per-request records.

        :raises MeasurementError: a record cannot be read.
        """
        ...


class Aiperf:
    """NVIDIA's aiperf 0.13, in an environment of its own on the node.

    Its pins go neither with Airflow's nor with vLLM's.

    What its options are for: completions and ``ignore_eos`` give the lengths asked for, the server's token
    counts show streams that broke off, requests time out one by one, since those cancelled at the end of a
    benchmark duration are left out of the records. Records are flushed at once, so that a window can end
    early.
    """

    name = "aiperf"
    records_file = "profile_export.jsonl"
    environment: tuple[tuple[str, str], ...] = (
        ("AIPERF_RECORD_EXPORT_BATCH_SIZE", "1"),
        # With these set it cannot load a tokenizer from a local folder; without them a local folder needs no
        # network
        ("HF_HUB_OFFLINE", ""),
        ("TRANSFORMERS_OFFLINE", ""),
    )

    def command(self, program: str, job: LoadJob) -> tuple[str, ...]:
        """Return the command line of one replay; see :class:`LoadGenerator`."""
        options = {
            "--model": job.model,
            "--url": job.url,
            "--endpoint-type": "completions",
            "--tokenizer": job.tokenizer,
            "--input-file": job.trace_path,
            "--custom-dataset-type": "mooncake-trace",
            "--wait-for-model-timeout": "60",
            "--request-timeout-seconds": f"{job.request_timeout_s:g}",
            "--random-seed": str(job.seed),
            "--ui": "none",
            "--output-artifact-dir": job.output_folder,
            "--export-level": "records",
            "--workers-max": str(job.workers),
        }
        flags = ("--streaming", "--fixed-schedule", "--use-server-token-count", "--no-gpu-telemetry")
        extra = ("--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0")
        return (program, "profile", *(part for pair in options.items() for part in pair), *flags, *extra)

    def samples(self, lines: Iterable[str], rows: Sequence[TraceRow]) -> list[Sample]:
        """Read ``profile_export.jsonl``; see :class:`LoadGenerator`."""
        requested, found = [row.output_tokens for row in rows], []
        for number, line in enumerate(lines, start=1):
            try:
                sample = parse_aiperf(line, requested)
            except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
                raise MeasurementError(
                    f"Line {number} of aiperf's records cannot be read: {error!r}.",
                    hint="Pin aiperf to 0.13 on the node; other versions may write other records.",
                ) from error
            if sample is not None:
                found.append(sample)
        return found
