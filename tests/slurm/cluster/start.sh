#!/usr/bin/env bash
# A real Slurm cluster on one machine, for integration tests: munged, slurmctld, one slurmd a node, sshd, and on
# request mariadbd + slurmdbd (sacct, QOS, limits). No systemd, no cgroups, no docker. Needs root.
#
#   start.sh STATE_DIR [--clean]      start (idempotent: a running cluster is left as it is)
#   stop.sh  STATE_DIR                stop every process of it, by pid
#
# Everything is under STATE_DIR but: the unix users, /run/sshd, and (NET=netns) links and namespaces named by PREFIX.
# Then: `. STATE_DIR/env.sh`, or read STATE_DIR/cluster.json.
set -euo pipefail
trap 'echo "start: line $LINENO failed: $BASH_COMMAND" >&2' ERR
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
STATE=${1:?usage: start.sh STATE_DIR [--clean]}; CLEAN=${2:-}
mkdir -p "$STATE"; STATE=$(cd "$STATE" && pwd -P)

: "${FLEET_SLURM_PORT_BASE:=26810}"        # ctld +0, dbd +1, mariadb +2, sshd +3, slurmd +11 and up
: "${FLEET_SLURM_NODES:=gpu01:h100:4 gpu02:h100:4 gpu03:l40s:2}"   # name:gpu type:gpu count
: "${FLEET_SLURM_CPUS:=32}" "${FLEET_SLURM_MEM_MB:=256000}"        # what each node claims to have
: "${FLEET_SLURM_USERS:=fleet}"            # unprivileged users; the first is the one that ssh keys are made for
: "${FLEET_SLURM_DBD:=0}"                  # 1: mariadbd + slurmdbd
: "${FLEET_SLURM_NET:=loopback}"           # loopback: nodes share this host's network; netns: a namespace a node
: "${FLEET_SLURM_NET_PREFIX:=fsl}"         # netns: prefix of bridge, links, namespaces
: "${FLEET_SLURM_NET_SUBNET:=10.77.0}"     # netns: first three octets
: "${FLEET_SLURM_MIN_JOB_AGE:=300}" "${FLEET_SLURM_SLURMD_TIMEOUT:=10}" "${FLEET_SLURM_KILL_WAIT:=3}"
: "${FLEET_SLURM_RETURN_TO_SERVICE:=2}" "${FLEET_SLURM_MAX_ARRAY:=1001}" "${FLEET_SLURM_FIRST_JOB_ID:=1}"
: "${FLEET_SLURM_GATHER_PARAMS:=NoShared}" # OverMemoryKill to have over-use of memory killed
: "${FLEET_SLURM_WAIT_S:=30}"

[ "$(id -u)" = 0 ] || { echo "start: root is needed (slurmd starts jobs as other users)" >&2; exit 2; }
missing=()
for c in munged:munge slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client sshd:openssh-server; do
  command -v "${c%%:*}" >/dev/null || missing+=("${c##*:}")
done
if [ "$FLEET_SLURM_DBD" = 1 ]; then
  command -v slurmdbd >/dev/null || missing+=(slurmdbd slurm-wlm-mysql-plugin)
  command -v mariadbd >/dev/null || missing+=(mariadb-server)
fi
if [ ${#missing[@]} -gt 0 ]; then
  echo "start: not installed; run: apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 3
fi

exec 9>"$STATE/.lock"; flock -w 60 9 || { echo "start: $STATE is locked" >&2; exit 4; }
t0=$(date +%s%N)
export SLURM_CONF=$STATE/etc/slurm.conf
alive() { # a pid file names a live process of the given program (zombies and reused pids are not)
  local p; p=$(cat "$1" 2>/dev/null) && [ -n "$p" ] && [ -r "/proc/$p/stat" ] || return 1
  [ "$(cut -d' ' -f3 < <(sed 's/(.*)/x/' "/proc/$p/stat" 2>/dev/null))" != Z ] || return 1
  tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null | grep -q "$2"
}
port() { echo $((FLEET_SLURM_PORT_BASE + $1)); }

if alive "$STATE/run/slurmctld.pid" slurmctld && alive "$STATE/run/sshd.pid" sshd && [ -z "$CLEAN" ] &&
   scontrol ping 2>/dev/null | grep -q 'is UP'; then
  all=1
  for n in $FLEET_SLURM_NODES; do alive "$STATE/run/slurmd.${n%%:*}.pid" slurmd || all=0; done
  if [ $all = 1 ]; then echo "start: already running in $STATE"; exit 0; fi
fi
bash "$here/stop.sh" "$STATE" --locked 9>&- >/dev/null || true
[ "$CLEAN" != --clean ] || find "$STATE" -mindepth 1 -maxdepth 1 ! -name .lock -exec rm -rf {} +

printf 'FLEET_SLURM_NET=%s FLEET_SLURM_NET_PREFIX=%s FLEET_SLURM_NODES=%q\n' "$FLEET_SLURM_NET" \
  "$FLEET_SLURM_NET_PREFIX" "$FLEET_SLURM_NODES" >"$STATE/.net"

# ---- users, folders, keys
for u in $FLEET_SLURM_USERS; do
  id "$u" >/dev/null 2>&1 || useradd -m -s /bin/bash "$u"
  # an account made without a password is locked ("!"), and sshd without PAM turns a locked one away
  [ "$(getent shadow "$u" | cut -d: -f2)" != '!' ] || usermod -p '*' "$u"
done
mkdir -p "$STATE"/{etc,run,log,ctld,spool,munge,munge/run,dev,ssh,db}
chmod 755 "$STATE" "$STATE"/{etc,run,log,spool,dev,ssh} "$STATE/munge"
chown slurm: "$STATE/ctld" "$STATE/run"; chown slurm: "$STATE/log"; chmod 700 "$STATE/ctld"
if [ ! -s "$STATE/munge/munge.key" ]; then
  (umask 077; head -c 128 /dev/urandom >"$STATE/munge/munge.key")
fi
chown -R munge: "$STATE/munge"; chmod 400 "$STATE/munge/munge.key"; chmod 755 "$STATE/munge/run"

# ---- munged (own socket, own key: nothing under /run/munge or /etc/munge is touched)
rm -f "$STATE/munge/run/"*
# --force: munged refuses a socket below a folder that others may write to, as /tmp is
runuser -u munge -- munged --force --num-threads=4 --key-file="$STATE/munge/munge.key" \
  --socket="$STATE/munge/run/munge.socket" --pid-file="$STATE/munge/run/munged.pid" \
  --log-file="$STATE/munge/munged.log" --seed-file="$STATE/munge/munged.seed" 9>&- 2>"$STATE/log/munged.err"
ln -sfn ../munge/run/munged.pid "$STATE/run/munged.pid"

# ---- network: who is where
ctld_addr=127.0.0.1; host=$(hostname -s)
if [ "$FLEET_SLURM_NET" = netns ]; then
  br=${FLEET_SLURM_NET_PREFIX}br; ctld_addr=$FLEET_SLURM_NET_SUBNET.1
  ip link show "$br" >/dev/null 2>&1 || ip link add "$br" type bridge
  ip addr replace "$ctld_addr/24" dev "$br"; ip link set "$br" up
  i=10
  for spec in $FLEET_SLURM_NODES; do
    i=$((i + 1)); n=${spec%%:*}; ns=$FLEET_SLURM_NET_PREFIX-$n; v=${FLEET_SLURM_NET_PREFIX}$i
    ip netns list | grep -qw "$ns" || ip netns add "$ns"
    if ! ip link show "$v" >/dev/null 2>&1; then
      ip link add "$v" type veth peer name eth0 netns "$ns"
      ip link set "$v" master "$br" up
    fi
    ip -n "$ns" addr replace "$FLEET_SLURM_NET_SUBNET.$i/24" dev eth0
    ip -n "$ns" link set lo up; ip -n "$ns" link set eth0 up
  done
fi

# ---- configuration
nodes='' gres='' i=10 names=''
for spec in $FLEET_SLURM_NODES; do
  IFS=: read -r n type count <<<"$spec"; i=$((i + 1)); names+=${names:+,}$n
  if [ "$FLEET_SLURM_NET" = netns ]; then addr=$FLEET_SLURM_NET_SUBNET.$i; p=$(port 11)
  else addr=127.0.0.1; p=$(port "$i"); fi
  nodes+="NodeName=$n NodeHostname=$n NodeAddr=$addr Port=$p CPUs=$FLEET_SLURM_CPUS Boards=1 SocketsPerBoard=2"
  nodes+=" CoresPerSocket=$((FLEET_SLURM_CPUS / 2)) ThreadsPerCore=1 RealMemory=$FLEET_SLURM_MEM_MB"
  if [ "${count:-0}" -gt 0 ]; then
    nodes+=" Gres=gpu:$type:$count Feature=gpu,$type"
    # A Count without File registers no gpu in 22.05, and a plain file is an error: null devices do
    for k in $(seq 0 $((count - 1))); do [ -c "$STATE/dev/nvidia$k" ] || mknod -m 666 "$STATE/dev/nvidia$k" c 1 3; done
    gres+="NodeName=$n Name=gpu Type=$type File=$STATE/dev/nvidia[0-$((count - 1))]"$'\n'
  else nodes+=" Feature=cpu"; fi
  nodes+=$'\n'
done
if [ -n "${FLEET_SLURM_PARTITIONS:-}" ]; then parts=$FLEET_SLURM_PARTITIONS; else
parts="PartitionName=gpu Nodes=$names Default=YES DefaultTime=00:10:00 MaxTime=1-00:00:00 State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=scavenge Nodes=$names DefaultTime=00:10:00 MaxTime=1-00:00:00 State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=spot Nodes=$names DefaultTime=00:10:00 MaxTime=1-00:00:00 State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=0
PartitionName=short Nodes=$names DefaultTime=00:01:00 MaxTime=00:02:00 State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=closed Nodes=$names MaxTime=01:00:00 State=DOWN PriorityTier=10"
fi
acct=accounting_storage/none acct_extra=''
if [ "$FLEET_SLURM_DBD" = 1 ]; then
  acct=accounting_storage/slurmdbd
  acct_extra="AccountingStorageHost=127.0.0.1
AccountingStoragePort=$(port 1)
AccountingStoragePass=$STATE/munge/run/munge.socket
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
AccountingStoreFlags=job_comment,job_script"
fi
render() { # FILE: @NAME@ to its value
  local t k; t=$(<"$1")
  for k in CLUSTER CTLD_HOST CTLD_ADDR CTLD_PORT SLURMD_PORT STATE MIN_JOB_AGE SLURMD_TIMEOUT KILL_WAIT MAX_ARRAY \
           RETURN_TO_SERVICE GATHER_PARAMS PREEMPT_TYPE FIRST_JOB_ID ACCT_TYPE ACCT_EXTRA NODES PARTITIONS \
           GRES DBD_PORT DB_PORT; do
    t=${t//"@$k@"/"${V[$k]}"}
  done
  printf '%s\n' "$t"
}
declare -A V=([CLUSTER]=fleet [CTLD_HOST]=$host [CTLD_ADDR]=$ctld_addr [CTLD_PORT]=$(port 0) [SLURMD_PORT]=$(port 11)
  [STATE]=$STATE [MIN_JOB_AGE]=$FLEET_SLURM_MIN_JOB_AGE [SLURMD_TIMEOUT]=$FLEET_SLURM_SLURMD_TIMEOUT
  [KILL_WAIT]=$FLEET_SLURM_KILL_WAIT [MAX_ARRAY]=$FLEET_SLURM_MAX_ARRAY [FIRST_JOB_ID]=$FLEET_SLURM_FIRST_JOB_ID
  [RETURN_TO_SERVICE]=$FLEET_SLURM_RETURN_TO_SERVICE [GATHER_PARAMS]=$FLEET_SLURM_GATHER_PARAMS
  [PREEMPT_TYPE]=preempt/partition_prio [ACCT_TYPE]=$acct [ACCT_EXTRA]=$acct_extra
  [NODES]=$nodes [PARTITIONS]=$parts [GRES]=$gres [DBD_PORT]=$(port 1) [DB_PORT]=$(port 2))
render "$here/templates/slurm.conf.in" >"$STATE/etc/slurm.conf"
render "$here/templates/gres.conf.in" >"$STATE/etc/gres.conf"
# slurmd 23.02 and later loads a cgroup plugin whatever ProctrackType says, unless it is turned off by name
version=$(slurmctld -V | grep -oE '[0-9]+\.[0-9]+' | head -1)
[ "${version%%.*}" -lt 23 ] || echo 'CgroupPlugin=disabled' >"$STATE/etc/cgroup.conf"
chmod 644 "$STATE/etc/slurm.conf" "$STATE/etc/gres.conf"; rm -f "$STATE/etc/slurmdbd.conf"

# ---- mariadbd + slurmdbd
if [ "$FLEET_SLURM_DBD" = 1 ]; then
  chown mysql: "$STATE/db"; chmod 711 "$STATE/db"
  if [ ! -d "$STATE/db/data/mysql" ]; then
    mariadb-install-db --no-defaults --user=mysql --datadir="$STATE/db/data" --skip-test-db \
      --auth-root-authentication-method=socket --innodb-log-file-size=8M >"$STATE/log/mariadb-install.log" 2>&1 9>&-
  fi
  setsid mariadbd --no-defaults --user=mysql --datadir="$STATE/db/data" --socket="$STATE/db/mariadb.sock" \
    --pid-file="$STATE/db/mariadbd.pid" --bind-address=127.0.0.1 --port="$(port 2)" --innodb-buffer-pool-size=64M \
    --innodb-log-file-size=8M --innodb-flush-log-at-trx-commit=2 --innodb-lock-wait-timeout=900 --skip-log-bin \
    --performance-schema=OFF >"$STATE/log/mariadb.log" 2>&1 </dev/null 9>&- &
  ln -sfn ../db/mariadbd.pid "$STATE/run/mariadbd.pid"
  for _ in $(seq 100); do mariadb-admin --no-defaults -S "$STATE/db/mariadb.sock" ping >/dev/null 2>&1 && break; sleep 0.1; done
  [ -s "$STATE/db/pass" ] || (umask 077; head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$STATE/db/pass")
  mariadb --no-defaults -S "$STATE/db/mariadb.sock" -e "create database if not exists slurm_acct_db;
    create user if not exists 'slurm'@'%' identified by '$(cat "$STATE/db/pass")';
    grant all on slurm_acct_db.* to 'slurm'@'%';"
  (umask 077; cat >"$STATE/etc/slurmdbd.conf" <<DBD
AuthType=auth/munge
AuthInfo=socket=$STATE/munge/run/munge.socket
DbdHost=$host
DbdAddr=127.0.0.1
DbdPort=$(port 1)
SlurmUser=slurm
PidFile=$STATE/run/slurmdbd.pid
LogFile=$STATE/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$(port 2)
StorageUser=slurm
StoragePass=$(cat "$STATE/db/pass")
StorageLoc=slurm_acct_db
DBD
  )
  chown slurm: "$STATE/etc/slurmdbd.conf"
  slurmdbd 9>&-
  end=$(( $(date +%s) + FLEET_SLURM_WAIT_S ))
  until timeout 3 sacctmgr -n show cluster >/dev/null 2>&1; do
    [ "$(date +%s)" -lt $end ] || { echo "start: slurmdbd does not answer; see $STATE/log" >&2; exit 1; }
    sleep 0.1
  done
  sacctmgr -nP show cluster format=cluster 2>/dev/null | grep -qx fleet || sacctmgr -iQ add cluster fleet >/dev/null
fi

# ---- slurmctld, slurmd
slurmctld 9>&-   # forks, and its exit status says nothing of a fatal error after that
for _ in $(seq 100); do
  scontrol ping 2>/dev/null | grep -q 'is UP' && break
  grep -q ' fatal: ' "$STATE/log/slurmctld.log" 2>/dev/null && { grep ' fatal: ' "$STATE/log/slurmctld.log" >&2; exit 1; }
  sleep 0.1
done
for spec in $FLEET_SLURM_NODES; do "$here/start-node.sh" "$STATE" "${spec%%:*}" "$FLEET_SLURM_NET" \
  "$FLEET_SLURM_NET_PREFIX" 9>&-; done

# ---- accounts and QOS: only after slurmctld has told slurmdbd of TRES gres/gpu
if [ "$FLEET_SLURM_DBD" = 1 ] && [ ! -e "$STATE/db/.seeded" ]; then
  q() { sacctmgr -iQ "$@" >/dev/null; }
  q add qos low,high,tiny
  q modify qos low set Priority=0
  q modify qos high set Priority=1000 Preempt=low
  q modify qos tiny set GrpTRES=gres/gpu=2 MaxTRESPerJob=gres/gpu=1 MaxWall=00:05:00 MaxSubmitJobsPerUser=4 Flags=DenyOnLimit
  q add account bench Description=bench Organization=fleet
  for u in $FLEET_SLURM_USERS root; do q add user "$u" Account=bench QOS=normal,low,high,tiny DefaultQOS=normal; done
  : >"$STATE/db/.seeded"
fi

# ---- sshd: the login node
[ -f "$STATE/ssh/host_ed25519" ] || ssh-keygen -q -t ed25519 -N '' -C fleet-login -f "$STATE/ssh/host_ed25519"
[ -f "$STATE/ssh/id_ed25519" ] || ssh-keygen -q -t ed25519 -N '' -C fleet-client -f "$STATE/ssh/id_ed25519"
cp "$STATE/ssh/id_ed25519.pub" "$STATE/ssh/authorized_keys"; chmod 644 "$STATE/ssh/authorized_keys"
echo "[127.0.0.1]:$(port 3) $(cut -d' ' -f1,2 "$STATE/ssh/host_ed25519.pub")" >"$STATE/ssh/known_hosts"
mkdir -p /run/sshd; chmod 755 /run/sshd
cat >"$STATE/ssh/sshd_config" <<SSHD
Port $(port 3)
ListenAddress 127.0.0.1
HostKey $STATE/ssh/host_ed25519
PidFile $STATE/run/sshd.pid
AuthorizedKeysFile $STATE/ssh/authorized_keys
# the state folder may lie under /tmp, which all may write to: StrictModes would turn every key away
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin $(grep -qw root <<<"$FLEET_SLURM_USERS" && echo prohibit-password || echo no)
AllowUsers $FLEET_SLURM_USERS
AllowTcpForwarding yes
MaxStartups ${FLEET_SLURM_SSH_MAXSTARTUPS:-10:30:100}
MaxSessions ${FLEET_SLURM_SSH_MAXSESSIONS:-10}
LogLevel VERBOSE
Subsystem sftp internal-sftp
SetEnv SLURM_CONF=$STATE/etc/slurm.conf
SSHD
/usr/sbin/sshd -f "$STATE/ssh/sshd_config" -E "$STATE/log/sshd.log" 9>&-
for _ in $(seq 50); do alive "$STATE/run/sshd.pid" sshd && break; sleep 0.05; done   # it binds only after it has forked
alive "$STATE/run/sshd.pid" sshd || { tail -n 3 "$STATE/log/sshd.log" >&2; exit 1; }
cat >"$STATE/ssh/config" <<SSHC
Host fleet-login
  HostName 127.0.0.1
  Port $(port 3)
  User ${FLEET_SLURM_USERS%% *}
  IdentityFile $STATE/ssh/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile $STATE/ssh/known_hosts
  StrictHostKeyChecking yes
  BatchMode yes
SSHC

# ---- facts for clients
cat >"$STATE/env.sh" <<ENV
export SLURM_CONF='$SLURM_CONF'
export FLEET_SLURM_STATE='$STATE'
export FLEET_SLURM_SSH_PORT=$(port 3) FLEET_SLURM_SSH_USER=${FLEET_SLURM_USERS%% *}
export FLEET_SLURM_SSH_KEY='$STATE/ssh/id_ed25519' FLEET_SLURM_SSH_KNOWN_HOSTS='$STATE/ssh/known_hosts'
export FLEET_SLURM_NODES='$FLEET_SLURM_NODES' FLEET_SLURM_NET=$FLEET_SLURM_NET FLEET_SLURM_NET_PREFIX=$FLEET_SLURM_NET_PREFIX
ENV
printf '{"state": "%s", "slurm_conf": "%s", "ssh": {"host": "127.0.0.1", "port": %s, "user": "%s", "key": "%s", "known_hosts": "%s"}, "dbd": %s, "nodes": "%s"}\n' \
  "$STATE" "$SLURM_CONF" "$(port 3)" "${FLEET_SLURM_USERS%% *}" "$STATE/ssh/id_ed25519" "$STATE/ssh/known_hosts" \
  "$([ "$FLEET_SLURM_DBD" = 1 ] && echo true || echo false)" "$FLEET_SLURM_NODES" >"$STATE/cluster.json"

# ---- ready when every node is idle
want=$(wc -w <<<"$FLEET_SLURM_NODES"); deadline=$(( $(date +%s) + FLEET_SLURM_WAIT_S )); up=0
while [ "$(date +%s)" -lt $deadline ]; do
  up=$(sinfo -h -N -o '%N %T' 2>/dev/null | sort -u | grep -cE ' (idle|mixed|allocated)$' || true)
  [ "$up" -ge "$want" ] && break
  sleep 0.1
done
if [ "$up" -lt "$want" ]; then
  echo "start: only $up of $want nodes are up after $FLEET_SLURM_WAIT_S s; see $STATE/log" >&2
  sinfo -N -o '%N %T %E' >&2 || true
  exit 1
fi
echo "start: $want nodes up in $(( ($(date +%s%N) - t0) / 1000000 )) ms; ssh 127.0.0.1:$(port 3); . $STATE/env.sh"
