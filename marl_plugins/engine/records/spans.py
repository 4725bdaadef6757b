"""Trajectories as spans of OpenTelemetry, by its conventions for generative AI: one line of
OTLP/JSON each, which the `otlpjsonfile` receiver of a collector reads.

    invoke_workflow    the trajectory
    invoke_agent       an action; linked with the actions whose output it saw
    execute_tool       a call of a tool

Records have times since the rollout of their step began. The steps are laid one after the other
from the run's first start, by the seconds of their parts: start-up and saving are missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from marl_plugins.core.trajectory import ToolResult, Trajectory
from marl_plugins.engine.plan.resume import COMMAND_FILE
from marl_plugins.engine.records.read import EVERYTHING, Filter, RunReader
from marl_plugins.engine.records.run_folder import read_entries

Span = dict[str, Any]
TYPES = {int: "intValue", float: "doubleValue"}


def spans_of(run: RunReader, selection: Filter = EVERYTHING) -> Iterator[Span]:
    """Yields the spans of each trajectory that is wanted."""
    began, name = _times_of_steps(run), run.folder.resolve().name
    for trajectory in run.trajectories(selection):
        trace = f"{name}/{trajectory.step}/{trajectory.name}"
        spans = [*_spans(trajectory, trace, began.get(trajectory.step, 0.0), selection)]
        resource = {"attributes": _attributes({"service.name": name})}
        yield {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}


def _times_of_steps(run: RunReader) -> dict[int, float]:
    """Returns when the steps began, in seconds since 1970; since the run's start where its folder
    does not say when that was."""
    command = run.folder / COMMAND_FILE
    now = 0.0
    if command.exists():
        started = read_entries(command)[0]["started"]
        now = datetime.strptime(started, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    times = {}
    for metrics in run.metrics():
        times[int(metrics["step"])] = now
        now += sum(v or 0.0 for name, v in metrics.items() if name.startswith("seconds/"))
    return times


def _spans(trajectory: Trajectory, name: str, began: float, selection: Filter) -> Iterator[Span]:
    """The trajectory's span, then those of its actions and of calls of tools."""

    def span(
        place: str, operation: str, of: str, start: float, seconds: float, **values: Any
    ) -> Span:
        return {
            "traceId": _id(name, 16),
            "spanId": _id(f"{name}/{place}", 8),
            "name": f"{operation} {of}",
            "startTimeUnixNano": round((began + start) * 1e9),
            "endTimeUnixNano": round((began + start + seconds) * 1e9),
            "attributes": _attributes({"gen_ai.operation.name": operation, **values}),
        }

    def tools(place: str, results: Iterable[ToolResult]) -> Iterator[Span]:
        for number, result in enumerate(results):
            if result.start is not None:
                values: dict[str, Any] = {
                    "gen_ai.tool.name": result.tool,
                    "gen_ai.tool.call.arguments": result.call,
                    "gen_ai.tool.call.result": result.output,
                    "error.type": "" if result.ok else result.status,
                }
                of = result.tool
                made = f"{place}/{number}", "execute_tool", of, result.start, result.seconds
                yield {**span(*made, **values), "parentSpanId": _id(f"{name}/{place}", 8)}

    values = {
        "marl.outcome": trajectory.outcome,
        "error.type": trajectory.agent_failure or trajectory.infrastructure_failure,
    }
    root = span("", "invoke_workflow", name, trajectory.start, trajectory.seconds, **values)
    yield root
    yield from tools("", trajectory.tool_results)
    for action in filter(selection.has_action, trajectory.actions):
        values = {
            "gen_ai.agent.name": action.role,
            "gen_ai.request.model": action.policy,
            "gen_ai.usage.input_tokens": len(action.context_ids),
            "gen_ai.usage.output_tokens": len(action.generation.ids),
            "gen_ai.input.messages": _messages(action.shown),
            "gen_ai.output.messages": _messages([("assistant", action.text)]),
            "marl.score": action.score,
            "marl.reward": action.reward,
        }
        seconds = action.end - action.start
        yield {
            **span(action.path, "invoke_agent", action.role, action.start, seconds, **values),
            "parentSpanId": root["spanId"],
            "links": [
                {"traceId": root["traceId"], "spanId": _id(f"{name}/{path}", 8)}
                for path in action.parents
            ],
        }
        yield from tools(action.path, action.tool_results)


def _id(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=size).hexdigest()


def _messages(messages: Iterable[tuple[str, str]]) -> str:
    """Messages as the conventions have them."""
    return json.dumps(
        [{"role": r, "parts": [{"type": "text", "content": text}]} for r, text in messages]
    )


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attributes as OTLP/JSON spells them; those that are None or empty are left out."""
    return [
        {"key": name, "value": {TYPES.get(type(value), "stringValue"): value}}
        for name, value in values.items()
        if value not in (None, "")
    ]
