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
from typing import Any, NoReturn

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
        own = self.origins.lines.keys() - self.inherited
        return any(key[-1:] == (name,) for key in own)

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
    match path.suffix:
        case ".yaml" | ".yml":
            _hydra(source, path)
        case ".json":
            _specifications(source)
        case ".sh":
            _script(source)
        case _:
            expected = "a .yaml (Hydra), a .json (agent specifications) or a .sh (launch script)"
            raise ConfigurationError(Problem("imports.kind", at(file=path), expected=expected))
    agents = source.settings.get("agents") or None
    if not isinstance(agents, dict | list):
        got = "has no `agents`: no multi-agent run is configured"
        _refuse(Problem("imports.no_agents", at(file=path), got))
    if isinstance(agents, dict):
        source.settings["agents"] = [{name: config} for name, config in agents.items()]
        numbers = {name: str(number) for number, name in enumerate(agents)}
        for key, line in list(source.origins.lines.items()):
            if key[0:1] == ("agents",) and len(key) > 1:
                source.origins.lines["agents", numbers[key[1]], *key[1:]] = line
    return source


def _refuse(problem: Problem) -> NoReturn:
    raise ConfigurationError(problem) from None


def parse(text: str, path: Path, key: Key, origins: Origins, first_line: int = 1) -> Any:
    """Reads YAML, which includes JSON, with the line of every key; `first_line` is where the text
    starts in its file.

    Raises:
        ConfigurationError: It is not YAML.
    """
    own = Origins()
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        built = build(node, path, key, own, yaml.SafeLoader("")) if node else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = (mark.line if mark else 0) + first_line
        got = f"cannot be read: {getattr(error, 'problem', error)}"
        _refuse(Problem("imports.unreadable", at(line=f"{path}:{line}"), got))
    for its_key, (file, line) in own.lines.items():
        origins.lines[its_key] = (file, line + first_line - 1)
    return built


def _specifications(source: ImportSource) -> None:
    """A file of agent specifications, which may lack the key `agents`: `{"0": {...}}`, or a list of
    such."""
    tabs = re.compile(r"^\t+", re.MULTILINE)  # which YAML refuses
    text = tabs.sub(lambda match: " " * len(match[0]), read_text(source.path))
    built = parse(text, source.path, (), source.origins)
    if isinstance(built, dict) and not all(name.isdigit() for name in built):
        source.settings = built
    elif built:
        source.settings = {"agents": built}
        for key, line in list(source.origins.lines.items()):
            source.origins.lines["agents", *key] = line


def _hydra(source: ImportSource, path: Path) -> None:
    origins = Origins()
    own = _mapping(path, origins)
    names = own.pop("defaults", [])
    problems = list[Problem]()
    for name in names if isinstance(names, list) else [names]:
        base = path.parent / f"{name}.yaml"
        if name == "_self_":
            continue
        if base.is_file():
            source.settings = merge(source.settings, _mapping(base, source.origins))
            continue
        where = at(line=origins.where("defaults"), key="defaults", name=str(name))
        got, fix = f"{base} does not exist", "create it, or delete the entry"
        problems.append(Problem("imports.defaults", where, got, fix=fix))
    if problems:
        raise ConfigurationError(problems)
    source.inherited = set(source.origins.lines) - set(origins.lines)
    source.origins.lines.update(origins.lines)
    source.settings = merge(source.settings, own)


def _mapping(path: Path, origins: Origins) -> dict[str, Any]:
    built = parse(read_text(path), path, (), origins)
    if not isinstance(built, dict):
        _refuse(Problem("imports.mapping", at(file=path), "", expected="a mapping of keys"))
    return built


def merge(base: Any, own: Any) -> Any:
    """Merges mappings key by key; other values are those of `own`."""
    if isinstance(base, Mapping) and isinstance(own, Mapping):
        return {**base, **{k: merge(base.get(k), v) for k, v in own.items()}}
    return own


def _script(source: ImportSource) -> None:
    for words in commands(read_text(source.path)):
        for number, word in enumerate(words):
            if V2_LAUNCH in word.text:
                return _v2_flags(source, words[number + 1 :])
            if word.text == V01_LAUNCH:
                return _overrides(source, words[number + 1 :])
    got = f"starts neither {V2_LAUNCH} (MARTI-v2) nor {V01_LAUNCH} (MARTI v0.1, MAPPA)"
    _refuse(Problem("imports.launch", at(file=source.path), got))


def _v2_flags(source: ImportSource, words: list[Word]) -> None:
    flags: list[tuple[Word, list[Word]]] = []
    for word in words:
        if word.text.startswith("--"):
            name, equals, inline = word.text[2:].partition("=")
            flags.append((Word(name, word.line), [Word(inline, word.line)] if equals else []))
        elif flags:
            flags[-1][1].append(word)
    for flag, values in flags:
        name = flag.text
        source.origins.lines[name,] = (source.path, flag.line)
        if name in JSON_FLAGS:
            several = name == "agents"
            parsed = [
                _json(source, value, (name, str(number)) if several else (name,))
                for number, value in enumerate(values)
            ]
            source.settings[name] = parsed if several else next(iter(parsed), None) or {}
        else:
            scalars = [scalar(value.text) for value in values] or [True]
            source.settings[name] = scalars[0] if len(scalars) == 1 else scalars


def _json(source: ImportSource, word: Word, key: Key) -> Any:
    """JSON of a script; a template's variable, escaped once too often from the shell, is
    restored."""
    return parse(word.text.replace("\\$", "$"), source.path, key, source.origins, word.line)


def _overrides(source: ImportSource, words: list[Word]) -> None:
    joined = " ".join(word.text for word in words)
    named = re.search(r"--config-name[ =](\S+)", joined)
    name = named[1] if named else "default"
    config = source.find(f"marti/cli/configs/{name}.yaml") or source.find(f"{name}.yaml")
    if config is None:
        where = at(file=source.path, name=f"--config-name {name}")
        got = f"no marti/cli/configs/{name}.yaml above the script"
        _refuse(Problem("imports.config_name", where, got))
    _hydra(source, config)
    before = ""
    for word in words:
        key, equals, value = word.text.lstrip("+").partition("=")
        path = tuple(key.split("."))
        of_hydra = key.startswith("-") or (before.startswith("-") and not equals)
        before = word.text
        if of_hydra:
            continue  # a flag of Hydra's, or its value
        where = at(line=f"{source.path}:{word.line}")
        if not equals or not all(path):
            _refuse(
                Problem("imports.override", where, f"{word.text!r:.80}", "key=value", "delete it")
            )
        inner = source.settings
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = (
            parse(value, source.path, path, source.origins, word.line) if value else None
        )
        source.inherited -= {path[:length] for length in range(1, len(path) + 1)}
        source.origins.lines[path] = (source.path, word.line)


def scalar(text: str) -> Any:
    """Returns a flag's value, as a number if it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
