"""A node that is gone: an engine is replaced on another one, and training ends in a state that is
resumed as if nothing had been."""

import re
import threading

import pytest
from cluster.machines import ENVIRONMENT, PYTHON, ROOT, start_ray
from cluster.test_nodes import alone, trained

PHASES = """
import os, time
from marl_plugins import hookimpl

NOW = {"step": 1, "said": False}

def begins(phase):
    if phase == os.environ.get("PHASE") and NOW["step"] == 3 and not NOW["said"]:
        NOW["said"] = True
        print("begins:", phase, flush=True)

@hookimpl
def marl_log(step):
    NOW["step"] = step + 1

@hookimpl(wrapper=True)
def marl_generate():
    begins("rollout")
    return (yield)

@hookimpl
def marl_select(rows):
    begins("forward passes")
    return rows

@hookimpl(wrapper=True)
def marl_update():
    begins("update")
    return (yield)

@hookimpl(wrapper=True)
def marl_sync():
    begins("sync")
    return (yield)
"""


def words(folder, *more):
    recipe = ROOT / "recipes" / "vote" / "tiny.yaml"
    return [
        *(PYTHON, "-m", "marl_plugins", "train", "--recipe", str(recipe), "--eval.steps", "-1"),
        *("--ckpt.output_dir", f"{folder}/out", "--ckpt.path", f"{folder}/checkpoints"),
        *("--ckpt.save_steps", "1", "--ckpt.max_num", "20", *more),
    ]


def followed(machine, shared, until, then, *command):
    """Runs a command, and does something once it has printed so many lines that match."""
    process = machine.start(*command, folder=shared, **ENVIRONMENT, RAY_ADDRESS="m1:6379")
    guard = threading.Timer(400, process.kill)
    guard.start()
    lines, seen = [], 0
    for line in process.stdout:
        lines.append(line)
        seen += bool(re.search(until, line))
        if seen == 1 and then is not None:
            then("".join(lines))
            then = None
    guard.cancel()
    return process.wait(), "".join(lines)


@pytest.fixture
def boot(net):
    """Starts a machine that ends with the test."""
    machines = []

    def booted(number):
        machines.append(net.boot(number))
        return machines[-1]

    yield booted
    for machine in machines:
        if machine.outer.poll() is None:
            machine.pull_the_plug()


def test_an_engine_is_replaced_on_another_node(boot, shared):
    machines = [boot(k) for k in (1, 2, 3)]
    m1 = machines[0]
    for machine, devices in zip(machines, (2, 1, 1), strict=True):
        start_ray(machine, devices, None if machine is m1 else m1)

    def lose_an_engine(printed):
        name = re.findall(r"node (m[23]): shared engines 1", printed)[0]
        machines[int(name[1:]) - 1].pull_the_plug()

    more = ["--mapping", "shared", "--vllm.num_engines", "2", "--max_steps", "6"]
    step = r"^ *2/6 "
    code, printed = followed(m1, shared, step, lose_an_engine, *words(shared / "engine", *more))
    assert code == 0, printed
    assert "an engine of policy 'shared' died and was replaced" in printed, printed


@pytest.fixture(scope="module")
def whole(shared):
    """The weights and actions of four steps of a policy on each of two devices."""
    (shared / "phases.py").write_text(PHASES)
    alone(words(shared / "whole", "--max_steps", "4", "--plugin", str(shared / "phases.py")))
    return trained(shared / "whole")


BEGINS = {"saving": r"^ *3/4 "}  # the line of a step, which is saved behind it
BEGINS |= {phase: f"begins: {phase}" for phase in ("rollout", "forward passes", "update", "sync")}


@pytest.mark.parametrize("phase", BEGINS)
def test_a_run_that_lost_a_node_is_resumed_as_if_nothing_had_been(phase, boot, shared, whole):
    """A policy on each of two machines: the second is gone in the third step, and comes back."""
    m1, m2 = boot(1), boot(2)
    start_ray(m1, 2)
    start_ray(m2, 2, m1)
    folder = shared / phase.replace(" ", "-")
    command = [*words(folder, "--max_steps", "4"), "--ckpt.load_enable"]
    command += ["--plugin", str(shared / "phases.py")]
    lost = [*("env", f"PHASE={phase}"), *command]
    code, printed = followed(m1, shared, BEGINS[phase], lambda _: m2.pull_the_plug(), *lost)
    assert re.search(BEGINS[phase], printed, re.MULTILINE) and code == 1, printed
    assert {"voter", "decider"} == set(
        re.findall(r"node m\d: (\w+) engines 1, \1 ranks 1", printed)
    )
    assert re.search(r"policy '\w+' \(process \d+ on m2\) died", printed), printed
    assert re.search(r"step [23] is saved in \S+; resume with: ", printed), printed

    start_ray(boot(2), 2, m1)
    if phase == "rollout":
        more = ["--policy.voter.actor.num_nodes", "2"]
        code, refused = followed(m1, shared, "$^", None, *command, *more)
        assert code == 2 and "actor.num_nodes" in refused, refused
    code, printed = followed(m1, shared, "$^", None, *command)
    assert code == 0 and "resuming after step" in printed, printed
    assert trained(folder) == whole


def test_a_run_ends_whose_node_is_there_and_answers_nothing(boot, shared):
    (shared / "phases.py").write_text(PHASES)
    m1, m2 = boot(1), boot(2)
    start_ray(m1, 2)
    start_ray(m2, 2, m1)

    def hang(_):
        m2.run("pkill", "-STOP", "raylet")

    command = [*words(shared / "hangs", "--max_steps", "4"), "--plugin", str(shared / "phases.py")]
    phase = "update"
    code, printed = followed(m1, shared, BEGINS[phase], hang, "env", f"PHASE={phase}", *command)
    assert code == 1, printed
    assert re.search(r"policy '\w+' \(process \d+ on m2\) died", printed), printed
    assert re.search(r"step 2 is saved in \S+; resume with: ", printed), printed
