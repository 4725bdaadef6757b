"""The mathchat recipe: its problems, its grader, its demonstrations."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from graded_answers import BOXED, HOSTILE, TEXTS
from simulated import make_trajectory

from marl_plugins.coach.rubric import RubricCoach, load_rubric
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.scoring import Seen, SeenLast
from marl_plugins.core.trajectory import Task, ToolResult
from marl_plugins.grading import right
from marl_plugins.grading.math_process import CPU_SECONDS
from marl_plugins.grading.math_verify import helper

FOLDER = recipes_root() / "mathchat"
problems = load_file(FOLDER / "problems.py")
grader = load_file(FOLDER / "grader.py")
demonstrations = load_file(FOLDER / "demonstrations.py")


def test_problems_are_right_and_never_in_both_splits():
    train, held_out = problems.load("train"), problems.load("eval")
    assert len(train) == 4000 and len(held_out) == 400
    assert not {t.prompt for t in train} & {t.prompt for t in held_out}
    assert not {t.id for t in train} & {t.id for t in held_out}
    assert not {t.metadata["expression"] for t in train} & {
        t.metadata["expression"] for t in held_out
    }
    for task in train[:500]:
        assert int(task.label) == eval(task.metadata["expression"]) >= 0
        for number in task.metadata["expression"].replace("-", "+").replace("*", "+").split("+"):
            assert number in task.prompt


def outcome(answer, label):
    return asyncio.run(
        grader.score_outcome(SimpleNamespace(answer=answer, task=Task("t", "p", label)))
    )


def test_the_grader_judges_as_a_person_does():
    async def graded(cases):
        return [
            (text, label, judged)
            for text, label, judged in cases
            if await right(text, label) is not judged
        ]

    boxes = [(f"So it is \\boxed{{{text}}}", *rest) for text, *rest in cases_of(BOXED)]
    assert asyncio.run(graded([*boxes, *cases_of(TEXTS)])) == []


def cases_of(table):
    return [
        (text, label, judged)
        for label, kinds in table.items()
        for judged, texts in zip((True, False), kinds, strict=True)
        for text in texts
    ]


@pytest.mark.parametrize("label", [["1/2", "0.7"], [0.7, 0.5]])
def test_a_list_of_labels_accepts_each(label):
    assert outcome("\\boxed{0.5}", label) == 1.0 and outcome("\\boxed{0.6}", label) == 0.0


def ended(processes):
    """Whether they come to their end; one that nobody has waited for yet has come to it."""
    for _ in range(6000):
        if all(process.status() == psutil.STATUS_ZOMBIE for process in processes()):
            return True
        time.sleep(0.01)
    return False


def children():
    return psutil.Process().children(recursive=True)


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_answer_ends_the_grader_or_holds_up_others(kind):
    """The event loop goes on, innocent answers beside it are graded, and nothing is left
    running."""

    async def beside():
        longest, begun = 0.0, time.thread_time()
        hostile = asyncio.create_task(right(HOSTILE[kind], "2\\sqrt{2}"))
        innocent = asyncio.create_task(right("\\boxed{\\sqrt{8}}", "2\\sqrt{2}"))
        while not (hostile.done() and innocent.done()):
            await asyncio.sleep(0.01)
            longest, begun = max(longest, time.thread_time() - begun), time.thread_time()
        return hostile.result(), innocent.result(), longest

    wrong, fine, longest = asyncio.run(beside())
    assert (wrong, fine) == (False, True)
    assert (
        longest < CPU_SECONDS
    )  # not a measurement: a computation on the event loop takes more, and may never end
    process = helper()
    assert ended(lambda: psutil.Process(process.pid).children())


def test_what_runs_math_verify_ends_with_the_process_that_asked():
    code = (
        "import asyncio, os, signal; from marl_plugins.grading.math_verify import helper, "
        "verified\n"
        "assert asyncio.run(verified('\\\\sqrt{4}', '2'))\n"
        "print(helper().pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert ended(lambda: [p for p in psutil.process_iter() if p.pid == int(killed.stdout)])


def test_a_grader_whose_process_ended_is_infrastructure_and_starts_again():
    answer, label = "\\boxed{\\sqrt{8}}", "2\\sqrt{2}"
    assert outcome(answer, label) == 1.0
    process = helper()
    process.kill()
    process.wait()
    with pytest.raises(InfrastructureFailure, match="ended with -9"):
        outcome(answer, label)
    assert outcome(answer, label) == 1.0


def test_demonstrators_slip_as_often_as_they_say():
    rng = random.Random(0)
    slipped = {"solver": 0, "program": 0, "result": 0, "verifier": 0}
    tasks = problems.generate("train", 2000)
    for task in tasks:
        solver, coder, verifier = demonstrations.demonstrate(task, rng)
        plan, program, result, answer = (
            solver.said[0],
            coder.said[0][16:-5],
            coder.said[1],
            verifier.said[0],
        )
        assert coder.fields["solution"] == plan
        slipped["solver"] += plan != task.metadata["expression"]
        slipped["program"] += program != plan
        slipped["result"] += result != coder.shown[0]
        slipped["verifier"] += answer != verifier.fields["computed"]
        assert coder.shown[0] == str(eval(program))
    for who, count in slipped.items():
        assert count / len(tasks) == pytest.approx(demonstrations.SLIPS[who], abs=0.03)


def test_a_demonstration_is_what_a_rollout_would_show_and_sample():
    """Token for token: the opening, what was said with its end, what the tool answered in
    between."""
    transformers = pytest.importorskip("transformers")
    from marl_plugins.core.demonstrations import Demonstration, encode
    from marl_plugins.core.recipe.prompts import prompt_renderer
    from marl_plugins.core.workflow import RoleSpec, Sampling
    from marl_plugins.engine.runtime.tiny_model import resolve

    tokenizer = transformers.AutoTokenizer.from_pretrained(resolve("tiny"))
    chat = ChatFormat(tokenizer, "p")
    role = RoleSpec("coder", "p", prompt_renderer("Do {x}", None), chat, Sampling(1.0, 1.0, 9, 99))
    ids, mask = encode(
        Demonstration("coder", {"x": "it"}, said=["first", "second"], shown=["out"]), role
    )
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
    ran, failed = (
        ToolResult("python", "print(3+4)", "7", ok=True),
        ToolResult("python", "x", "NameError", ok=False),
    )
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
    good, second = judged(
        rubric, "coder", "7" if tiny else "The result is 7.", before=first, seen=seen
    )
    bad, _ = judged(rubric, "coder", "8", before=first, seen=seen)
    assert good == 1.0 > bad
    seen = Seen("t", problem, "verifier", (), (solver, first, second))
    last = SeenLast(**vars(seen), label="7", answer="7")
    text = "7" if tiny else "Both agree: \\boxed{7}"
    for view in (seen, last):
        assert judged(rubric, "verifier", text, seen=view)[0] == 1.0
        assert judged(rubric, "verifier", text.replace("7", "8"), seen=view)[0] < 0.5
