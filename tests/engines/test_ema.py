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
        if step == 3 and "KILL" in os.environ["WORDS"] and "--ckpt.load_enable" not in os.environ["WORDS"]:
            kill_everything(Path(run.output).parent / "everything.json")
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory, relay, template):
    folder = tmp_path_factory.mktemp("ema")
    return Started(folder, relay, *words(folder), template=template).run()


def words(folder, name="keeper"):
    """The flags, with a plugin that is written into the folder; one called KILL ends the run in
    step 3."""
    (folder / f"{name}.py").write_text(textwrap.dedent(KEEPER))
    flags = ["--train.enable_ema", "--train.ema_beta", "0.5", "--train.batch_size", "6"]
    return [*flags, "--plugin", str(folder / f"{name}.py")]


def averages(run):
    return {name: run.output / "ema" / name / "model.safetensors" for name in ("first", "second")}


def test_what_is_saved_at_the_end_is_the_average_of_all_versions(whole):
    """With one optimiser step in each training step."""
    assert [m["policy/first/optimiser_steps"] for m in whole.metrics] == [1, 1, 1]
    for name, file in averages(whole).items():
        versions = sorted(
            whole.output.parent.glob(f"{name}-*.safetensors"),
            key=lambda p: int(p.stem.partition("-")[2]),
        )
        first, *later = [safetensors.torch.load_file(path) for path in versions]
        assert len(later) == 3
        saved, newest = (
            safetensors.torch.load_file(file),
            safetensors.torch.load_file(whole.output / name / file.name),
        )
        for tensor, value in first.items():
            wanted = value.double()
            for now in later:
                wanted = 0.5 * wanted + 0.5 * now[tensor].double()
            near = wanted.abs() * 2**-8 + 1e-6  # a step of bfloat16
            assert bool(((saved[tensor].double() - wanted).abs() <= near).all()), tensor
        assert any(not torch.equal(value, newest[tensor]) for tensor, value in saved.items())


def test_it_is_evaluated_beside_the_weights(whole):
    assert [(m["step"], "ema/outcome" in m) for m in whole.evaluations] == [
        (0, False),
        (2, True),
        (3, True),
    ]
    assert all(
        m["policy/first/drift"] < 0.02 for m in whole.metrics
    )  # engines have the weights again


def test_a_run_of_which_all_is_killed_leaves_nothing_and_resumed_has_the_same_average(
    whole, relay, template, tmp_path
):
    """On shared seats: controller, engines, training processes and Ray at once."""
    seats = ["--plugin", "marl_plugins.process_groups", "--process_groups.seats", "2"]
    run = Started(tmp_path, relay, *words(tmp_path, "KILL"), *seats, template=template)
    run.run(code=-signal.SIGKILL)
    assert wait_until(lambda: not run.processes(), 60), run.processes()
    processes, held = json.loads((tmp_path / "everything.json").read_text())
    kinds = ("PolicyActor", "RolloutActor", "raylet", "gcs_server")
    missing = [kind for kind in kinds if not any(kind in each for each in processes)]
    assert not missing, (missing, processes)
    assert not any(map(os.path.exists, held))
    run.run("--ckpt.load_enable")
    for name, file in averages(run).items():
        assert file.read_bytes() == averages(whole)[name].read_bytes()
    mine, theirs = ([m.get("ema/outcome") for m in each.metrics] for each in (run, whole))
    assert mine == theirs
