"""A run as a log of Inspect, for its viewer: `openrlhf inspect RUN --to FILE.eval`, then
`inspect view start --log-dir FOLDER`.

    sample     a trajectory, named by task, step and sample. Of one epoch: the viewer counts dataset
               x epochs, and not every task has as many samples in as many steps
    span       an action, of type `agent`: what it was shown and said (model event), its calls of
               tools (tool events), and its score, reward and advantage (info event `credit`)
    score      the outcome
    error      a trajectory that was lost to infrastructure

The format is Inspect's own, written by its library; it has no place for an advantage per token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_plugins.commands.inspect.index import Entry, RunIndex
from marl_plugins.commands.inspect.query import Query, nothing_found
from marl_plugins.commands.inspect.sampling import sampled, share_text
from marl_plugins.commands.inspect.shown import trajectory_values
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import replacing
from marl_plugins.core.problems import Problem, at
from marl_plugins.engine.records.panels import PHASES
from marl_plugins.engine.records.read import RunReader

if TYPE_CHECKING:
    from inspect_ai.event import Event
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ChatMessage

EXTRA = "pip install 'openrlhf-marl[inspect-log]'"
SUFFIXES = (".eval", ".json")
CREDIT = (
    *(
        "version",
        "newer",
        "score",
        "unscored",
        "explanation",
        "reward",
        "terms",
        "return",
        "advantage",
        "left_out",
        "notes",
    ),
    *("parents", "continues"),
)
"""What the info event of an action holds."""


def write_log(run: RunReader, query: Query, file: Path, most: int) -> str:
    """Writes a run as a log of Inspect; the file is there when all of it is, and an earlier one
    stays until then.

    Args:
        most: Trajectories that the log holds; of more, each step gives its share.

    Returns:
        A sentence about it, for the console.

    Raises:
        ConfigurationError: Inspect is not installed, the name's ending is none of its formats,
            nothing is found, records cannot be read, or the file cannot be written.
    """
    if file.suffix not in SUFFIXES:
        raise ConfigurationError(
            Problem("viewer.log_suffix", at(flag="to"), file.name, " or ".join(SUFFIXES))
        )
    try:
        from inspect_ai.log import write_eval_log
    except ImportError:
        raise ConfigurationError(
            Problem("viewer.log_extra", at(flag="to"), "inspect_ai is not installed", fix=EXTRA)
        ) from None
    index = RunIndex(run, query.wanted, query.find)
    if not index.entries:
        raise nothing_found(run, query)
    entries = sampled(index.entries, most)
    with replacing(file, "to") as part:
        write_eval_log(log_of(index, entries), str(part.absolute()))
    return f"{file}: {share_text(entries, index.entries)}, {file.stat().st_size / 2**20:.1f} MB"


def log_of(index: RunIndex, entries: Sequence[Entry]) -> EvalLog:
    """Makes the log of some entries."""
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalResults, EvalSpec, EvalStats

    ended = datetime.fromtimestamp(index.files[0].stat().st_mtime, UTC)
    created = ended - timedelta(seconds=seconds_of(index.run))
    samples = [sample_of(trajectory_values(index.open(entry)), created) for entry in entries]
    policies = dict.fromkeys(action.policy for entry in entries for action in entry.actions)
    return EvalLog(
        status="success",
        eval=EvalSpec(
            created=created.isoformat(),
            task=index.run.folder.absolute().name,
            dataset=EvalDataset(
                name="trajectories", samples=len(samples), sample_ids=[str(s.id) for s in samples]
            ),
            model=" ".join(policies) or "none",
            config=EvalConfig(epochs=1),
        ),
        stats=EvalStats(started_at=created.isoformat(), completed_at=ended.isoformat()),
        samples=samples,
        results=EvalResults(
            total_samples=len(samples), completed_samples=sum(s.error is None for s in samples)
        ),
    )


def seconds_of(run: RunReader) -> float:
    """Returns what the phases of all steps took; 0 without metrics."""
    return math.fsum(
        line.get(f"seconds/{phase}") or 0.0 for line in run.metrics() for phase in PHASES
    )


def sample_of(shown: Mapping[str, Any], created: datetime) -> EvalSample:
    """Makes the sample of a trajectory.

    Args:
        shown: Its values, as `trajectory_values` makes them.
        created: What its times are counted from; a trajectory's are those since the beginning of
            its rollout.
    """
    from inspect_ai.log import EvalError, EvalSample
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import Score

    outcomes = {
        "outcome": shown["outcome"],
        **{f"outcome of {role}": value for role, value in shown["outcomes"].items()},
    }
    lost = shown["infrastructure_failure"]
    about = (
        "task",
        "step",
        "sample",
        "metadata",
        "agent_failure",
        "detail",
        "files",
        "tools",
        "outcome_parts",
        "returned",
    )
    messages = [message for action in shown["actions"] for message in messages_of(action)]
    return EvalSample(
        id=f"{shown['task']}, step {shown['step']}, sample {shown['sample']}",
        epoch=1,
        input=shown["prompt"],
        target=shown["label"] if isinstance(shown["label"], str) else repr(shown["label"]),
        messages=messages,
        output=ModelOutput.from_content("answer", shown["answer"] or ""),
        scores={
            name: Score(value=v, answer=shown["answer"])
            for name, v in outcomes.items()
            if v is not None
        },
        metadata={name: shown[name] for name in about if name in shown},
        events=[event for action in shown["actions"] for event in events_of(action, created)],
        total_time=shown["seconds"],
        error=EvalError(message=f"{lost}: {shown['detail']}", traceback="", traceback_ansi="")
        if lost
        else None,
    )


def messages_of(action: Mapping[str, Any]) -> list[ChatMessage]:
    """Makes the messages that an action was shown, and what it said."""
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
    )

    kinds = {
        "system": ChatMessageSystem,
        "tool": ChatMessageTool,
        "assistant": ChatMessageAssistant,
    }
    shown: list[ChatMessage] = [
        kinds.get(role, ChatMessageUser)(content=text) for role, text in action["shown"]
    ]
    return [*shown, ChatMessageAssistant(content=action["text"], model=action["policy"])]


def events_of(action: Mapping[str, Any], created: datetime) -> Iterator[Event]:
    """Yields the events of an action, in a span of its own."""
    from inspect_ai.event import InfoEvent, ModelEvent, SpanBeginEvent, SpanEndEvent, ToolEvent
    from inspect_ai.model import ChatCompletionChoice, GenerateConfig, ModelOutput, ModelUsage

    start, answered, end = (
        seconds or 0.0 for seconds in action["times"]
    )  # one that is not finite has become None

    def when(seconds: float) -> dict[str, Any]:
        return {
            "timestamp": created + timedelta(seconds=seconds),
            "working_start": seconds,
            "span_id": name,
        }

    name, *messages = action["action"], *messages_of(action)
    tokens = action["tokens_shown"], action["tokens_sampled"]
    yield SpanBeginEvent(id=name, name=name, type="agent", **when(start))
    yield ModelEvent(
        model=action["policy"],
        role=action["role"],
        input=messages[:-1],
        tools=[],
        tool_choice="auto",
        config=GenerateConfig(),
        output=ModelOutput(
            model=action["policy"],
            choices=[
                ChatCompletionChoice(
                    message=messages[-1],
                    stop_reason="stop" if action["finish"] == "stop" else "max_tokens",
                )
            ],
            usage=ModelUsage(
                input_tokens=tokens[0], output_tokens=tokens[1], total_tokens=sum(tokens)
            ),
        ),
        completed=created + timedelta(seconds=answered),
        **when(start),
    )
    for n, call in enumerate(action["tools"]):
        failed = call["status"] != "ok"
        at_call = when(start if call.get("start") is None else call["start"])
        yield ToolEvent(
            id=f"{name}-{n}",
            function=call["tool"],
            arguments={"call": call["call"]},
            result=call["output"],
            failed=failed,
            **at_call,
        )
    yield InfoEvent(
        source="credit", data={key: action[key] for key in CREDIT if key in action}, **when(end)
    )
    yield SpanEndEvent(id=name, **when(end))
