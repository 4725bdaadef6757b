"""Days on which all traders take a position at the same time; each sees its own sources and its own
position."""

import asyncio

from .market import DAYS, TRADERS, Market, position_of, written


async def run(task, roles, tools):
    market, days, last = Market(task.id), [], []
    for day in range(DAYS):
        last = await asyncio.gather(
            *(
                getattr(roles, t)(**market.fields(t, day), after=last[n : n + 1])
                for n, t in enumerate(TRADERS)
            )
        )
        days.append({t: position_of(answer.text) for t, answer in zip(TRADERS, last, strict=True)})
        market.trade(day, days[-1])
    return written(days)
