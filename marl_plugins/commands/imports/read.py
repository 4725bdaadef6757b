"""A configuration of MARTI's or MAPPA's, whatever file it is in, as nested settings that know their line.

* YAML as Hydra has it (MARTI v0.1, MAPPA): `defaults:` are read from the files beside it.
* JSON with agent specifications (MARTI-v2's `--agents`, `--default_agent` and the like, as one object).
* A shell script that launches either: read, never run. Variables that the script sets are filled in; what only a shell
  could know (`$1`, `$(command)`) stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe import Origins, build

Key = tuple[str, ...]

V2_LAUNCH = "multi_agent_train_ppo_ray"
V01_LAUNCH = "marti.cli.commands.train"
JSON_FLAGS = ("agents", "default_agent", "workflow_args", "tools_config", "reward_alloc")


@dataclass
class Source:
    """What was read.

    Args:
        settings: Nested mappings; `agents` is always a list of `{name: {...}}`.
        origins: File and line of every key.
        inherited: Keys that stand in a file of `defaults:` only.
    """

    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    origins: Origins = field(default_factory=Origins)
    inherited: set[Key] = field(default_factory=set)

    def find(self, name: str) -> Path | None:
        """A path that the configuration names: as it is, or below one of the folders around the configuration."""
        name = re.sub(r"^\$(\([^)]*\)|\{[^}]*\}|\w+)/", "", name)  # a root that only the shell knew
        for folder in (Path(), *self.path.resolve().parents):
            for path in (folder / name, folder / name.lstrip("/")):
                if path.exists():
                    return path
        return None


def read(path: Path) -> Source:
    """Read a configuration.

    Raises:
        ConfigurationError: It cannot be read.
    """
    source = Source(path)
    source.origins.lines[()] = (path, 1)
    if path.suffix in (".yaml", ".yml"):
        _hydra(source, path)
    elif path.suffix == ".json":
        source.settings = _agents_at_the_top(parse(_text(path), path, (), source.origins))
        _shift(source.origins, source.settings)
    elif path.suffix == ".sh":
        _script(source)
    else:
        raise ConfigurationError(
            f"{path}: expected a .yaml (Hydra), a .json (agent specifications) or a .sh (launch script)"
        )
    if not isinstance(source.settings, dict) or not isinstance(source.settings.get("agents") or None, dict | list):
        raise ConfigurationError(f"{path}: has no `agents`; the configuration of a multi-agent run is expected")
    agents = source.settings["agents"]
    if isinstance(agents, dict):
        source.settings["agents"] = [{name: config} for name, config in agents.items()]
        for key in [k for k in source.origins.lines if k[:1] == ("agents",) and len(k) > 1]:
            number = list(agents).index(key[1])
            source.origins.lines["agents", str(number), *key[1:]] = source.origins.lines[key]
    return source


def parse(text: str, path: Path, key: Key, origins: Origins, first_line: int = 1) -> Any:
    """YAML or JSON, which YAML holds, with the line of every key; `first_line` is the text's place in its file.

    Raises:
        ConfigurationError: It is neither.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return None
        own = Origins()
        built = build(node, path, key, own, yaml.SafeLoader(""))
    except yaml.MarkedYAMLError as error:
        line = (error.problem_mark.line if error.problem_mark else 0) + first_line
        raise ConfigurationError(f"{path}:{line}: cannot be read: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + first_line
        raise ConfigurationError(f"{path}:{line}: cannot be read: a control character, {error.character:#x}") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: cannot be read: something in it contains itself (`&x [*x]`)") from None
    origins.lines.update({k: (file, line + first_line - 1) for k, (file, line) in own.lines.items()})
    return built


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is not UTF-8 text (byte {error.start})") from None


def _agents_at_the_top(built: Any) -> Any:
    """The agents alone, as `{"0": {...}}` or a list of such, are a configuration too."""
    if isinstance(built, list) or (isinstance(built, dict) and built and all(name.isdigit() for name in built)):
        return {"agents": built}
    return built


def _shift(origins: Origins, settings: Any) -> None:
    """The lines of agents that stood at the top."""
    if isinstance(settings, dict) and "agents" in settings and ("agents",) not in origins.lines:
        origins.lines.update({("agents", *k): place for k, place in list(origins.lines.items()) if k})


def _hydra(source: Source, path: Path) -> None:
    origins = Origins()
    own = parse(_text(path), path, (), origins)
    if not isinstance(own, dict):
        raise ConfigurationError(f"{path}: expected a mapping of keys")
    names = own.pop("defaults", [])
    problems = []
    for name in names if isinstance(names, list) else [names]:
        base = path.parent / f"{name}.yaml"
        if name == "_self_":
            continue
        if not isinstance(name, str) or not base.is_file():
            where = origins.where("defaults")
            problems.append(f"{where}: defaults: {name}: {base} is not there; put it there, or delete the entry")
            continue
        inherited = parse(_text(base), base, (), source.origins) or {}
        if not isinstance(inherited, dict):
            problems.append(f"{base}: expected a mapping of keys")
            continue
        source.settings = merge(source.settings, inherited)
    if problems:
        raise ConfigurationError(problems)
    source.inherited = set(source.origins.lines) - set(origins.lines)
    source.origins.lines.update(origins.lines)
    source.settings = merge(source.settings, own)


def merge(base: Any, own: Any) -> Any:
    """Mappings key by key, everything else as the second has it."""
    if isinstance(base, Mapping) and isinstance(own, Mapping):
        return {**base, **{k: merge(base.get(k), v) for k, v in own.items()}}
    return own


def _script(source: Source) -> None:
    path = source.path
    for words in commands(_text(path)):
        texts = [word.text for word in words]
        if any(V2_LAUNCH in text for text in texts):
            start = next(n for n, text in enumerate(texts) if V2_LAUNCH in text)
            return _v2_flags(source, words[start + 1 :])
        if V01_LAUNCH in texts:
            return _overrides(source, words[texts.index(V01_LAUNCH) + 1 :])
    raise ConfigurationError(f"{path}: starts neither {V2_LAUNCH} (MARTI-v2) nor {V01_LAUNCH} (MARTI v0.1, MAPPA)")


def _v2_flags(source: Source, words: list[Word]) -> None:
    number = 0
    while number < len(words):
        word = words[number]
        if not word.text.startswith("--"):
            raise ConfigurationError(f"{source.path}:{word.line}: expected a flag, got {word.text!r:.80}")
        name, equals, inline = word.text[2:].partition("=")
        values = [Word(inline, word.line)] if equals else []
        number += 1
        while not equals and number < len(words) and not words[number].text.startswith("--"):
            values.append(words[number])
            number += 1
        source.origins.lines[(name,)] = (source.path, word.line)
        if name in JSON_FLAGS and not values:
            raise ConfigurationError(f"{source.path}:{word.line}: --{name} has no value; JSON is expected")
        if name == "agents":
            found = [
                parse(_json(v.text), source.path, (name, str(n)), source.origins, v.line) for n, v in enumerate(values)
            ]
            source.settings[name] = found
        elif name in JSON_FLAGS:
            source.settings[name] = parse(_json(values[0].text), source.path, (name,), source.origins, values[0].line) or {}
        else:
            read = [scalar(v.text) for v in values]
            source.settings[name] = True if not read else read[0] if len(read) == 1 else read


def _overrides(source: Source, words: list[Word]) -> None:
    texts = [word.text for word in words]
    name = next((texts[n + 1] for n, text in enumerate(texts[:-1]) if text == "--config-name"), None)
    name = name or next((text.partition("=")[2] for text in texts if text.startswith("--config-name=")), "default")
    config = source.find(f"marti/cli/configs/{name}.yaml") or source.find(f"{name}.yaml")
    if config is None:
        raise ConfigurationError(f"{source.path}: --config-name {name}: no marti/cli/configs/{name}.yaml above the script")
    _hydra(source, config)
    for before, word in zip(["", *texts], words, strict=False):
        key, equals, value = word.text.lstrip("+").partition("=")
        path = tuple(key.split("."))
        if key.startswith("-") or (before.startswith("-") and not equals):
            continue  # a flag of Hydra's, or its value
        if not equals or not all(path):
            raise ConfigurationError(f"{source.path}:{word.line}: expected key=value, got {word.text!r:.80}; delete it")
        inner: Any = source.settings
        for part in path[:-1]:
            inner = inner.setdefault(part, {}) if isinstance(inner, dict) else None
        if not isinstance(inner, dict):
            raise ConfigurationError(f"{source.path}:{word.line}: {key}: there are no settings in which it could stand")
        inner[path[-1]] = parse(value, source.path, path, source.origins, word.line) if value else None
        for length in range(1, len(path) + 1):
            source.inherited.discard(path[:length])
        source.origins.lines[path] = (source.path, word.line)


def _json(text: str) -> str:
    """JSON as the script has it; a variable of the template, kept from the shell by a backslash too many, is one again."""
    return text.replace("\\$", "$")


def scalar(text: str) -> Any:
    """A flag's value: a number where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class Word:
    """A word of a shell command, and the line where its text began."""

    text: str
    line: int


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?!]")
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def commands(text: str) -> Iterator[list[Word]]:
    """The simple commands of a script with the variables filled in that it set before; assignments are kept, not given."""
    variables: dict[str, Word] = {}
    for words in _Shell(text, variables).commands():
        if words[0].text == "export":
            words = words[1:]
        rest = [word for word in words if not ASSIGNMENT.match(word.text)]
        if rest:
            yield words
            continue
        for word in words:
            name, _, value = word.text.partition("=")
            variables[name] = Word(value, word.line)


class _Shell:
    """Splits a script into words as a shell would, as far as launch scripts go."""

    def __init__(self, text: str, variables: dict[str, Word]):
        self.text, self.variables = text, variables
        self.place, self.line = 0, 1

    def commands(self) -> Iterator[list[Word]]:
        words: list[Word] = []
        while self.place < len(self.text):
            c = self.text[self.place]
            if c in "\n;|&(){}<>" and not (c in "{}" and words):
                self._next()
                if words:
                    yield words
                    words = []
            elif c.isspace():
                self._next()
            elif c == "#":
                while self.place < len(self.text) and self.text[self.place] != "\n":
                    self._next()
            elif self.text.startswith("\\\n", self.place):
                self._next(2)
            else:
                word = self._word()
                if word is not None:
                    words.append(word)
        if words:
            yield words

    def _next(self, count: int = 1) -> str:
        taken = self.text[self.place : self.place + count]
        self.place += count
        self.line += taken.count("\n")
        return taken

    def _word(self) -> Word | None:
        start, line, parts, quoted = self.place, self.line, [], False
        while self.place < len(self.text):
            c = self.text[self.place]
            if c.isspace() or c in ";|&()<>":
                break
            if c == "'":
                self._next()
                end = self.text.find("'", self.place)
                parts.append(self._next((end if end >= 0 else len(self.text)) - self.place))
                self._next()
                quoted = True
            elif c == '"':
                parts += self._double_quoted()
                quoted = True
            elif c == "\\":
                self._next()
                parts += [p for p in [self._next()] if p != "\n"]
            elif c == "`":
                self._substitution()
            elif c == "$":
                parts.append(self._variable())
            else:
                parts.append(self._next())
        text = "".join(parts)
        if not quoted and text.isdigit() and self.text[self.place : self.place + 1] in ("<", ">"):
            return None  # the number of a redirected stream
        whole = re.fullmatch(r'"?\$\{?(\w+)\}?"?', self.text[start : self.place])
        if whole and whole.group(1) in self.variables:
            line = self.variables[whole.group(1)].line  # the text stands where the variable was set
        return Word(text, line) if text or quoted else None

    def _double_quoted(self) -> list[str]:
        parts = []
        self._next()
        while self.place < len(self.text) and self.text[self.place] != '"':
            c = self.text[self.place]
            if c == "\\" and self.text[self.place + 1 : self.place + 2] in tuple('"\\$`\n'):
                self._next()
                parts += [p for p in [self._next()] if p != "\n"]
            elif c == "$":
                parts.append(self._variable())
            elif c == "`":
                self._substitution()
            else:
                parts.append(self._next())
        self._next()
        return parts

    def _substitution(self) -> None:
        self._next()
        end = self.text.find("`", self.place)
        self._next((end if end >= 0 else len(self.text)) - self.place + 1)

    def _variable(self) -> str:
        """The value of a variable that the script set, a default that it gives, or what is written."""
        start = self.place
        self._next()
        if self.text.startswith("(", self.place):
            depth = 0
            while self.place < len(self.text):
                depth += {"(": 1, ")": -1}.get(self._next(), 0)
                if depth == 0:
                    break
            return self.text[start : self.place]
        if self.text.startswith("{", self.place):
            self._next()
            inside, depth = "", 1
            while self.place < len(self.text):
                c = self._next()
                depth += {"{": 1, "}": -1}.get(c, 0)
                if depth == 0:
                    break
                inside += c
            found = NAME.match(inside)
            name, rest = (found.group(), inside[found.end() :]) if found else ("", inside)
            if name in self.variables and self.variables[name].text:
                return self.variables[name].text
            if rest.startswith(":-"):
                inner = list(_Shell(rest[2:], self.variables).commands())
                return " ".join(word.text for words in inner for word in words)
            return "" if name in self.variables or rest.startswith(":+") else self.text[start : self.place]
        found = NAME.match(self.text, self.place)
        if found is None:
            return "$"
        self._next(len(found.group()))
        word = self.variables.get(found.group())
        return word.text if word is not None else self.text[start : self.place]
