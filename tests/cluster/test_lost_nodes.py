"""A node that is gone: an engine is replaced on another one, and training ends in a state that is
resumed as if nothing had been."""

import re
import threading

from cluster.machines import ENVIRONMENT, PYTHON, ROOT, start_ray
from cluster.test_nodes import alone, trained


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


def test_an_engine_is_replaced_on_another_node(net, shared):
    machines = [net.boot(k) for k in (1, 2, 3)]
    m1 = machines[0]
    for machine, devices in zip(machines, (2, 1, 1), strict=True):
        start_ray(machine, devices, None if machine is m1 else m1)

    def lose_an_engine(printed):
        name = re.findall(r"node (m[23]): shared engines 1", printed)[0]
        machines[int(name[1:]) - 1].pull_the_plug()

    more = ["--mapping", "shared", "--vllm.num_engines", "2", "--max_steps", "6"]
    step = r"^ *2/6 "
    code, printed = followed(m1, shared, step, lose_an_engine, *words(shared / "engine", *more))
    for machine in machines:
        if machine.outer.poll() is None:
            machine.pull_the_plug()
    assert code == 0, printed
    assert "an engine of policy 'shared' died and was replaced" in printed, printed


def test_a_run_that_lost_a_node_is_resumed_as_if_nothing_had_been(net, shared):
    """A policy on each of two machines: the second is gone after two steps, and comes back."""
    m1, m2 = net.boot(1), net.boot(2)
    start_ray(m1, 2)
    start_ray(m2, 2, m1)
    command = [*words(shared / "lost", "--max_steps", "4"), "--ckpt.load_enable"]
    code, printed = followed(m1, shared, r"^ *2/4 ", lambda _: m2.pull_the_plug(), *command)
    assert code == 1, printed
    assert {"voter", "decider"} == set(
        re.findall(r"node m\d: (\w+) engines 1, \1 ranks 1", printed)
    )
    assert re.search(r"policy '\w+' \(process \d+ on m2\) died", printed), printed
    assert re.search(r"step [12] is saved in \S+; resume with: ", printed), printed

    start_ray(net.boot(2), 2, m1)
    code, fewer = followed(m1, shared, "$^", None, *command, "--policy.voter.actor.num_nodes", "2")
    assert code == 2 and "actor.num_nodes" in fewer, fewer
    code, printed = followed(m1, shared, "$^", None, *command)
    assert code == 0 and "resuming after step" in printed, printed
    alone(words(shared / "whole", "--max_steps", "4"))
    assert trained(shared / "lost") == trained(shared / "whole")
