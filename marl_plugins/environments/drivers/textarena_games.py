"""Games of TextArena, each in a process of its own: their chance is Python's global generator."""

from typing import Any

import textarena
from playing import EnvironmentFault, Settings, Turn, answer, examine, play

MOST_PLAYERS = 15
WRONG_COUNT = ("AssertionError", "ValueError", EnvironmentFault.__name__)
"""What games raise where they have too few players; some never end."""


class Game:
    """A game, made anew for each episode: its wrappers keep what they have shown."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.env: Any = None

    def reset(self, seed: int) -> Turn:
        self.env = textarena.make(self.settings["name"], **self.settings["options"])
        self.env.reset(num_players=len(self.settings["players"]), seed=seed)
        return self._turn()

    def step(self, text: str) -> Turn:
        player = self._inner().state.current_player_id
        done, _ = self.env.step(action=text)
        if not done:
            return self._turn()
        rewards, about = self.env.close()
        about = about or {}
        why = str(about.get(player, {}).get("reason", ""))
        turn: Turn = {"done": True, "rewards": rewards or {}, "why": why}
        if about.get(player, {}).get("invalid_move"):
            turn["invalid"] = player
        return turn

    def _inner(self) -> Any:
        env = self.env
        while isinstance(env, textarena.Wrapper):
            env = env.env
        return env

    def _turn(self) -> Turn:
        """What the player is shown: in a conversation what is new to it; else all that the game's
        wrapper shows. `{news}` in a prompt is what is new, without the rules."""
        inner = self._inner()
        new = list(inner.state.observations[inner.state.current_player_id])
        player, seen = (inner if self.settings["conversation"] else self.env).get_observation()
        if not isinstance(seen, str):
            seen = spoken(seen, player)
        news = spoken([one for one in new if getattr(one[2], "name", "") != "PROMPT"], player)
        return {"player": player, "observation": seen.strip("\n"), "fields": {"news": news}}


def spoken(messages: list[Any], player: int) -> str:
    """Returns messages as the game's wrapper shows them, without the player's own."""
    names = {textarena.GAME_ID: "GAME"}
    lines = [(who, text) for who, text, *_ in messages if who != player]
    return "\n".join(f"[{names.get(who, f'Player {who}')}] {text}" for who, text in lines)


def main(item: Any, endpoint: Any) -> str:
    return play(Game, item, endpoint)


def report(settings: Settings) -> object:
    """Returns the names of all games, or an episode's report; where the number of players is not
    known, with the fewest that a game takes."""
    if settings["name"] == "ALL":
        known = textarena.envs.registration.ENV_REGISTRY
        return sorted(name for name in known if name.count("-") == 1 and name.endswith("-v0"))
    if settings["players"]:
        return examine(Game, settings)
    tried: dict[str, Any] = {}
    for count in range(1, MOST_PLAYERS + 1):
        roles = {"players": [f"player{n}" for n in range(count)]}
        tried = examine(Game, settings | roles)
        if not tried.get("error", "").startswith(WRONG_COUNT):
            break
    return tried


if __name__ == "__main__":
    answer(report)
