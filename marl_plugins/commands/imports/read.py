"""A MARTI or MAPPA configuration as nested settings, with the file and line of every key.

* YAML for Hydra (MARTI v0.1, MAPPA): `defaults:` are read from files in the same folder.
* JSON with agent specifications (MARTI-v2's `--agents`, `--default_agent` and so on, as one
  object).
* A shell script that launches either: read, never run. Variables that the script sets are
  substituted; what only a shell could know (`$1`, `$(command)`) stays as written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from marl_plugins.commands.imports.shell import Word, commands
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.recipe_yaml import Origins, build
from marl_plugins.core.recipe.texts import read_text

Key = tuple[str, ...]

V2_LAUNCH = "multi_agent_train_ppo_ray"
V01_LAUNCH = "marti.cli.commands.train"
JSON_FLAGS = ("agents", "default_agent", "workflow_args", "tools_config", "reward_alloc")


@dataclass
class ImportSource:
    """The configuration that was read.

    Args:
        settings: Nested mappings; `agents` is always a list of `{name: {...}}`.
        origins: File and line of every key.
        inherited: Keys that only a file of `defaults:` sets.
    """

    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    origins: Origins = field(default_factory=Origins)
    inherited: set[Key] = field(default_factory=set)

    def where(self, *key: str | int) -> str:
        """Returns the file and line of a key."""
        return self.origins.where(*key)

    def sets(self, name: str) -> bool:
        """Returns whether the configuration itself has a key of this name anywhere, rather than a
        file of `defaults:`."""
        return any(
            key and key[-1] == name and key not in self.inherited for key in self.origins.lines
        )

    def find(self, name: str) -> Path | None:
        """Returns a path in the configuration: as written, or below a folder that contains the
        configuration."""
        name = re.sub(r"^\$(\([^)]*\)|\{[^}]*\}|\w+)/", "", name)  # a root that only the shell knew
        for folder in (Path(), *self.path.resolve().parents):
            for path in (folder / name, folder / name.lstrip("/")):
                if path.is_file() or path.is_dir():  # reading a pipe or a device might not end
                    return path
        return None


def read(path: Path) -> ImportSource:
    """Reads a configuration.

    Raises:
        ConfigurationError: It cannot be read.
    """
    source = ImportSource(path)
    source.origins.lines[()] = (path, 1)
    if path.suffix in (".yaml", ".yml"):
        _hydra(source, path)
    elif path.suffix == ".json":
        text = re.sub(
            r"^\t+", lambda tabs: " " * len(tabs[0]), read_text(path), flags=re.MULTILINE
        )  # YAML refuses these
        source.settings = _with_agents_key(parse(text, path, (), source.origins))
        _add_agents_key(source.origins, source.settings)
    elif path.suffix == ".sh":
        _script(source)
    else:
        expected = "a .yaml (Hydra), a .json (agent specifications) or a .sh (launch script)"
        raise ConfigurationError(Problem("imports.kind", at(file=path), expected=expected))
    if not isinstance(source.settings, dict) or not isinstance(
        source.settings.get("agents") or None, dict | list
    ):
        got, fix = "has no `agents`", "the configuration of a multi-agent run is expected"
        raise ConfigurationError(Problem("imports.no_agents", at(file=path), got, fix=fix))
    agents = source.settings["agents"]
    if isinstance(agents, dict):
        source.settings["agents"] = [{name: config} for name, config in agents.items()]
        for key in [k for k in source.origins.lines if k[:1] == ("agents",) and len(k) > 1]:
            number = list(agents).index(key[1])
            source.origins.lines["agents", str(number), *key[1:]] = source.origins.lines[key]
    return source


def parse(text: str, path: Path, key: Key, origins: Origins, first_line: int = 1) -> Any:
    """Reads YAML, which includes JSON, with the line of every key; `first_line` is where the text
    starts in its file.

    Raises:
        ConfigurationError: It is not YAML.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return None
        own = Origins()
        built = build(node, path, key, own, yaml.SafeLoader(""))
    except yaml.MarkedYAMLError as error:
        line = (error.problem_mark.line if error.problem_mark else 0) + first_line
        where = at(line=f"{path}:{line}")
        raise ConfigurationError(
            Problem("imports.unreadable", where, f"cannot be read: {error.problem}")
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + first_line
        got = f"cannot be read: a control character, {error.character:#x}"
        raise ConfigurationError(
            Problem("imports.unreadable", at(line=f"{path}:{line}"), got)
        ) from None
    except RecursionError:
        got = "cannot be read: a value contains itself (`&x [*x]`), or is nested too deeply"
        raise ConfigurationError(Problem("imports.unreadable", at(file=path), got)) from None
    origins.lines.update(
        {k: (file, line + first_line - 1) for k, (file, line) in own.lines.items()}
    )
    return built


def _with_agents_key(built: Any) -> Any:
    """Agents without the key `agents`, as `{"0": {...}}` or a list of such, are a configuration
    too."""
    if isinstance(built, list) or (
        isinstance(built, dict) and built and all(name.isdigit() for name in built)
    ):
        return {"agents": built}
    return built


def _add_agents_key(origins: Origins, settings: Any) -> None:
    """Move the lines of agents that were written without the key `agents`."""
    if isinstance(settings, dict) and "agents" in settings and ("agents",) not in origins.lines:
        origins.lines.update(
            {("agents", *k): place for k, place in list(origins.lines.items()) if k}
        )


def _hydra(source: ImportSource, path: Path) -> None:
    origins = Origins()
    own = parse(read_text(path), path, (), origins)
    if not isinstance(own, dict):
        raise ConfigurationError(_no_mapping(path))
    names = own.pop("defaults", [])
    problems = list[Problem]()
    for name in names if isinstance(names, list) else [names]:
        base = path.parent / f"{name}.yaml"
        if name == "_self_":
            continue
        if not isinstance(name, str) or not base.is_file():
            where = at(line=origins.where("defaults"), key="defaults", name=str(name))
            fix = "create it, or delete the entry"
            problems.append(Problem("imports.defaults", where, f"{base} does not exist", fix=fix))
            continue
        inherited = parse(read_text(base), base, (), source.origins) or {}
        if not isinstance(inherited, dict):
            problems.append(_no_mapping(base))
            continue
        source.settings = merge(source.settings, inherited)
    if problems:
        raise ConfigurationError(problems)
    source.inherited = set(source.origins.lines) - set(origins.lines)
    source.origins.lines.update(origins.lines)
    source.settings = merge(source.settings, own)


def _no_mapping(path: Path) -> Problem:
    return Problem("imports.mapping", at(file=path), expected="a mapping of keys")


def merge(base: Any, own: Any) -> Any:
    """Merges mappings key by key; other values are those of `own`."""
    if isinstance(base, Mapping) and isinstance(own, Mapping):
        return {**base, **{k: merge(base.get(k), v) for k, v in own.items()}}
    return own


def _script(source: ImportSource) -> None:
    path = source.path
    for words in commands(read_text(path)):
        texts = [word.text for word in words]
        if any(V2_LAUNCH in text for text in texts):
            start = next(n for n, text in enumerate(texts) if V2_LAUNCH in text)
            return _v2_flags(source, words[start + 1 :])
        if V01_LAUNCH in texts:
            return _overrides(source, words[texts.index(V01_LAUNCH) + 1 :])
    got = f"starts neither {V2_LAUNCH} (MARTI-v2) nor {V01_LAUNCH} (MARTI v0.1, MAPPA)"
    raise ConfigurationError(Problem("imports.launch", at(file=path), got))


def _v2_flags(source: ImportSource, words: list[Word]) -> None:
    number = 0
    while number < len(words):
        word = words[number]
        if not word.text.startswith("--"):
            where = at(line=f"{source.path}:{word.line}")
            raise ConfigurationError(Problem("imports.flag", where, f"{word.text!r:.80}", "a flag"))
        name, equals, inline = word.text[2:].partition("=")
        values = [Word(inline, word.line)] if equals else []
        number += 1
        while not equals and number < len(words) and not words[number].text.startswith("--"):
            values.append(words[number])
            number += 1
        source.origins.lines[(name,)] = (source.path, word.line)
        if name in JSON_FLAGS and not values:
            where = at(line=f"{source.path}:{word.line}", flag=name)
            raise ConfigurationError(
                Problem("imports.no_value", where, "has no value", fix="JSON is expected")
            )
        if name == "agents":
            found = [
                parse(_json(v.text), source.path, (name, str(n)), source.origins, v.line)
                for n, v in enumerate(values)
            ]
            source.settings[name] = found
        elif name in JSON_FLAGS:
            source.settings[name] = (
                parse(_json(values[0].text), source.path, (name,), source.origins, values[0].line)
                or {}
            )
        else:
            read = [scalar(v.text) for v in values]
            source.settings[name] = True if not read else read[0] if len(read) == 1 else read


def _overrides(source: ImportSource, words: list[Word]) -> None:
    texts = [word.text for word in words]
    name = next(
        (texts[n + 1] for n, text in enumerate(texts[:-1]) if text == "--config-name"), None
    )
    name = name or next(
        (text.partition("=")[2] for text in texts if text.startswith("--config-name=")), "default"
    )
    config = source.find(f"marti/cli/configs/{name}.yaml") or source.find(f"{name}.yaml")
    if config is None:
        got = f"no marti/cli/configs/{name}.yaml above the script"
        raise ConfigurationError(
            Problem("imports.config_name", at(file=source.path, name=f"--config-name {name}"), got)
        )
    _hydra(source, config)
    for before, word in zip(["", *texts], words, strict=False):
        key, equals, value = word.text.lstrip("+").partition("=")
        path = tuple(key.split("."))
        if key.startswith("-") or (before.startswith("-") and not equals):
            continue  # a flag of Hydra's, or its value
        if not equals or not all(path):
            where = at(line=f"{source.path}:{word.line}")
            raise ConfigurationError(
                Problem("imports.override", where, f"{word.text!r:.80}", "key=value", "delete it")
            )
        inner: Any = source.settings
        for part in path[:-1]:
            inner = inner.setdefault(part, {}) if isinstance(inner, dict) else None
        if not isinstance(inner, dict):
            where = at(line=f"{source.path}:{word.line}", key=key)
            raise ConfigurationError(
                Problem("imports.override", where, "it is inside a value that is not settings")
            )
        inner[path[-1]] = (
            parse(value, source.path, path, source.origins, word.line) if value else None
        )
        for length in range(1, len(path) + 1):
            source.inherited.discard(path[:length])
        source.origins.lines[path] = (source.path, word.line)


def _json(text: str) -> str:
    """JSON from a script; a template's variable, escaped once too often from the shell, is
    restored."""
    return text.replace("\\$", "$")


def scalar(text: str) -> Any:
    """Returns a flag's value, as a number if it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
