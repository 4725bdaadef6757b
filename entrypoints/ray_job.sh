#!/usr/bin/env bash
# On a running Ray cluster: RAY_API_SERVER_ADDRESS=http://head:8265 entrypoints/ray_job.sh RECIPE [flags]
# RECIPE is a folder or a YAML file; its folder is taken along. The package has to be installed on every node.
set -euo pipefail
recipe=${1:?usage: ray_job.sh RECIPE [flags]}
shift
recipe=${recipe%/}
# The device is set for the command, not in the job's runtime environment: Ray refuses a variable that both it and the run set.
exec ray job submit --working-dir "$(dirname "$recipe")" \
  -- env MARL_PLUGINS_DEVICE=cuda openrlhf train --recipe "$(basename "$recipe")" "$@"
