"""`openrlhf fork` over simulated engines, its numbers against exact ones, and its bad input."""

import asyncio
import base64
import gzip
import json
import math
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from recipe_runs import planned
from scipy.stats import binom, false_discovery_control, pearsonr, spearmanr
from simulated import make_trajectory
from simulated_session import SimulatedSession, run_planned

from marl_plugins.cli import main
from marl_plugins.commands.fork.effects import Arm, Effect
from marl_plugins.commands.fork.originals import check_tools, with_weights
from marl_plugins.commands.fork.scan import account, adjusted, bootstrap, pearson, spearman
from marl_plugins.commands.fork.shown import add_to_report, lines_of, scan_lines
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.tools import Tool
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.records.intervals import (
    correlation_of_pairs,
    difference,
    p_value,
    wilson,
)
from marl_plugins.engine.records.read import Filter, RunReader
from marl_plugins.engine.records.run_folder import record_start
from marl_plugins.engine.runtime.lifetime import plugins_started

# --- numbers


@pytest.mark.parametrize(("n", "least"), [(8, 0.93), (32, 0.93)])
def test_the_interval_covers_the_difference_of_two_rates(n, least):
    """By the sum over all pairs of counts, for every pair of rates: mean coverage from 93 to 99 %."""
    outcomes = range(n + 1)
    of = {k: wilson(k / n, n) for k in outcomes}
    bounds = {
        (a, b): difference(a / n, of[a], b / n, of[b]) for a, b in product(outcomes, repeat=2)
    }
    low, high = (
        np.array([bounds[p][side] for p in product(outcomes, repeat=2)]) for side in (0, 1)
    )
    covered = []
    for p, q in product((0.03, 0.2, 0.5, 0.8, 0.97), repeat=2):
        mass = np.outer(binom.pmf(outcomes, n, p), binom.pmf(outcomes, n, q)).ravel()
        covered.append(mass[(low <= p - q + 1e-12) & (p - q - 1e-12 <= high)].sum())
    assert least < np.mean(covered) < 0.995 and min(covered) > 0.9


def test_newcombes_interval_is_that_of_his_table():
    """Newcombe 1998, table II, row (a), method 10: 56/70 against 48/80; and his pairs 36-12-2-0."""
    low, high = difference(56 / 70, wilson(56 / 70, 70), 48 / 80, wilson(48 / 80, 80))
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)


@pytest.mark.parametrize("together", [0.0, 0.6])
def test_the_interval_of_pairs_covers_and_is_narrower_where_they_go_together(together):
    draw, covered, width = np.random.default_rng(0), [], []
    for _ in range(1500):
        p, q = draw.uniform(0.1, 0.9, 2)
        u = draw.random((16, 2))
        u[:, 1] = np.where(draw.random(16) < together, u[:, 0], u[:, 1])
        x, y = (u[:, 0] < p).astype(float), (u[:, 1] < q).astype(float)
        of = [(float(v.mean()), wilson(float(v.mean()), 16)) for v in (x, y)]
        r = correlation_of_pairs(list(zip(x.tolist(), y.tolist(), strict=True)))
        low, high = difference(*of[0], *of[1], r)
        covered.append(low <= p - q <= high)
        width.append((high - low) / np.subtract(*difference(*of[0], *of[1])[::-1]))
    assert 0.93 < np.mean(covered) <= 1.0
    assert np.mean(width) < 0.95 if together else np.mean(width) > 0.97


def test_p_belongs_to_the_interval():
    """Below 5 % where the 95 % interval leaves 0 out, and above where not."""
    for a, b in product(range(0, 17, 2), repeat=2):
        of = [(k / 16, k) for k in (a, b)]

        def at(z, of=of):
            bounds = [(rate, wilson(rate, 16, z)) for rate, _ in of]
            return difference(*bounds[0], *bounds[1])

        low, high = at(1.959964)
        assert (p_value(at) < 0.05) == (low > 0 or high < 0)


def arm(outcomes, name="as recorded", fixed=False):
    forks = [
        SimpleNamespace(
            outcome_of=lambda role, o=o: o,
            infrastructure_failure=None if o is not None else "unlike",
            detail="",
            actions=[],
            forked=None,
        )
        for o in outcomes
    ]
    return Arm(name, forks, "a", fixed)


def made(first, second, score=None, outcome=1.0, **more):
    original = make_trajectory({"a.1": ()}, roles={"a.1": "a"})
    original.outcome = outcome
    (action,) = original.actions
    action.score = score
    return Effect(original, action, (arm(first, **more), arm(second, "sampled anew")))


def test_what_is_unlike_is_in_no_mean_and_much_of_it_gives_no_number():
    effect = made([1.0] * 19 + [None], [0.0] * 20)
    assert effect.value == 1.0 and not effect.refused and effect.arms[0].left_out == {"unlike": 1}
    assert "2 unlike" in made([1.0] * 8 + [None] * 2, [0.0] * 10).refused
    assert made([None], [0.0], fixed=True).refused


def test_the_smallest_effect_is_one_that_shows():
    for n, expected in ((8, 0.5), (32, 0.25), (128, 0.13)):
        effect = made([1.0] * n, [0.0] * n)
        assert effect.smallest == pytest.approx(expected, abs=0.02)
    # an arm that cannot vary adds no width
    assert made([1.0], [1.0] * 32, fixed=True).smallest < 0.1


def test_a_scan_finds_the_correlation_that_is_there(monkeypatch):
    monkeypatch.setattr("marl_plugins.commands.fork.scan.RESAMPLES", 300)
    draw = np.random.default_rng(1)
    truth = draw.uniform(-0.8, 0.8, 120)
    effects = []
    for t in truth:
        first = [float(draw.random() < 0.5 + t / 2) for _ in range(16)]
        second = [float(draw.random() < 0.5 - t / 2) for _ in range(16)]
        effects.append(made(first, second, score=float(np.clip(0.5 + t / 2, 0, 1))))
    scores, values = (
        np.array([e.action.score for e in effects]),
        np.array([e.value for e in effects]),
    )
    told = account(effects)["all"]
    assert told["pearson"][0] == pytest.approx(pearsonr(scores, values).statistic)
    assert told["spearman"][0] == pytest.approx(spearmanr(scores, values).statistic)
    low, high = told["pearson"][1:]
    assert low < told["pearson"][0] < high and high - low < 0.3
    # scores are the true effects: what noise takes is given back
    assert told["pearson"][0] < 0.97 < told["corrected"] < 1.05
    assert told["outcome"][0] is None and told["effect"] == pytest.approx(values.mean())


def test_ranks_and_adjusted_p_values_are_scipys():
    draw = np.random.default_rng(3)
    for n in (0, 1, 5, 40):
        p = draw.random(n).round(1)  # some are equal
        assert adjusted(p.tolist()) == pytest.approx(list(false_discovery_control(p)))
        q = draw.random(n).round(1)
        if n > 1:
            assert spearman(p, q) == pytest.approx(spearmanr(p, q).statistic)


def test_a_fork_needs_no_scipy():
    """What README installs on GPUs has none."""
    code = "import sys; sys.modules['scipy'] = None; import marl_plugins.commands.fork.command"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_action_whose_role_has_no_outcome():
    """Its forks have: the move of the opponent that ended it was not legal."""
    effect = made([1.0] * 8, [0.0, 1.0] * 4, score=0.5, outcome=None)
    assert "outcome then -, score +0.50" in next(lines_of(effect.values))
    known = [made([1.0] * 8, [0.0, 1.0] * 4, score=s, outcome=s) for s in (0.0, 0.2, 0.4, 1.0)]
    told = account([*known, *[effect] * 4])["all"]
    assert told["actions"] == 4


def test_the_bootstrap_is_over_trajectories():
    """Four copies of each pair say no more than one."""
    draw = np.random.default_rng(2)
    x = draw.normal(size=40)
    y = x + draw.normal(size=40)
    once = bootstrap(pearson, x, y, range(40))
    four = bootstrap(pearson, x.repeat(4), y.repeat(4), np.arange(40).repeat(4).tolist())
    wrong = bootstrap(pearson, x.repeat(4), y.repeat(4), range(160))
    assert np.subtract(*four) == pytest.approx(np.subtract(*once), rel=0.2)
    assert np.subtract(*wrong) > 0.7 * np.subtract(*once)
    assert math.isnan(bootstrap(pearson, x, np.ones(40), range(40))[0])


# --- the command


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps with an evaluation, as it leaves its folder."""
    folder = tmp_path_factory.mktemp("fork") / "run"
    words = ["--max_steps=2", "--eval.steps=2", "--rollout.batch_size=4", "--train.batch_size=4"]
    words += ["--rollout.n_samples_per_prompt=2"]
    words += [f"--ckpt.output_dir={folder}", f"--ckpt.path={folder / 'checkpoints'}"]
    recipe = folder.parent / "mathchat"
    shutil.copytree(recipes_root() / "mathchat", recipe)
    problems = (recipe / "problems.py").read_text()
    few = problems.replace("4000 if", "40 if").replace("else 400)", "else 8)")
    (recipe / "problems.py").write_text(few)
    plan = planned("tiny.yaml", *words, folder=recipe)
    record_start(plan, ["--recipe", str(recipe / "tiny.yaml"), *words], 0)
    run_planned(plan)
    for name, args in SimulatedSession(plan).args.items():
        (folder / name).symlink_to(args.actor.model_name_or_path)
    return folder


class Plans(dict):
    """Plans by their words, with their plugins started: that takes most of the command's time."""

    def __init__(self, loop, stack):
        self.loop, self.stack = loop, stack

    def __missing__(self, words):
        self[words] = plan = build_plan(words)
        self.stack.enter_context(plugins_started(self.loop, plan, "evaluate"))
        return plan


@pytest.fixture(scope="module")
def plans():
    with asyncio.Runner() as loop, ExitStack() as stack:
        yield Plans(loop, stack)


@pytest.fixture
def fork(run, plans, monkeypatch, capsys):
    """Calls the command on the run, its engines simulated; its exit code, and what it printed."""

    def with_simulated(plan, display, work, begun, needs_tasks=False):
        session = SimulatedSession(plan, begun)
        session.start()
        return plans.loop.run(work(session))

    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cpu")
    monkeypatch.setattr("marl_plugins.commands.fork.command.with_engines", with_simulated)
    monkeypatch.setattr("marl_plugins.commands.fork.scan.RESAMPLES", 200)
    monkeypatch.setattr(
        "marl_plugins.commands.fork.command.build_plan", lambda words: plans[tuple(words)]
    )

    def files(*words):
        mine = {"report.md"} if "--report" in words else set()
        return {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.name not in mine}

    def call(*words):
        before = files(*words)
        code = main(["fork", str(run), *words])
        for plan in plans.values():  # those of the next call have no recorded tools
            if plan.plugins.manager.has_plugin("openrlhf fork"):
                plan.plugins.manager.unregister(name="openrlhf fork")
        assert files(*words) == before
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def one(run, split="train"):
    t = next(iter(RunReader(run).trajectories(Filter((2, 2), split=split))))
    return t, ("--step", "2", "--task", t.task.id, "--sample", str(t.sample))


def test_an_action_is_forked_and_the_forks_stand_beside_their_original(run, fork, tmp_path):
    t, named = one(run)
    file = tmp_path / "forks.jsonl"
    words = (*named, "--action", t.actions[0].path, "-n", "3", "--to", str(file))
    code, out, _ = fork(*words, "--json")
    said = json.loads(out)
    (effect,) = said["effects"]
    assert code == 0 and said["unlike"] == {}
    assert effect["action"] == t.actions[0].path and effect["effect"] == 0.0
    assert set(effect["arms"]) == {"as recorded", "sampled anew"}
    assert effect["interval"][0] < 0 < effect["interval"][1]
    assert json.loads(fork(*words, "--json")[1]) == said  # whenever it is asked again
    read = list(RunReader(file).trajectories())
    assert [r.forked and r.forked[1] for r in read] == [None, *range(6)]
    page = tmp_path / "f.html"
    for source, command in ((file, ""), (run, f"openrlhf fork {run}")):
        assert main(["inspect", str(source), "--html", str(page)]) == 0
        (packed,) = re.findall(r'id="index">(.+?)</script>', page.read_text())
        assert json.loads(gzip.decompress(base64.b64decode(packed)))["fork"] == command


def test_own_words_are_the_recorded_arm(run, fork, tmp_path):
    t, named = one(run)
    file = tmp_path / "forks.jsonl"
    words = (*named, "--action", f"{t.actions[0].role}.1", "--say", t.actions[0].text)
    code, out, _ = fork(*words, "-n", "3", "--to", str(file))
    assert code == 0 and "what this action caused: +0.00" in out
    _, *forks = RunReader(file).trajectories()
    ids = [[(a.path, a.generation.ids) for a in f.actions] for f in forks]
    assert ids[:3] == ids[3:] and len(ids) == 6


def test_all_actions_and_an_evaluation(run, fork):
    t, named = one(run)
    code, out, _ = fork(*named, "--all", "-n", "2", "--json")
    said = json.loads(out)
    assert code == 0 and [e["action"] for e in said["effects"]] == [a.path for a in t.actions]
    assert all(0 <= e["p"] <= e["p_adjusted"] <= 1 for e in said["effects"])
    lines = [line for effect in said["effects"] for line in lines_of(effect)]
    assert sum("what this action caused" in line for line in lines) == len(t.actions)
    t, named = one(run, "eval")
    code, out, _ = fork(
        *named, "--evaluations", "--action", t.actions[-1].path, "-n", "2", "--json"
    )
    assert code == 0 and json.loads(out)["effects"][0]["arms"]["as recorded"]["fixed"]


def test_a_scan_and_its_place_in_the_report(run, fork):
    report = run / "report.md"
    report.write_text("# The run\n\nIts end.\n")
    try:
        code, out, _ = fork("--scan", "8", "-n", "2", "--json", "--report")
        account = json.loads(out)["scan"]
        assert code == 0 and account["all"]["actions"] == 8
        first = report.read_text()
        for line in scan_lines(account):
            assert f"    {line}\n" in first
        assert (
            first.startswith("# The run\n\nIts end.\n\n## ")
            and "8 actions, drawn at random from step 2:" in first
        )
        add_to_report(report, "Another one.", account)
        assert report.read_text().count("## ") == 1 and "8 actions" not in report.read_text()
    finally:
        report.unlink()


def test_recorded_answers_of_tools_make_no_calls(run, fork):
    """What the record has no answer to is unlike, and gives no number."""
    _, named = one(run)
    words = (*named, "--tools", "recorded", "-n", "2", "--json", "--action")
    code, out, _ = fork(*words, "verifier.1")
    assert code == 0 and not json.loads(out)["effects"][0]["refused"]
    program = "```python\nprint(7)\n```"
    code, out, _ = fork(*words, "coder.1", "--say", program)
    assert (
        code == 1 and "no recorded answer to 'print(7)" in json.loads(out)["effects"][0]["refused"]
    )
    code, out, _ = fork(*named, "-n", "2", "--json", "--action", "coder.1", "--say", program)
    assert code == 0 and not json.loads(out)["effects"][0]["refused"]


def test_a_tool_with_effects_outside_is_not_called_again():
    tools = {"mail": Tool("mail", run=None, outside=True), "sum": Tool("sum", run=None)}
    roles = {"a": SimpleNamespace(tools=["sum", "mail"])}
    check_tools(
        SimpleNamespace(recipe=SimpleNamespace(roles=roles)), {**tools, "mail": tools["sum"]}
    )
    with pytest.raises(ConfigurationError, match="mail"):
        check_tools(SimpleNamespace(recipe=SimpleNamespace(roles=roles)), tools)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--action", "coder.99"], "no action 'coder.99'"),
        (["--action", "solver.1", "--sample", "99"], "with sample 99"),
        (["--action", "solver.1", "--step", "77"], "step 77 has no task"),
        (["--action", "solver.1", "--say", "1 " * 100], "tokens, of at most"),
        (["--action", "solver.1", "--say", "a\ufffd"], "U+FFFD"),
        (["--action", "solver.1", "--models", "7"], "no copies of step 7"),
        (["--action", "solver.1", "--models", "/nowhere"], "no weights"),
        (["--scan", "100000"], "actions with a score"),
        (["--scan", "4", "--report"], "a run that has finished"),
        ([], "--action --all --scan"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_bad_input_is_refused_with_its_reason(run, fork, words, why):
    _, named = one(run)
    code, _, err = fork(*named, *words)
    assert code == 2 and why in err


@pytest.mark.usefixtures("fork")
def test_a_run_whose_record_or_recipe_has_changed_is_refused(run, plans, tmp_path):
    _, named = one(run)
    moved = tmp_path / "moved"
    shutil.copytree(run, moved, symlinks=True)
    lines = (moved / "trajectories.jsonl").read_text()
    words = [str(moved), *named, "--action", "solver.1", "-n", "2", "--json"]

    def call():
        return main(["fork", *words])

    (moved / "trajectories.jsonl").write_text(lines[:-500])
    assert call() == 0  # moved, and in progress or cut
    record = next(json.loads(x) for x in lines.splitlines() if json.loads(x)["step"] == 2)
    edits = {
        "prompt": lambda r: r.update(prompt="another"),
        "an id": lambda r: r["actions"][0]["ids"].__setitem__(0, r["actions"][0]["ids"][0] + 1),
        "received": lambda r: r.update(origin="peer"),
        "lost": lambda r: r.update(infrastructure_failure="engine"),
        "midway": lambda r: r["actions"][0].update(newer=[[1, 2]]),
    }
    for name, edit in edits.items():
        other = json.loads(json.dumps(record))
        edit(other)
        (moved / "trajectories.jsonl").write_text(json.dumps(other) + "\n")
        assert call() == 2, name
    (moved / "trajectories.jsonl").write_text(lines)
    for prompt in moved.rglob("solver.md"):
        prompt.write_text("Otherwise: {problem}")
    plans.clear()
    assert call() == 2


def test_a_run_whose_agents_are_not_trained_has_no_weights():
    """A coach may be all that it trains."""
    of = planned("mathchat/tiny.yaml").run
    frozen = replace(of, policies=tuple(replace(p, trainable=False) for p in of.policies))
    for models, whose in ((None, "the recipe's own models"), ("0", "the recipe's own models")):
        run, said = with_weights(frozen, SimpleNamespace(run="/nowhere", models=models), [])
        assert said == whose
        assert [p.model for p in run.policies] == [p.model for p in of.policies]


def test_weights_are_those_that_sampled_it_where_they_are_kept(run, fork):
    _, named = one(run)
    _, out, _ = fork(*named, "--action", "solver.1", "-n", "2", "--json")
    assert "those of now" in json.loads(out)["weights"]
    first = next(iter(RunReader(run).trajectories()))
    words = ("--step", "1", "--task", first.task.id, "--action", "solver.1", "-n", "2", "--json")
    assert json.loads(fork(*words)[1])["weights"] == "the recipe's own models"
    for policy in ("solver", "coder", "verifier"):
        (run / "checkpoints" / policy).mkdir(parents=True, exist_ok=True)
        (run / "checkpoints" / policy / "global_step1_hf").symlink_to(run / policy)
    try:
        _, out, _ = fork(*named, "--action", "solver.1", "-n", "2", "--json")
        assert json.loads(out)["weights"] == "the copies of step 1"
    finally:
        for policy in ("solver", "coder", "verifier"):
            (run / "checkpoints" / policy / "global_step1_hf").unlink()
