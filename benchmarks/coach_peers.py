"""The peers of benchmarks/coach.py, each the way its documentation shows it; needs nothing of this
package.

    python benchmarks/coach_peers.py verifiers|openai URL CALLS LIMIT

Prints one JSON object: seconds of the whole, seconds of each judgement, and the scores (null for
one that was lost).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable

os.environ["OPENAI_API_KEY"] = "none"
kind, url, calls, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
PROMPT = (
    "Judge step #{number} [{score}]. "
    + "The step says something. " * 60
    + "\nEnd with exactly:\nSCORE 9f31c2aa: 0 to 10"
)


def parse(text: str) -> float:
    found = re.findall(r"^SCORE 9f31c2aa: (\d+)$", text, re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"no verdict in {text!r}")
    return float(found[0])


def verifiers_judge() -> Callable[[int], Awaitable[float]]:
    import verifiers.v1 as vf

    class Score(vf.Judge[float]):  # type: ignore[misc]
        prompt = PROMPT

        def parse(self, response: vf.JudgeResponse[float]) -> float:
            return parse(response.text)

    judge = Score(vf.JudgeConfig(model="m", base_url=url, api_key_var="OPENAI_API_KEY"))

    async def ask(number: int) -> float:
        return float((await judge.evaluate(number=number, score=number % 11)).parsed)

    return ask


def plain_client() -> Callable[[int], Awaitable[float]]:
    import openai

    client = openai.AsyncOpenAI(base_url=url, max_retries=6)

    async def ask(number: int) -> float:
        for attempt in range(3):
            content = PROMPT.format(number=number, score=number % 11)
            try:
                answer = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": content}], temperature=0
                )
                return parse(answer.choices[0].message.content or "")
            except (ValueError, openai.APIResponseValidationError):
                if attempt == 2:
                    raise
        raise AssertionError

    return ask


async def main() -> None:
    ask = {"verifiers": verifiers_judge, "openai": plain_client}[kind]()
    slots = asyncio.Semaphore(limit)

    async def one(number: int) -> tuple[float | None, float]:
        async with slots:
            started = time.perf_counter()
            try:
                score: float | None = await ask(number)
            except (
                Exception
            ) as error:  # a peer's own exceptions, of any kind: that judgement is lost
                lost[type(error).__name__] = lost.get(type(error).__name__, 0) + 1
                score = None
            return score, time.perf_counter() - started

    lost: dict[str, int] = {}
    started = time.perf_counter()
    found = await asyncio.gather(*(one(n) for n in range(calls)))
    seconds = time.perf_counter() - started
    print(
        json.dumps(
            {
                "seconds": seconds,
                "scores": [s for s, _ in found],
                "each": [t for _, t in found],
                "lost": lost,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
