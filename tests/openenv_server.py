"""A server that speaks OpenEnv's protocol: `openenv_server.py PORT BEHAVIOUR`.

Guess a number between 0 and 9: `{"guess": 3}` is paid -0.5, or 1 and the episode ends.
"""

import asyncio
import json
import os
import random
import sys

from aiohttp import web

SCHEMA = {
    "action": {"required": ["guess"], "properties": {"guess": {"type": "integer"}}},
    "observation": {},
    "state": {},
}


async def session(request):
    behaves, busy = request.app["behaves"], request.app["busy"]
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    if busy:
        error = {"code": "CAPACITY_REACHED", "message": "1/1 sessions active"}
        await socket.send_json({"type": "error", "data": error})
        return socket
    busy.append(1)
    number = steps = 0
    try:
        async for message in socket:
            asked = json.loads(message.data)
            if behaves == "other":
                await socket.send_str("hello")
                continue
            if behaves == "silent":
                continue
            reward, done = None, False
            if asked["type"] == "reset":
                chance = random.Random(None if behaves == "unseeded" else asked["data"]["seed"])
                number, steps = chance.randrange(10), 0
            else:
                steps += 1
                if behaves == "slow":
                    await asyncio.sleep(0.3)
                if behaves == "dies" and steps == 2:
                    os._exit(3)
                if behaves == "forgets" and steps == 2:
                    error = {"code": "NO_SESSION", "message": "there is no such session"}
                    await socket.send_json({"type": "error", "data": error})
                    continue
                guess = asked["data"].get("guess")
                if not isinstance(guess, int) or not 0 <= guess <= 9:
                    kind = "EXECUTION_ERROR" if isinstance(guess, int) else "VALIDATION_ERROR"
                    error = {"code": kind, "message": "guess: 0 to 9"}
                    await socket.send_json({"type": "error", "data": error})
                    continue
                done = guess == number
                reward = {"text": "much", "ten": 10.0}.get(behaves, 1.0 if done else -0.5)
            hint = f"{steps} guesses, {'even' if number % 2 == 0 else 'odd'}"
            observation = {"hint": hint, "correct_answer": str(number), "metadata": {}}
            data = {"observation": observation, "reward": reward, "done": done}
            await socket.send_json({"type": "observation", "data": data})
    finally:
        await asyncio.sleep(0.1)  # it takes its time to notice that a session has ended
        busy.clear()
    return socket


def main():
    port, behaves = int(sys.argv[1]), sys.argv[2]
    app = web.Application()
    app["behaves"], app["busy"] = behaves, []

    async def schema(request):
        return web.json_response({"openapi": "3"} if behaves == "website" else SCHEMA)

    app.router.add_get("/schema", schema)
    app.router.add_get("/ws", session)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    main()
