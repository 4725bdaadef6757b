"""Real processes: Ray, DeepSpeed, vLLM. Runs are started once for all tests of this folder: they take most of its time."""

import os
import signal
import textwrap
from pathlib import Path

import pytest
from engines.relay import Started, write_recipe
from openai_server import Reply, openai_server, verdict

from marl_plugins.hosts import cpu


def pytest_collection_modifyitems(items):
    for item in items:
        if "engines" in Path(item.fspath).parts:
            item.add_marker(pytest.mark.engines)


os.environ.update(cpu.environment())  # of this process, as `openrlhf train` sets it before anything heavy is imported


@pytest.fixture(scope="session")
def relay(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("relay") / "relay")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, relay):
    """First start-up: three policies (one frozen, one on two ranks), ragged rows, tool turns, three steps, saved every second."""
    return Started(tmp_path_factory.mktemp("undisturbed"), relay, "--reinforce_pp.scope", "action").run()


KILLER = """
    import asyncio, os, signal
    from pathlib import Path
    from marl_plugins import hookimpl

    once = Path(__file__).with_name("once")

    @hookimpl(wrapper=True)
    def marl_generate(call, engines):
        # An engine dies while the rollout of step 1 is under way.
        inner = yield
        async def work():
            if call.step == 1 and call.role == "second" and not once.exists():
                once.touch()
                pid = await engines.engines[0].handle.identify.remote(call.policy, 0)
                os.kill(pid, signal.SIGKILL)
            return await inner
        return work()

    @hookimpl(wrapper=True)
    def marl_update(policy, step):
        # The driver dies in the middle of the update of step 3.
        inner = yield
        async def work():
            if step == 3 and policy.name == "first" and "--ckpt.load_enable" not in os.environ["WORDS"]:
                running = asyncio.ensure_future(inner)
                await asyncio.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)
            return await inner
        return work()
"""


@pytest.fixture(scope="session")
def killed(tmp_path_factory, relay):
    """Second start-up: an engine is killed in the rollout of step 1, the driver in the update of step 3."""
    folder = tmp_path_factory.mktemp("disturbed")
    (folder / "killer.py").write_text(textwrap.dedent(KILLER))
    run = Started(folder, relay, "--plugin", str(folder / "killer.py"))
    run.run(code=-signal.SIGKILL)
    run.at_the_kill = run.processes()
    run.metrics_before = run.metrics
    return run


@pytest.fixture(scope="session")
def resumed(killed):
    """Third start-up: the killed run is resumed."""
    return killed.run("--ckpt.load_enable")


MARKER = """
    from pathlib import Path
    from marl_plugins import hookimpl

    @hookimpl
    def marl_log(step):
        Path(__file__).with_name("trained").write_text(str(step))
"""


@pytest.fixture(scope="session")
def coached(tmp_path_factory, relay):
    """Fourth start-up: an endpoint as the coach, which refuses the key once a step has been trained; a critic per policy."""
    folder = tmp_path_factory.mktemp("coached")
    (folder / "marker.py").write_text(textwrap.dedent(MARKER))
    trained, renewed = folder / "trained", folder / "renewed"

    def answer(body, count):
        if trained.exists() and not renewed.exists():
            return Reply("key has expired", 401)
        return Reply("busy", 503) if count % 10 == 0 else verdict(body, 5 + count % 5)

    with openai_server(answer) as (url, bodies):
        words = ["--plugin", "marl_plugins.coach", "--coach.model", "m", "--coach.base_url", url]
        words += ["--plugin", str(folder / "marker.py"), "--algo.advantage.estimator", "gae", "--critic.adam.lr", "1e-3"]
        run = Started(folder, relay, *words)
        run.run(code=1)
        run.bodies, run.renew = bodies, renewed.touch
        run.log_before = run.log.read_text()
        yield run


@pytest.fixture(scope="session")
def renewed(coached):
    """Fifth start-up: the key is accepted again, and the run is resumed."""
    coached.renew()
    return coached.run("--ckpt.load_enable")
