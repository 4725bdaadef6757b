"""The nodes of the Ray cluster in RAY_ADDRESS: `openrlhf doctor --cluster`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import Finding, error, note, ok
from marl_plugins.core.problems import Problem, at
from marl_plugins.engine.processes.cluster import own_cluster, quiet, reach_cluster

if TYPE_CHECKING:
    from marl_plugins.core.run import Run
    from marl_plugins.engine.processes.nodes import NodeFacts

SECONDS = 8.0
"""Within which a node answers, so that the table is there within ten."""


def check_cluster(run: Run | None) -> list[Finding]:
    """Returns a line for every node, and what keeps them from running together.

    Args:
        run: Whose models and folders every node should see.

    Raises:
        ConfigurationError: There is no such cluster.
    """
    if own_cluster():
        raise ConfigurationError(
            Problem(
                "doctor.cluster",
                at(flag="cluster"),
                "RAY_ADDRESS is not set",
                fix="set it to the cluster's HOST:PORT (docs/slurm.md)",
            )
        )
    reach_cluster()
    os.environ.update(quiet(debug=False))
    import ray

    from marl_plugins.engine.processes import nodes

    try:
        ray.init(log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError) as failure:  # no HOST:PORT, or `auto` where there is none
        got, fix = (
            f"RAY_ADDRESS {os.environ['RAY_ADDRESS']}: {failure}",
            "it is HOST:PORT of a cluster",
        )
        raise ConfigurationError(Problem("devices.ray", got=got, fix=fix)) from failure
    with ExitStack() as stack:
        stack.callback(ray.shutdown)
        handles = stack.enter_context(nodes.processes_on_nodes())
        folders = {}
        if run is not None:
            written = {run.args.ckpt.output_dir, run.args.ckpt.path}
            folders = stack.enter_context(nodes.probes([Path(f).absolute() for f in written]))
            folders |= {p.model: p.model for p in run.policies if os.path.isdir(p.model)}
        facts, problems = nodes.ask_nodes(handles, folders, SECONDS)
    lines = [ok(str(node), shown(node)) for node in facts]
    lines += [note("cluster", remark) for remark in nodes.remarks_on(facts)]
    problems += nodes.problems_of(facts)
    return lines + [error("cluster", problem.got, problem.fix) for problem in problems]


def shown(node: NodeFacts) -> str:
    """Returns what a node has, in one line."""
    there = ", ".join(f"{k} {node.versions.get(k)}" for k in ("Python", "openrlhf-marl", "ray"))
    free = node.shared_memory / 2**30
    return (
        f"{node.devices} devices; its name means {node.own_name}; /dev/shm {free:.1f} GiB free; "
        f"clock {node.clock:+.1f} s; {there}"
    )
