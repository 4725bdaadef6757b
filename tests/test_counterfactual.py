"""Credit by forks through whole runs, over simulated engines; that it is unbiased is shown in
test_arena.py."""

from collections import Counter, defaultdict
from statistics import fmean

import pytest
from refusals import found_by, refused
from simulated_session import killed_after, recorded, run_planned

from marl_plugins.engine.plan.build import build_plan

WORDS = """--recipe mathchat/tiny_outcome.yaml --plugin marl_plugins.counterfactual
    --rollout.batch_size 3 --rollout.n_samples_per_prompt 2 --rollout.micro_batch_size 4
    --train.batch_size 6 --train.micro_batch_size 4 --max_steps 2 --eval.steps -1
    --ckpt.save_steps 1 --counterfactual.siblings 3"""
GRADER = """
import zlib
from marl_plugins import hookimpl

@hookimpl
async def marl_score_outcome(trajectory):
    return zlib.crc32(repr([a.generation.ids for a in trajectory.actions]).encode()) % 4 / 3
"""
"""Answers of simulated engines are never right: outcomes are a function of all that was said."""


def plan(folder, *more):
    (folder / "grader.py").write_text(GRADER)
    where = ["--ckpt.output_dir", str(folder / "run"), "--ckpt.path", str(folder / "checkpoints")]
    return build_plan([*WORDS.split(), "--plugin", str(folder / "grader.py"), *where, *more])


@pytest.mark.parametrize("more", [(), ("--train.async_enable",)], ids=["", "async"])
def test_a_resumed_run_is_the_undisturbed_one_and_its_ledger_closes(tmp_path, more):
    of = plan(tmp_path, *more)
    run_planned(of)
    first = recorded(of, "trajectories.jsonl")
    killed_after(of, 1)
    run_planned(of, resume=True)
    assert kept(first) == kept(recorded(of, "trajectories.jsonl"))
    for step, ledger in enumerate(recorded(of, "ledger.jsonl"), 1):
        mine = [t for t in first if t["step"] == step]
        replayed = Counter(a["role"] for t in mine for a in t["actions"] if a.get("replayed"))
        for role, counts in ledger["roles"].items():
            left = {"replayed": replayed[role]} if replayed[role] else {}
            assert counts["left_out"] == left
            assert counts["generated"] == counts["trained"] + replayed[role]


def kept(trajectories):
    return [
        (t["task"], t["sample"], t.get("forked"), a["action"], a["ids"], a["advantage"])
        for t in trajectories
        for a in t["actions"]
    ]


def test_an_advantage_is_made_of_the_comparisons_that_reach_the_action(tmp_path):
    """Computed anew from the records, by their outcomes alone."""
    roles = "coder", "verifier"
    of = plan(tmp_path, "--max_steps", "1", "--counterfactual.roles", *roles)
    run_planned(of)
    trajectories, outcomes = recorded(of, "trajectories.jsonl"), defaultdict(dict)
    for n, t in enumerate(trajectories):
        for group in groups_of(t, roles):
            outcomes[group][n] = t["outcome"]
    trained, different = 0, 0
    for n, t in enumerate(trajectories):
        role, parents = ({a["action"]: a[key] for a in t["actions"]} for key in ("role", "parents"))
        for action in (a for a in t["actions"] if not a.get("replayed")):
            pending, above = [action["action"]], set()
            while pending:
                above.add(path := pending.pop())
                pending += parents[path]
            comparisons = 0.0
            for group in groups_of(t, roles):
                others = [outcome for m, outcome in outcomes[group].items() if m != n]
                if not group[-1] or "forked" in t or group[-1] in above:
                    comparisons += t["outcome"] - fmean(others)
            forked = sum(role[path] in roles for path in above)
            assert action["advantage"] == pytest.approx(comparisons / (1 + 3 * forked), abs=1e-6)
            trained, different = trained + 1, different + (abs(comparisons) > 1e-6)
    assert trained > 40 and different > 20


def test_the_tasks_are_those_that_plugins_have_chosen(tmp_path):
    (tmp_path / "chooser.py").write_text(
        "from marl_plugins import hookimpl\n\n"
        "@hookimpl\n"
        "def marl_batch(tasks, all_tasks):\n"
        "    return all_tasks[-len(tasks):]\n"
    )
    of = plan(tmp_path, "--plugin", str(tmp_path / "chooser.py"), "--max_steps", "1")
    run_planned(of)
    chosen = [task.id for task in of.tasks("train")][-3:]
    played = dict.fromkeys(t["task"] for t in recorded(of, "trajectories.jsonl"))
    assert [*played] == chosen


def groups_of(t, roles):
    """A record's groups: its task's, and those of its own actions or of the one it is a fork of."""
    if "forked" in t:
        return [(t["task"], t["sample"], t["forked"][0])]
    own = [(t["task"], t["sample"], a["action"]) for a in t["actions"] if a["role"] in roles]
    return [(t["task"], -1, ""), *own]


def test_what_cannot_be_meant_is_refused(tmp_path):
    with refused(("counterfactual.roles", "counterfactual.roles")):
        plan(tmp_path, "--counterfactual.roles", "codr")
    (problem,) = found_by(plan, tmp_path, "--counterfactual.siblings", "1")
    assert problem[0] == "flags.value"
    assert not plan(tmp_path).run.warnings
    assert not plan(tmp_path, "--plugin", "marl_plugins.cooperation").run.warnings  # it follows
    filtered = ("--algo.dynamic_filtering_enable", "--algo.dynamic_filtering_range", "0", "1")
    with refused(("counterfactual.filtering",)):
        plan(tmp_path, *filtered)
    with refused(("counterfactual.received",)):
        plan(tmp_path, "--plugin", "marl_plugins.replay")
