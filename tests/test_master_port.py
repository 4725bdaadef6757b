"""The port at which ranks meet stays theirs from when rank 0 draws it until they have met."""

import errno
import subprocess
import sys

DRAW = """
import datetime, socket
from marl_plugins.adapters.worker import SharedActor
from marl_plugins.process_groups.worker import StandbyCriticActor, StandbyPolicyActor
from marl_plugins.engine.processes.pass_through import Critic, Reward
from marl_plugins.engine.processes.policy_actor import ReferenceActor
from marl_plugins.builtin.reward_model.worker import RewardActor
from openrlhf.trainer.ray.launcher import BaseDistributedActor
import torch.distributed

for kind in (SharedActor, StandbyCriticActor, Critic, Reward, ReferenceActor, RewardActor, StandbyPolicyActor):
    process = kind.__new__(kind)
    BaseDistributedActor.__init__(process, 1, 0, "127.0.0.1", None)
    with socket.socket() as other:
        print(kind.__name__, other.connect_ex(process.get_master_addr_port()), end=" ")
        try:
            other.bind(("", process.get_master_addr_port()[1]))
        except OSError as error:
            print(error.errno)
torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
print(torch.distributed.get_world_size())
"""


def test_nobody_is_given_the_port_before_the_ranks_meet_there():
    made = subprocess.run([sys.executable, "-c", DRAW], capture_output=True, text=True, timeout=300)
    *drawn, ranks = made.stdout.splitlines()[-8:] or [""]
    assert ranks == "1", made.stderr[-3000:]
    assert all(
        line.split()[1:] == [str(errno.ECONNREFUSED), str(errno.EADDRINUSE)] for line in drawn
    ), drawn
