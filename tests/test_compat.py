"""`openrlhf compat`: a release of upstream is checked without importing it."""

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml
from refusals import briefs, found_by
from refusals import refused as refused_plan

from marl_plugins.cli import dispatch, main
from marl_plugins.commands import compat
from marl_plugins.core.findings import all_good
from marl_plugins.engine.hosts import releases, upstream_cli
from marl_plugins.engine.hosts.trees import SourceTree, open_tree
from marl_plugins.engine.plan.build import build_plan

ROOT = Path(__file__).parent.parent
TINY = ROOT / "tests" / "recipes" / "sums" / "tiny.yaml"


@pytest.fixture
def checkout(tmp_path):
    """The installed release as a checkout."""
    root = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(upstream_cli.upstream_root(), root / "openrlhf", ignore=ignored)
    (root / "version.txt").write_text("0.11.2\n")
    return root


def wheel(folder, root, version="0.11.2", name="openrlhf", keep=lambda path: True):
    """A wheel of a checkout, laid out like upstream's."""
    target = folder / f"{name}-{version}-py3-none-any.whl"
    files = sorted((root / "openrlhf").rglob("*.py"))
    pure = f"{name}-{version}.data/purelib/"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in filter(keep, files):
            archive.write(path, pure + str(path.relative_to(root)))
        info = f"{name}-{version}.dist-info"
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/RECORD", "".join(f"{pure}{p.relative_to(root)},sha256=x,1\n" for p in files)
        )
    return target


def run_compat(capsys, *words):
    code = main(["compat", *map(str, words), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["good"] is (code == 0)
    found = {}
    for finding in answer["findings"]:
        found.setdefault((finding["what"], finding["good"]), []).append(finding["found"])
    return code, found


def code_of(*words):
    """The code of the one problem, with the name of its place."""
    ((code, *places),) = found_by(dispatch, ["compat", *map(str, words)])
    return code, *places[-1:]


@pytest.mark.parametrize("version", [*releases.CHECKED, releases.TRAINED])
def test_every_published_release_that_is_supported_fits(version, capsys):
    code, found = run_compat(capsys, version)
    assert code == 0, found
    assert version in str(found[("release", None if version in ("0.10.2", "0.10.3") else True)])
    assert ("flags", None) not in found


def test_a_checkout_a_wheel_and_the_package_folder_give_the_same_findings(
    checkout, tmp_path, capsys
):
    file = wheel(tmp_path, checkout)
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "unpacked")
    inner = tmp_path / "unpacked" / "openrlhf-0.11.2.data" / "purelib"
    paths = (
        checkout,
        file,
        tmp_path / "unpacked",
        inner,
        inner / "openrlhf",
        checkout / "openrlhf",
    )
    answers = [run_compat(capsys, path) for path in paths]
    for code, found in answers:
        assert code == 0
        assert found.pop(("release", True))[0].startswith("openrlhf 0.11.2 (")
        assert found == {key: value for key, value in answers[0][1].items() if key[0] != "release"}


def test_upstream_is_not_imported(checkout, capsys):
    (checkout / "openrlhf" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    assert run_compat(capsys, checkout)[0] == 0


def test_changes_in_a_newer_release_are_named(checkout, capsys):
    (checkout / "version.txt").write_text("0.13.0\n")
    actor = checkout / "openrlhf/trainer/ray/ppo_actor.py"
    actor.write_text(
        actor.read_text().replace(
            "def fit(self, kl_ctl: float = 0)", "def fit(self, kl: float = 0)"
        )
    )
    cli = checkout / "openrlhf/cli/train_ppo_ray.py"
    cli.write_text(
        cli.read_text()
        .replace('"--train.batch_size"', '"--train.rows"')
        .replace("args.train.batch_size", "args.train.rows")
        .replace("if args.train.agent_func_path:", "if args.train.no_such.thing:", 1)
    )
    code, found = run_compat(capsys, checkout)
    assert code == 1
    assert "newer than any release tested here" in found[("release", None)][0]
    assert "PolicyModelActor.fit takes (self, kl)" in found[("seams", False)][0]
    assert found[("flags", False)] == ["--train.batch_size is gone"]
    assert found[("flags", None)] == ["--train.rows is new"]
    assert "no_such" in found[("validation", False)][0]


def test_a_newer_release_that_has_everything_is_a_warning(checkout, capsys):
    (checkout / "version.txt").write_text("0.12.0\n")
    assert main(["compat", str(checkout)]) == 0
    output = capsys.readouterr().out
    assert "only a run" in output
    assert "everything" in output


def test_a_command_line_without_its_usual_shape_is_one_message(checkout, capsys):
    (checkout / "openrlhf/cli/train_ppo_ray.py").write_text("def main(): pass\n")
    code, found = run_compat(capsys, checkout)
    assert code == 1
    assert len(found[("command line", False)]) == 1


CLI, CONFIG, LAUNCHER = "cli/train_ppo_ray.py", "utils/config.py", "trainer/ray/launcher.py"
PARSER = "    parser = argparse.ArgumentParser()\n"
GROUP = PARSER.replace("()", "().add_argument_group()")
END = "    train(args)\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "what", "part"),
    [
        (
            CLI,
            PARSER,
            f"{PARSER}    add_more(parser)\n",
            "command line",
            "name 'add_more' is not defined",
        ),
        (CLI, PARSER, f"    import torch\n{PARSER}", "command line", "torch is imported"),
        (CLI, PARSER, GROUP, "command line", "is not an ArgumentParser"),
        (CLI, PARSER, "    def (\n", "command line", "is not Python"),
        (CLI, END, f"    check(args)\n{END}", "validation", "NameError"),
        (CLI, "train.agent_func_path", "train.func_path", "validation", "is gone"),
        (LAUNCHER, "import", "<<<<<<< HEAD\nimport", "seams", "launcher.py:1: is not Python"),
        (LAUNCHER, "import", "\0import", "seams", "null bytes"),
        (CONFIG, "def hierarchize", "def nested", "command line", "KeyError: 'hierarchize'"),
        (
            CONFIG,
            "def hierarchize",
            "import openrlhf.x\ndef hierarchize",
            "command line",
            "openrlhf.x is imported",
        ),
    ],
)
def test_anything_in_an_unknown_release_is_a_finding(checkout, capsys, file, old, new, what, part):
    path = checkout / "openrlhf" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    code, found = run_compat(capsys, checkout)
    assert code == 1
    assert any(part in line for line in found[(what, False)]), found


def test_a_parser_with_a_description_and_other_functions_is_read(checkout, capsys):
    cli = checkout / "openrlhf/cli/train_ppo_ray.py"
    own = (
        "    import sys\n    parser = argparse.ArgumentParser(sys.argv[0], "
        "formatter_class=argparse.HelpFormatter)\n"
    )
    text = cli.read_text().replace(PARSER, own)
    cli.write_text(
        text.replace("if __name__ ==", "def build_parser():\n    pass\n\n\nif __name__ ==")
    )
    assert run_compat(capsys, checkout)[0] == 0


def test_a_checkout_of_something_else(tmp_path):
    (tmp_path / "other" / "src").mkdir(parents=True)
    assert code_of(tmp_path / "other") == ("trees.no_package", "other")


def test_a_package_of_the_same_name_that_is_something_else(tmp_path):
    (tmp_path / "openrlhf").mkdir()
    (tmp_path / "openrlhf" / "__init__.py").touch()
    assert code_of(tmp_path)[0] == "trees.incomplete"


def test_a_broken_wheel_and_one_of_something_else(checkout, tmp_path):
    broken = tmp_path / "openrlhf-0.11.2-py3-none-any.whl"
    broken.write_bytes(b"PK not a zip")
    assert code_of(broken) == ("trees.wheel", broken.name)
    whole = wheel(tmp_path, checkout)
    with zipfile.ZipFile(whole) as archive:
        start = max(archive.infolist(), key=lambda member: member.compress_size).header_offset + 400
    content = whole.read_bytes()
    whole.write_bytes(content[:start] + b"\x5a" * 50 + content[start + 50 :])
    assert code_of(whole) == ("trees.wheel", whole.name)
    other = wheel(tmp_path, checkout, "1.0", "other")
    assert code_of(other) == ("trees.other_wheel", other.name)


def test_a_path_that_does_not_exist_and_a_version_that_was_never_published(tmp_path):
    assert code_of(tmp_path / "nothing") == ("trees.unknown", "nothing")
    assert code_of("0.10.999")[0] == "trees.download"


def test_versions_are_normalised_for_pip_and_an_unreachable_index_is_reported(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    output = (
        "ERROR: Could not find a version that satisfies the requirement openrlhf (from "
        "versions: none)\n"
    )
    requested = []

    def pip(command, **_):
        requested.append(command[-1])
        return subprocess.CompletedProcess(command, 1, "", output)

    monkeypatch.setattr(subprocess, "run", pip)
    assert code_of("v0.11.1")[0] == "trees.download"
    assert requested == ["openrlhf==0.11.1"]


def test_the_workflows_are_yaml_and_ours_runs_every_release():
    ours = yaml.safe_load((ROOT / ".github/workflows/compatibility.yml").read_text())
    assert ours["jobs"]["release"]["strategy"]["matrix"]["version"] == [
        *releases.CHECKED,
        releases.TRAINED,
    ]
    theirs = yaml.safe_load(
        (ROOT / "marl_plugins" / "commands" / "upstream_ci" / "workflow.yml").read_text()
    )
    assert theirs["jobs"]["compatibility"]["steps"][-1]["run"] == "openrlhf compat . --tests"


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["compat", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "openrlhf compat 0.11.1" in text and ".whl --tests" in text and "*" not in text


def test_runs_are_refused_with_a_release_whose_loss_cannot_be_filled(monkeypatch):
    monkeypatch.setattr(upstream_cli, "upstream_version", lambda: "0.10.3")
    assert ("upstream.loss", "openrlhf 0.10.3") in found_by(build_plan, ["--recipe", str(TINY)])


def test_runs_with_a_checked_release_warn(monkeypatch):
    monkeypatch.setattr(upstream_cli, "upstream_version", lambda: "0.11.0")
    run = build_plan(["--recipe", str(TINY)]).run
    assert briefs(run.warnings) == [("upstream.release",)] and "0.11.0" in str(run.warnings[0])


def test_a_new_flag_of_upstreams_is_refused_when_set(checkout, monkeypatch):
    """Its meaning with several policies is undecided."""
    cli = checkout / "openrlhf/cli/train_ppo_ray.py"
    anchor = 'parser.add_argument("--use_ms"'
    assert anchor in cli.read_text()
    cli.write_text(
        cli.read_text().replace(
            anchor, f'parser.add_argument("--train.brand_new", type=int)\n    {anchor}'
        )
    )
    monkeypatch.setattr(upstream_cli, "upstream_root", lambda: checkout / "openrlhf")
    build_plan(["--recipe", str(TINY)])
    with refused_plan(("flags.new", "command line", "train.brand_new")):
        build_plan(["--recipe", str(TINY), "--train.brand_new", "1"])


def test_an_unreadable_version_counts_as_the_trained_one(checkout):
    (checkout / "version.txt").write_text("main\n")
    with open_tree(str(checkout)) as tree:
        assert tree == SourceTree(checkout, "main", "checkout")
        assert all_good(compat.check_release(tree))


def test_a_checkout_of_marti_is_checked_as_such(capsys):
    code, found = run_compat(capsys, ROOT / "tests" / "marti_v2")
    assert code == 1
    assert ("M8", False) in found
    assert code_of(ROOT / "tests" / "marti_v2", "--tests")[0] == "compat.tests"
