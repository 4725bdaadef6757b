"""entrypoints/slurm.sh under a real Slurm: a job is submitted, cancelled, submitted again, loses a
node, is started again by Slurm on others, and ends as the run that nothing disturbed."""

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


def test_a_job_is_cancelled_requeued_and_loses_a_node(machines, shared):
    cluster = slurm.Slurm(machines, shared)
    _, _, _, _, _, recipe, *flags = words(shared / "job", "--max_steps", str(STEPS))
    script = [str(ROOT / "entrypoints" / "slurm.sh"), recipe, *flags, "--ckpt.load_enable"]
    node = "--num-gpus=2 --num-cpus=8 --object-store-memory=1200000000 --disable-usage-stats"

    def submit(name):
        output = ["--nodes=2", "--requeue", "--open-mode=append", f"--output={shared}/{name}"]
        return cluster.submit(*output, *script, RAY_NODE_FLAGS=node), shared / name

    def steps(log):
        text = log.read_text() if log.exists() else ""
        assert not re.search(r"^error: ", text, re.M), text
        return re.findall(rf"^ *(\d)/{STEPS} ", text, re.M)

    job, log = submit("first")
    cluster.wait(lambda: steps(log), 400)
    cluster.asked("scancel", job)
    cluster.wait(lambda: cluster.state(job) == "CANCELLED", 60)
    nodes = ("sinfo", "-h", "-N", "-o", "%t", "-n", "m1,m2")
    cluster.wait(lambda: set(cluster.asked(*nodes).split()) == {"idle"}, 60)
    text = log.read_text()
    assert re.search(r"interrupted; step \d is saved in ", text), text
    for machine in machines[:2]:
        assert "raylet" not in machine.run("ps", "-eo", "comm")[1]

    job, log = submit("second")
    cluster.wait(lambda: len(steps(log)) >= 2, 400)
    machines[1].pull_the_plug()
    cluster.wait(lambda: cluster.state(job) == "COMPLETED", 600)
    text = log.read_text()
    assert re.search(r"NODE FAILURE", text, re.I), text
    assert text.count("resuming after step") == 2, text
    assert "Restarts=1" in cluster.asked("scontrol", "show", "job", job)
    assert "NodeList=m[1,3]" in cluster.asked("scontrol", "show", "job", job)

    alone(words(shared / "whole", "--max_steps", str(STEPS)))
    assert trained(shared / "job") == trained(shared / "whole")
