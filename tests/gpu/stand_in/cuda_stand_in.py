"""A stand-in for CUDA, so that the GPU branches of this project and of upstream run on a machine
without one.

    MARL_STAND_IN=FOLDER MARL_STAND_IN_GPUS=3 PYTHONPATH=tests/gpu/stand_in:.
    MARL_PLUGINS_DEVICE=cuda openrlhf train ...

`sitecustomize.py` installs it in every process. It answers only what a device and its driver would:

    devices      Ray is told of so many GPUs; a process's device is what Ray has left in its
                 CUDA_VISIBLE_DEVICES
    CUDA IPC     a handle names a file in FOLDER, which goes with the tensor; it opens only on the
                 device that made it
    flash-attn   transformers' own attention (`sdpa`)
    rings        every rank gathers all keys and values, instead of ring_flash_attn
    memory       an engine that asks for more than is free does not start
    vLLM sleep   the worker forgets that it has its weights and its KV cache, and says so
    DeepSpeed    states that are offloaded may not be stepped on

An engine of several devices is one engine, and a process on each of its devices that receives
weights as vLLM's workers do: vLLM's Ray executor knows no CPUs.

Everything above runs as it is: Ray's placement groups and shares, vLLM's engine, scheduler and
sleep states, DeepSpeed's ZeRO with offloaded states, upstream's trainer and its weight sync by IPC,
our own through Ray's store. What no real device would forgive is an
`AssertionError` in the process that does it. What happens is written to FOLDER/log.jsonl, one event
a line.

It cannot show kernels, numbers of a GPU, memory and speed. REPLACED has the lines of
upstream's stack that it stands
for: where one of them has changed, tests/gpu/test_stand_in.py fails.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
import time
import traceback
import types
import uuid
import weakref
from pathlib import Path

REPLACED = {
    "openrlhf/trainer/ray/utils.py": [
        "props = torch.cuda.get_device_properties(device)",
        "return str(props.uuid)",
    ],
    "openrlhf/trainer/ray/ppo_actor.py": [
        "from torch.multiprocessing.reductions import reduce_tensor",
        "ipc_handle = reduce_tensor(weight)",
    ],
    "openrlhf/trainer/ray/vllm_worker_wrap.py": [
        "list_args[6] = device_id",
        "self.model_runner.model.load_weights(weights=[(name, weight)])",
    ],
    "openrlhf/utils/deepspeed/deepspeed_utils.py": [
        "def offload_deepspeed_states(model, pin_memory=True, non_blocking=True):",
        "def reload_deepspeed_states(model, non_blocking=True):",
    ],
    "transformers/modeling_utils.py": ["def _check_and_adjust_attn_implementation("],
    "openrlhf/trainer/ray/vllm_engine.py": [
        "self.llm = vllm.AsyncLLMEngine.from_engine_args(engine_args)"
    ],
    "vllm/v1/executor/abstract.py": [
        'self.collective_rpc("sleep", kwargs=dict(level=level))',
        'self.collective_rpc("wake_up", kwargs=dict(tags=tags))',
    ],
    "vllm/model_executor/determinism/batch_invariant.py": ["def init_batch_invariance():"],
    "vllm/v1/worker/utils.py": ["if init_snapshot.free_memory < requested_memory:"],
    "vllm/v1/engine/utils.py": [
        '"See root cause above. "'
    ],  # why an engine did not start (engine/processes/engine_actor.py)
    "vllm/v1/worker/gpu_worker.py": [
        "self._get_sleep_mode_backend().suspend(level)",
        "self._get_sleep_mode_backend().resume(tags)",
    ],
}
"""Lines of installed packages that the stand-in replaces, or counts on being called by, by file."""
KV_BYTES = 64 * 2**20
FREE_MEMORY = 0.95
"""Share of a device's memory that is free when an engine starts: the rest is the driver's and of
other programs."""


def record(event, **values):
    """Append an event to the log: when, in which process, on which device."""
    line = {"at": time.time(), "pid": os.getpid(), "device": device(), "event": event, **values}
    with open(Path(os.environ["MARL_STAND_IN"], "log.jsonl"), "a") as log:
        log.write(json.dumps(line, default=str) + "\n")


def device():
    """This process's devices, as Ray has left them to it."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")


@contextlib.contextmanager
def failures():
    """What fails in an engine's process, where nobody else reads it."""
    try:
        yield
    except BaseException:
        record("failure", traceback=traceback.format_exc())
        raise


# --- installing
# --------------------------------------------------------------------------------------------------

_AFTER = {}


def after(module):
    """Call a function with a module when it has been imported."""

    def register(function):
        _AFTER[module] = function
        return function

    return register


class Imports:
    """Finds modules as Python does, and has those of `_AFTER` changed once they are executed."""

    @staticmethod
    def find_spec(name, path, target=None):
        change = _AFTER.pop(name, None)
        if change is None:
            return None
        spec = next(
            s for f in sys.meta_path if f is not Imports and (s := f.find_spec(name, path, target))
        )
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec


def install():
    """Have what is imported in this process changed."""
    from marl_plugins.engine.hosts import cpu

    for name, value in cpu.environment().items():
        if name != cpu.DEVICE:
            os.environ.setdefault(name, value)
    os.environ["PATH"] = cpu.environment()["PATH"]
    cpu.without_accelerator = lambda: True
    cpu.install = functools.partial(_install_cuda, cpu.install)
    cpu.fork_engine_processes = functools.partial(_forked, cpu.fork_engine_processes)
    sys.meta_path.insert(0, Imports)


# --- devices, CUDA IPC
# --------------------------------------------------------------------------------------------------


def _install_cuda(install):
    install()
    import torch.multiprocessing.reductions as reductions

    reductions.reduce_tensor = handle_of


def _forked(fork):
    """Engines' processes are forked, as on CPU, and do not end with their actors unless they are
    told to: as on GPUs."""
    with replaced(os, "register_at_fork", lambda **hooks: None):
        fork()


@after("openrlhf.trainer.ray.utils")
def _device_ids(module):
    module.get_physical_gpu_id = lambda: (
        f"GPU-{device()}"
    )  # torch's properties of a device have more readers


def handle_of(tensor):
    """A CUDA IPC handle, as torch's `reduce_tensor` gives it: a function, and its arguments, the
    seventh a device's index."""
    import torch

    file = Path(os.environ["MARL_STAND_IN"], f"ipc-{uuid.uuid4().hex}")
    torch.save(tensor.detach().clone(), file)
    weakref.finalize(tensor, file.unlink, missing_ok=True)
    return opened, (str(file), device(), None, None, None, None, "the index of a device")


def opened(file, made_on, *arguments):
    """What a handle points to."""
    import torch

    assert device() == made_on, f"a handle of device {made_on} was opened on device {device()}"
    assert arguments[4] in (0, None), f"a process has one device, of index 0, not {arguments[4]}"
    assert Path(file).is_file(), "the memory that a handle points to was freed before it was read"
    return torch.load(file)


@after("ray")
def _ray(module):
    init = module.init

    def with_devices(*arguments, **options):
        if (
            not arguments
            and options.get("address") in (None, "local")
            and not os.environ.get("RAY_ADDRESS")
        ):
            seen = os.environ.get("CUDA_VISIBLE_DEVICES")
            there = int(os.environ["MARL_STAND_IN_GPUS"])
            options["num_gpus"] = there if seen is None else len([n for n in seen.split(",") if n])
            options["num_cpus"] = max(
                options.get("num_cpus", 0), there + 4
            )  # several runs may follow on this Ray
            options.setdefault("object_store_memory", 2**29)
        return init(*arguments, **options)

    module.init = with_devices


@after("openrlhf")
def _upstream(module):
    """Upstream's own trainer, in whose processes nothing of ours is imported first."""
    if "marl_plugins.engine.processes" not in sys.modules:
        from marl_plugins.engine.hosts import cpu

        cpu.install()
        with cpu.flash_attn_stand_in():
            importlib.import_module("openrlhf.models")


# --- engines
# --------------------------------------------------------------------------------------------------


@after("vllm.v1.engine.async_llm")
def _engine(module):
    llm = module.AsyncLLM
    start, generate, rpc, reset = (
        llm.from_engine_args,
        llm.generate,
        llm.collective_rpc,
        llm.reset_prefix_cache,
    )
    sleep, wake = llm.sleep, llm.wake_up
    parts = ("weights", "kv_cache")

    def from_engine_args(args, *more, **options):
        import ray

        resources = ray.get_runtime_context().get_assigned_resources()
        shown = (
            "model",
            "dtype",
            "seed",
            "tensor_parallel_size",
            "gpu_memory_utilization",
            "enable_sleep_mode",
            "max_model_len",
        )
        record(
            "engine", share=resources.get("GPU", 0), **{name: getattr(args, name) for name in shown}
        )
        asked, others = args.enable_sleep_mode, other_workers(args)
        args.enable_sleep_mode, args.enforce_eager, args.kv_cache_memory_bytes = (
            False,
            True,
            KV_BYTES,
        )
        args.enable_chunked_prefill, args.max_num_batched_tokens = False, 8192
        engine = start(args, *more, **options)
        engine.may_sleep, engine.awake, engine.running, engine.others = (
            asked,
            dict.fromkeys(parts, True),
            0,
            others,
        )
        return engine

    async def generating(self, *arguments, **options):
        assert all(self.awake.values()), f"an engine was asked while it slept: {self.awake}"
        self.running += 1
        try:
            async for answer in generate(self, *arguments, **options):
                yield answer
        finally:
            self.running -= 1

    async def sleeping(self, level=1, mode="abort"):
        assert self.may_sleep, (
            "an engine that was started without enable_sleep_mode was put to sleep"
        )
        record("sleep", level=level, running=self.running, awake=dict(self.awake))
        await sleep(self, level, mode)
        self.awake = dict.fromkeys(parts, False)

    async def waking(self, tags=None):
        record("wake", tags=tags, awake=dict(self.awake), beside=holders())
        await wake(self, tags)
        self.awake |= dict.fromkeys(tags or parts, True)

    async def calling(self, method, *arguments, **options):
        name = getattr(method, "__name__", method)
        assert self.awake["weights"], f"{name} in an engine that has no weights"
        # What an adapter has sampled over its own push is asked again, and others go on; what asks
        # a worker changes nothing.
        assert not self.running or not name.startswith("load_"), f"{name} while {self.running} run"
        record("call", method=name)
        asked = [worker.call.remote(method, *options["args"]) for worker in self.others]
        answers = await rpc(self, method, *arguments, **options)
        return [*answers, *[await answer for answer in asked]]

    async def resetting(self, *arguments, **options):
        assert self.awake["weights"], "the prefix cache of an engine was reset while it slept"
        record("reset", awake=dict(self.awake))
        return await reset(self, *arguments, **options)

    llm.from_engine_args, llm.generate, llm.collective_rpc = (
        staticmethod(from_engine_args),
        generating,
        calling,
    )
    llm.sleep, llm.wake_up, llm.reset_prefix_cache = sleeping, waking, resetting


def other_workers(args):
    """The workers of an engine of several devices, where vLLM's Ray executor would start them,
    which does not know CPUs.

    The first one, in the engine's own process, has the whole model; the others hold their devices
    and receive weights.
    """
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    count, args.tensor_parallel_size = args.tensor_parallel_size, 1
    if count == 1:
        return []
    assert args.distributed_executor_backend == "ray", (
        "an engine of several devices without Ray's executor"
    )
    args.distributed_executor_backend = "uni"
    share, group = (
        float(os.environ["VLLM_RAY_PER_WORKER_GPUS"]),
        ray.util.get_current_placement_group(),
    )
    bundles = [int(index) for index in os.environ["VLLM_RAY_BUNDLE_INDICES"].split(",")]
    assert len(bundles) == count, f"{count} workers in bundles {bundles}"
    workers = []
    for rank, bundle in enumerate(bundles):
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        options = {"num_cpus": 0, "num_gpus": share, "scheduling_strategy": place}
        workers.append(ray.remote(OtherWorker).options(**options).remote(args.model, rank, share))
    os.environ["CUDA_VISIBLE_DEVICES"] = ray.get(workers[0].device.remote())
    return workers[1:]


class OtherWorker:
    """A worker that holds a device, and takes weights."""

    def __init__(self, model, rank, share):
        self.expected, self.arrived = checkpoint_names(model), {}
        record("worker", rank=rank, share=share)

    def device(self):
        return device()

    def call(self, function, *arguments):
        model = types.SimpleNamespace(load_weights=self.load)
        runner = types.SimpleNamespace(model=model)
        worker = types.SimpleNamespace(model_runner=runner, vllm_config=None)
        return function(worker, *arguments)

    def load(self, weights):
        self.arrived |= {name: value.clone() for name, value in weights}
        if self.arrived.keys() == self.expected:
            record("weights", tensors=len(self.arrived), digest=digest(self.arrived))
            self.arrived = {}


@after("vllm.v1.worker.cpu_worker")
def _worker(module):
    """The CPU's model has packed its matrices, so weights are kept as they arrive, and taken over
    once all are there."""
    worker = module.CPUWorker
    load, execute = worker.load_model, worker.execute_model

    def load_model(self, *arguments, **options):
        wanted = self.cache_config.gpu_memory_utilization
        if wanted > FREE_MEMORY:  # in vLLM's words (v1/worker/utils.py)
            raise ValueError(
                f"Free memory on device is less than desired GPU memory utilization ({wanted})"
            )
        self.arrived, self.asleep = {}, set()
        load(self, *arguments, **options)
        self.expected = checkpoint_names(self.model_config.model)
        keep(self)

    def keep(self):
        self.model_runner.get_model().load_weights = functools.partial(arriving, self)

    def arriving(self, weights):
        assert "weights" not in self.asleep, (
            "weights were loaded into memory that a sleeping engine has given back"
        )
        given = dict(weights)
        assert given.keys() <= self.expected, f"unknown weights {given.keys() - self.expected}"
        self.arrived |= {name: value.detach().clone() for name, value in given.items()}
        if self.arrived.keys() == self.expected:
            take_over(self)
        return set(given)

    def take_over(self):
        from marl_plugins.engine.processes.engine_actor import begin_reload, end_reload

        del self.model_runner.get_model().load_weights
        begin_reload(self)
        self.model_runner.get_model().load_weights(self.arrived.items())
        end_reload(self)
        record("weights", tensors=len(self.arrived), digest=digest(self.arrived))
        self.arrived = {}
        keep(self)

    def execute_model(self, *arguments, **options):
        assert not self.asleep, f"a step of an engine without {self.asleep}"
        assert not self.arrived, (
            f"a step of an engine with {len(self.arrived)} of {len(self.expected)} new weights"
        )
        with failures():
            return execute(self, *arguments, **options)

    def sleep(self, level=1):
        self.asleep = {"weights", "kv_cache"}

    def wake_up(self, tags=None):
        self.asleep -= set(tags or self.asleep)

    worker.load_model, worker.execute_model, worker.sleep, worker.wake_up = (
        load_model,
        execute_model,
        sleep,
        wake_up,
    )


@after("vllm.model_executor.determinism.batch_invariant")
def _batch_invariant(module):
    """Its kernels are a GPU's; the CPU's depend on the batch."""
    module.init_batch_invariance = lambda: record(
        "batch invariant", asked=os.environ.get("VLLM_BATCH_INVARIANT") == "1"
    )


def checkpoint_names(model):
    """The names of a model folder's weights."""
    import safetensors

    names = set()
    for file in Path(model).glob("*.safetensors"):
        with safetensors.safe_open(file, "pt") as weights:
            names |= set(weights.keys())
    return names


def digest(state):
    """A number by which weights are compared between processes; of bits, whatever their order."""
    import zlib

    import torch

    return sum(
        zlib.crc32(name.encode() + value.detach().contiguous().view(torch.uint8).numpy().tobytes())
        for name, value in state.items()
    )


@contextlib.contextmanager
def replaced(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield before
    finally:
        setattr(owner, name, before)


# --- training processes
# --------------------------------------------------------------------------------------------------


@after("openrlhf.trainer.ray.launcher")
def _launcher(module):
    begin, run = module.BaseDistributedActor.__init__, module.BaseModelActor.execute_batch

    @functools.wraps(begin)
    def __init__(self, world_size, rank, *arguments, **options):
        import ray

        share = ray.get_runtime_context().get_assigned_resources().get("GPU", 0)
        record("process", kind=type(self).__name__, rank=rank, ranks=world_size, share=share)
        begin(self, world_size, rank, *arguments, **options)

    @functools.wraps(run)
    def execute_batch(self, method_name, *arguments, **options):
        with recorded(method_name, kind=type(self).__name__):
            return run(self, method_name, *arguments, **options)

    module.BaseDistributedActor.__init__, module.BaseModelActor.execute_batch = (
        __init__,
        execute_batch,
    )
    # Ray has given the classes that are decorated in this module copies of the methods.
    reference = module.ReferenceModelActor.__ray_metadata__.modified_class
    reference.__init__, reference.execute_batch = __init__, execute_batch


@contextlib.contextmanager
def recorded(event, **values):
    """An event with its end."""
    begun = time.time()
    yield
    record(event, begun=begun, **values)


@after("marl_plugins.engine.processes.training_process")
def _training_process(module):
    fit = module.TrainingProcess.in_whole_windows

    @functools.wraps(fit)
    def in_whole_windows(self, work):
        with recorded("fit", kind=type(self).__name__):
            return fit(self, work)

    module.TrainingProcess.in_whole_windows = in_whole_windows


@after("transformers.modeling_utils")
def _flash_attention(module):
    """Of packed sequences, transformers' own attention makes a mask."""
    check = module.PreTrainedModel._check_and_adjust_attn_implementation

    @functools.wraps(check)
    def adjusted(self, attention, *arguments, **options):
        return check(
            self, "sdpa" if attention == "flash_attention_2" else attention, *arguments, **options
        )

    module.PreTrainedModel._check_and_adjust_attn_implementation = adjusted


@after("openrlhf.models.ring_attn_utils")
def _ring(module):
    """Attention that the ranks of a ring share (tests/ring_attention.py)."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "ring_attention", Path(__file__).parents[2] / "ring_attention.py"
    )
    ring = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ring)
    ring.install(module)


@after("openrlhf.utils.deepspeed.deepspeed_utils")
def _deepspeed(module):
    offload, reload = module.offload_deepspeed_states, module.reload_deepspeed_states

    def refuse(*arguments, **options):
        raise AssertionError("an optimiser step on states that are offloaded")

    @functools.wraps(offload)  # Ray finds it by its name
    def offload_deepspeed_states(model, pin_memory=True, non_blocking=True):
        record("offload", stage=model.zero_optimization_stage())
        offload(model, pin_memory=False, non_blocking=non_blocking)  # pinning is the driver's
        model.step = refuse

    @functools.wraps(reload)
    def reload_deepspeed_states(model, non_blocking=True):
        record("reload", stage=model.zero_optimization_stage())
        model.__dict__.pop("step", None)
        reload(model, non_blocking=non_blocking)

    module.offload_deepspeed_states, module.reload_deepspeed_states = (
        offload_deepspeed_states,
        reload_deepspeed_states,
    )


def holders():
    """The processes that have loaded a model to train on this device, and are not gone."""
    from marl_plugins.engine.processes.watchdog import _runs

    files = Path(os.environ["MARL_STAND_IN"]).glob(f"trains-{device()}-*")
    processes = [file.name.split("-")[2:] for file in files]
    return [int(pid) for pid, began in processes if _runs(int(pid), float(began))]


def _as_on_cpu(kind):
    """Adam of the CPU depends on the step only, as in a run on CPU (engine/hosts/cpu.py)."""
    load = kind.init_model_from_pretrained

    @functools.wraps(load)
    def init_model_from_pretrained(self, *arguments, **options):
        import psutil

        from marl_plugins.engine.hosts import cpu

        record("load", kind=kind.__name__, beside=holders())
        me = f"{os.getpid()}-{psutil.Process().create_time()}"
        Path(os.environ["MARL_STAND_IN"], f"trains-{device()}-{me}").touch()
        load(self, *arguments, **options)
        cpu.make_adam_resumable(self.engine.basic_optimizer)

    kind.init_model_from_pretrained = init_model_from_pretrained


@after("marl_plugins.engine.processes.policy_actor")
def _policy_actor(module):
    _as_on_cpu(module.PolicyActor)
    give = module.PolicyActor.pieces

    @functools.wraps(give)
    def pieces(self, *arguments):
        import deepspeed

        parameters = dict(self.engine.module.named_parameters())
        with deepspeed.zero.GatheredParameters(
            [*parameters.values()], enabled=self.strategy.stage == 3
        ):
            sent = digest(parameters)
        with recorded("sync", digest=sent):
            yield from give(self, *arguments)

    module.PolicyActor.pieces = pieces


@after("marl_plugins.engine.processes.critic_actor")
def _critic_actor(module):
    _as_on_cpu(module.CriticActor)
