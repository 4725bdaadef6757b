"""Checks whether a configuration can be translated: values of the expected type, whole numbers,
known keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from marl_plugins.commands.imports import options, shapes
from marl_plugins.commands.imports.read import ImportSource, Key
from marl_plugins.core.failures import ConfigurationError, nearest
from marl_plugins.core.problems import Problem, at

TEXTS = (
    *("agent_workflow", "workflow_func_path", "advantage_estimator", "pretrain", "role"),
    *("coach_model", "coach_prompt_template"),
)
"""Keys whose value is text."""
SWITCHES = (
    *("shared_agents", "is_tuning", "code_execution"),
    *("contain_self", "shuffle_responses", "enable_ground_truth_eval"),
)
"""Keys whose value is true or false."""
COUNTED = (
    *(
        "rollout_batch_size",
        "n_samples_per_prompt",
        "train_batch_size",
        "max_samples",
        "max_len",
        "prompt_max_len",
    ),
    *(
        "generate_max_len",
        "actor_num_nodes",
        "actor_num_gpus_per_node",
        "vllm_num_engines",
        "vllm_tensor_parallel_size",
    ),
)
"""Keys whose value is a whole number of at least 1."""


def check_form(source: ImportSource) -> None:
    """Checks the type of every value that the import reads.

    Raises:
        ConfigurationError: A value is not the settings, text or switch that is expected.
    """
    settings, where, wrong = source.settings, source.where, list[Problem]()
    for key in ("default_agent", "workflow_args", "tools_config"):
        if not isinstance(settings.get(key), dict | None):
            wrong.append(
                Problem(
                    "imports.value",
                    at(line=where(key), key=key),
                    f"{settings[key]!r:.80}",
                    "settings",
                )
            )
    tools = settings.get("tools_config")
    tools = tools.get("tools") if isinstance(tools, dict) else None
    for name, config in (
        tools.items() if isinstance(tools, dict) else [("", tools)] if tools else []
    ):
        if not isinstance(config, dict):
            key = ".".join(filter(None, ("tools_config.tools", name)))
            line = where("tools_config", "tools", name)
            wrong.append(
                Problem("imports.value", at(line=line, key=key), f"{config!r:.80}", "settings")
            )
        elif not isinstance(config.get("timeout"), int | float | None):
            line = where("tools_config", "tools", name, "timeout")
            key = f"tools_config.tools.{name}.timeout"
            wrong.append(
                Problem(
                    "imports.value", at(line=line, key=key), f"{config['timeout']!r:.80}", "seconds"
                )
            )
    for number, agent in enumerate(settings["agents"]):
        if not isinstance(agent, dict) or not all(
            isinstance(config, dict | None) for config in agent.values()
        ):
            line = where("agents", number)
            wrong.append(
                Problem(
                    "imports.value", at(line=line, key="agents"), f"{agent!r:.80}", "`NAME: {...}`"
                )
            )
    if wrong:
        raise ConfigurationError(wrong)
    places: list[tuple[Key, Any]] = [
        ((), settings),
        *(((k,), settings.get(k)) for k in ("default_agent", "workflow_args")),
    ]
    places += [
        (("agents", str(n), name), c)
        for n, agent in enumerate(settings["agents"])
        for name, c in agent.items()
    ]
    for place, mapping in places:
        for key, value in (mapping or {}).items():
            expected = _expected_type(key, value)
            if expected:
                wrong.append(
                    Problem(
                        "imports.value",
                        at(line=where(*place, key), key=key),
                        f"{value!r:.80}",
                        expected,
                    )
                )
    if wrong:
        raise ConfigurationError(wrong)


def _expected_type(key: str, value: Any) -> str | None:
    """Returns what a setting that the import reads should be; None if it is that."""
    if key in TEXTS and not isinstance(value, str | None):
        return "text"
    if key in SWITCHES and not isinstance(value, bool | None):
        return "true or false"
    if key == "chat_template":
        texts = value if isinstance(value, list) else [value]
        return (
            None
            if value is None or all(isinstance(text, str) for text in texts)
            else "text, or a list of texts"
        )
    return None


def wrong_numbers(source: ImportSource, configs: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Returns the numbers that the import calculates with and that are not whole numbers of at
    least 1.

    Args:
        configs: All settings of each agent.
    """
    arguments = source.settings.get("workflow_args") or {}
    turns = [key for shape in shapes.SHAPES.values() for key in shape.turns]
    tools = source.settings.get("tools_config") or {}
    counted = [
        (f"workflow_args.{key}", arguments.get(key)) for key in (*turns, "num_rounds", "max_others")
    ]
    counted += [("tools_config.max_turns", tools.get("max_turns"))]
    counted += [(key, config.get(key)) for config in configs for key in COUNTED]
    wrong = list[Problem]()
    for key, value in dict.fromkeys(
        (key, repr(value)) for key, value in counted if not _is_count(value)
    ):
        places = [k for k in source.origins.lines if k and k[-1] == key.rpartition(".")[2]]
        where = at(line=source.where(*(places[-1] if places else ())), key=key)
        wrong.append(Problem("imports.value", where, value, "a whole number of at least 1"))
    return wrong


def with_whole_numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an agent's settings with 1.0e+3 as an integer."""
    return {**config, **{key: int(config[key]) for key in COUNTED if config.get(key) is not None}}


def _is_count(value: Any) -> bool:
    return value is None or (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and value >= 1
        and value % 1 == 0
    )


def find_unknown(source: ImportSource) -> Iterator[Problem]:
    """Yields every key that is in no table, and every tool without a counterpart."""
    settings, where = source.settings, source.where

    def check(mapping: Any, place: Key, known: Iterable[str]) -> Iterator[Problem]:
        for key in mapping if isinstance(mapping, dict) else ():
            if key not in known:
                its_place = at(line=where(*place, key), key=".".join([*place, key]))
                yield Problem(
                    "imports.unknown_key",
                    its_place,
                    f"unknown key{nearest(key, known)}",
                    fix="delete it",
                )

    yield from check(settings, (), options.SETTINGS)
    yield from check(settings.get("default_agent"), ("default_agent",), options.SETTINGS)
    for number, agent in enumerate(settings["agents"]):
        for name, config in agent.items() if isinstance(agent, dict) else ():
            yield from check(config, ("agents", str(number), name), options.SETTINGS)
    turns = {name for shape in shapes.SHAPES.values() for name in shape.turns}
    workflow = {*options.COACH_FLAGS, *options.WORKFLOW_READ, *options.WORKFLOW_LEFT_OUT, *turns}
    yield from check(settings.get("workflow_args"), ("workflow_args",), workflow)
    tools = settings.get("tools_config") or {}
    yield from check(tools, ("tools_config",), {**options.TOOLS_READ, **options.TOOLS_LEFT_OUT})
    for name, config in (tools.get("tools") or {}).items():
        place = ("tools_config", "tools", name)
        yield from check(config, place, {**options.TOOL_READ, **options.TOOL_LEFT_OUT})
        if config.get("type") != "sandbox_fusion":
            got = (
                f"is of type {config.get('type')!r}, which has no counterpart (a plugin with "
                "marl_tools adds tools)"
            )
            yield Problem("imports.tool", at(line=where(*place), tool=name), got, fix="delete it")
