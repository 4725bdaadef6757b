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


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?!]")
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def commands(text: str) -> Iterator[list[Word]]:
    """Yields the simple commands of a script, with variables that it has set substituted;
    assignments are remembered, not yielded."""
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
    """Splits a script into words."""

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
            line = self.variables[whole.group(1)].line  # the text is where the variable was set
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
        """The value that the script set, the default that it gives, or the variable as written."""
        start = self.place
        self._next()
        if self.text.startswith("(", self.place):
            self._balanced("(", ")")
            return self.text[start : self.place]
        if self.text.startswith("{", self.place):
            inside = self._balanced("{", "}")
            return self._braced(inside, self.text[start : self.place])
        found = NAME.match(self.text, self.place)
        if found is None:
            return "$"
        self._next(len(found.group()))
        word = self.variables.get(found.group())
        return word.text if word is not None else self.text[start : self.place]

    def _balanced(self, opening: str, closing: str) -> str:
        """Consume text from an opening bracket to its closing one; what is between them."""
        start, depth = self.place + 1, 0
        while self.place < len(self.text):
            c = self._next()
            depth += {opening: 1, closing: -1}.get(c, 0)
            if depth == 0:
                return self.text[start : self.place - 1]
        return self.text[start : self.place]

    def _braced(self, inside: str, written: str) -> str:
        """The value of `${inside}`."""
        found = NAME.match(inside)
        name, rest = (found.group(), inside[found.end() :]) if found else ("", inside)
        if name in self.variables and self.variables[name].text:
            return self.variables[name].text
        if rest.startswith(":-"):
            inner = list(_Shell(rest[2:], self.variables).commands())
            return " ".join(word.text for words in inner for word in words)
        return "" if name in self.variables or rest.startswith(":+") else written
