"""What was refused, as tests compare it: the code of each problem and the names of its places, a file by its last part."""

from contextlib import contextmanager
from pathlib import Path

import pytest

from marl_plugins.core.failures import ConfigurationError


def brief(problem):
    """Returns `(code, place, ...)`, as in `("flags.unknown", "recipe.yaml:7", "actor.adam.rl")`."""
    files = ("line", "file", "folder")
    return problem.code, *(Path(name).name if kind in files else name for kind, name in problem.where)


def briefs(problems):
    return [brief(problem) for problem in problems]


@contextmanager
def refused(*expected):
    """Expects a `ConfigurationError` with these problems, each as `brief` shows it."""
    with pytest.raises(ConfigurationError) as caught:
        yield caught
    assert briefs(caught.value.problems) == list(expected)
