"""Real processes: Ray, DeepSpeed, vLLM. Runs are started once for all tests of this folder: they
take most of its time."""

import copy
import os
import signal
import textwrap
from pathlib import Path

import pytest
from engines.relay import Started, write_recipe

from marl_plugins.engine.hosts import cpu

LONGEST = ("test_runs.py", "test_process_groups.py", "test_policies.py")
"""Files that start first, so that none of them is what everybody waits for at the end."""


def pytest_collection_modifyitems(items):
    def place(item):
        name = Path(item.fspath).name
        return (
            LONGEST.index(name) if "engines" in item.keywords and name in LONGEST else len(LONGEST)
        )

    for item in items:
        if "engines" in Path(item.fspath).parts:
            item.add_marker(pytest.mark.engines)
    items.sort(key=place)


os.environ.update(
    cpu.environment()
)  # of this process, as `openrlhf train` sets it before anything heavy is imported


@pytest.fixture(scope="package")
def cluster(template):
    """Ray for the files of this folder that one process runs; each ends the actors that it has
    started."""
    import ray

    from marl_plugins.engine.processes import fork_server
    from marl_plugins.engine.processes.cluster import quiet, small_node

    env = {**quiet(False), **cpu.environment()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "start_server", template.start_server)
        with fork_server.fork_server(debug=False) as python:
            with small_node(debug=False):
                ray.init(
                    address="local",
                    include_dashboard=False,
                    num_gpus=16,
                    num_cpus=20,
                    object_store_memory=2**29,
                    log_to_driver=False,
                    logging_level="ERROR",
                    runtime_env={"env_vars": env, "py_executable": python},
                )
            yield
            ray.shutdown()


@pytest.fixture(scope="session")
def relay(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("relay") / "relay")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, relay, template):
    """Three policies (one frozen, one on two ranks), ragged rows, tool turns, three steps, saved
    every second."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return Started(folder, relay, "--reinforce_pp.scope", "action", template=template).run()


KILLER = """
    import os, signal
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
            if call.step == 2 and call.role == "first" and not once.with_name("stopped").exists():
                once.with_name("stopped").touch()
                pid = await engines.engines[0].handle.identify.remote(call.policy, 1)
                os.kill(pid, signal.SIGSTOP)
            return await inner
        return work()
"""


@pytest.fixture(scope="session")
def killed(tmp_path_factory, relay):
    """An engine is killed in the rollout of step 1, another one stopped in step 2, the driver
    killed in the update of step 3.

    It starts as users start it; the run that it is compared with, and the one that goes on with it,
    are forked from the template.
    """
    folder = tmp_path_factory.mktemp("disturbed")
    (relay / "watched.yaml").write_text("extends: recipe.yaml\nlimits: {silence_seconds: 60}\n")
    (folder / "killer.py").write_text(textwrap.dedent(KILLER))
    run = Started(
        folder,
        relay / "watched.yaml",
        "--plugin",
        str(folder / "killer.py"),
        "--plugin",
        str(relay / "dies.py"),
    )
    run.run(code=-signal.SIGKILL)
    run.at_the_kill = run.processes()
    run.metrics_before = run.metrics
    return run


@pytest.fixture(scope="session")
def resumed(killed, relay, template):
    """The killed run is resumed; it may load for as long as a busy machine takes."""
    (relay / "watched.yaml").write_text("extends: recipe.yaml\nlimits: {silence_seconds: 600}\n")
    run = copy.copy(killed)
    run.template = template
    return run.run("--ckpt.load_enable")
