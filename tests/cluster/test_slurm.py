"""entrypoints/slurm.sh under a real Slurm: a job is submitted, given back, loses a node, is started
again by Slurm on others, and ends as the run that nothing disturbed."""

import re

import pytest
from cluster import slurm
from cluster.machines import ROOT, network
from cluster.test_lost_nodes import words
from cluster.test_nodes import alone, trained

STEPS = 6


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def machines(shared):
    if reason := slurm.missing():
        pytest.skip(reason)
    with network(3, kept=[shared]) as made:
        yield [made.boot(k) for k in (1, 2, 3)]


def test_a_job_is_requeued_by_hand_and_by_a_lost_node(machines, shared):
    cluster = slurm.Slurm(machines, shared)
    _, _, _, _, _, recipe, *flags = words(shared / "job", "--max_steps", str(STEPS))
    script = [str(ROOT / "entrypoints" / "slurm.sh"), recipe, *flags, "--ckpt.load_enable"]
    node = "--num-gpus=2 --num-cpus=8 --object-store-memory=1200000000 --disable-usage-stats"
    log = shared / "log"
    output = ["--nodes=2", "--requeue", "--open-mode=append", f"--output={log}"]
    job = cluster.submit(*output, *script, RAY_NODE_FLAGS=node)

    def steps():
        text = log.read_text() if log.exists() else ""
        assert not re.search(r"^error: ", text, re.M), text
        return re.findall(rf"^ *(\d)/{STEPS} ", text, re.M)

    cluster.wait(steps, 400)
    cluster.asked("scontrol", "requeue", job)
    cluster.wait(lambda: cluster.state(job) == "PENDING", 60)
    text = log.read_text()
    assert re.search(r"interrupted; step \d is saved in ", text), text
    for machine in machines[:2]:
        assert "raylet" not in machine.run("ps", "-eo", "comm")[1]

    done = len(steps())
    cluster.wait(lambda: len(steps()) > done, 400)
    machines[1].pull_the_plug()
    cluster.wait(lambda: cluster.state(job) == "COMPLETED", 600)
    text = log.read_text()
    assert re.search(r"NODE FAILURE", text, re.I), text
    assert text.count("resuming after step") == 2, text
    assert "Restarts=2" in cluster.asked("scontrol", "show", "job", job)
    assert "NodeList=m[1,3]" in cluster.asked("scontrol", "show", "job", job)

    alone(words(shared / "whole", "--max_steps", str(STEPS)))
    assert trained(shared / "job") == trained(shared / "whole")
