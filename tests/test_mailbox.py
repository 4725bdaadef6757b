"""Requests to an engine in few messages: whoever asks gets the answer, whatever else is asked."""

import asyncio
import random

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from marl_plugins.engine.processes.mailbox import Mailbox, Postbox


class Here:
    """An engine's postbox in this process, through what Ray's handles offer."""

    def __init__(self, answer):
        self.postbox = Postbox(answer)
        self.messages = 0
        self.dead = asyncio.Event()
        self.post = Remote(self._post)
        self.collect = Remote(self._collect)

    async def _post(self, requests, given_up):
        self.messages += 1
        self.postbox.post(requests, given_up)

    async def _collect(self):
        self.messages += 1
        dead = asyncio.create_task(self.dead.wait())
        answers = asyncio.create_task(self.postbox.collect())
        await asyncio.wait([dead, answers], return_when=asyncio.FIRST_COMPLETED)
        dead.cancel()
        if self.dead.is_set():
            answers.cancel()
            raise ActorDiedError
        return answers.result()


class Remote:
    def __init__(self, method):
        self.method = method

    def remote(self, *arguments):
        return asyncio.ensure_future(self.method(*arguments))


@pytest.mark.parametrize("seed", range(6))
def test_everyone_gets_his_own_answer_or_error(seed):
    draw = random.Random(seed)
    sampling = []

    async def answer(number):
        sampling.append(number)
        try:
            await asyncio.sleep(draw.choice([0, 0, 0.001, 0.003]))
        finally:
            sampling.remove(number)
        if number % 7 == 3:
            raise KeyError(number)
        return number * 2

    async def ask(mailbox, number):
        await asyncio.sleep(draw.choice([0, 0, 0.002]))
        return await mailbox.ask(number)

    async def go():
        here = Here(answer)
        mailbox = Mailbox(here)
        for _ in range(3):  # between two rounds nobody waits
            asking = [asyncio.create_task(ask(mailbox, n)) for n in range(60)]
            given_up = draw.sample(range(60), 10)
            await asyncio.sleep(0.001)
            for n in given_up:
                asking[n].cancel()
            answers = await asyncio.gather(*asking, return_exceptions=True)
            for n, got in enumerate(answers):
                if isinstance(got, asyncio.CancelledError):
                    assert n in given_up
                elif n % 7 == 3:
                    assert isinstance(got, RayTaskError) and isinstance(got, KeyError)
                else:
                    assert got == n * 2
            await asyncio.sleep(0.01)
            assert not sampling  # for nobody
        return here.messages

    assert asyncio.run(go()) < 3 * 60


def test_requests_of_one_turn_are_one_message_and_so_are_their_answers():
    async def answer(number):
        await asyncio.sleep(0.001)
        return number

    async def go():
        here = Here(answer)
        mailbox = Mailbox(here)
        assert await asyncio.gather(*[mailbox.ask(n) for n in range(64)]) == [*range(64)]
        return here.messages

    assert asyncio.run(go()) <= 4


def test_all_who_wait_hear_of_a_death():
    async def go():
        here = Here(lambda _: asyncio.sleep(10))
        mailbox = Mailbox(here)
        asking = [asyncio.create_task(mailbox.ask(n)) for n in range(3)]
        await asyncio.sleep(0.01)
        here.dead.set()
        return await asyncio.gather(*asking, return_exceptions=True)

    assert [type(error) for error in asyncio.run(go())] == [ActorDiedError] * 3
