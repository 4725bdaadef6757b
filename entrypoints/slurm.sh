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

nodes() { ray status --address "$address" 2>/dev/null | grep -c '^ [0-9]* node_' || true; }
wait_for() {
  for _ in $(seq 150); do
    if [ "$(nodes)" -ge "$1" ]; then return; fi
    sleep 2
  done
  echo "slurm.sh: $(nodes) of $SLURM_JOB_NUM_NODES nodes have joined Ray at $address after five minutes" >&2
  exit 1
}

srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port="$port" --block &
wait_for 1
others=$((SLURM_JOB_NUM_NODES - 1))
if [ "$others" -gt 0 ]; then
  srun --nodes="$others" --ntasks="$others" --exclude="$head" ray start --address="$address" --block &
fi
wait_for "$SLURM_JOB_NUM_NODES"
srun --overlap --nodes=1 --ntasks=1 -w "$head" env RAY_ADDRESS="$address" MARL_PLUGINS_DEVICE=cuda \
  openrlhf train --recipe "$recipe" "$@"
