"""Converts workflows of MARTI and MAPPA to ours. Three shapes are known by name: a chain, a debate,
and a mixture of proposers with an aggregator.

A workflow of any other shape is Python that has to be rewritten; `--workflow` chooses a shape to
start from.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from marl_plugins.core.recipe.prompts import fields_of

Kind = Literal["chain", "debate", "mixture"]
KINDS: tuple[Kind, ...] = ("chain", "debate", "mixture")


@dataclass(frozen=True)
class Shape:
    """The shape of a workflow: how agents follow each other.

    Args:
        tools: Indices of the agents that use the tool.
        turns: Keys in `workflow_args` of the agents' numbers of turns.
    """

    kind: Kind
    tools: tuple[int, ...] = ()
    turns: tuple[str, ...] = ()


MATHCHAT = ("generator_max_turns", "coder_max_turns", "refiner_max_turns")
SHAPES = {
    "chain_workflow": Shape("chain"),
    "chain-of-agents": Shape("chain"),
    "mathchat_workflow": Shape("chain", (1,), MATHCHAT),
    "mathchat_workflow_with_coach": Shape("chain", (1,), MATHCHAT),
    "dsbench_workflow": Shape(
        "chain", (0, 1, 2), ("data_engineer_max_turns", "modeler_max_turns", "analyst_max_turns")
    ),
    "debate_workflow": Shape("debate"),
    "multi-agents-debate": Shape("debate"),
    "mixture-of-agents": Shape("mixture"),
}
"""By the name of the workflow's file, else by `agent_workflow`."""

TAKEN = (
    "task",
    "roles",
    "tools",
    "run",
    "problem",
    "others",
    "computed",
    "asyncio",
    "random",
    "re",
)
"""Names that our workflows already use."""


BOX = r'BOX = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")'
"""A line of a debate's workflow: matches the contents of a box, with braces nested once."""


def shape_name(workflow_file: str | None, agent_workflow: str | None) -> str:
    return (
        PurePosixPath(workflow_file).stem
        if workflow_file
        else (agent_workflow or "chain-of-agents")
    )


def identifier(name: str, used: Sequence[str]) -> str:
    """Returns a valid name for a role that is not among `used`."""
    base = re.sub(r"\W+", "_", name.strip(), flags=re.ASCII).strip("_").lower() or "agent"
    base = f"agent_{base}" if base[0].isdigit() else base
    base = f"{base}_" if base in TAKEN or keyword.iskeyword(base) else base
    number, chosen = 1, base
    while chosen in used:
        number += 1
        chosen = f"{base}_{number}"
    return chosen


def write_chain(prompts: Mapping[str, str], with_tools: Sequence[str]) -> str:
    """Writes a workflow of one role after the other, each with its prompt's fields; for a role with
    tools, the fields include the tools' answers."""
    lines: list[str] = []
    computing = ""
    names = list(prompts)
    for name, prompt in prompts.items():
        arguments, after = [], []
        for field in fields_of([prompt]):
            speaker = computing if field == "computed" else field
            if field == "problem":
                arguments.append("problem=task.prompt")
            elif speaker in with_tools:
                arguments.append(f"{field}={speaker}_said")
                after.append(speaker)
            else:
                arguments.append(f"{field}={speaker}")
        arguments += [f"after=[{', '.join(dict.fromkeys(after))}]"] if after else []
        start = "return" if name == names[-1] else f"{name} ="
        lines.append(f"    {start} await roles.{name}({', '.join(arguments)})")
        if name in with_tools and name != names[-1]:
            lines.append(f'    {name}_said = f"{{{name}}}\\n\\n{{{name}.tool_output}}"')
            computing = name
    return (
        f'"""{" -> ".join(names)}."""\n\n\nasync def run(task, roles, tools):\n'
        + "\n".join(lines)
        + "\n"
    )


def shown_by(prompt: str) -> list[str]:
    """Returns the arguments of a call that its prompt shows."""
    return [
        f"{field}={'task.prompt' if field == 'problem' else field}" for field in fields_of([prompt])
    ]


def write_debate(
    names: Sequence[str], again: str, *, rounds: int, max_others: int, shuffle: bool
) -> str:
    """Writes a workflow in which all roles answer, then answer again after seeing the others'
    answers, each in its own conversation; the majority wins."""
    shuffled = (
        '    random.Random(f"{task.id} {number} {place}").shuffle(shown)\n' if shuffle else ""
    )
    history = ["continues=answers[place]", "after=shown[:MAX_OTHERS]"]
    return f'''"""A debate: every role answers, again after seeing others'; the majority wins."""

import asyncio
{"import random" + chr(10) if shuffle else ""}import re

NAMES = {tuple(names)!r}
ROUNDS = {rounds}
{BOX}
MAX_OTHERS = {max_others}
"""An agent is shown at most this many answers."""


async def run(task, roles, tools):
    answers = await asyncio.gather(*(getattr(roles, name)(problem=task.prompt) for name in NAMES))
    for number in range(1, ROUNDS):
        places = range(len(NAMES))
        again = [answer_again(task, roles, answers, number, place) for place in places]
        answers = await asyncio.gather(*again)
    return majority(answers)


async def answer_again(task, roles, answers, number, place):
    shown = [a for i, a in enumerate(answers) if i != place]
{shuffled}    numbered = enumerate(shown[:MAX_OTHERS], 1)
    others = "\\n\\n".join(f"Agent {{i}}: {{a}}" for i, a in numbered)
    role = getattr(roles, NAMES[place])
    return await role({", ".join([*shown_by(again), *history])})


def majority(answers):
    """The first answer with the most common box."""
    boxes = [(BOX.findall(str(a)) or [str(a)])[-1].strip() for a in answers]
    return answers[max(range(len(boxes)), key=lambda i: (boxes.count(boxes[i]), -i))]
'''


def write_mixture(names: Sequence[str], last: str) -> str:
    """Writes a workflow in which all roles but the last answer concurrently; the last one sees
    their answers."""
    return f'''"""A mixture: {", ".join(names[:-1])} propose, {names[-1]} decides."""

import asyncio

NAMES = {tuple(names[:-1])!r}


async def run(task, roles, tools):
    answers = await asyncio.gather(*(getattr(roles, name)(problem=task.prompt) for name in NAMES))
    others = "\\n\\n".join(f"Agent {{i}}: {{a}}" for i, a in enumerate(answers, 1))
    return await roles.{names[-1]}({", ".join([*shown_by(last), "after=list(answers)"])})
'''
