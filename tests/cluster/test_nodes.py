"""A run on several machines: it is the run of one machine, and what a node lacks is said before
anything is computed."""

import json
import os
import re
import shutil
import subprocess
import time

import pytest
from cluster.machines import ENVIRONMENT, PYTHON, ROOT, in_network, start_ray

RANKS = ("--mapping", "shared", "--actor.num_nodes", "3")
"""One policy on four devices, of which each of two machines has two."""
ON_TWO = {
    "ranks of one policy": ("vote/tiny.yaml", *RANKS),
    "ranks of one policy, ZeRO 2": ("vote/tiny.yaml", *RANKS, "--ds.zero_stage", "2"),
    "ranks of one policy, ZeRO 3": ("vote/tiny.yaml", *RANKS, "--ds.zero_stage", "3"),
    "ranks of adapters": ("mathchat/tiny_adapters.yaml", "--actor.num_nodes", "3"),
}
SMALL = ("--rollout.batch_size", "16", "--train.batch_size", "16")


def words(folder, recipe="vote/tiny.yaml", *more):
    """The command of a run whose files lie in a folder."""
    return [
        *(PYTHON, "-m", "marl_plugins", "train", "--recipe", str(ROOT / "recipes" / recipe)),
        *("--max_steps", "2", "--eval.steps", "-1", "--ckpt.output_dir", f"{folder}/out"),
        *("--ckpt.path", f"{folder}/checkpoints", "--ckpt.save_steps", "1", *more),
    ]


@pytest.fixture(scope="module")
def two(net):
    """Two machines with Ray."""
    m1, m2 = net.boot(1), net.boot(2)
    start_ray(m1, 2)
    start_ray(m2, 2, m1)
    return m1, m2


def on_ray(machine, shared, *command):
    return machine.run(*command, folder=shared, **ENVIRONMENT, RAY_ADDRESS="m1:6379")


SAME = ("action", "role", "ids", "shown_ids", "reward", "advantage", "trainer_logprobs")


def trained(folder):
    """Of a run its weights, and of every action what decides them."""
    files = folder.glob("out/**/*.safetensors")
    weights = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    lines = (folder / "out" / "trajectories.jsonl").read_text().splitlines()
    actions = [action for line in lines for action in json.loads(line)["actions"]]
    return weights, [[action[name] for name in SAME] for action in actions]


def alone(command):
    """Runs a command on the outer machine, without Ray of others."""
    env = {k: v for k, v in {**os.environ, **ENVIRONMENT}.items() if not k.startswith("RAY")}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def train_on(machines, shared, *given):
    """Trains on machines and on the outer one, and returns what is placed on each of them."""
    code, printed = on_ray(machines[0], shared, *words(shared / "several", *given))
    assert code == 0, printed
    alone(words(shared / "one", *given))
    weights, actions = trained(shared / "one")
    assert weights and actions
    assert trained(shared / "several") == (weights, actions)
    placed = dict(re.findall(r"node (m\d): (.*)", printed))
    assert set(placed) == {machine.name for machine in machines}, printed
    for name in ("several", "one"):
        shutil.rmtree(shared / name)
    return placed


@pytest.mark.parametrize("what", ON_TWO)
def test_two_machines_train_what_one_does(what, two, shared):
    placed = train_on(two, shared, *ON_TWO[what])
    ranks = {name: set(re.findall(r"ranks (\d)", text)) for name, text in placed.items()}
    assert sorted(ranks.values(), key=sorted) == [{"1"}, {"2"}]


def test_three_machines_train_what_one_does(net, two, shared):
    """Three policies, each on a machine."""
    m3 = net.boot(3)
    start_ray(m3, 2, two[0])
    placed = train_on([*two, m3], shared, "mathchat/tiny.yaml", *SMALL)
    m3.pull_the_plug()
    assert all(re.search(r"(\w+) engines 1, \1 ranks 1", text) for text in placed.values()), placed


def test_a_thousand_trajectories_at_once_lose_nothing(two, shared):
    """An engine on each of two machines."""
    many = ["--rollout.batch_size", "250", "--rollout.n_samples_per_prompt", "4"]
    many += ["--train.batch_size", "1000", "--max_steps", "1", "--vllm.num_engines", "2"]
    given = words(shared / "many", "vote/tiny.yaml", "--mapping", "shared", *many)
    code, printed = on_ray(two[0], shared, *given)
    assert code == 0, printed
    assert len(re.findall(r"node m\d: .*engines 1", printed)) == 2, printed
    (entry,) = map(json.loads, (shared / "many/out/ledger.jsonl").read_text().splitlines())
    assert (entry["trajectories"], entry["lost"]) == (1000, {})


def test_a_folder_that_a_node_does_not_see_is_said_before_the_warm_start(two, shared):
    code, printed = on_ray(two[0], shared, *words("/tmp/private"))
    assert code == 2
    assert re.search(r"node m2 \(10\.77\.0\.2\) does not see /tmp/private/checkpoints", printed)


def test_doctor_looks_at_every_node(net, two, shared):
    """A third one joins late, with another version of the package and Debian's own name, and a
    firewall between it and the second one."""
    other = shared / "other"
    shutil.copytree(ROOT / "marl_plugins", other / "marl_plugins")
    with (other / "marl_plugins" / "balance.py").open("a") as file:
        file.write("# changed\n")
    hosts = shared / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.77.0.1 m1\n10.77.0.2 m2\n127.0.1.1 m3\n")
    m3 = net.boot(3, hosts=hosts)
    start_ray(m3, 1, two[0], PYTHONPATH=str(other))
    in_network(two[1].init, "ip", "route", "add", "unreachable", m3.address)
    doctor = (PYTHON, "-m", "marl_plugins", "doctor", "--cluster", "--json")
    began = time.monotonic()
    code, printed = on_ray(two[0], shared, *doctor)
    m3.pull_the_plug()
    assert code == 1, printed
    assert time.monotonic() - began < 30  # 6 s on a machine with a load of 12
    findings = json.loads(printed[printed.index("{") :])["findings"]
    nodes = [f["what"] for f in findings if f["good"]]
    assert nodes == [f"node m{k} (10.77.0.{k})" for k in (1, 2, 3)]
    *cut, wrong = [f["found"] for f in findings if f["good"] is False]
    assert re.match(r"node m2 \(\S+\) does not reach 10\.77\.0\.3:\d+: ", cut[0])
    assert re.match(r"node m3 \(\S+\) does not reach 10\.77\.0\.2:\d+: timed out", cut[1])
    assert re.fullmatch(r"node m3 \(\S+\) has openrlhf-marl (\S+) \((?!\1)\S+ here\)", wrong)
    (remark,) = [f["found"] for f in findings if f["good"] is None]
    assert "m3" in remark and "127.0.1.1" in remark
