"""The mathchat recipe: its problems, its grader, its demonstrations."""

import asyncio
import random
from types import SimpleNamespace

import pytest
from simulated import make_trajectory

from marl_plugins.coach.rubric import RubricCoach, load_rubric
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.scoring import Seen, SeenLast
from marl_plugins.core.shipped import recipes_root
from marl_plugins.core.trajectory import Task, ToolResult
from marl_plugins.loading import load_file

FOLDER = recipes_root() / "mathchat"
problems = load_file(FOLDER / "problems.py", "test_mathchat_problems")
grader = load_file(FOLDER / "grader.py", "test_mathchat_grader")
demonstrations = load_file(FOLDER / "demonstrations.py", "test_mathchat_demonstrations")


def test_problems_are_right_and_never_in_both_splits():
    train, held_out = problems.load("train"), problems.load("eval")
    assert len(train) == 4000 and len(held_out) == 400
    assert not {t.prompt for t in train} & {t.prompt for t in held_out}
    assert not {t.id for t in train} & {t.id for t in held_out}
    assert not {t.metadata["expression"] for t in train} & {t.metadata["expression"] for t in held_out}
    for task in train[:500]:
        assert int(task.label) == eval(task.metadata["expression"]) >= 0
        for number in task.metadata["expression"].replace("-", "+").replace("*", "+").split("+"):
            assert number in task.prompt


def test_more_problems_begin_with_the_same_ones():
    assert problems.generate("train", 50) == problems.generate("train", 200)[:50]


@pytest.mark.parametrize(
    ("answer", "label", "right"),
    [
        ("42", "42", True),
        ("The answer is \\boxed{42}.", "42", True),
        ("\\boxed{\\frac{1}{2}}", "0.5", True),
        ("so it is 1,234", "1234", True),
        ("\\boxed{\\frac{3}{4}}", "\\frac{6}{8}", True),
        ("41 or 42", "42", True),
        ("42 or 41", "42", False),
        ("\\boxed{41}", "42", False),
        ("", "42", False),
        ("no idea", "42", False),
        ("42", 42.0, True),
        ("\\boxed{x^2+2x+1}", "(x+1)^2", True),
        ("the total is 18", "She sells 9 * 2 = 18.\n#### 18", True),
    ],
)
def test_the_grader(answer, label, right):
    trajectory = SimpleNamespace(answer=answer, task=Task("t", "p", label))
    assert grader.score_outcome(trajectory) == float(right)


def test_demonstrators_slip_as_often_as_they_say():
    rng = random.Random(0)
    slipped = {"solver": 0, "program": 0, "result": 0, "verifier": 0}
    tasks = problems.generate("train", 2000)
    for task in tasks:
        solver, coder, verifier = demonstrations.demonstrate(task, rng)
        plan, program, result, answer = solver.said[0], coder.said[0][16:-5], coder.said[1], verifier.said[0]
        assert coder.fields["solution"] == plan
        slipped["solver"] += plan != task.metadata["expression"]
        slipped["program"] += program != plan
        slipped["result"] += result != coder.shown[0]
        slipped["verifier"] += answer != verifier.fields["computed"]
        assert coder.shown[0] == str(eval(program))
    for who, count in slipped.items():
        assert count / len(tasks) == pytest.approx(demonstrations.SLIPS[who], abs=0.03)


def test_a_demonstration_is_what_a_rollout_would_show_and_sample(tmp_path):
    """Token for token: the opening, what was said with its end, what the tool answered in between."""
    transformers = pytest.importorskip("transformers")
    from marl_plugins.core.demonstrations import Demonstration, encode
    from marl_plugins.core.prompts import prompt_renderer
    from marl_plugins.core.workflow import RoleSpec, Sampling
    from marl_plugins.runtime.tiny_model import resolve

    tokenizer = transformers.AutoTokenizer.from_pretrained(resolve("tiny"))
    chat = ChatFormat(tokenizer, "p")
    role = RoleSpec("coder", "p", prompt_renderer("Do {x}", None), chat, Sampling(1.0, 1.0, 9, 99))
    ids, mask = encode(Demonstration("coder", {"x": "it"}, said=["first", "second"], shown=["out"]), role)
    text = tokenizer.apply_chat_template(
        [
            {"role": "user", "content": "Do it"},
            {"role": "assistant", "content": "first"},
            {"role": "user", "content": "out"},
            {"role": "assistant", "content": "second"},
        ],
        tokenize=False,
    )
    assert tokenizer.decode(ids) == text.rstrip("\n")
    said = tokenizer.decode([i for i, m in zip(ids, mask, strict=True) if m])
    assert said == "first<eos>second<eos>"


def judged(rubric, role, text, results=(), before=None, seen=None):
    action = make_trajectory({role: []}).actions[0]
    action.text, action.tool_results, action.before = text, tuple(results), before
    return asyncio.run(RubricCoach(rubric).judge(action, seen)).share, action


@pytest.mark.parametrize("name", ["rubric.py", "tiny_rubric.py"])
def test_the_rubrics_reward_a_good_system_more_than_a_bad_one(name):
    """Every role, every turn; the verifier with and without the label."""
    rubric = load_rubric(FOLDER / name, ["solver", "coder", "verifier"])
    tiny = name.startswith("tiny")
    plan = "3+4" if tiny else "3 + 4 = 7, so \\boxed{7}"
    program = "```python\nprint(3+4)\n```"
    ran, failed = ToolResult("python", "print(3+4)", "7", ok=True), ToolResult("python", "x", "NameError", ok=False)
    problem = "Ann has 3 pens and buys 4 more."
    nothing = Seen("t", problem, "solver", (), ())
    good, solver = judged(rubric, "solver", plan, seen=nothing)
    bad, _ = judged(rubric, "solver", "no idea", seen=nothing)
    assert good == 1.0 > bad
    seen = Seen("t", problem, "coder", (), (solver,))
    good, first = judged(rubric, "coder", program, [ran], seen=seen)
    bad, _ = judged(rubric, "coder", "```python\nprint(x)\n```", [failed], seen=seen)
    worse, _ = judged(rubric, "coder", "no program", seen=seen)
    assert good == 1.0 > max(bad, worse)
    good, second = judged(rubric, "coder", "7" if tiny else "The result is 7.", before=first, seen=seen)
    bad, _ = judged(rubric, "coder", "8", before=first, seen=seen)
    assert good == 1.0 > bad
    seen = Seen("t", problem, "verifier", (), (solver, first, second))
    last = SeenLast(**vars(seen), label="7", answer="7")
    text = "7" if tiny else "Both agree: \\boxed{7}"
    for view in (seen, last):
        assert judged(rubric, "verifier", text, seen=view)[0] == 1.0
        assert judged(rubric, "verifier", text.replace("7", "8"), seen=view)[0] < 0.5
