"""`--train.enable_ema` through the real engines: evaluated, saved, and resumed after a kill on
seats that policies share."""

import json
import os
import signal
import textwrap

import pytest
import safetensors.torch
import torch
from engines.relay import Started, wait_until

KEEPER = """
    import contextlib, json, os, psutil, signal
    from pathlib import Path
    from marl_plugins import hookimpl

    def kill_everything(record):
        # At once, as when memory runs out: nobody can tidy up after anybody else.
        me = psutil.Process()
        everyone = me.children(recursive=True)
        shared = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
        lines, held = [], set()
        for process in [me, *everyone]:
            with contextlib.suppress(psutil.NoSuchProcess):  # on seats they come and go
                lines.append(" ".join(process.cmdline()))
                held |= shared & {mapped.path for mapped in process.memory_maps()}
        record.write_text(json.dumps([lines[1:], sorted(held)]))
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in everyone:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
        me.kill()

    @hookimpl(wrapper=True)
    def marl_sync(run, policy, version):
        # The weights of every version, as the training processes give them.
        inner = yield
        async def work():
            done = await inner
            if policy.spec.trainable:
                file = Path(run.output).parent / f"{policy.name}-{version}.safetensors"
                file.write_bytes(await policy.weights())
            return done
        return work()

    @hookimpl
    def marl_log(run, step):
        if step == 3 and "--ckpt.load_enable" not in os.environ["WORDS"]:
            kill_everything(Path(run.output).parent / "everything.json")
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory, relay, template):
    """On shared seats: controller, engines, training processes and Ray are killed at once."""
    folder = tmp_path_factory.mktemp("ema")
    seats = ["--plugin", "marl_plugins.process_groups", "--process_groups.seats", "2"]
    run = Started(folder, relay, *words(folder), *seats, template=template)
    run.run(code=-signal.SIGKILL)
    return run


@pytest.fixture(scope="module")
def resumed(killed):
    assert wait_until(lambda: not killed.processes(), 60), killed.processes()
    return killed.run("--ckpt.load_enable")


def words(folder):
    """The flags, with a plugin that is written into the folder and kills the run in step 3."""
    (folder / "keeper.py").write_text(textwrap.dedent(KEEPER))
    flags = ["--train.enable_ema", "--train.ema_beta", "0.5", "--train.batch_size", "6"]
    return [*flags, "--plugin", str(folder / "keeper.py")]


def test_a_run_of_which_all_is_killed_leaves_nothing(killed):
    assert wait_until(lambda: not killed.processes(), 60), killed.processes()
    processes, held = json.loads((killed.output.parent / "everything.json").read_text())
    missing = [k for k in ("raylet", "gcs_server") if not any(k in each for each in processes)]
    assert not missing and len(processes) > 10, processes  # workers have not always a title
    assert not any(map(os.path.exists, held))


def test_what_is_saved_at_the_end_is_the_average_of_all_versions(resumed):
    """Also of those before the kill; with one optimiser step in each training step."""
    assert "resuming after step 2" in resumed.log.read_text()
    assert [m["policy/first/optimiser_steps"] for m in resumed.metrics] == [1, 1, 1]
    for name in ("first", "second"):
        file = resumed.output / "ema" / name / "model.safetensors"
        versions = sorted(
            resumed.output.parent.glob(f"{name}-*.safetensors"),
            key=lambda p: int(p.stem.partition("-")[2]),
        )
        first, *later = [safetensors.torch.load_file(path) for path in versions]
        assert len(later) == 3
        saved, newest = (
            safetensors.torch.load_file(file),
            safetensors.torch.load_file(resumed.output / name / file.name),
        )
        for tensor, value in first.items():
            wanted = value.double()
            for now in later:
                wanted = 0.5 * wanted + 0.5 * now[tensor].double()
            near = wanted.abs() * 2**-8 + 1e-6  # a step of bfloat16
            assert bool(((saved[tensor].double() - wanted).abs() <= near).all()), tensor
        assert any(not torch.equal(value, newest[tensor]) for tensor, value in saved.items())


def test_it_is_evaluated_beside_the_weights(resumed):
    assert [(m["step"], "ema/outcome" in m) for m in resumed.evaluations] == [
        (0, False),
        (2, True),
        (3, True),
    ]
    assert all(
        m["policy/first/drift"] < 0.02 for m in resumed.metrics
    )  # engines have the weights again
