"""The recipe's key `env`: a public environment in place of workflow, tasks and grader."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pydantic

from marl_plugins import ConfigurationError, Model, Problem, Run, Section, at, meant
from marl_plugins.environments.servers import ServerPool

DRIVERS = Path(__file__).parent / "drivers"
SCRIPT = ("[0]", "[1]", "[1 2]", "[A1]", "hello [check]", "[up]")
"""What players say before a run whose roles have no `example`: each is a move of many games."""
SETTINGS = "MARL_ENVIRONMENT"
"""Variable with what a driver is told, as drivers/playing.py reads it."""
EVALUATION = 1_000_000
"""The first seed of an evaluation; training's begin at 0."""


class OpenEnvServer(Model):
    """A server of OpenEnv, which the run starts, as often as it needs it, and ends.

    The protocol is its WebSocket, so that the run's Python has none of its packages.
    """

    EXAMPLE: ClassVar[str] = "{app: connect4_env.server.app:app}"

    app: str = ""
    """Application that uvicorn starts by `python`."""
    command: list[str] = pydantic.Field([], examples=["[docker, run, -p, '{port}:8000', IMAGE]"])
    """In place of `app`: the words that start a server; `{port}` is where it has to listen."""
    folder: str = "."
    """Where it works, relative to the recipe's folder."""
    environment: dict[str, str] = pydantic.Field({}, examples=["{PYTHONPATH: ..}"])
    """More environment variables."""
    servers: int = pydantic.Field(1, ge=1)
    """Servers that run at the same time. Many take half a minute to start."""
    sessions: int = pydantic.Field(1, ge=1)
    """Episodes that one server has at the same time; most take one."""
    ready_seconds: float = pydantic.Field(180.0, gt=0)
    """A server that does not answer by then is not waited for."""
    restarts: int = pydantic.Field(3, ge=0)
    """Times that a server which has ended is started again."""


class EnvConfig(Section):
    """A public environment that the roles play: an episode is a trajectory, its players are roles
    ([environments.md](environments.md))."""

    EXAMPLE: ClassVar[str] = "{textarena: Nim-v0, python: venv/bin/python}"
    GIVES_WORKFLOW: ClassVar[bool] = True

    textarena: str = ""
    """Name of a game of TextArena."""
    openenv: OpenEnvServer | None = None
    """In place of a game: a server of OpenEnv."""
    verifiers: str = ""
    """In place of both: an environment of verifiers, by the name of its module."""
    python: str | None = None
    """Python that has the environment's packages, relative to the recipe's folder. Default: the
    run's."""
    players: list[str] = []
    """The role of each player, in the environment's order. Default: the recipe's roles in
    theirs."""
    rewards: tuple[float, float] = (-1.0, 1.0)
    """The lowest and the highest reward, which become 0 and 1: of an episode, or with
    `scored: step` of a step. Another reward is an error."""
    scored: Literal["episode", "step"] = "episode"
    """`step`: each answer is scored by the reward of its step, and the outcome is the last one.
    Only of OpenEnv."""
    invalid: float | None = None
    """Reward of a player whose invalid move has ended the episode; what the others are paid for it
    is left out. Default: the lowest."""
    turns: int = pydantic.Field(100, ge=1)
    """Longest episode. One that has not ended by then pays what it has paid; if nothing, the
    lowest."""
    show: list[str] = []
    """Keys of an OpenEnv observation that a role is shown. What is not listed (a label,
    `metadata`) is not shown."""
    conversation: bool = True
    """A player's moves are turns of one conversation, in which it is shown what is new; false: each
    move is shown its observation alone."""
    options: dict[str, Any] = pydantic.Field({}, examples=["{piles: [1, 2, 2]}"])
    """Arguments of the environment: what makes a game, resets a server, or configures an
    environment of verifiers."""
    episodes: int = pydantic.Field(512, ge=1)
    """Training tasks: the seeds from 0."""
    eval_episodes: int = pydantic.Field(64, ge=0)
    """Held-out tasks: the seeds from 1,000,000."""
    seconds: float = pydantic.Field(60.0, gt=0)
    """Longest reset or step."""
    concurrency: int = pydantic.Field(64, ge=1)
    """Most episodes at the same time; of OpenEnv as many as there are sessions."""

    @property
    def kinds(self) -> list[str]:
        """The kinds of environment that are named; one, where the section is right."""
        return [kind for kind in ("textarena", "openenv", "verifiers") if getattr(self, kind)]

    @property
    def name(self) -> str:
        """What the environment is called."""
        server = self.openenv
        of_server = server.app or " ".join(server.command) if server else ""
        return self.textarena or self.verifiers or of_server

    def roles(self, run: Run) -> list[str]:
        """Returns the role of each player."""
        return self.players or list(run.recipe.roles)

    def interpreter(self, folder: Path) -> str:
        """Returns the Python that has the environment's packages."""
        if not self.python:
            return sys.executable
        place = str(folder.absolute() / self.python)
        return place if "/" in self.python else shutil.which(self.python) or place

    def driver(self) -> Path:
        """Returns the file that plays an episode."""
        files = {"textarena": "textarena_games.py", "openenv": "openenv_sessions.py"}
        return DRIVERS / files.get(self.kinds[0], "verifiers_episodes.py")

    def settings(self, run: Run) -> dict[str, Any]:
        """Returns what the driver is told."""
        roles = self.roles(run)
        names = ("turns", "show", "scored", "conversation", "options", "rewards", "seconds")
        known: dict[str, Any] = {name: getattr(self, name) for name in names}
        examples: Sequence[str] = [
            text for role in roles for text in run.recipe.roles[role].example
        ]
        server = self.openenv
        return known | {
            "name": self.name,
            "players": roles,
            "invalid": self.rewards[0] if self.invalid is None else self.invalid,
            "answers": list(examples or SCRIPT),
            "slots": str(run.state(ServerPool).folder) if server else "",
            "ready_seconds": server.ready_seconds if server else 0.0,
            "prompts": {
                role: {
                    "system": run.system(role),
                    "prompt": run.prompt(role),
                    "followup": run.followup(role) or run.prompt(role),
                }
                for role in roles
            },
        }

    def program(self, run: Run) -> Mapping[str, Any] | None:
        if not self.model_fields_set:
            return None
        if problems := list(wrong_section(self, run)):
            raise ConfigurationError(problems)
        slots = self.openenv and self.openenv.servers * self.openenv.sessions
        return {
            "file": str(self.driver()),
            "python": None if self.openenv else self.python,
            "crash": "lost",
            "derive": bool(self.verifiers),  # the other drivers say what an answer follows
            "concurrency": slots or self.concurrency,
            "rewards": self.rewards if self.scored == "step" else None,
            "environment": {SETTINGS: json.dumps(self.settings(run))},
        }


def server_command(server: OpenEnvServer, python: str) -> list[str]:
    """Returns the words that start a server, with a place for its port."""
    uvicorn = [python, "-m", "uvicorn", server.app, "--host", "127.0.0.1", "--port", "{port}"]
    return server.command or [*uvicorn, "--log-level", "warning"]


def wrong_section(config: EnvConfig, run: Run) -> Iterator[Problem]:
    """Yields what is wrong with the section itself."""
    roles, known = config.roles(run), list(run.recipe.roles)
    if len(config.kinds) != 1:
        got = " and ".join(config.kinds) or "none of them"
        yield Problem("env.kind", at(key="env"), got, "one of textarena, openenv and verifiers")
        return
    python = config.interpreter(run.folder)
    if shutil.which(python) is None:
        got, fix = (
            f"there is no program {python}",
            "make it (docs/environments.md), or name another",
        )
        yield Problem("env.python", at(key="env.python"), got, fix=fix)
    for role in roles:
        if role not in known:
            fix = meant(role, known)
            yield Problem("env.players", at(key="env.players"), f"{role!r} is no role", fix=fix)
    if len(set(roles)) < len(roles):
        got, fix = f"{roles} has a role twice", "`mapping: shared` lets one policy play all"
        yield Problem("env.players", at(key="env.players"), got, fix=fix)
    low, high = config.rewards
    if not low < high:
        got = f"{[low, high]} is no range from the lowest reward to the highest"
        yield Problem("env.rewards", at(key="env.rewards"), got)
    elif config.invalid is not None and not low <= config.invalid <= high:
        got = f"{config.invalid} is not in {[low, high]} (env.rewards)"
        yield Problem("env.invalid", at(key="env.invalid"), got)
    if config.scored == "step" and not (config.openenv and low <= 0 <= high):
        got = "needs an OpenEnv server, and rewards around 0, which a step without one has"
        yield Problem("env.scored", at(key="env.scored"), got)
    of_games = {"conversation", "invalid", "seconds"} if config.verifiers else set[str]()
    idle = config.model_fields_set & (of_games | (set() if config.openenv else {"show"}))
    keys = [f"env.{name}" for name in sorted(idle)]
    keys += [key for key in ("tasks", "grader") if getattr(run.recipe, key)]
    for name, texts in run.recipe.roles.items() if config.verifiers else ():
        keys += [f"roles.{name}.{key}" for key in ("prompt", "system") if getattr(texts, key)]
    for key in keys:
        got = f"has no effect in an environment of {config.kinds[0]}"
        yield Problem("env.pointless", at(key=key), got, fix="remove it")
    for flag in ("data.prompt_dataset", "eval.dataset"):
        if flag in run.given:
            got = "would have no effect: the tasks are the environment's"
            yield Problem("env.data", at(flag=flag), got, fix="remove it")
    server = config.openenv
    if server and bool(server.app) == bool(server.command):
        yield Problem("env.server", at(key="env.openenv"), "needs one of app and command")
