"""Episodes of OpenEnv: sessions of servers that the run has started, over their WebSocket."""

import asyncio
import contextlib
import fcntl
import json
import os
import re
import time
from pathlib import Path
from typing import IO, Any

import aiohttp
from playing import EnvironmentFault, Settings, Turn, answer, examine, play

LARGEST_MESSAGE = 64 * 2**20
REFUSALS = ("VALIDATION_ERROR", "EXECUTION_ERROR")
"""Codes of a server that does not take an action: it is none, or the environment has raised
something at it, as many do at a move that is not legal."""
BUSY = "CAPACITY_REACHED"
"""Code of a server that has not noticed yet that the session before has ended."""
WAIT_SECONDS = 0.05
"""Between two looks at whether a session is free, or a server there."""


def free_slot(folder: Path) -> IO[str]:
    """Returns the file of a session that nobody else has as long as the file is open, with the
    server's port in it.

    Raises:
        EnvironmentFault: There is no server any more.
    """
    while paths := sorted(folder.glob("*.slot")):
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                slot = path.open()
                try:
                    fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return slot
                except BlockingIOError:
                    slot.close()
        time.sleep(WAIT_SECONDS)
    raise EnvironmentFault("every server has ended more often than env.openenv.restarts allow")


def action_of(text: str, schema: Any) -> dict[str, Any]:
    """Returns the action that an answer is: the last JSON object in it; or else, where an action
    has one required field, the answer or the last number in it.

    Raises:
        ValueError: It is none.
    """
    action: dict[str, Any] | None = None
    place = text.find("{")
    while place >= 0:
        try:
            action, place = json.JSONDecoder().raw_decode(text, place)
        except (ValueError, RecursionError):
            place += 1
        place = text.find("{", place)
    if action is not None:
        return action
    required = schema.get("required") or []
    if len(required) != 1:
        raise ValueError(f"no JSON object with {', '.join(required)}")
    kind = schema.get("properties", {}).get(required[0], {}).get("type")
    if kind not in ("integer", "number"):
        return {required[0]: text.strip()}
    numbers = re.findall(r"-?[0-9]+" if kind == "integer" else r"-?[0-9]+(?:\.[0-9]+)?", text)
    if not numbers:
        raise ValueError("no number")
    return {required[0]: int(numbers[-1][:18]) if kind == "integer" else float(numbers[-1])}


class Session:
    """A session of a server."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.slot = free_slot(Path(settings["slots"]))
        self.address = f"http://127.0.0.1:{self.slot.read()}"
        self.loop = asyncio.new_event_loop()
        self.player = 0
        self.last = time.monotonic() + settings["ready_seconds"]
        self.loop.run_until_complete(self._connect())

    async def _connect(self) -> None:
        """Connects, also with a server that is being started again."""
        self.http = aiohttp.ClientSession()
        while True:
            try:
                async with self.http.get(f"{self.address}/schema") as answer:
                    self.schema = (await answer.json())["action"]
                self.socket = await self.http.ws_connect(
                    f"{self.address}/ws", max_msg_size=LARGEST_MESSAGE
                )
                return
            except aiohttp.ClientConnectionError:
                # a slot that is removed: the server has ended for good
                if not os.fstat(self.slot.fileno()).st_nlink or time.monotonic() > self.last:
                    raise
                await asyncio.sleep(WAIT_SECONDS)
            except (aiohttp.ClientResponseError, KeyError) as error:
                raise EnvironmentFault(f"this is no server of OpenEnv: {error!r}") from error

    def reset(self, seed: int) -> Turn:
        data = {**self.settings["options"], "seed": seed}
        said = self._ask("reset", data)
        while said["data"].get("code") == BUSY and time.monotonic() < self.last:
            time.sleep(WAIT_SECONDS)
            self.loop.run_until_complete(self.http.close())
            self.loop.run_until_complete(self._connect())
            said = self._ask("reset", data)
        if said["type"] == "error":
            raise EnvironmentFault(f"{self.settings['name']} is not reset: {said['data']}")
        return self._turn(said["data"])

    def step(self, text: str) -> Turn:
        try:
            said = self._ask("step", action_of(text, self.schema))
        except ValueError as error:
            return {"done": True, "invalid": self.player, "why": f"no action: {error}"}
        if said["type"] == "error":
            if said["data"].get("code") not in REFUSALS:
                raise EnvironmentFault(f"{self.settings['name']}: {said['data']}")
            return {"done": True, "invalid": self.player, "why": str(said["data"].get("message"))}
        return self._turn(said["data"])

    def _ask(self, kind: str, data: object) -> Any:
        """Returns what the server answers, an observation or an error."""

        async def ask() -> aiohttp.WSMessage:
            with contextlib.suppress(ConnectionError):  # what it has said before is to be read
                await self.socket.send_json({"type": kind, "data": data})
            return await self.socket.receive()

        message = self.loop.run_until_complete(ask())
        name = self.settings["name"]
        if message.type is not aiohttp.WSMsgType.TEXT:
            how = f"{message.type.name} {message.data}"
            raise EnvironmentFault(f"{name} has left the session: {how}")
        try:
            said = json.loads(message.data)
            fine = said["type"] in ("observation", "error") and isinstance(said["data"], dict)
        except (ValueError, TypeError, KeyError):
            fine = False
        if not fine:
            raise EnvironmentFault(f"{name} does not speak OpenEnv's protocol: {message.data:.200}")
        return said

    def _turn(self, data: dict[str, Any]) -> Turn:
        observation = data.get("observation") or {}
        self.player = observation.get("current_player_id") or 0
        show, known = self.settings["show"], [key for key in observation if key != "metadata"]
        if missing := [key for key in show if key not in observation]:
            what = f"an observation has {known}, and not {missing}"
            raise EnvironmentFault(f"{self.settings['name']}: {what} (env.show)")
        if not show and len(known) > 1:
            what = f"an observation has {known}; name those that a role is shown"
            raise EnvironmentFault(f"{self.settings['name']}: {what} (env.show)")
        fields = {key: text_of(observation[key]) for key in show or known}
        lines = [f"{key}: {text}" for key, text in fields.items()]
        return {
            "player": self.player,
            "observation": "\n".join(lines if len(lines) > 1 else fields.values()),
            "fields": fields,
            "reward": data.get("reward"),
            "done": bool(data.get("done")),
        }


def text_of(value: object) -> str:
    """Returns a part of an observation as a role is shown it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def main(item: Any, endpoint: Any) -> str:
    return play(Session, item, endpoint)


def report(settings: Settings) -> object:
    """Returns an episode's report."""
    return examine(Session, settings)


if __name__ == "__main__":
    answer(report)
