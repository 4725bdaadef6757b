"""Placement groups: devices with a CPU each, which Ray reserves for processes that are started
together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import placement_group, remove_placement_group

from marl_plugins.core.failures import RunEnded
from marl_plugins.engine.processes.nodes import living_nodes

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


class EnginePlace(NamedTuple):
    """Devices that a policy's engines share with training processes.

    Args:
        group: A bundle for each device.
        first: The number of the first engine; one that is numbered 0 has the first devices.
        share: Of a device, for each process of an engine on it; the default is upstream's.
    """

    group: PlacementGroup
    first: int = 0
    share: float = 0.2


def free_devices() -> dict[str, int]:
    """Returns the devices that are free, each with a CPU, by Ray's id of the node."""
    free = available_resources_per_node()
    return {
        node: min(int(free.get(node, {}).get(kind, 0)) for kind in ("GPU", "CPU"))
        for node in living_nodes()
    }


def nodes_for(needed: Mapping[str, int], free: Mapping[str, int]) -> dict[str, str]:
    """Returns by policy the node on which all its processes are to be: those that fit on one do not
    talk over the network, and several policies are spread.

    The largest policy is first, and takes the node with the most free devices. One that fits on no
    node is not named, nor is any where there is one node.

    Args:
        needed: Devices by policy.
        free: Devices by node.
    """
    nodes: dict[str, str] = {}
    left = dict(free)
    for policy, count in sorted(needed.items(), key=lambda item: -item[1]):
        node = max(left, key=lambda node: left[node])
        if len(free) > 1 and 0 < count <= left[node]:
            nodes[policy] = node
            left[node] -= count
    return nodes


def strategy(node: str) -> dict[str, str]:
    """Returns Ray's options of a placement group: on one node, this one where it has room, or by
    default on as few as Ray finds."""
    if not node:
        return {"strategy": "PACK"}
    return {"strategy": "STRICT_PACK", "_soft_target_node_id": node}


def bundles(count: int, seconds: float, node: str = "") -> PlacementGroup:
    """Returns a placement group of so many devices with a CPU each, as upstream makes it
    (train_ppo_ray.py:48-51), once Ray has them.

    Args:
        node: As of `strategy`.

    Raises:
        RunEnded: They were not free in time.
    """
    return ready(placement_group([{"GPU": 1, "CPU": 1}] * count, **strategy(node)), seconds)


def ready(group: PlacementGroup, seconds: float) -> PlacementGroup:
    """Returns a placement group, once its devices and CPUs are reserved. Upstream waits for that
    without a limit.

    Raises:
        RunEnded: They were not free in time; the group is removed.
    """
    try:
        ray.get(group.ready(), timeout=seconds)
    except GetTimeoutError:
        free, there = ray.available_resources(), ray.cluster_resources()
        remove_placement_group(group)
        available = " and ".join(
            f"{free.get(kind, 0):g} of {there.get(kind, 0):g} {kind}s" for kind in ("GPU", "CPU")
        )
        raise RunEnded(
            f"{group.bundle_count} devices with a CPU each were not free within {seconds:g} s "
            "(limits.silence_seconds): Ray has "
            f"{available} free"
        ) from None
    return group
