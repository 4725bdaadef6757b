#!/usr/bin/env bash
# Several nodes under Slurm: sbatch --nodes=2 --gpus-per-node=8 entrypoints/slurm.sh RECIPE [flags]
#SBATCH --job-name=openrlhf-marl
#SBATCH --ntasks-per-node=1
set -euo pipefail
recipe=${1:?usage: sbatch slurm.sh RECIPE [flags]}
shift
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=${RAY_PORT:-6379}
srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port="$port" --block &
sleep 10
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" \
    ray start --address="$head:$port" --block &
  sleep 10
fi
srun --overlap --nodes=1 --ntasks=1 -w "$head" env RAY_ADDRESS="$head:$port" MARL_PLUGINS_DEVICE=cuda \
  openrlhf train --recipe "$recipe" "$@"
