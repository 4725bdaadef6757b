"""One episode of an environment: whoever is to move says something, and the environment goes on.

This folder's files run in the environment's own Python, where nothing of this package is installed:
they import the standard library, the environment's package, and each other. An environment has
`reset(seed)` and `step(text)`, and both return a `Turn`.
"""

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypedDict

SETTINGS = "MARL_ENVIRONMENT"
"""Variable with the settings of the recipe's `env:`, in JSON (section.py of the folder above)."""
Settings = dict[str, Any]
ROUNDING = 1e-9
"""Of a sum of rewards."""


class Turn(TypedDict, total=False):
    """What an environment says.

    Attributes:
        player: Number of who is to move.
        observation, fields: What that player is shown: the whole, and parts of it by name.
        reward: What the move just made has earned; None: nothing is said of it.
        done: The episode has ended.
        rewards: What its end pays the players, by their numbers.
        invalid: Number of the player whose invalid move has ended it.
        why: Why it has ended.
    """

    player: int
    observation: str
    fields: dict[str, str]
    reward: Any
    done: bool
    rewards: dict[int, Any]
    invalid: int
    why: str


class Environment(Protocol):
    """What is played."""

    def reset(self, seed: int) -> Turn: ...

    def step(self, text: str) -> Turn: ...


class EnvironmentFault(Exception):
    """The environment does not work, or not as its recipe says."""


class Speaker(Protocol):
    """Who plays all roles."""

    def say(self, role: str, turn: Turn) -> str: ...

    def reward(self, number: float) -> None: ...


def post(url: str, key: str, body: object, headers: dict[str, str]) -> Any:
    """Returns the endpoint's answer, which is asked without a proxy."""
    known = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), known | headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request) as answer:
        return json.load(answer)


class EndpointSpeaker:
    """The roles, behind the run's endpoint."""

    def __init__(self, settings: Settings, base_url: str, api_key: str):
        self.settings = settings
        self.base_url = base_url
        self.api_key = api_key
        self.histories: dict[str, list[dict[str, str]]] = {}
        self.last = ""
        """The id of the last answer."""

    def say(self, role: str, turn: Turn) -> str:
        """Returns a role's answer to what it is shown."""
        texts, history = self.settings["prompts"][role], self.histories.get(role, [])
        fields = {"observation": turn["observation"], **turn.get("fields", {})}
        if not history and texts["system"] is not None:
            history = [{"role": "system", "content": texts["system"].format(**fields)}]
        prompt = texts["followup"] if role in self.histories else texts["prompt"]
        shown = {"role": "user", "content": (prompt or "{observation}").format(**fields)}
        messages = [*history, shown]
        after = {"x-marl-after": self.last} if self.last else {}
        answer = self._post("chat/completions", {"model": role, "messages": messages}, after)
        text = str(answer["choices"][0]["message"]["content"])
        self.last = answer["id"]
        if self.settings["conversation"]:
            self.histories[role] = [*messages, {"role": "assistant", "content": text}]
        return text

    def reward(self, number: float) -> None:
        """Gives the last answer its reward."""
        self._post("rewards", {"id": self.last, "reward": number}, {})

    def _post(self, path: str, body: object, headers: dict[str, str]) -> Any:
        return post(f"{self.base_url}/{path}", self.api_key, body, headers)


def said(text: str) -> str:
    """Returns what an answer says after its thinking; nothing where that has not ended.

    Models whose marks are tokens of their own are answered for without it; to others the marks are
    text (core/conversation.py).
    """
    return text.rpartition("</think>")[2].partition("<think>")[0]


class ScriptedSpeaker:
    """Says given texts in turn, whoever is asked, and notes what it was shown."""

    def __init__(self, answers: list[str]):
        self.answers = answers
        self.log: list[Any] = []

    def say(self, role: str, turn: Turn) -> str:
        self.log.append([role, turn["observation"], turn.get("reward")])
        return self.answers[(len(self.log) - 1) % len(self.answers)]

    def reward(self, number: float) -> None:
        self.log.append(number)


@contextmanager
def limited(settings: Settings) -> Iterator[None]:
    """Interrupts an environment that takes too long."""

    def stop(number: int, frame: object) -> None:
        seconds = settings["seconds"]
        what = f"{settings['name']} does not answer within {seconds:g} s (env.seconds)"
        raise EnvironmentFault(what)

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, settings["seconds"])
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Purse:
    """What the players of an episode are paid.

    With `scored: step` each step's reward goes to its answer, and a player's outcome is the last
    reward that it has got; else the outcome is the sum of all.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.by_step = settings["scored"] == "step"
        self.paid: dict[str, float] = {}

    def pay(self, role: str, reward: Any) -> float:
        """Pays a role, and returns how much.

        Raises:
            EnvironmentFault: That is no number, or outside the range.
        """
        try:
            number = float("text" if isinstance(reward, str) else reward)
        except (TypeError, ValueError):
            raise self._wrong(role, reward) from None
        self.paid[role] = number if self.by_step else self.paid.get(role, 0.0) + number
        if self.by_step:
            self.check(role)
        return number

    def check(self, role: str) -> None:
        """Raises `EnvironmentFault` where what a role has got is outside the range."""
        low, high = self.settings["rewards"]
        if not low - ROUNDING <= self.paid[role] <= high + ROUNDING:
            raise self._wrong(role, self.paid[role])

    def _wrong(self, role: str, reward: object) -> EnvironmentFault:
        what = f"{self.settings['name']} pays {role} {reward!r:.200}"
        expected = f"a number in {self.settings['rewards']} (env.rewards)"
        return EnvironmentFault(f"{what}; expected {expected}")


def episode(
    environment: Environment, speaker: Speaker, settings: Settings, seed: int
) -> dict[str, Any]:
    """Plays an episode to its end.

    Returns:
        `rewards`, what each role was paid in all, None where its worth is not known; `turns`;
        `ended`, false where it was left after so many turns; `invalid`, whose invalid move has
        ended it; `why`; `theirs`, what the environment itself pays at the end.

    Raises:
        EnvironmentFault: The environment does not answer, or pays what it may not.
    """
    players, purse, turns = settings["players"], Purse(settings), 0
    with limited(settings):
        turn = environment.reset(seed)
    while not turn.get("done") and turns < settings["turns"]:
        if not 0 <= turn["player"] < len(players):
            what = f"player {turn['player']} is to move, and env.players has {len(players)}"
            raise EnvironmentFault(f"{settings['name']}: {what}")
        role = players[turn["player"]]
        text = speaker.say(role, turn)
        with limited(settings):
            turn = environment.step(said(text))
        turns += 1
        reward = settings["invalid"] if "invalid" in turn else turn.get("reward")
        if purse.by_step:
            speaker.reward(purse.pay(role, 0.0 if reward is None else reward))
        elif reward is not None:
            purse.pay(role, reward)
    for player, reward in turn.get("rewards", {}).items() if "invalid" not in turn else ():
        purse.pay(players[player], reward)
    ended, invalid = bool(turn.get("done")), None
    rewards = {role: purse.paid.get(role) for role in players}
    if "invalid" in turn:
        invalid = players[turn["invalid"]]
        rewards = {role: settings["invalid"] if role == invalid else None for role in players}
    elif not purse.paid:
        if ended:
            raise EnvironmentFault(f"{settings['name']} has ended and pays nobody")
        rewards = dict.fromkeys(players, settings["rewards"][0])
    else:
        for role in purse.paid:
            purse.check(role)
    return {
        "rewards": rewards,
        "turns": turns,
        "ended": ended,
        "invalid": invalid,
        "why": str(turn.get("why", ""))[:300],
        "theirs": list(turn.get("rewards", {}).values()),
    }


def play(make: Callable[[Settings], Environment], item: Any, endpoint: Any) -> str:
    """Plays the episode of a task, and returns how it has ended, in JSON."""
    settings = json.loads(os.environ[SETTINGS])
    speaker = EndpointSpeaker(settings, endpoint.base_url, endpoint.api_key)
    return json.dumps(episode(make(settings), speaker, settings, item.metadata["seed"]))


def examine(make: Callable[[Settings], Environment], settings: Settings) -> dict[str, Any]:
    """Plays two episodes of one seed and one of another, with scripted answers.

    Returns:
        `turns`, the most; `rewards`, the lowest and the highest; `repeatable`, whether the first
        two were alike; `players`, how many. Or `error`.
    """
    played = []
    try:
        environment = make(settings)
        for seed in (0, 0, 1):
            speaker = ScriptedSpeaker(settings["answers"])
            ended = episode(environment, speaker, settings, seed)
            played.append((speaker.log, ended))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    rewards = [
        reward
        for _, ended in played
        for reward in (*ended["rewards"].values(), *ended["theirs"])
        if isinstance(reward, (int, float))
    ]
    return {
        "turns": max(ended["turns"] for _, ended in played),
        "rewards": [min(rewards), max(rewards)],
        "repeatable": played[0] == played[1],
        "players": len(settings["players"]),
    }


def answer(report: Callable[[Settings], object]) -> None:
    """Prints a report on the settings in the environment; whatever is printed else, or by C, goes
    to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(report(json.loads(os.environ[SETTINGS]))), file=out)
    out.close()
    sys.stdout.flush()
    os._exit(0)  # threads of a game may go on for ever
