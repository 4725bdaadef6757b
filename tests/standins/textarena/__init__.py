"""A stand-in for the package textarena: its interface, and games that misbehave."""

import os
import random
import time
from enum import Enum
from types import SimpleNamespace

GAME_ID = -1
Kind = Enum("Kind", "PROMPT PLAYER_ACTION GAME_BOARD")


class Wrapper:
    """Shows all that a player has been shown, as one text."""

    def __init__(self, env):
        self.env, self.shown = env, {}

    def __getattr__(self, name):
        return getattr(self.env, name)

    def get_observation(self):
        player, new = self.env.get_observation()
        self.shown.setdefault(player, []).extend(text for _, text, _ in new)
        return player, "\n".join(self.shown[player])


class Count:
    """Two players count down by 1 or 2 in turn; who says 0 has won. A move that is not legal may be
    repeated once."""

    def __init__(self, behaves="", start=None):
        self.behaves, self.start = behaves, start

    def reset(self, num_players, seed=None):
        if num_players != 2:
            raise AssertionError(f"two players, not {num_players}")
        random.seed(os.urandom(8) if self.behaves == "unseeded" else seed)
        self.left = self.start or random.randint(3, 9)
        rules = f"Say 1 or 2. (seed {random.random():.3f})"
        new = {p: [(GAME_ID, f"{rules} You are {p}.", Kind.PROMPT)] for p in range(2)}
        self.state = SimpleNamespace(current_player_id=0, observations=new)
        self.wrong, self.paid = 0, None
        self.about = {p: {"invalid_move": False, "reason": ""} for p in range(2)}
        self._say(f"{self.left} left", Kind.GAME_BOARD)

    def _say(self, text, kind, by=GAME_ID):
        for new in self.state.observations.values():
            new.append((by, text, kind))

    def get_observation(self):
        player = self.state.current_player_id
        new, self.state.observations[player] = self.state.observations[player], []
        return player, new

    def step(self, action):
        player = self.state.current_player_id
        if self.behaves == "raises" or action == "raise":
            raise KeyError("no such square")
        if action == "die":
            os._exit(7)
        if self.behaves == "prints":
            print("Correct: 0, Total: 18")
            os.write(1, b"from below\n")
        if self.behaves == "hangs":
            time.sleep(60)
        self._say(action, Kind.PLAYER_ACTION, player)
        if self.behaves == "endless":
            self.state.current_player_id = 1 - player
            return False, {}
        if action not in ("1", "2"):
            self.wrong += 1
            if self.wrong == 2:
                self.about[player] = {"invalid_move": True, "reason": "that is no move"}
                self.paid = {player: -1, 1 - player: 1}
            return self.wrong == 2, {}
        self.left, self.wrong = max(0, self.left - int(action)), 0
        self._say(f"{self.left} left", Kind.GAME_BOARD)
        if not self.left:
            self.paid = {player: 1, 1 - player: -1}
        self.state.current_player_id = 1 - player
        return not self.left, {}

    def close(self):
        wrong = {"text": "Error: no number", "nan": float("nan"), "ten": 10, "none": None}
        if self.behaves in wrong and self.paid:
            self.paid = dict.fromkeys(self.paid, wrong[self.behaves])
        return (None if self.behaves == "silent" else self.paid), self.about


BEHAVIOURS = ("raises", "prints", "hangs", "unseeded", "endless", "text", "nan", "ten", "none")
BEHAVIOURS += ("silent",)
GAMES = {"Count-v0": "", **{f"{name.title()}-v0": name for name in BEHAVIOURS}}
envs = SimpleNamespace(registration=SimpleNamespace(ENV_REGISTRY=GAMES))


def make(name, **options):
    if name not in GAMES:
        raise ValueError(f"Environment {name} not found in registry.")
    return Wrapper(Count(GAMES[name], **options))
