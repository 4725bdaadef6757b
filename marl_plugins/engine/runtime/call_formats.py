"""Calls in a model's own format, found by vLLM's parsers.

They work on text, without an engine. Importing vLLM takes ten seconds and 0.5 GB, so only a run
with a role that has `calls:` does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from marl_plugins.core.calls import FindCalls, functions_of, json_of, outside_thinking
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, meant
from marl_plugins.core.tools import FunctionCall, Tool

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers.abstract_tool_parser import ChatCompletionRequest


def find_calls(
    calls: str, reasoning: str | None, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Tool]
) -> FindCalls:
    """Returns the function that finds the calls of `tools` in a model's answers.

    Args:
        calls, reasoning: Names of a tool parser and of a reasoning parser of vLLM's.

    Raises:
        ConfigurationError: There is no such parser, or it needs tokens that the model's tokenizer
            does not have.
    """
    from vllm.reasoning import ReasoningParserManager
    from vllm.tokenizers.hf import get_cached_tokenizer
    from vllm.tool_parsers import ToolParserManager
    from vllm.tool_parsers.abstract_tool_parser import ChatCompletionRequest

    logging.getLogger("vllm.tool_parsers").setLevel(
        logging.CRITICAL
    )  # a traceback for every call that a model spells wrongly
    schemas = [function.schema for function in functions_of(tools)]
    question = [{"role": "user", "content": "?"}]
    choice = "auto" if schemas else "none"
    request = ChatCompletionRequest(
        model="", messages=question, tools=schemas or None, tool_choice=choice
    )  # never empty
    cached = get_cached_tokenizer(tokenizer)  # parsers look up its vocabulary, each time
    parser = _class_of(
        "calls", calls, ToolParserManager.list_registered(), ToolParserManager.get_tool_parser
    )
    spoken = _spoken(reasoning, cached, request, ReasoningParserManager)

    def find(answer: str) -> list[FunctionCall]:
        if not (text := spoken(answer)):
            return []
        extracted = parser(cached, request.tools).extract_tool_calls(
            text, request
        )  # a new one, because they have a state
        return [
            FunctionCall(call.function.name, json_of(call.function.arguments))
            for call in extracted.tool_calls
        ]

    def find_or_none(answer: str) -> list[FunctionCall]:
        try:
            return find(answer)
        except Exception:  # a parser stumbles over what a model has written: there is no call in it
            return []

    try:
        find("?")
    except (RuntimeError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            Problem(
                "calls.tokenizer",
                got=f"calls: vLLM's parser {calls!r} does not fit the model's tokenizer: "
                f"{str(error).rstrip('.')}",
                fix="name the format that the model was trained with",
            )
        ) from error
    return find_or_none


def _spoken(
    name: str | None,
    tokenizer: PreTrainedTokenizerBase,
    request: ChatCompletionRequest,
    manager: type[ReasoningParserManager],
) -> Callable[[str], str]:
    """Returns the function that removes from an answer what was only thought."""
    if name is None:
        return outside_thinking
    parser = _class_of("reasoning", name, manager.list_registered(), manager.get_reasoning_parser)

    def spoken(answer: str) -> str:
        made = parser(tokenizer)
        if (end := made.reasoning_end_str) and end in answer:
            return answer.rpartition(end)[
                2
            ]  # for some of them (qwen3) a call before the end is one
        _, content = made.extract_reasoning(answer, request)
        return content or ""

    return spoken


def _class_of(key: str, name: str, known: Sequence[str], get: Callable[[str], Any]) -> Any:
    """The class of a parser."""
    if name not in known:
        raise ConfigurationError(
            Problem(
                "calls.parser", got=f"{key}: vLLM has no parser {name!r}", fix=meant(name, known)
            )
        )
    return get(name)
