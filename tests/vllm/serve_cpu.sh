#!/usr/bin/env bash
# serve_cpu.sh serve MODEL ...: the CPU build of vLLM with what it needs on two cores. FLEETSIEVE_VLLM_LAB: see install.sh
set -euo pipefail
lab=${FLEETSIEVE_VLLM_LAB:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/.local/vllm-lab}
degree=1
for word in "$@"; do [[ $word != --tensor-parallel-size=* ]] || degree=${word#*=}; done
if [ "$degree" -gt 1 ]; then
  # "auto" wants a NUMA node for each rank
  bind=0; for rank in $(seq 1 $((degree - 1))); do bind+="|$((rank % $(nproc)))"; done
  export VLLM_CPU_OMP_THREADS_BIND=$bind
fi
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_WORKER_MULTIPROC_METHOD=fork
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
# The engine gives way to its client, which keeps a schedule on the same two cores: on a node each has its own.
{ echo 5 > /proc/self/autogroup; } 2>/dev/null || true
exec "$lab/vllm/bin/vllm" "$@"
