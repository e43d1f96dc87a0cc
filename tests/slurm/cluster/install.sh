#!/usr/bin/env bash
# install.sh: the distribution's Slurm, SSH server and database, where they are missing. Needs root; starts nothing.
set -euo pipefail
packages=(slurmctld slurmd slurm-client munge openssh-server slurmdbd slurm-wlm-mysql-plugin mariadb-server iproute2 python3)
missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null)" = "ii " ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
[ "$(id -u)" = 0 ] || { echo "install.sh: root is needed to install ${missing[*]}" >&2; exit 2; }
# policy-rc.d keeps the packages from starting daemons of their own
keep=/usr/sbin/policy-rc.d
[ -e $keep ] || { printf '#!/bin/sh\nexit 101\n' >$keep; chmod 755 $keep; trap 'rm -f $keep' EXIT; }
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
