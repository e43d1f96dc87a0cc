#!/bin/bash
# fleetsieve-0123456789abcdef-0: one server, 2 window(s). Written by FleetSieve. Run as: script RUN_FOLDER
set -u
umask 077
run=$1
cd -- "$run" || exit 90
# A job that the scheduler started twice must not run twice
mkdir claim 2>/dev/null || { echo "another copy of this job has claimed $run" >&2; exit 89; }
started="${SLURM_JOB_ID:-local}.${SLURM_RESTART_COUNT:-0}"
printf '%s %s %s\n' "$started" "$(hostname)" "$(date +%s)" >.start.tmp && mv -f .start.tmp start
signal=none
finish() { printf 'rc=%s signal=%s\n' "$1" "$signal" >.exit.tmp; mv -f .exit.tmp exit; exit "$1"; }
# Set up by the fleet's owner
module load cuda/12.8
set -a; . /home/fleet/secrets.env || finish 83; set +a
# The scheduler's TERM goes to the program, which ends the server before it ends itself
/opt/aiperf/bin/python agent.py "$run" &
child=$!
trap 'signal=TERM; kill -TERM "$child" 2>/dev/null' TERM INT
while :; do
  wait "$child"; rc=$?
  kill -0 "$child" 2>/dev/null || break
done
finish "$rc"

# sbatch --nodes=1 --ntasks=1 --time=44 --mem=64G --cpus-per-task=16 --gres=gpu:h100:2 --partition=gpu --account=bench --qos=high '--constraint=h100&nvlink' --reservation=friday --export=NONE --dependency=singleton --no-requeue --exclusive --nice=100 '--comment=two words'
