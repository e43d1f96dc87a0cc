"""The batch script and the sbatch options of a job: pure functions of its record, quoted in one place."""

from __future__ import annotations

import shlex

from fleetsieve_airflow.serving.job import JobRecord, slurm_minutes

_HEAD = """#!/bin/bash
# {name}: one server, {windows} window(s). Written by FleetSieve. Run as: script RUN_FOLDER
set -u
umask 077
run=$1
cd -- "$run" || exit 90
# A job that the scheduler started twice must not run twice
mkdir claim 2>/dev/null || {{ echo "another copy of this job has claimed $run" >&2; exit 89; }}
started="${{SLURM_JOB_ID:-local}}.${{SLURM_RESTART_COUNT:-0}}"
printf '%s %s %s\\n' "$started" "$(hostname)" "$(date +%s)" >.start.tmp && mv -f .start.tmp start
signal=none
finish() {{ printf 'rc=%s signal=%s\\n' "$1" "$signal" >.exit.tmp; mv -f .exit.tmp exit; exit "$1"; }}
"""

_RUN = """# The scheduler's TERM goes to the program, which ends the server before it ends itself
{command} &
child=$!
trap 'signal=TERM; kill -TERM "$child" 2>/dev/null' TERM INT
while :; do
  wait "$child"; rc=$?
  kill -0 "$child" 2>/dev/null || break
done
finish "$rc"
"""


def script(record: JobRecord) -> str:
    """Return the batch script of a job.

    It holds no secret: ``env_file`` is read on the node, with its variables exported to the server.
    """
    options = record.options
    parts = [_HEAD.format(name=record.name, windows=len(record.points))]
    if options.setup:
        parts.append(f"# Set up by the fleet's owner\n{options.setup}\n")
    if options.env_file:
        file = shlex.quote(options.env_file)
        parts.append(f"set -a; . {file} || finish 83; set +a\n")
    parts.append(_RUN.format(command=_command(record)))
    return "".join(parts)


def sbatch_options(record: JobRecord, *, exclude: str = "") -> tuple[str, ...]:
    """Return a job's sbatch options as an argument list, without its name, output and folder.

    A measured run has its node for itself by default, is never requeued (two copies would write one
    evidence), inherits nothing from the submitting shell, and always says its time and memory.

    :param exclude: nodes that an earlier attempt failed on, comma separated; added to those of the record.
    """
    options = record.options
    excluded = ",".join(part for part in (options.exclude, exclude) if part)
    pairs = {
        "--nodes": "1",
        "--ntasks": "1",
        "--time": str(slurm_minutes(record.time_limit_s)),
        "--mem": options.mem,
        "--cpus-per-task": "" if options.cpus is None else str(options.cpus),
        "--gres": "" if options.gres in ("", "none") else f"{options.gres}:{record.gpus}",
        "--partition": options.partition,
        "--account": options.account,
        "--qos": options.qos,
        "--constraint": options.constraint,
        "--reservation": options.reservation,
        "--exclude": excluded,
        "--export": "NONE",
        "--dependency": "singleton",
    }
    flags = ("--no-requeue", *(("--exclusive",) if options.exclusive else ()))
    return (*(f"{name}={value}" for name, value in pairs.items() if value), *flags, *options.extra_sbatch)


def _command(record: JobRecord) -> str:
    """Return the quoted command that runs the program on the node, in the runtime that the record names."""
    options = record.options
    program = shlex.join([options.python, "agent.py"]) + ' "$run"'
    if options.runtime == "pyxis":
        mounts = "".join(f",{shlex.quote(mount)}" for mount in options.mounts)
        head = ["srun", "--ntasks=1", f"--container-image={options.image}"]
        return (
            f'{shlex.join(head)} --container-mounts="$run:$run"{mounts} --container-workdir="$run" {program}'
        )
    if options.runtime == "apptainer":
        binds = "".join(f" --bind {shlex.quote(mount)}" for mount in options.mounts)
        return f'apptainer exec --nv --bind "$run"{binds} --pwd "$run" {shlex.quote(options.image)} {program}'
    return program
