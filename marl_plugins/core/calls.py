"""The calls in what a model has said.

A tool may find its calls itself, by a text syntax of its own (`Tool.find`). Calls of functions by
name are found in the model's own format, where the role names it (`calls: hermes`), and else, for
tools without a syntax of their own, between tags:

    <tool_call>{"name": "convert_time", "arguments": {"time": "12:00"}}</tool_call>

Whatever a model gets wrong (a name, JSON, arguments) is a call that is answered with `ok=False`, so
that it sees its mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from marl_plugins.core.failures import nearest
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.tools import Function, FunctionCall, RequestedCall, Tool

TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
"""As Hermes writes a call; the last one of an answer may be unclosed, as vLLM's parser has it."""
THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
THOUGHT = "</think>"
"""Ends thinking that the chat template has begun, where no beginning stands in the answer."""


FindCalls = Callable[[str], list[FunctionCall]]
"""Finds the calls in what a model has said, special tokens kept; those of broken JSON have a text
for arguments."""


def parse_call(text: str) -> FunctionCall | None:
    """Returns the call that a text is; None where it is not an object with a name and arguments."""
    call = json_of(text)
    if (
        not isinstance(call, dict)
        or not isinstance(call.get("name"), str)
        or call.keys() - {"name", "arguments"}
    ):
        return None
    return FunctionCall(call["name"], call.get("arguments", {}))


def json_of(text: str) -> Any:
    """Returns the JSON value of a text that a model has written; None where it is none, or has
    parts that JSON does not have."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode()  # halves of surrogate pairs
    except (ValueError, RecursionError):
        return None
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def outside_thinking(text: str) -> str:
    """Returns an answer without what was only thought: `<think>` blocks, unclosed ones too, and all
    before a `</think>` alone."""
    return THINKING.sub("", text).rpartition(THOUGHT)[2]


def calls_in(
    tools: Sequence[Tool], find: FindCalls | None, text: str, complete: str
) -> list[RequestedCall]:
    """Returns the calls in a role's answer.

    Args:
        find: The model's own format; None: each tool's syntax, and tags for those without one.
        text, complete: The answer without its special tokens, and with them.
    """
    if find is not None:
        return [wanted(tools, call) for call in find(complete)]
    calls = [
        RequestedCall(tool.name, call, tool)
        for tool in tools
        if tool.find
        for call in tool.find(text)
    ]
    by_name = [tool for tool in tools if tool.find is None]
    return [*calls, *(_tagged(by_name, complete) if by_name else ())]


def _tagged(tools: Sequence[Tool], answer: str) -> Iterator[RequestedCall]:
    for text in TAGGED.findall(outside_thinking(answer)):
        call = parse_call(text.strip())
        if call is None:
            why = (
                f'not a call: expected <tool_call>{{"name": ..., "arguments": '
                f"{{...}}}}</tool_call>, got {text.strip()!r:.200}"
            )
            yield RequestedCall("tool_call", text.strip(), refusal=why)
        else:
            yield wanted(tools, call)


def wanted(tools: Sequence[Tool], call: FunctionCall) -> RequestedCall:
    """Returns the tool that a call is for, with its text; where there is none, or the arguments are
    wrong, why."""
    offered = {
        function.name: (tool, function) for tool in tools for function in tool.functions or ()
    }
    if call.name not in offered:
        return RequestedCall(
            call.name,
            call.text,
            refusal=f"there is no tool {call.name!r}{nearest(call.name, offered)}",
        )
    tool, function = offered[call.name]
    if not isinstance(call.arguments, Mapping):
        return RequestedCall(
            call.name, call.text, refusal=f"arguments of {call.name!r}: expected a JSON object"
        )
    if not function.text:
        return RequestedCall(call.name, call.text, tool, function=call)
    text = call.arguments.get(function.text)
    if not isinstance(text, str) or len(call.arguments) > 1:
        expected = json.dumps({function.text: "..."})
        return RequestedCall(
            call.name, call.text, refusal=f"arguments of {call.name!r}: expected {expected}"
        )
    return RequestedCall(tool.name, text, tool)


def functions_of(tools: Sequence[Tool]) -> list[Function]:
    """Returns the functions that tools offer, by name."""
    return [function for tool in tools for function in tool.functions or ()]


def clashes(tools: Sequence[Tool]) -> list[Problem]:
    """Returns the functions of one name that two tools offer."""
    owners: dict[str, str] = {}
    problems = []
    for tool in tools:
        for function in tool.functions or ():
            other = owners.setdefault(function.name, tool.name)
            if other != tool.name:
                where, got = at(tool=(other, tool.name)), f"both have a function {function.name!r}"
                problems.append(
                    Problem("calls.same_function", where, got, fix="leave one of them out")
                )
    return problems
