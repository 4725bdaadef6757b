"""kill -9 of the driver, a policy process or an engine, in rollout, update, weight sync and save,
and Ctrl-C: what comes back.

    python -m benchmarks.faults [process:phase ...]

For each: the disturbed run continues by itself (engine) or is resumed (driver, policy); its
metrics, trajectories and final weights are compared with those of the undisturbed run, exactly.
About a minute and a half a case on two cores.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from engines.relay import Started, write_recipe
from simulated import without_logprobs

PROCESSES = ("engine", "policy", "driver", "interrupt")
PHASES = ("rollout", "update", "sync", "save")

KILLER = """
    import asyncio, os, signal, threading, time
    from pathlib import Path
    from marl_plugins import hookimpl

    WHO, PHASE = {who!r}, {phase!r}
    once = Path(__file__).with_name("once")
    pids = {{"interrupt": os.getpid()}}
    SIGNAL = signal.SIGINT if WHO == "interrupt" else signal.SIGKILL

    async def strike(delay=0.0):
        if not once.exists():
            once.touch()
            await asyncio.sleep(delay)
            os.kill(pids[WHO], SIGNAL)

    @hookimpl(wrapper=True)
    def marl_generate(call, engines):
        inner = yield
        async def work():
            if call.role == "first" and not once.exists():
                handle = engines.engines[0].handle
                pids["engine"] = await handle.identify.remote(call.policy, call.step - 1)
            if PHASE == "rollout" and call.step == 3 and call.role == "second":
                await strike()
            return await inner
        return work()

    @hookimpl(wrapper=True)
    def marl_update(policy, step):
        inner = yield
        async def work():
            pids["driver"] = os.getpid()
            if policy.name == "first":
                handle = policy.group._actor_handlers[0]
                pids["policy"] = await handle.__ray_call__.remote(lambda actor: os.getpid())
            running = asyncio.ensure_future(inner)
            if PHASE == "update" and step == 3 and policy.name == "first":
                await strike(0.05)
            return await running
        return work()

    @hookimpl(wrapper=True)
    def marl_sync(policy, version):
        inner = yield
        async def work():
            running = asyncio.ensure_future(inner)
            if PHASE == "sync" and version == 3 and policy.name == "first":
                await strike(0.01)
            return await running
        return work()

    @hookimpl
    def marl_log(step):
        if PHASE == "save" and step == 2 and not once.exists():
            once.touch()
            def later():
                time.sleep(0.03)
                os.kill(pids[WHO], SIGNAL)
            threading.Thread(target=later).start()
"""

TIMED = {
    "engines/restarted",
    "engines/moves",
    "streaming/hidden",
    "process_groups/changes",
    "tokens_per_second",
}


def comparable(run: Started) -> tuple[Any, ...]:
    """All that must be the same: metrics without times, trajectories, ledger, weights.

    Without the engines' log-probs and the drift: their last bits depend on what else was in the
    batch.
    """
    metrics = [
        {k: v for k, v in m.items() if "seconds" not in k and "drift" not in k and k not in TIMED}
        for m in run.metrics
    ]
    weights = [
        (run.output / name / "model.safetensors").read_bytes() for name in ("first", "second")
    ]
    return metrics, without_logprobs(run.trajectories)[0], run.ledger, weights


def main(cases: list[str]) -> int:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # else children of a shell's background job would ignore it
    folder = Path(tempfile.mkdtemp(prefix="marl-faults-"))
    recipe = write_recipe(folder / "relay")
    undisturbed = comparable(Started(_fresh(folder, "undisturbed"), recipe).run())
    wrong = 0
    print(
        "| killed | in | exit code | resumed | engines replaced | equal to the undisturbed run | "
        "processes left | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for case in cases or [f"{who}:{phase}" for who in PROCESSES for phase in PHASES]:
        who, _, phase = case.partition(":")
        place = _fresh(folder, case.replace(":", "-"))
        (place / "killer.py").write_text(textwrap.dedent(KILLER).format(who=who, phase=phase))
        started = time.monotonic()
        run = Started(place, recipe, "--plugin", str(place / "killer.py"))
        code = run.start().wait(timeout=600)
        deadline = time.monotonic() + 120  # Ray's own two agents take up to a minute to notice
        while run.processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        left = len(run.processes())
        if not (place / "once").exists():
            raise RuntimeError(f"{case}: nothing was killed")
        if code:
            run.run("--ckpt.load_enable")
        equal = comparable(run) == undisturbed
        expected = {"engine": 0, "policy": 1, "driver": -signal.SIGKILL, "interrupt": 130}[who]
        wrong += not equal or left > 0 or code != expected
        replaced = int(max(m["engines/restarted"] for m in run.metrics))
        seconds = time.monotonic() - started
        same = "yes" if equal else "NO"
        print(
            f"| {who} | {phase} | {code} | {'yes' if code else 'no'} | {replaced} | {same} | "
            f"{left} | {seconds:.0f} |",
            flush=True,
        )
    return wrong


def _fresh(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
