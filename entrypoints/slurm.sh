#!/usr/bin/env bash
# Several nodes under Slurm: sbatch --nodes=2 --gpus-per-node=8 entrypoints/slurm.sh RECIPE [flags]
#SBATCH --job-name=openrlhf-marl
#SBATCH --ntasks-per-node=1
set -euo pipefail
recipe=${1:?usage: sbatch slurm.sh RECIPE [flags]}
shift
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${hosts%%$'\n'*}
port=${RAY_PORT:-6379}
address="$head:$port"
# Whoever reaches a port of Ray without authentication runs code as you; srun gives the token to every node.
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
export RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}

# What every node offers Ray: a node without GPUs needs logical ones, as in RAY_NODE_FLAGS="--num-gpus=4".
read -ra node_flags <<<"${RAY_NODE_FLAGS:-}"

nodes() { timeout 10 ray status --address "$address" 2>/dev/null | grep -c '^ [0-9]* node_' || true; }
wait_for() {
  local until=$((SECONDS + 300))
  local alive
  while true; do
    alive=$(kill -0 "$2" 2>/dev/null && echo yes || true)
    if [ "$(nodes)" -ge "$1" ]; then
      return
    fi
    if [ -z "$alive" ]; then
      echo "slurm.sh: ray start has ended before $1 of $SLURM_JOB_NUM_NODES nodes had joined Ray at $address" >&2
      exit 1
    elif [ "$SECONDS" -gt "$until" ]; then
      echo "slurm.sh: $(nodes) of $SLURM_JOB_NUM_NODES nodes have joined Ray at $address after five minutes" >&2
      exit 1
    fi
    sleep 2
  done
}

# Slurm sends SIGTERM to every process of a job that it ends. Ray's do not hear it: else they would be gone before the
# run has said what is saved. They end after it, by Slurm's SIGKILL.
deaf='import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.execvp(sys.argv[1], sys.argv[1:])'
srun --nodes=1 --ntasks=1 -w "$head" \
  python3 -c "$deaf" ray start --head --port="$port" --include-dashboard=false "${node_flags[@]}" --block &
wait_for 1 $!
others=$((SLURM_JOB_NUM_NODES - 1))
if [ "$others" -gt 0 ]; then
  srun --nodes="$others" --ntasks="$others" --exclude="$head" \
    python3 -c "$deaf" ray start --address="$address" "${node_flags[@]}" --block &
  wait_for "$SLURM_JOB_NUM_NODES" $!
fi
srun --overlap --nodes=1 --ntasks=1 -w "$head" env RAY_ADDRESS="$address" MARL_PLUGINS_DEVICE="${MARL_PLUGINS_DEVICE:-cuda}" \
  openrlhf train --recipe "$recipe" "$@"
