#!/usr/bin/env bash
# install.sh: the distribution's PostgreSQL, where it is missing. Needs root for that; starts nothing.
set -euo pipefail
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null && exit 0
[ "$(id -u)" = 0 ] || { echo "install.sh: root is needed to install postgresql" >&2; exit 2; }
# policy-rc.d keeps the package from starting a server of its own
keep=/usr/sbin/policy-rc.d
[ -e $keep ] || { printf '#!/bin/sh\nexit 101\n' >$keep; chmod 755 $keep; trap 'rm -f $keep' EXIT; }
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql
