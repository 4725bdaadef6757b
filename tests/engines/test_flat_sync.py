"""Weight sync in large pieces beside upstream's own, parameter by parameter, by broadcast and by
CUDA IPC, from real training
processes: over a gloo group instead of NCCL's, with the handles of the stand-in for CUDA
(tests/gpu), into a model that fuses parameters as vLLM's do. ZeRO 3 is not tried on a CPU."""

import contextlib
import copy
import importlib.util
import itertools
import socket
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch
from engines.test_policies import arguments, launch
from ray import cloudpickle

STAND_IN = str(Path(__file__).parents[1] / "gpu" / "stand_in" / "cuda_stand_in.py")

cloudpickle.register_pickle_by_value(
    sys.modules[__name__]
)  # what is here is used in processes that know no tests


class Gloo:
    """What upstream and vLLM call on their group (`PyNcclCommunicator.broadcast`)."""

    def __init__(self, port, rank, size):
        store = torch.distributed.TCPStore("127.0.0.1", port, size, rank == 0)
        self.group = torch.distributed.ProcessGroupGloo(store, rank, size, timedelta(seconds=60))

    def broadcast(self, tensor, src, stream):
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self.group.broadcast([tensor.view(-1).view(torch.uint8)], options).wait()


class Fused:
    """A model that keeps q, k and v as one matrix, and takes over any parameters at any time, as
    vLLM's models do."""

    def __init__(self):
        self.values, self.loads = {}, 0

    def load_weights(self, weights):
        self.loads += 1
        for name, value in weights:
            fused = next(
                (
                    name.replace(part, "qkv_proj")
                    for part in ("q_proj", "k_proj", "v_proj")
                    if part in name
                ),
                name,
            )
            self.values.setdefault(fused, {})[name] = value.clone()

    def state(self):
        return {n: torch.cat([parts[p] for p in sorted(parts)]) for n, parts in self.values.items()}


def stand_in():
    """The stand-in for CUDA, in a process that knows no tests; handles are pickled by its name."""
    spec = importlib.util.spec_from_file_location("cuda_stand_in", STAND_IN)
    if spec.name not in sys.modules:
        sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[spec.name])
    return sys.modules[spec.name]


@contextlib.contextmanager
def on_device(number, folder):
    """This process is on a device of the stand-in, whose handles are files in a folder."""
    import openrlhf.trainer.ray.utils as utils
    from torch.multiprocessing import reductions

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_STAND_IN", folder)
        patch.setattr(stand_in(), "device", lambda: str(number))
        patch.setattr(reductions, "reduce_tensor", stand_in().handle_of)
        for module in filter(None, (utils, sys.modules.get("openrlhf.trainer.ray.ppo_actor"))):
            patch.setattr(module, "get_physical_gpu_id", lambda: f"GPU-{number}")
        yield


@ray.remote(num_cpus=0.1)
class Engine:
    """An engine's process with upstream's own worker, whose memory is the CPU's."""

    def __init__(self, rank, size, port, device):
        from marl_plugins.engine.hosts import cpu

        cpu.install()
        from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap

        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        self.worker = WorkerWrap()
        self.worker.device, self.worker.model_config = (
            torch.device("cpu"),
            SimpleNamespace(dtype=torch.bfloat16),
        )
        self.worker.model_runner = SimpleNamespace(model=Fused())
        self.worker._model_update_with_ray = False
        self.place, self.device = (port, rank, size), device
        stand_in()  # before a handle arrives
        self.calls = 0

    def join(self):
        self.worker._model_update_group = Gloo(*self.place)

    def update_weight_cuda_ipc(self, *arguments, **options):
        self.calls += 1
        with on_device(*self.device):
            self.worker.update_weight_cuda_ipc(*arguments, **options)

    def update_weight(self, name, dtype, shape, empty_cache=False):
        self.calls += 1
        empty, torch.empty = torch.empty, lambda shape, dtype, device: empty(shape, dtype=dtype)
        try:
            self.worker.update_weight(name, dtype, shape, empty_cache)
        finally:
            torch.empty = empty

    def in_workers(self, function, *arguments):
        self.calls += 1
        with on_device(*self.device):
            return [function(self.worker, *arguments)]

    def taken(self):
        """The number of calls and the weights since the last time."""
        calls, model = self.calls, self.worker.model_runner.model
        self.calls, self.worker.model_runner.model = 0, Fused()
        return calls, model.state()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("zero", "ranks"), [(0, 1), (2, 2)])
def test_engines_hold_what_upstreams_own_sync_gives_them(relay, zero, ranks, tmp_path):
    args = copy.deepcopy(
        arguments(relay, "--actor.num_gpus_per_node", str(ranks), "--ds.zero_stage", str(zero))
    )
    policy = launch(args)
    policy.wait()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = str(tmp_path)
    engines = [Engine.remote(rank, 3, port, (min(rank, ranks) - 1, files)) for rank in (1, 2)]

    def joined(actor, port=port, engines=engines):
        trainer = actor.trainer
        trainer.vllm_engines, trainer.use_cuda_ipc = engines, False
        if torch.distributed.get_rank() == 0:
            trainer._model_update_group = Gloo(port, 0, 3)

    def changed(actor):
        with torch.no_grad():
            for number, parameter in enumerate(actor.engine.module.parameters()):
                parameter.add_(
                    torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
                )
        return {n: p.shape for n, p in actor.engine.module.named_parameters()}

    def synced(actor, mb, ipc=False):
        from marl_plugins.flat_sync.worker import FlatSync

        actor.trainer.use_cuda_ipc = ipc
        actor.trainer.args.flat_sync = SimpleNamespace(mb=mb)
        actor.trainer.extensions = [FlatSync(actor.trainer)] if mb else []
        with on_device(torch.distributed.get_rank(), files):
            actor.trainer.broadcast_to_vllm()

    def on_all(function, *args):
        return ray.get(
            [handle.__ray_call__.remote(function, *args) for handle in policy.training.handles()]
        )

    joining = [engine.join.remote() for engine in engines]
    on_all(joined)
    ray.get(joining)
    on_all(synced, 0)
    before = ray.get([engine.taken.remote() for engine in engines])[0][1]
    names = on_all(changed)[0]
    found = {}
    for mb, ipc in itertools.product((0, 0.2, 512), (False, True)):
        on_all(synced, mb, ipc)
        found[mb, ipc] = ray.get([engine.taken.remote() for engine in engines])
    policy.stop()
    for engine in engines:
        ray.kill(engine)
    size = 2 * sum(shape.numel() for shape in names.values())
    calls = {how: {count for count, _ in both} for how, both in found.items()}
    for ipc in (False, True):
        assert calls[0, ipc] == {len(names)} and calls[512, ipc] == {1}
        assert size / 0.2e6 <= max(calls[0.2, ipc]) <= 2 * size / 0.2e6 + 1 < len(names)
    expected = found[0, False][0][1]
    assert any(not torch.equal(before[name], value) for name, value in expected.items())
    for _, weights in (each for both in found.values() for each in both):
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], value) for name, value in expected.items())
    assert not list(tmp_path.iterdir())  # what a handle points to goes with its tensor
