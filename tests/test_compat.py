"""`openrlhf compat`: a release of upstream is checked without importing it."""

import json
import shutil
from pathlib import Path

import pytest
from refusals import briefs, found_by
from refusals import refused as refused_plan

from marl_plugins.cli import main
from marl_plugins.engine.hosts import releases, upstream_cli
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


def run_compat(capsys, *words):
    code = main(["compat", *map(str, words), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["good"] is (code == 0)
    found = {}
    for finding in answer["findings"]:
        found.setdefault((finding["what"], finding["good"]), []).append(finding["found"])
    return code, found


@pytest.mark.parametrize("version", [*releases.CHECKED, releases.TRAINED])
def test_every_published_release_that_is_supported_fits(version, capsys):
    code, found = run_compat(capsys, version)
    assert code == 0, found
    assert version in str(found[("release", None if version in ("0.10.2", "0.10.3") else True)])
    assert ("flags", None) not in found


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
    assert "PolicyModelActor.fit(self, kl)" in found[("seams", False)][0]
    assert found[("flags", False)] == ["--train.batch_size is gone"]
    assert found[("flags", None)] == ["--train.rows is new"]
    assert "no_such" in found[("validation", False)][0]


CLI, LAUNCHER = "cli/train_ppo_ray.py", "trainer/ray/launcher.py"
PARSER = "    parser = argparse.ArgumentParser()\n"


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
        (CLI, END, f"    check(args)\n{END}", "validation", "NameError"),
        (CLI, "train.agent_func_path", "train.func_path", "flags", "is gone"),
        (LAUNCHER, "import", "<<<<<<< HEAD\nimport", "seams", "launcher.py:1: is not Python"),
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
