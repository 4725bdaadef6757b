"""The commands of a shell script, split into words as a shell would, as far as launch scripts need
it. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """A word of a shell command, and the line where its text begins."""

    text: str
    line: int


SUBSTITUTION = r"""
    `[^`]*(?:`|\Z)
  | \$\((?:[^()]|\([^()]*\))*\)
  | \$\{(?:[^{}]|\{[^{}]*\})*\}
  | \$(?:[A-Za-z_]\w*|[0-9@*#?!])
"""
IN_QUOTES = re.compile(rf'\\["\\$`\n] | {SUBSTITUTION}', re.VERBOSE)
PART = re.compile(
    rf"""
    '[^']*(?:'|\Z)
  | "(?:\\.|`[^`]*`|[^"\\])*(?:"|\Z)
  | \\.
  | {SUBSTITUTION}
    """,
    re.VERBOSE | re.DOTALL,
)
TOKEN = re.compile(
    rf"""
    (?P<gap> (?:[^\S\n] | \\\n)+ | \#[^\n]* )
  | (?P<end> [0-9]*[<>] | [\n;|&()] )
  | (?P<word> (?: {PART.pattern} | [^\s;|&()<>] )+ )
    """,
    re.VERBOSE | re.DOTALL,
)
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def commands(text: str) -> Iterator[list[Word]]:
    """Yields the simple commands of a script, with variables that it has set substituted;
    assignments are remembered, not yielded."""
    variables: dict[str, Word] = {}
    words: list[Word] = []
    for token in TOKEN.finditer(text + "\n"):
        written = token["word"]
        if written and not (written in "{}" and not words):
            line = text.count("\n", 0, token.start()) + 1
            whole = re.fullmatch(r'"?\$\{?(\w+)\}?"?', written)
            if whole and whole[1] in variables:
                line = variables[whole[1]].line  # the text is where the variable was set
            value = _expanded(written, variables)
            if value or written[0] in "'\"":
                words.append(Word(value, line))
        elif token["end"] and words:
            assigned = words[1:] if words[0].text == "export" else words
            if all(ASSIGNMENT.match(word.text) for word in assigned):
                for word in assigned:
                    name, _, value = word.text.partition("=")
                    variables[name] = Word(value, word.line)
            else:
                yield assigned
            words = []


def _expanded(written: str, variables: dict[str, Word], pattern: re.Pattern[str] = PART) -> str:
    """A word without its quotes, and with the values of its variables."""

    def value(part: re.Match[str]) -> str:
        text = part[0]
        match text[0]:
            case "'":
                return text.strip("'")
            case '"':
                return _expanded(text[1:].removesuffix('"'), variables, IN_QUOTES)
            case "\\":
                return text[1:].strip("\n")
            case "`":
                return ""
        return text if text.startswith("$(") else _variable(text, variables)

    return pattern.sub(value, written)


def _variable(written: str, variables: dict[str, Word]) -> str:
    """The value that the script set, the default that it gives, or the variable as written."""
    inside = written[2:-1] if written[1] == "{" else written[1:]
    name, _, default = inside.partition(":")
    word = variables.get(name)
    if word is not None and word.text:
        return word.text
    if default.startswith("-"):
        return _expanded(default[1:], variables)
    return "" if word is not None or default.startswith("+") else written
