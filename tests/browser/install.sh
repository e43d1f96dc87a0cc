#!/usr/bin/env bash
# install.sh: the distribution's Chromium, where no browser is. Needs root for that; starts nothing.
set -euo pipefail
command -v chromium >/dev/null && exit 0
[ "$(id -u)" = 0 ] || { echo "install.sh: root is needed to install chromium" >&2; exit 2; }
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core
