#!/usr/bin/env bash
# stop.sh STATE_DIR: ends every process of the cluster, jobs first, each by its pid. Idempotent.
set -uo pipefail
STATE=${1:?usage: stop.sh STATE_DIR}; [ -d "$STATE" ] || exit 0; STATE=$(cd "$STATE" && pwd -P)
if [ "${2:-}" != --locked ]; then exec 9>"$STATE/.lock"; flock -w 60 9 || exit 4; fi
export SLURM_CONF=$STATE/etc/slurm.conf
gone() { # a zombie is gone too: pid 1 here reaps late, and kill -0 still finds it
  local s; s=$(sed 's/(.*)/x/' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f3); [ -z "$s" ] || [ "$s" = Z ]
}
end() { # PID...: TERM, up to 5 s, KILL
  local p left
  for p in "$@"; do kill "$p" 2>/dev/null; done
  for _ in $(seq 50); do
    left=0; for p in "$@"; do gone "$p" || left=1; done
    [ $left = 0 ] && return; sleep 0.1
  done
  for p in "$@"; do gone "$p" || kill -9 "$p" 2>/dev/null; done
}
pid_of() { # NAME PROGRAM: the pid in run/NAME.pid, if it is alive and still that program
  local p; p=$(cat "$STATE/run/$1.pid" 2>/dev/null) || return 0
  [ -n "$p" ] && ! gone "$p" && tr '\0' ' ' 2>/dev/null <"/proc/$p/cmdline" | grep -q "$2" && echo "$p"
}
# shellcheck disable=SC2046  # lists of pids and of job ids are meant to be split
main() {
  # 1. jobs, while there is a controller to ask
  if [ -n "$(pid_of slurmctld slurmctld)" ]; then
    local jobs; jobs=$(timeout 5 squeue -h -o %A 2>/dev/null | sort -u)
    [ -z "$jobs" ] || timeout 5 scancel --full --signal=KILL $jobs 2>/dev/null
    [ -z "$jobs" ] || timeout 5 scancel $jobs 2>/dev/null
    for _ in $(seq 30); do
      [ -z "$jobs" ] || [ -z "$(timeout 5 squeue -h -t RUNNING,COMPLETING -o %A 2>/dev/null)" ] && break; sleep 0.1
    done
  fi
  # 2. daemons, those that need others first
  local f nodes=''
  for f in "$STATE"/run/slurmd.*.pid; do f=${f##*/}; nodes+=" $(pid_of "${f%.pid}" slurmd)"; done
  end $(pid_of sshd sshd) $nodes
  end $(pid_of slurmctld slurmctld)
  end $(pid_of slurmdbd slurmdbd)
  end $(pid_of mariadbd mariadbd) $(pid_of munged munged)
  # 3. what is left: step daemons, and job processes that left their session; both carry this cluster's SLURM_CONF
  end $(grep -lzFx "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | while read -r p; do
    { tr '\0' '\n' <"/proc/$p/environ" | grep -q '^SLURM_JOB_ID=' ||
      tr '\0' ' ' <"/proc/$p/cmdline" | grep -q '^slurmstepd'; } 2>/dev/null && echo "$p"
  done)
  # 4. network
  if [ -f "$STATE/.net" ]; then
    . "$STATE/.net"
    if [ "$FLEET_SLURM_NET" = netns ]; then
      local spec ns
      for spec in $FLEET_SLURM_NODES; do
        ns=$FLEET_SLURM_NET_PREFIX-${spec%%:*}
        ip netns list 2>/dev/null | grep -qw "$ns" || continue
        end $(ip netns pids "$ns" 2>/dev/null)
        ip netns del "$ns" 2>/dev/null
      done
      ip link del "${FLEET_SLURM_NET_PREFIX}br" 2>/dev/null
    fi
  fi
  rm -f "$STATE"/run/*.pid
}
main
echo "stop: $STATE is stopped"
