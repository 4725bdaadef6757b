"""The memory of a coach: what models are told of the training, as `{training}` in their prompts,
that is what counts in its stage, and how the role is doing.

With `--coach.memory` a model knows the smoothed numbers of the role that it judges
(engine/records/behaviour.py) and the bias of its own scores by type of task, both of the steps
before. They are of past steps and of all tasks, so that no task's label is among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_plugins import Behaviour

if TYPE_CHECKING:
    from marl_plugins import Run
    from marl_plugins.coach.bias import BiasMonitor
    from marl_plugins.coach.stages import Stages

TITLES = {
    "score": "mean score that you gave it: {:.1f} of 10",
    "outcome": "success of the team: {:.0%}",
    "response_length": "tokens of an answer: {:.0f}",
    "truncated": "answers cut off: {:.0%}",
    "tool_call_rate": "answers with a tool call: {:.0%}",
    "tool_success": "tool calls that succeed: {:.0%}",
}


def training_text(run: Run, role: str, stages: Stages, bias: BiasMonitor) -> str:
    """Returns the text for a role; empty where there is nothing to say, else with an empty line
    before it."""
    parts = (
        [f"What counts at this stage of the training:\n{stages.ask.strip()}"] if stages.ask else []
    )
    if run.args.coach.memory and (lines := remembered(run, role, bias)):
        parts.append(
            "The member over the last steps of its training:\n"
            + "\n".join(f"- {line}" for line in lines)
        )
    return "".join(f"\n\n{part}" for part in parts)


def remembered(run: Run, role: str, bias: BiasMonitor) -> list[str]:
    """Returns the numbers of a role, each as a line; none before the first step has been
    finished."""
    smoothed = run.state(Behaviour).smoothed
    values = {kind: smoothed.get(f"role/{role}/{kind}") for kind in TITLES}
    lines = [
        TITLES[kind].format(10 * v if kind == "score" else v)
        for kind, v in values.items()
        if v is not None
    ]
    excess = bias.corrections().get(role, {})
    return lines + [
        f"your scores on tasks of type {kind}, at the same success, than on all types: "
        f"{10 * v:+.1f}"
        for kind, v in excess.items()
    ]
