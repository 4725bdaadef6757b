"""Placement groups: devices with a CPU each, which Ray reserves for processes that are started
together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import placement_group, remove_placement_group

from marl_plugins.core.failures import RunEnded

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


def bundles(count: int, seconds: float) -> PlacementGroup:
    """Returns a placement group of so many devices with a CPU each, as upstream makes it
    (train_ppo_ray.py:48-51), once Ray has them.

    Raises:
        RunEnded: They were not free in time.
    """
    return ready(placement_group([{"GPU": 1, "CPU": 1}] * count, strategy="PACK"), seconds)


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
