#!/usr/bin/env bash
# On a running Ray cluster: RAY_API_SERVER_ADDRESS=http://head:8265 entrypoints/ray_job.sh RECIPE [flags]
# The recipe's folder is taken along; the package has to be installed on every node.
set -euo pipefail
recipe=${1:?usage: ray_job.sh RECIPE [flags]}
shift
exec ray job submit --working-dir "$(dirname "$recipe")" --runtime-env-json '{"env_vars": {"MARL_PLUGINS_DEVICE": "cuda"}}' \
  -- openrlhf train --recipe "$(basename "$recipe")" "$@"
