"""Runs' folders as three roles with tools and a coach leave them, without training anything; for
tests of what shows them."""

import json
import math
import random

from simulated import DraftAction

from marl_plugins.core.trajectory import File, Generation, Task, ToolResult, Trajectory
from marl_plugins.engine.records.trajectory_record import to_record

HOSTILE = (
    "</script><script>document.title='ran'</script>",
    "<img src=x onerror=\"document.title='ran'\">",
    "{{constructor.constructor('document.title=1')()}}",
    "\x1b]0;ran\x07\x1b[31mred\x1b[0m",
    "\u202edlrow\u202c \u2066x\u2069",
    "a\x00b\u2028c\u2029d",
    "\ud83d half \udc00",
    "<!--<script>",
    "javascript:document.title='ran'",
    "x" * 100_000,
)


def action(rng, role, path, parents=(), before=None, text="", tools=(), tokens=6, **more):
    made = DraftAction(
        path=path,
        role=role,
        policy=role,
        turn=0 if before is None else before.turn + 1,
        shown_ids=tuple(rng.randrange(50) for _ in range(8)),
        generation=Generation(
            tuple(rng.randrange(50) for _ in range(tokens)),
            tuple(-rng.random() for _ in range(tokens)),
            "stop",
            role,
            1,
        ),
        text=text,
        shown=(("system", f"You are the {role}."), ("user", f"asked of {path}")),
        before=before,
        parents=tuple(parents),
        tool_results=tuple(tools),
    )
    made.trainer_logprobs = tuple(value - 0.01 * rng.random() for value in made.generation.logprobs)
    made.advantages = tuple(rng.uniform(-2, 2) for _ in range(tokens))
    made.advantage = math.fsum(made.advantages) / tokens
    made.reward = made.returns = made.score = round(rng.random(), 3)
    made.explanation = "right 2 of 4, ends 1 of 1"
    made.notes = {"coach": {"criteria": {"right": 0.5, "ends": 1.0}}}
    made.start, made.answered, made.end = 0.1, 0.4, 0.6
    for name, value in more.items():
        setattr(made, name, value)
    return made


def trajectory(rng, step, task, sample, text=None, actions=None):
    """A planner, a coder with a tool and two turns, a reviewer that saw both."""
    made = Trajectory(
        Task(task, f"prompt of {task}", "42", {"type": f"kind{int(task[1:]) % 2}"}), sample, step
    )
    call = ToolResult("python", "print(6*7)", "42", True, 0.12, start=0.5, files=("out.csv",))
    plan = action(rng, "planner", "planner.00000001", text=text or f"plan of {task} with boxes")
    first = action(
        rng,
        "coder",
        "coder.00000002",
        [plan.path],
        text="<python>print(6*7)</python>",
        tools=[call],
    )
    second = action(rng, "coder", "coder.00000003", [first.path], before=first, text="it is 42")
    last = action(
        rng,
        "reviewer",
        "reviewer.00000004",
        [plan.path, second.path],
        text=f"{rng.randrange(9)}, so 42",
    )
    made.actions = [plan, first, second, last] if actions is None else actions
    made.answer, made.outcome, made.seconds = "42", float(rng.random() < 0.3 + 0.1 * step), 1.5
    made.returned = made.actions[-1].path if made.actions else None
    made.outcome_parts = {"accuracy": made.outcome}
    made.files = (File("out.csv", 12, "0" * 64, first.path),)
    if rng.random() < 0.2:
        last.left_out, last.advantage, last.advantages = "no_score", None, ()
    if rng.random() < 0.1:
        made.agent_failure, made.outcome = "no_answer", 0.0
    return made


def metrics_of(step, rng):
    """A step's line of metrics."""
    roles = ("planner", "coder", "reviewer")
    line = {
        "step": step,
        "outcome/mean": min(1.0, 0.2 + 0.1 * step),
        "eval/outcome": 0.1 * step,
        "eval/low": 0.0,
    }
    line |= {
        "eval/high": min(1.0, 0.1 * step + 0.2),
        "eval/tasks": 8,
        "eval/lost": 0,
        "seconds/rollout": 3 + rng.random(),
    }
    for role in roles:
        line |= {f"role/{role}/reward": rng.random(), f"policy/{role}/drift": 0.001 * rng.random()}
    return line


def write_run(folder, steps=3, tasks=4, samples=2, seed=0, hostile=(), evaluated=True):
    """Write a run's folder, the first tasks of step 1 with hostile texts."""
    rng, folder = random.Random(seed), folder
    folder.mkdir(parents=True, exist_ok=True)
    texts = iter(hostile)
    made = [
        trajectory(rng, step, f"t{task}", sample, next(texts, None))
        for step in range(1, steps + 1)
        for task in range(tasks)
        for sample in range(samples)
    ]
    with (folder / "trajectories.jsonl").open(
        "w", encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.writelines(json.dumps(to_record(t), ensure_ascii=False) + "\n" for t in made)
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(metrics_of(s, rng)) + "\n" for s in range(1, steps + 1))
    )
    if evaluated:
        held_out = [trajectory(rng, steps, f"t{task}", 0) for task in range(100, 100 + 2 * tasks)]
        text = "".join(json.dumps(to_record(t)) + "\n" for t in held_out)
        (folder / "evaluations.jsonl").write_text(text)
        (folder / "evaluation-last.jsonl").write_text(text)
    return made


def write_tokenizers(folder):
    """Leave a tokenizer of fifty words for each policy, as a run does."""
    from tokenizers import Tokenizer, models

    from marl_plugins.engine.records.tokenizers import record_tokenizers

    class Fast:
        backend_tokenizer = Tokenizer(
            models.WordLevel({f"w{n}": n for n in range(50)}, unk_token="w0")
        )

    record_tokenizers(folder, dict.fromkeys(("planner", "coder", "reviewer"), Fast()))
