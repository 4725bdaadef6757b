#!/usr/bin/env bash
# One machine, all its GPUs (or its CPU): entrypoints/one_node.sh RECIPE [flags]
set -euo pipefail
recipe=${1:?usage: one_node.sh RECIPE [flags]}
shift
exec openrlhf train --recipe "$recipe" "$@"
