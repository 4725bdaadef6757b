"""What each part of a weight's way through the host's memory takes on a machine, without engines:
`python -m benchmarks.host_copy [--mb 512]`, GB/s of one thread as a JSON object.

    from_device, to_device    pageable, pinned, and memory that processes share (memfd)
    ray_put                   a version of weights into Ray's store, whose pages an earlier one had
    from_store                out of it into shared memory, from where an engine's workers load

On a machine without a GPU the device's part is missing.
"""

import argparse
import json
import mmap
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

TIMES = 5


def shared(count: int) -> torch.Tensor:
    """Memory without a name that other processes can map."""
    descriptor = os.memfd_create("weights")
    os.ftruncate(descriptor, count)
    memory = torch.frombuffer(mmap.mmap(descriptor, count), dtype=torch.uint8)
    return memory.fill_(1)


def rate(count: int, copy: Callable[[], Any]) -> float:
    """GB/s of a copy, after one that is not counted."""
    copy()
    wait()
    started = time.perf_counter()
    for _ in range(TIMES):
        copy()
    wait()
    return round(TIMES * count / 1e9 / (time.perf_counter() - started), 2)


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def of_device(count: int, between: torch.Tensor) -> dict[str, float]:
    """Both directions between the device and each kind of the host's memory."""
    device = torch.ones(count, dtype=torch.uint8, device="cuda")
    kinds = {
        "pageable": torch.ones(count, dtype=torch.uint8),
        "pinned": torch.ones(count, dtype=torch.uint8, pin_memory=True),
        "shared": between,
    }
    rates = {}
    for kind, host in kinds.items():
        rates[f"from_device_{kind}"] = rate(count, partial(host.copy_, device))
        rates[f"to_device_{kind}"] = rate(count, partial(device.copy_, host))
    return rates


def of_store(count: int, between: torch.Tensor) -> dict[str, float]:
    """Into Ray's store, which is made for this, and out of it."""
    import ray

    ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=1,
        num_gpus=0,
        object_store_memory=4 * count,
        log_to_driver=False,
        logging_level="ERROR",
    )
    weights = np.ones(count, np.uint8)
    kept: list[Any] = []

    def put() -> None:
        kept.clear()
        kept.append(ray.put(weights))

    rates = {"ray_put": rate(count, put)}
    stored, target = ray.get(kept[0]), between.numpy()
    rates["from_store"] = rate(count, lambda: np.copyto(target, stored))
    ray.shutdown()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.host_copy",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--mb", type=int, default=512)
    count = parser.parse_args().mb * 10**6
    between = shared(count)
    rates = of_device(count, between) if torch.cuda.is_available() else {}
    print(json.dumps(rates | of_store(count, between)))


if __name__ == "__main__":
    main()
