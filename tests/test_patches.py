"""The thin patches to upstream: they apply, work and revert."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from git_patches import apply, files_of, series

from marl_plugins.commands.upstream_ci.suite import run_suite
from marl_plugins.engine.hosts import cpu, upstream_cli
from marl_plugins.engine.hosts.releases import TRAINED
from marl_plugins.engine.hosts.seams import check_seams, seams_of

ROOT = Path(__file__).resolve().parent.parent
PATCHES = [*series(f"openrlhf/{TRAINED}").values()]
FILES = sorted({file for patch in PATCHES for file in files_of(patch)})


@pytest.fixture
def tree(tmp_path):
    """The touched files of the release in a separate tree."""
    for file in FILES:
        target = tmp_path / "tree" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(upstream_cli.upstream_root().parent / file, target)
    return tmp_path / "tree"


def copy_upstream(to):
    """What upstream's wheel installs: its package and its tests."""
    for file in metadata.files("openrlhf"):
        if file.parts[0] in ("openrlhf", "tests") and file.suffix != ".pyc":
            target = to / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.locate(), target)
    return to


def contents(tree):
    """Every file with its bytes, so that a leftover is noticed."""
    return {str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*") if p.is_file()}


def test_every_set_of_patches_applies_in_any_order_compiles_and_reverts(tree):
    released = contents(tree)
    seen = {}
    for number in range(1, len(PATCHES) + 1):
        for patches in itertools.permutations(PATCHES, number):
            apply(tree, *patches)
            for file in FILES:
                compile((tree / file).read_bytes(), file, "exec")
            patched = contents(tree)
            assert seen.setdefault(frozenset(patches), patched) == patched
            apply(tree, *patches[::-1], reverse=True)
            assert contents(tree) == released
    assert all(a != b for a, b in itertools.combinations(seen.values(), 2))


def test_the_seams_exist_with_the_patches_too(tmp_path):
    tree = copy_upstream(tmp_path / "tree")
    apply(tree, *PATCHES)
    assert check_seams(tree / "openrlhf", seams_of(TRAINED)) == []


def flags(parser):
    """All flags with default and type."""
    return without_time(
        [
            [a.option_strings, repr(a.default), getattr(a.type, "__name__", None)]
            for a in parser._actions
        ]
    )


def without_time(found):
    """The run's default name contains the time."""
    return [[o, re.sub(r"\d{4}T\d\d:\d\d", "NOW", d), t] for o, d, t in found]


@pytest.mark.engines
def test_upstream_with_the_patches_runs_our_workflow(tmp_path):
    tree = copy_upstream(tmp_path / "tree")
    apply(tree, *PATCHES)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/patched_tree.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tree, ROOT, ROOT / "tests")))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.partition("SEEN ")[2])
    assert seen["package"] == str(tree / "openrlhf")

    # 0001: the same flags three ways; the command works from Python
    assert without_time(seen["flags"]) == without_time(seen["flags_without_import"])
    assert without_time(seen["flags"]) == flags(
        upstream_cli.build_parser(upstream_cli.upstream_root())
    )
    assert "--actor.model_name_or_path" in seen["help"]
    assert seen["trained"] == ["m", ["r.py"], 6]  # parsed, nested, and completed by its validation

    # 0002: one dict per action; the verdict of the role is its own
    plans, solutions = seen["samples"][0], seen["samples"][1]
    assert [plans["reward"], solutions["reward"]] == [0.0, 1.0]
    assert "".join(map(chr, solutions["observation_tokens"])) == "u:2+2, fails 1 | 17^a:22^"
    # 0004: the sample whose executor raised is None in its place, the others are there
    assert [s and s["reward"] for s in seen["samples"]] == [0.0, 1.0, None, 0.0, 1.0]
    # 0003
    context = {"prompt": "2+2, fails 1", "is_eval": False, "global_step": 3, "datasource": "sums"}
    assert seen["sample_contexts"] == [{**context, "sample_index": i} for i in range(3)]
    assert seen["as_before"] == [{"prompt": "q"}, {"prompt": "q"}]

    # Through upstream's generator: b fails and c takes its place; two samples a step, as upstream
    # has it; a, c, then d.
    a, c, d = ([[p, 0.0, 2], [p, 1.0, 3]] for p in "acd")
    assert seen["steps"] == [[a, 3, False], [c, 0, False], [d, 1, True], [a, 3, False]]
    assert [(x["prompt"], x["global_step"], x["is_eval"]) for x in seen["step_contexts"][:4]] == [
        ("a", 0, False),
        ("b fails 0", 0, False),
        ("c", 0, False),
        ("d", 2, False),
    ]
    assert {x["datasource"] for x in seen["step_contexts"][:4]} == {
        f"source of {p}" for p in ("a", "b fails 0", "c", "d")
    }
    assert seen["evaluated"] == [*a, *c]
    assert all(x["is_eval"] and x["global_step"] == 7 for x in seen["eval_contexts"])
    assert seen["all_fail"] == "Executors failed on 3 prompts, 2 were asked for"

    # The steps that upstream's loops pass: the synchronous one continues from step 5 and evaluates
    # at 6, the other is at 6.
    passed = [(kind, words["global_step"], words["max_len"]) for kind, words in seen["loops"]]
    assert passed == [("train", 5, 8), ("eval", 6, 8), ("train", 6, 8), ("train", 6, 8)]


@pytest.mark.engines
def test_upstreams_own_tests_pass_with_the_patches(tmp_path):
    """As without them (marl_plugins/commands/upstream_ci)."""
    tree = copy_upstream(tmp_path / "tree")
    apply(tree, *PATCHES)
    outcomes = run_suite(tree, {**os.environ, **cpu.environment(), "PYTHONPATH": str(tree)})
    assert len(outcomes) == 221
    assert set(outcomes.values()) == {"passed"}
