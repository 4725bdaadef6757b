"""`openrlhf serve`: requests of anybody, each a conversation of its own, by the engines of a run."""

import asyncio
import socket

import aiohttp
import pytest

from marl_plugins.builtin.agents.serving import serve
from marl_plugins.cli import main
from marl_plugins.core.failures import InfrastructureFailure

simulated = pytest.importorskip("simulated_run")


def test_each_request_is_sampled_as_it_says_and_remembers_nothing(tmp_path):
    calls, lines = [], []

    def answer(call):
        calls.append(call)
        if len(calls) == 6:
            raise InfrastructureFailure("engines", "none is left")

    async def play(post):
        for _ in range(3):
            status, body = await post(
                messages=[{"role": "user", "content": "hello"}], stop="", top_k=-1
            )
            assert status == 200, body
        content = body["choices"][0]["message"]["content"]
        talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": content}]
        last = {"role": "user", "content": "and?"}
        assert (await post(messages=[*talk, last], temperature=0.5, top_p=0.9))[0] == 200
        assert (await post(messages=[last], temperature="hot"))[0] == 400
        assert (await post(messages=[last], top_p=0))[0] == 400
        assert (await post(messages=[last], top_k=5))[0] == 400
        assert (await post(messages=[last], guided_json={"type": "object"}))[0] == 400
        assert (await post(model="b", messages=[last]))[0] == 404
        assert (await post(messages=[{"role": "user", "content": "x" * 200}]))[0] == 400
        status, counted = await post("/messages/count_tokens", messages=[last])
        assert (status, counted) == (200, {"input_tokens": len("u:and?^a:")})
        assert (await post("/rewards", id="a.1", reward=1.0))[0] == 400
        assert (await post("/messages", messages=[last], max_tokens=3))[0] == 200
        assert (await post(messages=[last]))[0] == 503
        assert (await post(messages=[last]))[0] == 200  # one that fails ends no other

    async def both():
        trainer = simulated.simulated_trainer(tmp_path, lambda t: 1.0, answer)
        ready = asyncio.Event()

        def say(line):
            lines.append(line)
            ready.set()

        listener = socket.create_server(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        serving = asyncio.create_task(serve(trainer.session.rollout, 0.0, listener, say))

        async with aiohttp.ClientSession() as http:

            async def post(path="/chat/completions", **body):
                sent = {"model": "a", **body} if path != "/rewards" else body
                async with http.post(base_url + path, json=sent) as response:
                    return response.status, await response.json()

            try:
                await ready.wait()
                assert base_url in lines[0] and "a at" in lines[0]
                await play(post)
            finally:
                serving.cancel()
                await asyncio.wait([serving])

    asyncio.run(both())
    assert [call.sampling.temperature for call in calls[:4]] == [0.0, 0.0, 0.0, 0.5]
    assert calls[3].sampling.top_p == 0.9
    assert "" not in calls[0].sampling.stop
    assert len({call.seed for call in calls[:3]}) == 3
    assert len({call.context_ids for call in calls[:3]}) == 1


def test_what_cannot_be_served_is_said_before_anything_starts(tmp_path, capsys):
    assert main(["serve", str(tmp_path)]) == 2
    assert "not the folder of a run" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--recipe", "vote/tiny.yaml", "--port", str(port)]) == 2
    assert "--port" in capsys.readouterr().err
