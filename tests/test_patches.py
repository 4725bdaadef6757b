"""The thin patches to upstream: they apply, work and revert, and no command leaves a tree half
patched."""

import difflib
import hashlib
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
from refusals import refused as refused_as

from marl_plugins.cli import dispatch, main
from marl_plugins.commands.upstream_ci.suite import run_suite
from marl_plugins.engine.hosts import cpu, upstream_cli
from marl_plugins.engine.hosts.patches import load_series, lock_tree, recognise
from marl_plugins.engine.hosts.releases import TRAINED
from marl_plugins.engine.hosts.seams import check_seams, seams_of

ROOT = Path(__file__).resolve().parent.parent
SERIES = next(s for s in load_series() if s.title == "openrlhf 0.11.2")
NAMES = [p.name for p in SERIES.patches]
FILES = list(SERIES.tree.released)


@pytest.fixture
def tree(tmp_path):
    """The touched files of the release in a separate tree, one of them executable."""
    for file in FILES:
        target = tmp_path / "tree" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(upstream_cli.upstream_root().parent / file, target)
    (tmp_path / "tree" / FILES[0]).chmod(0o755)
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
    """Every file with its bytes and mode, so that a leftover is noticed."""
    return {
        str(p.relative_to(tree)): (p.read_bytes(), p.stat().st_mode)
        for p in tree.rglob("*")
        if p.is_file() and ".git" not in p.parts
    }


def command(*words):
    assert main(["patch", *words]) == 0


def report(capsys, *words):
    capsys.readouterr()
    command(*words, "--json")
    return json.loads(capsys.readouterr().out)


def states(capsys, tree):
    return {p["name"]: p["state"] for p in report(capsys, "status", "--to", str(tree))["patches"]}


# --- the patches


def test_every_set_of_patches_applies_compiles_is_recognised_and_reverts(tree):
    released = contents(tree)
    seen = []
    for number in range(len(NAMES) + 1):
        for names in itertools.combinations(NAMES, number):
            recognise(tree).change(frozenset(names))  # also from any set to any other
            assert recognise(tree).in_state("applied") == set(names)
            assert not recognise(tree).in_state("interrupted")
            for file in FILES:
                compile((tree / file).read_bytes(), file, "exec")
            seen.append(contents(tree))
    assert all(a != b for a, b in itertools.combinations(seen, 2))
    recognise(tree).change(frozenset())
    assert contents(tree) == released


def test_the_seams_exist_with_the_patches_too(tmp_path):
    tree = copy_upstream(tmp_path / "tree")
    command("apply", "--to", str(tree))
    assert check_seams(tree / "openrlhf", seams_of(TRAINED)) == []


def test_git_understands_the_patches_in_any_order(tree, tmp_path):
    for order in (NAMES, NAMES[::-1]):
        other = tmp_path / order[0]
        shutil.copytree(tree, other)
        for name in order:
            subprocess.run(
                ["git", "apply", str(SERIES.folder / f"{name}.patch")], cwd=other, check=True
            )
        recognised = recognise(other)
        assert recognised.in_state("applied") == set(NAMES)
        recognised.change(frozenset())
        assert contents(other) == contents(tree)


@pytest.mark.parametrize("path", sorted(SERIES.folder.glob("*.patch")), ids=lambda p: p.stem)
def test_every_patch_states_its_purpose_and_origin(path):
    header = path.read_text().partition("diff --git")[0]
    assert path.parent.name in header and "Apache-2.0" in header and "http" in header
    assert len(header.splitlines()[0]) < 80
    diff = path.read_text().partition("diff --git")[2]
    assert len(re.findall("^[-+][^-+]", diff, re.MULTILINE)) < 60


def test_the_patched_command_line_is_read_without_importing_it(tree):
    before = upstream_cli.build_parser(upstream_cli.upstream_root())
    recognise(tree).change(frozenset(NAMES[:1]))
    after = upstream_cli.build_parser(tree / "openrlhf")
    assert flags(after) == flags(before)
    statements = upstream_cli._main_block(tree / "openrlhf" / upstream_cli.CLI)[1]
    assert len(statements) == len(
        upstream_cli._main_block(upstream_cli.upstream_root() / upstream_cli.CLI)[1]
    )


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
    command("apply", "--to", str(tree))
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
    command("apply", "--to", str(tree))
    outcomes = run_suite(tree, {**os.environ, **cpu.environment(), "PYTHONPATH": str(tree)})
    assert len(outcomes) == 221
    assert set(outcomes.values()) == {"passed"}


# --- the command


def test_applying_twice_changes_nothing_and_reverting_restores_the_release(tree, capsys):
    released = contents(tree)
    first = report(capsys, "apply", "--to", str(tree), "0002", NAMES[3])
    assert [(p["name"], p["was"], p["state"]) for p in first["patches"]] == [
        (NAMES[1], "absent", "applied"),
        (NAMES[3], "absent", "applied"),
    ]
    assert first["changed"] == FILES[3:]
    patched = contents(tree)
    assert (
        report(capsys, "apply", "--to", str(tree), "0002")["changed"] == []
        and contents(tree) == patched
    )
    assert [mode for _, mode in patched.values()] == [mode for _, mode in released.values()]
    assert list(states(capsys, tree).values()) == ["absent", "applied", "absent", "applied"]
    command("apply", "--to", str(tree))
    text = capsys.readouterr().out
    assert text.count("already applied") == 2 and "changed: " + ", ".join(FILES) in text
    command("revert", "--to", str(tree), "0003")
    assert list(states(capsys, tree).values()) == ["applied", "applied", "absent", "applied"]
    command("revert", "--to", str(tree))
    command("revert", "--to", str(tree))
    assert contents(tree) == released


def test_help_has_examples(capsys):
    command()
    text = capsys.readouterr().out
    assert "openrlhf patch revert --to ~/OpenRLHF" in text and "require" in text
    assert all(name in text for name in NAMES)


def test_an_unpacked_wheel_is_found(tree, tmp_path):
    shutil.move(tree, tmp_path / "wheel" / "openrlhf-0.11.2.data" / "purelib")
    command("apply", "--to", str(tmp_path / "wheel"))
    assert recognise(tmp_path / "wheel").in_state("applied") == set(NAMES)


def refused(tree, *expected):
    """Every command refuses the tree with these problems and changes nothing; their sentences."""
    before = contents(tree)
    for word in ("status", "apply", "revert"):
        with refused_as(*expected) as caught:
            dispatch(["patch", word, "--to", str(tree)])
        assert contents(tree) == before
    return [*map(str, caught.value.problems)]


def test_a_folder_without_upstream_is_refused(tmp_path, capsys):
    (said,) = refused(tmp_path, ("patches.unknown_tree", tmp_path.name))
    assert "openrlhf/cli/train_ppo_ray.py" in said
    refused(tmp_path / "nowhere", ("patches.no_folder", "nowhere"))
    assert main(["patch", "apply"]) == 2
    assert "--to" in capsys.readouterr().err


def test_a_changed_file_is_refused_before_and_after_patching(tree):
    for _ in range(2):
        path = tree / FILES[4]
        good = path.read_bytes()
        for bad in (
            good + b"\n",
            good.replace(b"\n", b"\r\n"),
            good.replace(b"num_samples: int = 1", b"num_samples: int = 2"),
        ):
            path.write_bytes(bad)
            (said,) = refused(tree, ("patches.other_content", path.name))
            assert str(path) in said and ("CRLF" in said) == (b"\r" in bad)
        path.write_bytes(good)
        command("apply", "--to", str(tree))


def test_an_incomplete_or_linked_tree_is_refused(tree):
    path = tree / FILES[2]
    path.rename(tree / "elsewhere")
    refused(tree, ("patches.no_file", path.name))
    path.symlink_to(tree / "elsewhere")
    refused(tree, ("patches.no_file", path.name))


def test_a_folder_that_is_a_link_out_of_the_tree_is_refused(tree):
    folder = (tree / FILES[0]).parent
    elsewhere = folder.rename(tree.parent / "elsewhere")
    folder.symlink_to(elsewhere)
    before = contents(elsewhere)
    linked = [file for file in FILES if (tree / file).is_relative_to(folder)]
    refused(tree, *[("patches.no_file", Path(file).name) for file in linked])
    assert contents(elsewhere) == before


def test_a_pipe_in_the_place_of_a_file_is_refused(tree):
    (tree / FILES[0]).unlink()
    os.mkfifo(tree / FILES[0])
    refused(tree, ("patches.no_file", Path(FILES[0]).name))  # reading it would never end


def test_another_release_is_refused(tree):
    (tree / FILES[0]).write_text((tree / FILES[0]).read_text() + "# newer\n")
    (tree / "version.txt").write_text("0.11.3\n")
    (said,) = refused(tree, ("patches.other_release", "tree"))
    assert "0.11.3" in said and "0.11.2" in said
    (tree / "version.txt").unlink()
    (tree / "openrlhf-0.11.1.dist-info").mkdir()
    (said,) = refused(tree, ("patches.other_release", "tree"))
    assert "0.11.1" in said
    (tree / "openrlhf-0.11.1.dist-info").rename(tree.parent / "openrlhf-0.11.1.dist-info")
    pure = tree.parent / "openrlhf-0.11.1.data" / "purelib"
    shutil.move(tree, pure)
    (said,) = refused(pure.parents[1], ("patches.other_release", "purelib"))
    assert "0.11.1" in said


def test_a_linked_folder_names_its_target(tree, tmp_path, capsys):
    link = tmp_path / "link"
    link.symlink_to(tree)
    assert main(["patch", "status", "--to", str(link)]) == 0
    assert str(tree) in "".join(capsys.readouterr().out.split())


def test_an_unknown_patch_is_refused(tree):
    with refused_as(("patches.unknown",)) as caught:
        dispatch(["patch", "apply", "--to", str(tree), "0004-no-abort"])
    assert "'0004-no-abort-on-exception'?" in str(caught.value)


def test_a_git_checkout_is_refused_while_dirty_and_clean_again_after_a_revert(tree, capsys):
    def git(*words):
        who = ["-c", "user.name=t", "-c", "user.email=t@t"]
        return subprocess.run(
            ["git", *who, *words], cwd=tree, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "release")
    path = tree / FILES[3]
    path.write_text(path.read_text().replace("timeout=10.0", "timeout=20.0"))
    (said,) = refused(tree, ("patches.other_content", path.name))
    assert f"git -C {tree} diff -- {FILES[3]}" in said and "git apply" in said
    git("checkout", "-q", ".")
    command("apply", "--to", str(tree))
    assert git("diff", "--name-only").split() == sorted(FILES)
    git("commit", "-qam", "patched")
    assert set(states(capsys, tree).values()) == {"applied"}
    command("revert", "--to", str(tree))
    git("checkout", "-q", "HEAD~1", "--", ".")
    assert git("diff", "HEAD~1") == ""


def test_suggested_commands_quote_paths_with_spaces(tree, tmp_path):
    tree = tree.rename(tmp_path / "my tree")
    (tree / ".git").mkdir()
    (tree / FILES[0]).write_text("mine\n")
    (said,) = refused(tree, ("patches.other_content", Path(FILES[0]).name))
    assert f"git -C '{tree}' diff -- {FILES[0]}" in said


def test_two_commands_on_a_tree_wait_for_each_other(tree):
    words = [sys.executable, "-m", "marl_plugins", "patch", "apply", "--to", str(tree), "0001"]
    with lock_tree(tree):
        other = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(timeout=3)
        assert set(states_of(tree)) == {"absent"}
    assert other.wait(timeout=60) == 0
    assert sorted(states_of(tree)) == ["absent", "absent", "absent", "applied"]


def states_of(tree):
    return recognise(tree).states.values()


def test_an_unwritable_tree_is_unchanged(tree, monkeypatch):
    before = contents(tree)

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused_as(("patches.unwritable", Path(FILES[0]).name)) as caught:
        dispatch(["patch", "apply", "--to", str(tree)])
    assert os.strerror(28) in str(caught.value)
    assert contents(tree) == before


@pytest.mark.parametrize("kind", ["apply", "revert"])
def test_a_killed_command_can_be_completed_or_undone(kind, tree, tmp_path, capsys):
    released = contents(tree)
    command("apply", "--to", str(tree))
    patched = contents(tree)
    before, after = (released, patched) if kind == "apply" else (patched, released)
    interrupted = 0
    for written in range(len(FILES) + 1):
        broken = tmp_path / f"killed{written}"
        shutil.copytree(tree, broken)
        for number, file in enumerate(FILES):
            (broken / file).write_bytes((after if number < written else before)[file][0])
        states = states_of(broken)
        interrupted += "interrupted" in states
        command("status", "--to", str(broken))
        assert ("a command was killed" in capsys.readouterr().out) == ("interrupted" in states)
        for next_command, target in (("apply", patched), ("revert", released)):
            repaired = tmp_path / f"repaired{written}{next_command}"
            shutil.copytree(broken, repaired)
            command(next_command, "--to", str(repaired))
            assert contents(repaired) == target
    assert interrupted >= 2


def test_neither_a_repository_around_the_tree_nor_settings_of_git_matter(tree, monkeypatch):
    subprocess.run(["git", "init", "-q", str(tree.parent)], check=True)
    (tree.parent / "settings").write_text("[core]\nautocrlf = true\n[apply]\nwhitespace = fix\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tree.parent / "settings"))
    monkeypatch.setenv("GIT_DIR", str(tree.parent / ".git"))
    released = contents(tree)
    command("apply", "--to", str(tree))
    assert set(states_of(tree)) == {"applied"}
    command("revert", "--to", str(tree))
    assert contents(tree) == released


def test_without_git_nothing_is_done(tree, monkeypatch):
    monkeypatch.setenv("PATH", "")
    refused(tree, ("patches.no_git",))


# --- trees and patches of any kind


def diff_of(before, after, context):
    """What `git diff` would print for one file."""
    sides = [re.findall(rb"[^\n]*\n|[^\n]+", text) for text in (before, after)]
    lines = difflib.diff_bytes(difflib.unified_diff, *sides, b"a/file", b"b/file", n=context)
    ended = [
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
        for line in lines
    ]
    return b"What it is for\n\ndiff --git a/file b/file\n" + b"".join(ended)


@pytest.fixture
def hosts(tmp_path):
    """Two releases of a made-up host with CRLF files; the first release's second patch depends on
    its first."""
    first, second = b"one\r\ntwo\r\n", b"one\r\ntwo\r\nthree\r\n"
    steps = {
        "1.0": [first, b"one\r\nTWO\r\n", b"one\r\nTWO!\r\n"],
        "2.0": [second, b"one\r\ntwo\r\nTHREE\r\n"],
    }
    for version, texts in steps.items():
        folder = tmp_path / "patches" / "other" / version
        folder.mkdir(parents=True)
        for number, (before, after) in enumerate(itertools.pairwise(texts)):
            (folder / f"{number:04}-p.patch").write_bytes(diff_of(before, after, 1))
        (folder / "tree.yaml").write_text(
            f"host: other\nversion: '{version}'\nlicence: MIT\nsource: http://x\nrecognise: "
            "[file]\n"
            f"released:\n  file: {hashlib.sha256(texts[0]).hexdigest()}\n"
        )
    (tmp_path / "checkout").mkdir()
    return steps


def test_a_host_may_have_several_releases_and_patches_that_depend_on_each_other(hosts, tmp_path):
    series = load_series(tmp_path / "patches")
    file = tmp_path / "checkout" / "file"
    for version, texts in hosts.items():
        for number, text in enumerate(texts):
            file.write_bytes(text)
            tree = recognise(tmp_path / "checkout", series)
            assert (
                tree.series.title == f"other {version}" and len(tree.in_state("applied")) == number
            )
    file.write_bytes(hosts["1.0"][0])
    with refused_as(("patches.alone",)):
        recognise(tmp_path / "checkout", series).change(frozenset({"0001-p"}))
    assert recognise(tmp_path / "checkout", series).change(frozenset({"0000-p", "0001-p"})) == [
        "file"
    ]
    assert file.read_bytes() == hosts["1.0"][2]


@pytest.mark.parametrize("series", load_series(), ids=lambda series: series.title)
def test_a_series_names_exactly_the_files_that_it_touches(series):
    assert series.patches and all(patch.files for patch in series.patches)
    assert {file for patch in series.patches for file in patch.files} == series.tree.released.keys()
