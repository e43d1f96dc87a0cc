"""What is said to a login node and how its answers are read.

Text formats only: they are the same on every Slurm version. Every remote command is one constant program for
``bash -c`` with the data as its arguments, so that nothing a user writes is ever part of a program.
:func:`command_line` is the one place that quotes.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.serving.slurm_state import JobFiles, JobRow

#: Printed before the answer: a login shell's greeting comes before it and is cut away.
MARK = "--fleetsieve-answer--"

#: A client that itself runs in a job, or a user's SQUEUE_FORMAT, must not change what these commands do.
_PROLOGUE = (
    "for v in $(compgen -e); do case $v in SLURM_CONF) ;;"
    " SLURM_*|SBATCH_*|SQUEUE_*|SACCT_*|SINFO_*|SCANCEL_*|SRUN_*|SALLOC_*) unset $v;; esac; done;"
    " export LC_ALL=C SLURM_TIME_FORMAT=%s;"
)

_SQUEUE = "squeue -h -t all -o '%A|%j|%T|%V|%N|%r'"

SUBMIT = f"""
root=$1 base=$2; shift 2
case $root in '~'/*) root=$HOME/${{root#'~/'}};; esac
mkdir -p -- "$root" && cd -- "$root" && root=$(pwd -P) || exit 73
exec 9>"$base.lock"; flock -w 60 9 || exit 75
n=0 away=
while [ -e "$base-$n/closed" ]; do
  node=$(head -n 1 "$base-$n/closed"); away=$away${{node:+,$node}}; n=$((n + 1))
done
name=$base-$n run=$root/$base-$n
mkdir -p -- "$run" && cd -- "$run" || exit 73
answer() {{
  printf '%s|%s|%s|%s\\n' "$1" "$name" "$2" "$run" >.job.tmp && mv -f .job.tmp job && cat job
  exit 0
}}
[ ! -s job ] || {{ cat job; exit 0; }}
[ ! -s start ] || answer "$(cut -d. -f1 start)" "$(stat -c %Y start)"
known() {{
  {_SQUEUE} -n "$name" 2>.squeue.err | grep -v 'BadConstraints' | head -n 1
  return "${{PIPESTATUS[0]}}"
}}
row=$(known) || {{ cat .squeue.err >&2; exit 76; }}
[ -z "$row" ] || answer "$(cut -d'|' -f1 <<<"$row")" "$(cut -d'|' -f4 <<<"$row")"
tar -xzf - || exit 74
[ -z "$away" ] || set -- "$@" --exclude="${{away#,}}"
set -- --parsable --job-name="$name" "$@" --chdir="$run" --output="$root/%x-%j.log"
id=$(sbatch "$@" script "$run" 2>.sbatch.err)
rc=$?
id=$(grep -E '^[0-9]+(;.*)?$' <<<"$id" | tail -n 1)
if [ $rc -ne 0 ] || [ -z "$id" ]; then
  cat .sbatch.err >&2
  row=$(known) || exit 76
  [ -z "$row" ] || answer "$(cut -d'|' -f1 <<<"$row")" "$(cut -d'|' -f4 <<<"$row")"
  grep -qiE 'timed out|unable to contact|connect failure|communication|temporar' .sbatch.err && exit 76
  exit 77
fi
answer "${{id%%;*}}" "$(date +%s)"
"""

STATUS = f"""
names=$1; shift
date +%s
scontrol ping 2>/dev/null | grep -q 'is UP' && echo up || echo down
answer=$({_SQUEUE} -n "$names" 2>/dev/null); echo "squeue $?"
printf '%s\\n' "$answer"
echo files
for run; do
  ls -- "$run" >/dev/null 2>&1
  printf '%s' "${{run##*/}}"
  for file in exit start heartbeat reason; do printf '|%s' "$(head -n 1 -- "$run/$file" 2>/dev/null)"; done
  printf '\\n'
done
"""

BOOKS = """
sacct -nXPD -S "now-${1}minutes" --name="$2" -o JobIDRaw,JobName,State,Submit,NodeList,ExitCode
"""

#: Cancel by name, which also finds a job whose id is not known yet, and look until it is gone.
CANCEL = """
names=$1 wait=$2
scancel --name="$names" --user="$(id -un)" 2>.cancel.err || { cat .cancel.err >&2; exit 76; }
for _ in $(seq "$wait"); do
  left=$(squeue -h -t PENDING,RUNNING,COMPLETING,CONFIGURING,SUSPENDED -n "$names" -o %A) || exit 76
  [ -z "$left" ] && exit 0
  sleep 1
done
echo "$left"
"""

#: Results, the ends of the logs, and nothing else: the server's whole log can be large.
FETCH = """
cd -- "$1" || exit 73
tail -c 200000 server.log >server.tail 2>/dev/null
cat "$1"-*.log 2>/dev/null | tail -c 100000 >slurm.tail
tar -czf - --exclude='*/out/logs' --exclude='*/out/*.json' --exclude='*/out/*.csv' --exclude='*/out/*.txt' \\
  $(ls -d exit reason start withdrawn facts.json job.json server.tail slurm.tail points 2>/dev/null)
"""

#: An attempt that may not be taken again: the next submission of the same work is another one, without this
#: node.
CLOSE = """
cd -- "$1" || exit 73
printf '%s\\n' "$2" >.closed.tmp && mv -f .closed.tmp closed
"""

#: Cancel an attempt and close it in one step, under the lock of submissions: the next submission of the same
#: work waits, and then is a new job instead of the one that is just ending. What stays active stays open. The
#: mark comes first: whoever waits for the job and learns that it was cancelled knows by it that nobody meant
#: them.
WITHDRAW = f"""
cd -- "$1" && run=$(pwd -P) || exit 73
name=${{run##*/}} wait=$2
exec 9>"${{run%-*}}.lock"; flock -w 60 9 || exit 75
set -- "$name" "$wait"
: >withdrawn
left=$({CANCEL}) || {{ rc=$?; rm -f withdrawn; exit $rc; }}
[ -z "$left" ] || {{ rm -f withdrawn; echo "$left"; exit 0; }}
set -- "$run" ""
{CLOSE}
"""

#: Versions and what a connection test looks at: commands, controller, a folder that can be written.
DOCTOR = """
root=$1
case $root in '~'/*) root=$HOME/${root#'~/'};; esac
sbatch --version || exit 77
scontrol ping || exit 76
mkdir -p -- "$root" && touch -- "$root/.probe" && rm -f -- "$root/.probe" || exit 73
"""

MEANINGS = {
    73: "the run folder cannot be made or entered",
    74: "the job's files could not be written to the run folder",
    75: "another submission of the same work holds its lock",
    76: "the Slurm controller does not answer",
    77: "Slurm refused the job",
}


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse what no shell can carry.

    :raises MeasurementError: naming the argument.
    """
    for argument in arguments:
        if "\x00" in argument or "\n" in argument:
            raise MeasurementError(f"{argument!r} cannot be an argument of a remote command.")


def command_line(program: str, arguments: Sequence[str], *, setup: str = "", path: str = "") -> str:
    """Return the one shell word list that runs a program of this module with its arguments on a login node.

    :param setup: shell lines of the connection, run first; only who may edit the connection can write them.
    :param path: folder of Slurm's commands, put before the PATH.
    :raises MeasurementError: an argument that no shell can carry.
    """
    check_arguments(arguments)
    before = f"PATH={shlex.quote(path)}:$PATH; " if path else ""
    text = f"{_PROLOGUE} {before}{setup}\necho {MARK}\n{program.strip()}"
    return shlex.join(["bash", "-c", text, "fleetsieve", *arguments])


def after_mark(output: bytes) -> bytes:
    """Return an answer without what a login shell said before it."""
    before, mark, after = output.partition(f"{MARK}\n".encode())
    return after if mark else before


def read_status(text: str) -> tuple[float, bool, tuple[JobRow, ...] | None, dict[str, JobFiles]]:
    """Read the answer of :data:`STATUS`.

    :returns: the login node's clock, whether the controller is up, the queue (None where it did not answer),
        and what each run folder says by its name.
    :raises MeasurementError: an answer that is none, such as one cut off.
    """
    lines = text.splitlines()
    try:
        split = lines.index("files")
        now_s, up = float(lines[0]), lines[1] == "up"
        answered = lines[2] == "squeue 0"
    except (ValueError, IndexError) as error:
        raise MeasurementError(f"The login node's answer cannot be read: {text[:200]!r}.") from error
    rows = tuple(_queue_row(line) for line in lines[3:split] if line.count("|") >= 5)  # noqa: PLR2004 - six columns
    return (
        now_s,
        up,
        rows if answered else None,
        dict(_files(line) for line in lines[split + 1 :] if "|" in line),
    )


def read_books(text: str) -> tuple[JobRow, ...]:
    """Read the answer of :data:`BOOKS`, newest record of each job last in the text and first here."""
    rows = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == 6 and parts[0].isdigit():  # noqa: PLR2004 - six columns
            job_id, name, state, submitted, node, code = parts
            rows.append(
                JobRow(
                    job_id=int(job_id),
                    name=name,
                    state=state.split()[0] if state else "",
                    submitted_s=_seconds(submitted),
                    node=node,
                    exit_code=code,
                )
            )
    return tuple(reversed(rows))


def _queue_row(line: str) -> JobRow:
    # The reason is free text with blanks, commas and brackets, so it is last
    job_id, name, state, submitted, node, reason = line.split("|", 5)
    return JobRow(
        job_id=int(job_id), name=name, state=state, submitted_s=_seconds(submitted), node=node, reason=reason
    )


def _files(line: str) -> tuple[str, JobFiles]:
    name, ended, started, beat, reason = line.split("|", 4)
    return name, JobFiles(exit=ended, started=started, heartbeat_s=_seconds(beat), reason=reason)


def _seconds(text: str) -> float | None:
    return float(text) if text.isdigit() else None
