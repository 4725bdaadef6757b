"""Who is blamed for a failure: `python -m benchmarks.blame [--tasks 40] [--seeds 3]` (two minutes,
no model)

A pipeline of four scripted agents adds up an order: the planner lists the items, the collector
writes them to a file, the analyst computes the total from the file, the reporter reports it. Each
works with what it is given; their programs really run, in a folder of the trajectory, and really
fail. In every trajectory one agent is made to commit one fault, and whoever comes after it works on
as well as it can. The blamed agent is the one with the lowest mean reward; a tie counts as the
guilty one's share of it.

    outcome   the outcome's 0 for everyone: what training on outcomes has
    plain     an offline coach that sees symptoms alone: no answer, cut off, a program that failed
    strict    an offline coach with the rules' own eyes for faults, and a program that failed
    + back    the same scores and the rules' backward pass (marl_plugins.reward_backprop), alpha =
              beta = 1

Neither coach is told how it ended, nor what others made of an action. The strict one shares the
attributor's list of faults, so between it and "+ back" only the routing of blame can differ; the
plain one shows what the backward pass adds to a weaker coach.

The rules read what a coach's model is shown and nothing else. They were written for the first kinds
of fault and frozen; the kinds under NEW were added afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.plain_chat import PlainChat
from marl_plugins.builtin.tools.python import find_programs
from marl_plugins.core.scoring import Seen
from marl_plugins.core.tools import Tool, ToolCall
from marl_plugins.core.trajectory import Generation, Task, ToolResult, Trajectory
from marl_plugins.core.workflow import Call, RoleSpec, Sampling, run_workflow
from marl_plugins.engine.records.intervals import wilson
from marl_plugins.reward_backprop.backward import backward, conserve
from marl_plugins.reward_backprop.rules import Rules

METHODS = ("outcome", "plain", "plain + back", "strict", "strict + back")
ROLES = ("planner", "collector", "analyst", "reporter")
DUTIES = {
    "planner": "List the items of the order, one per line, as name,count,price. Order: {order}",
    "collector": "Save the items to items.csv with a program in a ```python block. Items:\n{plan}",
    "analyst": "Read items.csv, compute the total with a program in a ```python block, and then "
    "give the total. {note}",
    "reporter": "Report the total on one line that begins with `TOTAL`. The analysis: {analysis}",
}
ITEMS = ("pens", "cups", "lamps", "books", "chairs", "plates")


class Characters(PlainChat):
    """A stand-in for a tokenizer and its chat template: one token per character."""

    def opening(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        return tuple(map(ord, messages[-1]["content"]))

    def keeps(
        self, conversation: Sequence[dict[str, str]], following: Sequence[dict[str, str]]
    ) -> bool:
        return True

    def continuation(
        self, sampled: Sequence[int], following: Sequence[dict[str, str]]
    ) -> tuple[int, ...]:
        return tuple(
            map(ord, "".join(f"\n{message['role']}: {message['content']}" for message in following))
        )

    def text(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    said = said_again = text


def order(rng: random.Random) -> tuple[str, int]:
    """An order in words, and its total."""
    items = [(name, rng.randint(2, 9), rng.randint(11, 49)) for name in rng.sample(ITEMS, 3)]
    text = " and ".join(f"{count} {name} at {price} each" for name, count, price in items)
    return text, sum(count * price for _, count, price in items)


# What each agent says when nothing is wrong: a function of what it was shown alone.


def planner(shown: str) -> str:
    found = re.findall(r"(\d+) (\w+) at (\d+) each", shown)
    return "\n".join(f"{name},{count},{price}" for count, name, price in found)


def collector(shown: str) -> str:
    if "\nuser:" in shown:
        return "The items are saved."
    lines = re.findall(r"^\w+,\d+,\d+$", shown, re.MULTILINE)
    return f"```python\nopen('items.csv', 'w').write({chr(10).join(lines)!r})\n```"


ADD_UP = (
    "rows = [r.split(',') for r in open('items.csv').read().split()]\nprint(sum(int(c) * "
    "int(p) for _, c, p in rows))"
)


def analyst(shown: str) -> str:
    if "\nuser:" not in shown:
        return f"```python\n{ADD_UP}\n```"
    answer = shown.rpartition("\nuser:")[2]
    numbers = re.findall(r"^\s*(-?\d+)$", answer, re.MULTILINE)
    return f"The total is {numbers[-1]}" if numbers else "There is no total."


def reporter(shown: str) -> str:
    numbers = re.findall(r"-?\d+", shown.rpartition("The analysis:")[2])
    return f"TOTAL {numbers[-1]}" if numbers else "TOTAL unknown"


HONEST: dict[str, Callable[[str], str]] = {
    "planner": planner,
    "collector": collector,
    "analyst": analyst,
    "reporter": reporter,
}

# The faults: (guilty, answer -> answer instead); the second of two turns is marked as such.

Fault = Callable[[str, bool, random.Random], tuple[str, str]]


def swap_digit(text: str, rng: random.Random) -> str:
    """The last number, one digit of it changed."""
    start, end = list(re.finditer(r"\d+", text))[-1].span()
    place = rng.randrange(start, end)
    return (
        text[:place] + rng.choice([d for d in "123456789" if d != text[place]]) + text[place + 1 :]
    )


def later(change: Callable[[str, random.Random], str]) -> Fault:
    """A fault in the answer after the program has run."""
    return lambda answer, second, rng: (change(answer, rng) if second else answer, "stop")


def program(change: Callable[[str], str]) -> Fault:
    """A fault in the program."""
    return lambda answer, second, rng: (answer if second else change(answer), "stop")


def cut(answer: str, second: bool, rng: random.Random) -> tuple[str, str]:
    return answer[: max(4, len(answer) // 2)], "length"


KNOWN: dict[str, tuple[str, Fault]] = {
    "missing file": ("collector", program(lambda answer: answer.replace("items.csv", "itms.csv"))),
    "wrong number passed on": ("analyst", later(swap_digit)),
    "wrong number reported": (
        "reporter",
        lambda answer, second, rng: (swap_digit(answer, rng), "stop"),
    ),
    "ignored instruction": (
        "reporter",
        lambda answer, second, rng: (answer.replace("TOTAL", "It is"), "stop"),
    ),
    "truncated plan": ("planner", cut),
    "truncated program": ("collector", cut),
    "program left broken": ("analyst", program(lambda answer: answer.replace("int(p)", "int(q)"))),
    "nothing said": ("collector", lambda answer, second, rng: ("", "stop")),
}
WRITE = "open('items.csv', 'w').write("
NEW: dict[str, tuple[str, Fault]] = {
    "item left out": ("planner", lambda answer, second, rng: (answer.rpartition("\n")[0], "stop")),
    "count of one": (
        "planner",
        lambda answer, second, rng: (re.sub(r",\d+,", ",1,", answer), "stop"),
    ),
    "rows twice": (
        "collector",
        program(
            lambda answer: answer.replace(WRITE, WRITE + "2 * ('\\n' + ").replace(
                ")\n```", "))\n```"
            )
        ),
    ),
    "header row": (
        "collector",
        program(lambda answer: answer.replace(WRITE, WRITE + "'name,count,price\\n' + ")),
    ),
    "prices in cents": (
        "collector",
        program(lambda answer: re.sub(r"(,\d+,\d+)", r"\g<1>00", answer)),
    ),
    "printed, not saved": ("collector", program(lambda answer: answer.replace(WRITE, "print("))),
    "wrong formula": (
        "analyst",
        program(lambda answer: answer.replace("int(c) * int(p)", "int(c) + int(p)")),
    ),
    "rounded": ("analyst", later(lambda answer, rng: re.sub(r"\d(?!\d)", "0", answer))),
    "no number": ("analyst", later(lambda answer, rng: "I have computed it.")),
    "two lines": ("reporter", lambda answer, second, rng: ("Dear customer,\n" + answer, "stop")),
}


# One trajectory.


def engine(
    kind: str, faults: dict[str, tuple[str, Fault]], rng: random.Random
) -> Callable[[Call], Any]:
    guilty, fault = faults[kind]

    async def generate(call: Call) -> Generation:
        shown = "".join(map(chr, call.context_ids))
        answer, finish = HONEST[call.role](shown), "stop"
        if call.role == guilty:
            answer, finish = fault(answer, "\nuser:" in shown, rng)
        ids = tuple(map(ord, answer))
        return Generation(ids, (0.0,) * len(ids), finish, call.policy, 0)

    return generate


def shell(folder: str) -> Tool:
    """Runs programs in a folder that the trajectory's agents share."""

    async def run(call: ToolCall) -> ToolResult:
        before = set(os.listdir(folder))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", call.text),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        files = tuple(sorted(set(os.listdir(folder)) - before))
        return ToolResult(
            "python", call.text, output.decode().strip(), process.returncode == 0, files=files
        )

    return Tool("python", run, find_programs)


async def workflow(task: Task, roles: Any, tools: Any) -> Any:
    plan = await roles.planner(order=task.prompt)
    saved = await roles.collector(plan=plan)
    analysis = await roles.analyst(note=f"The collector says: {saved}", after=[saved])
    return await roles.reporter(analysis=analysis)


def spec(name: str, tool: Tool) -> RoleSpec:
    tools = (tool,) if name in ("collector", "analyst") else ()

    def render(fields: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": DUTIES[name].format(**fields)}]

    sampling = Sampling(1.0, 1.0, None, 10**6)
    return RoleSpec(name, name, render, Characters(), sampling, tools, 2 if tools else 1, False)  # type: ignore[arg-type]


async def trajectory_of(
    kind: str, faults: dict[str, tuple[str, Fault]], seed: int, number: int
) -> Trajectory:
    rng = random.Random(f"{seed}-{number}-{kind}")
    text, total = order(rng)
    with tempfile.TemporaryDirectory() as folder:
        tool = shell(folder)
        found = await run_workflow(
            workflow,
            Task(f"{kind}-{number}", text, f"TOTAL {total}"),
            0,
            step=1,
            run_seed=seed,
            roles={name: spec(name, tool) for name in ROLES},
            tools={"python": tool},
            generate=engine(kind, faults, rng),
        )
    found.outcome = float(found.answer == found.task.label)
    return found


# Who is blamed.


async def rewards(trajectory: Trajectory) -> dict[str, dict[str, float]]:
    """Mean reward by role, by method."""
    rules = Rules(DUTIES)
    plain, strict = {}, {}
    for action in trajectory.actions:
        failed = 0.8 if action.tool_results and not action.tool_results[-1].ok else 0.0
        symptoms = max(
            failed, float(not action.text.strip() or action.generation.finish == "length")
        )
        faults = sum(w for w, _ in rules.faults(action, Seen.of(trajectory, action)))
        plain[action.path], strict[action.path] = (
            1.0 - symptoms,
            1.0 - min(1.0, max(faults, failed)),
        )
    found = await backward(trajectory, "0 of 1", -1.0, rules)
    deltas = conserve({path: a.contribution for path, a in found.items()}, -1.0)
    by_method = {
        "outcome": dict.fromkeys(plain, 0.0),
        "plain": plain,
        "plain + back": {path: p + deltas[path] for path, p in plain.items()},
        "strict": strict,
        "strict + back": {path: p + deltas[path] for path, p in strict.items()},
    }
    result = {}
    for method, by_path in by_method.items():
        by_role: dict[str, list[float]] = defaultdict(list)
        for action in trajectory.actions:
            by_role[action.role].append(by_path[action.path])
        result[method] = {role: sum(r) / len(r) for role, r in by_role.items()}
    return result


async def measure(
    faults: dict[str, tuple[str, Fault]], tasks: int, seeds: int
) -> dict[str, list[float]]:
    """Shares of right blame by method, over all failures of the kinds; the table's lines on the
    way."""
    total: dict[str, list[float]] = defaultdict(list)
    for kind, (guilty, _) in faults.items():
        hits: dict[str, list[float]] = defaultdict(list)
        for seed in range(seeds):
            for number in range(tasks):
                trajectory = await trajectory_of(kind, faults, seed, number)
                if trajectory.outcome:  # a fault that did no harm is nobody's
                    continue
                for method, means in (await rewards(trajectory)).items():
                    least = min(means.values())
                    blamed = [role for role, mean in means.items() if mean <= least + 1e-9]
                    hits[method].append((guilty in blamed) / len(blamed))
        for method, found in hits.items():
            total[method] += found
        print(line(f"{kind} ({guilty})", hits), flush=True)
    return total


def line(name: str, hits: dict[str, list[float]]) -> str:
    cells = []
    for method in METHODS:
        found = hits[method]
        share = sum(found) / len(found)
        low, high = wilson(share, len(found))
        cells.append(f"{share:.2f} [{low:.2f}, {high:.2f}]")
    return f"| {name} | {len(hits['outcome'])} | {' | '.join(cells)} |"


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.blame", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--tasks", type=int, default=40, help="per kind and seed")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(
        f"| fault (guilty) | failures | {' | '.join(METHODS)} |\n|{'---|' * (2 + len(METHODS))}",
        flush=True,
    )
    for name, faults in (("known kinds", KNOWN), ("new kinds", NEW)):
        if faults:
            print(
                line(f"**{name}**", await measure(faults, options.tasks, options.seeds)), flush=True
            )


if __name__ == "__main__":
    asyncio.run(main())
