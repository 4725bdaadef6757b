"""A Slurm on machines of namespaces: Debian's own, with one controller, on the first machine."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.machines import ENVIRONMENT, Machine

CONF = """
ClusterName=test
SlurmctldHost=m1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/tmp/slurm/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=/tmp/slurm/state
SlurmdSpoolDir=/tmp/slurm/spool
SlurmctldPidFile=/tmp/slurm/slurmctld.pid
SlurmdPidFile=/tmp/slurm/slurmd.pid
SlurmctldLogFile=/tmp/slurm/slurmctld.log
SlurmdLogFile=/tmp/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdTimeout=10
KillWait=20
MessageTimeout=10
ReturnToService=2
NodeName=m[1-{count}] CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=m[1-{count}] Default=YES MaxTime=INFINITE State=UP
"""
"""A node that says nothing for ten seconds is lost; a job that is given back may start again once
its credential has expired (cred_expire), by default after two minutes."""
START = """
set -e
mkdir -m 755 /tmp/slurm; mkdir /tmp/slurm/state /tmp/slurm/spool
install -m 400 "$KEY" /tmp/slurm/key
munged --force --key-file=/tmp/slurm/key --socket=/tmp/slurm/munge.socket \
  --pid-file=/tmp/slurm/munge.pid --log-file=/tmp/slurm/munge.log --seed-file=/tmp/slurm/seed
[ "$(hostname)" != m1 ] || slurmctld -c
slurmd -N "$(hostname)"
"""


def missing() -> str:
    """Returns why no Slurm can be started; nothing where it can."""
    absent = [
        name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)
    ]
    return f"not installed: {', '.join(absent)} (Debian: slurm-wlm)" if absent else ""


class Slurm:
    """Slurm on some machines.

    Args:
        shared: A folder that all machines see.
    """

    def __init__(self, machines: Sequence[Machine], shared: Path):
        self.head, self.shared = machines[0], shared
        key, conf = shared / "munge.key", shared / "slurm.conf"
        key.write_bytes(os.urandom(1024))
        conf.write_text(CONF.format(count=len(machines), cpus=os.cpu_count()))
        self.env = {**ENVIRONMENT, "SLURM_CONF": str(conf)}
        for machine in machines:
            code, printed = machine.run("bash", "-c", START, **self.env, KEY=str(key))
            assert code == 0, printed
        self.wait(lambda: "idle" in self.asked("sinfo", "-h"), 60)

    def asked(self, *words: str) -> str:
        """Returns what a command of Slurm's prints."""
        _, printed = self.head.run(*words, folder=self.shared, **self.env)
        return printed

    def submit(self, *words: str, **env: str) -> str:
        """Submits a job and returns its number."""
        code, printed = self.head.run("sbatch", *words, folder=self.shared, **self.env, **env)
        assert code == 0, printed
        return re.findall(r"\d+", printed)[-1]

    def state(self, job: str) -> str:
        """Returns a job's state."""
        return "".join(re.findall(r"JobState=(\w+)", self.asked("scontrol", "show", "job", job)))

    def wait(self, condition: Callable[[], object], seconds: float) -> None:
        """Waits until something is so."""
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, self.asked(
                "bash", "-c", "scontrol show job; sinfo -lN"
            )
            time.sleep(1.0)
