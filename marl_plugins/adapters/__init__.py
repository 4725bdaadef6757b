"""Policies as adapters: one model, one group of training processes and one pool of engines for all
policies of a model.

    openrlhf train --recipe mathchat/tiny_adapters.yaml
    openrlhf train --recipe mathchat --plugin marl_plugins.adapters --ds.lora.rank 16
    --actor.adam.lr 1e-5

A policy with `--ds.lora.rank` above 0 is an adapter of its model (LoRA, arXiv 2106.09685), for all
policies or for one (`--policy.NAME.ds.lora.rank`). Adapters of one model share what is large: the
model's weights, its training processes, its engines. Rank, targets, optimiser, schedule, KL,
version and checkpoint are each adapter's own. Policies that are not trained and have the same model
are answered by these engines too, without an adapter; one that follows an adapter has a slot of its
own.

bases.py says who shares what, checks.py what cannot be shared; processes.py is the controller's
side of the training processes, worker.py what runs inside them; engine.py is the engine that
answers with several adapters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marl_plugins import hookimpl
from marl_plugins.adapters.backend import SharedBases
from marl_plugins.adapters.bases import bases_of

if TYPE_CHECKING:
    from marl_plugins import Run

    # inside: works in the training processes
    from marl_plugins.core.process_backend import ProcessBackend


@hookimpl
def marl_processes(run: Run) -> ProcessBackend:
    return SharedBases()


@hookimpl
def marl_describe(run: Run) -> dict[str, Any]:
    """Describes each model that adapters share, with what is there once."""
    return {
        "bases": {
            base.model: {
                "adapters": {name: run.policy_args[name].ds.lora.rank for name in base.adapters},
                **({"following": list(base.following)} if base.following else {}),
                **({"frozen": list(base.frozen)} if base.frozen else {}),
                "ranks": base.ranks(run),
                "engines": run.policy_args[base.owner].vllm.num_engines,
            }
            for base in bases_of(run)
        }
    }
