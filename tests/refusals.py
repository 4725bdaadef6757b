"""What was refused, as tests compare it: the code of each problem and the names of its places, a
file by its last part."""

from contextlib import contextmanager
from pathlib import Path

import pytest

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import as_json

OF_FILES = ("line", "file", "folder")


def brief(problem):
    """Returns `(code, place, ...)`, as in `("flags.unknown", "recipe.yaml:7", "actor.adam.rl")`, of
    a problem or of its JSON."""
    shown = problem if isinstance(problem, dict) else as_json(problem)
    return shown["code"], *(_short(**place) for place in shown["where"])


def _short(kind, name):
    return Path(name).name if kind in OF_FILES or name.endswith(".py") else name


def briefs(problems):
    return [brief(problem) for problem in problems]


def found_by(call, *arguments):
    """Returns the problems with which a call is refused, each as `brief` shows it."""
    with pytest.raises(ConfigurationError) as caught:
        call(*arguments)
    return briefs(caught.value.problems)


@contextmanager
def refused(*expected):
    """Expects a `ConfigurationError` with these problems, each as `brief` shows it."""
    with pytest.raises(ConfigurationError) as caught:
        yield caught
    assert briefs(caught.value.problems) == list(expected)
