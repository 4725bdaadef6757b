"""A local server that speaks the chat-completions protocol, slowly and not always well; a process of its own.

    python benchmarks/coach_server.py SECONDS BUSY BROKEN    (latency or LOW-HIGH, shares of 429 and of broken answers)

What it does with a request depends on the request and on how often it has come, so that every client meets the same. It
prints its port; GET /stats gives requests, the most in flight at once and what was refused.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from collections import Counter

from aiohttp import web

latency = [float(x) for x in sys.argv[1].split("-")]
busy, broken = float(sys.argv[2]), float(sys.argv[3])
stats: Counter[str] = Counter()
times: Counter[str] = Counter()


async def answer(request: web.Request) -> web.Response:
    body = await request.json()
    prompt = body["messages"][0]["content"]
    number = re.findall(r"step number (\d+)", prompt)[0]
    stats["requests"] += 1
    stats["in_flight"] += 1
    stats["peak"] = max(stats["peak"], stats["in_flight"])
    try:
        times[number] += 1
        rng = random.Random(f"{number}/{times[number]}")
        luck = rng.random()
        if luck < busy:
            stats["429"] += 1
            error = {"message": "slow down", "type": "rate_limit", "code": None}
            return web.json_response({"error": error}, status=429)
        await asyncio.sleep(rng.uniform(latency[0], latency[-1]))
        nonce = re.findall(r"^SCORE (\w+):", body["messages"][-1]["content"], re.MULTILINE)
        text = f"It was fine.\nSCORE {nonce[-1] if nonce else ''}: {int(number) % 11}"
        if luck < busy + broken:
            stats["broken"] += 1
            if luck < busy + broken / 2:
                return web.Response(body=b'{"choices": [{"message": {"cont', content_type="application/json")
            text = "It was fine, I would say a good seven or eight."
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 400, "completion_tokens": 20, "total_tokens": 420}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        )
    finally:
        stats["in_flight"] -= 1


async def tell(request: web.Request) -> web.Response:
    told = json.dumps(stats)
    stats.clear()
    times.clear()
    return web.Response(text=told)


async def main() -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_get("/stats", tell)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
