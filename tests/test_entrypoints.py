"""Where people start: help, pages, old names of flags, and the scripts that start runs on clusters."""

import os
import subprocess
from pathlib import Path

import pytest

from marl_plugins.engine.hosts import upstream_cli
from marl_plugins.engine.hosts.old_flags import old_flags

ROOT = Path(__file__).resolve().parent.parent


# --- flags


def test_old_flags_have_names_that_upstream_has_today():
    today = upstream_cli.build_parser(upstream_cli.upstream_root()).of_upstream
    renamed, gone = old_flags().renamed, old_flags().gone
    assert set(renamed.values()) <= today
    assert not {*renamed, *gone} & today and not renamed.keys() & gone.keys()


# --- the pages on clusters and for users of OpenRLHF

STAND_INS = {
    "openrlhf": 'printf "%s\\n" "openrlhf device=$MARL_PLUGINS_DEVICE address=${RAY_ADDRESS:-} $*" '
    '>> "$LOG"',
    "scontrol": "printf 'node-a\\nnode-b\\n'",
    "srun": 'echo "srun $*" >> "$LOG"; while [[ $1 == -* ]]; do if [[ $1 == -w ]]; then shift; fi; '
    'shift; done; exec "$@"',
    "ray": """
case $1 in
  start) echo "ray $*" >> "$LOG"; echo " 1 node_$RANDOM" >> "$JOINED" ;;
  status) cat "$JOINED" ;;
  job) echo "ray $*" >> "$LOG"; while [[ $1 != -- ]]; do shift; done; shift; exec "$@" ;;
esac
""",
    "sleep": "exec /bin/sleep 0.01",
}


@pytest.fixture
def cluster(tmp_path):
    """Runs a script of `entrypoints/` with stand-ins for Slurm, Ray and our command; what they were
    asked for, line by line."""
    for name, text in STAND_INS.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)
    (tmp_path / "joined").touch()
    places = {
        "LOG": str(tmp_path / "log"),
        "JOINED": str(tmp_path / "joined"),
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
    }

    def run(script, *words, **environment):
        clean = {
            k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SLURM_", "MARL_"))
        }
        command = ["bash", str(ROOT / "entrypoints" / script), *words]
        done = subprocess.run(
            command,
            env={**clean, **places, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        log = tmp_path / "log"
        return done, log.read_text().splitlines() if log.exists() else []

    return run


def test_one_node_is_one_command(cluster):
    done, asked = cluster("one_node.sh", "mathchat", "--max_steps", "3")
    assert (done.returncode, asked) == (
        0,
        ["openrlhf device= address= train --recipe mathchat --max_steps 3"],
    )


@pytest.mark.parametrize(
    ("recipe", "folder", "name"),
    [("/r/mine/", "/r", "mine"), ("/r/mine/tiny.yaml", "/r/mine", "tiny.yaml")],
)
def test_a_ray_job_takes_the_recipes_folder_along(cluster, recipe, folder, name):
    done, asked = cluster("ray_job.sh", recipe, "--max_steps", "3")
    assert done.returncode == 0, done.stderr
    assert (
        asked[0].startswith(f"ray job submit --working-dir {folder} -- ")
        and "runtime-env" not in asked[0]
    )
    assert asked[1] == f"openrlhf device=cuda address= train --recipe {name} --max_steps 3"


@pytest.mark.parametrize("nodes", [1, 2])
def test_slurm_starts_ray_on_every_node_and_the_run_on_the_first(cluster, nodes):
    environment = {
        "SLURM_JOB_NODELIST": "node-[a-b]",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "RAY_PORT": "7000",
    }
    done, asked = cluster("slurm.sh", "mathchat", "--max_steps", "3", **environment)
    assert done.returncode == 0, done.stderr
    started = [line for line in asked if line.startswith("ray start")]
    assert (
        started
        == [
            "ray start --head --port=7000 --include-dashboard=false --block",
            "ray start --address=node-a:7000 --block",
        ][:nodes]
    )
    assert (
        asked[-1]
        == "openrlhf device=cuda address=node-a:7000 train --recipe mathchat --max_steps 3"
    )
    assert ("srun --nodes=1 --ntasks=1 --exclude=node-a" in "\n".join(asked)) == (nodes == 2)
