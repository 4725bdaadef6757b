"""What programs cost as workflows: CPU of the run's process for a request, and CPU of a program's
start.

    python -m benchmarks.agents requests [N [ROUNDS]]  CPU of a request at the endpoint, and of the
    same call of a role, N (64) in flight; median of 3 rounds
    python -m benchmarks.agents starts [N]    CPU of a program's start: N (32) forked, and as a new
                                              process
    python -m benchmarks.agents programs [N]  N (128) programs of four requests with the plain
                                              client

Engines are simulated. CPU times are of processes, by the kernel; wall times on a machine that
others use say nothing. A framework for `starts` is measured where it is installed, or in the Python
that MARL_AGENTS_PYTHON names.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from marl_plugins.builtin.agents.section import AgentConfig
from marl_plugins.builtin.agents.server import AgentEndpoint
from marl_plugins.builtin.agents.session import EndpointSession, SentToolFormats
from marl_plugins.builtin.agents.workflow import AgentWorkflow
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.recipe.prompts import prompt_renderer
from marl_plugins.core.roles import Call, RoleSpec, Sampling
from marl_plugins.core.trajectory import Generation, Task, Trajectory
from marl_plugins.core.workflow import Roles, Workflow, calls_of, run_workflow
from marl_plugins.engine.runtime.tiny_model import resolve

FOUR = """
from openai import OpenAI
client = OpenAI()
def main(prompt):
    for n in range(4):
        messages = [{"role": "user", "content": f"{prompt} {n}"}]
        answer = client.chat.completions.create(model="worker", messages=messages)
    return answer.choices[0].message.content
"""


def cpu(who: int = resource.RUSAGE_SELF) -> float:
    """Seconds of CPU of this process, or of those of its children that have ended."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def role() -> RoleSpec:
    from transformers import AutoTokenizer

    chat = ChatFormat(AutoTokenizer.from_pretrained(resolve("tiny")), "p")
    return RoleSpec(
        "worker", "p", prompt_renderer("{x}", None), chat, Sampling(1.0, 1.0, 40, 100_000)
    )


async def engine(call: Call) -> Generation:
    await asyncio.sleep(0.1)
    return Generation((50, 51, 52, 1), (-0.1,) * 4, "stop", "p", 0)


async def trajectory(workflow: Workflow, roles: Mapping[str, RoleSpec], number: int) -> Trajectory:
    return await run_workflow(
        workflow,
        Task(str(number), "How many?"),
        0,
        step=1,
        run_seed=0,
        roles=roles,
        tools={},
        generate=engine,
    )


async def costs(text: str, count: int) -> tuple[float, float]:
    """Milliseconds of CPU of this process for a request over the endpoint, and for a workflow's
    same call; so many at a time."""
    roles, opened, done = {"worker": role()}, asyncio.Event(), asyncio.Event()
    sessions: list[EndpointSession] = []

    async def direct(task: Task, roles: Any, tools: Any) -> None:
        for n in range(16):
            await roles.worker(x=f"{n} {text}")

    async with AgentEndpoint().running() as endpoint:

        async def served(task: Task, roles: Roles, tools: Any) -> None:
            session = EndpointSession(calls_of(roles), SentToolFormats(), True, "")
            sessions.append(session)
            if len(sessions) == count:
                opened.set()
            with endpoint.serving(session):
                await done.wait()
            await session.close()

        running = [asyncio.create_task(trajectory(served, roles, n)) for n in range(count)]
        await opened.wait()
        job = json.dumps([endpoint.base_url, [s.key for s in sessions], text])
        words = ["-m", "benchmarks.agents", "client", job]
        process = await asyncio.create_subprocess_exec(sys.executable, *words)
        before = cpu()
        assert await process.wait() == 0
        over = cpu() - before
        done.set()
        await asyncio.gather(*running)
    before = cpu()
    await asyncio.gather(*(trajectory(direct, roles, n) for n in range(count)))
    return over / (16 * count) * 1e3, (cpu() - before) / (16 * count) * 1e3


def requests(count: int, rounds: int) -> None:
    """CPU of the run's process for a request. The client is another process."""
    for length in (32, 4096):
        found = [asyncio.run(costs(("word " * length)[:length], count)) for _ in range(rounds)]
        over, call = (statistics.median(times) for times in zip(*found, strict=True))
        print(
            f"prompts of {length} characters: {over:.2f} ms a request, {call:.2f} ms a call, "
            f"{over - call:.2f} ms more"
        )


async def client(base_url: str, keys: list[str], text: str) -> None:
    """Sixteen requests with each key, one after the other."""

    async def one(key: str) -> None:
        for n in range(16):
            body = {"model": "worker", "messages": [{"role": "user", "content": f"{n} {text}"}]}
            headers = {"Authorization": f"Bearer {key}"}
            async with http.post(
                f"{base_url}/chat/completions", json=body, headers=headers
            ) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(*map(one, keys))


def launched(workflow: AgentWorkflow) -> int:
    """The process number of a workflow's launcher, the only child of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return int(children[-1])


def cpu_with_children(process: int) -> float:
    """Seconds of CPU of a process and of those of its children that it has reaped."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


async def all_of(
    workflow: Workflow, roles: Mapping[str, RoleSpec], numbers: Iterable[int], actions: int
) -> None:
    """Runs trajectories, each of which has an answer and so many actions."""
    found = await asyncio.gather(*(trajectory(workflow, roles, n) for n in numbers))
    wrong = [t for t in found if not (t.answer and len(t.actions) == actions)]
    assert not wrong, wrong[0].detail


def starts(count: int) -> None:
    """CPU of a program that imports a framework and makes its agents, and asks nothing."""
    python = os.environ.get("MARL_AGENTS_PYTHON")
    examples = Path(__file__).resolve().parent.parent / "examples" / "agents"
    for name in ("plain_client", "agents_sdk", "langgraph_agents", "autogen_chat"):
        words = [
            python or sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(examples)!r}); import {name}",
        ]
        environment = {
            **os.environ,
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        }
        before = cpu(resource.RUSAGE_CHILDREN)
        if subprocess.run(
            words, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ).returncode:
            print(f"{name}: not installed")
            continue
        new = cpu(resource.RUSAGE_CHILDREN) - before
        text = (
            examples / f"{name}.py"
        ).read_text() + "\n\ndef nothing(prompt):\n    return 'nothing'\n"
        _, forked = programs_cost(text, {}, count, 0, function="nothing", python=python)
        print(f"{name}: {forked / count:.2f} s forked, {new:.2f} s as a new process")


def programs_cost(
    text: str, roles: Mapping[str, RoleSpec], count: int, actions: int, **config: Any
) -> tuple[float, float]:
    """Seconds of CPU of this process, and of the programs, for so many trajectories."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "agent.py").write_text(text)
        workflow = AgentWorkflow(AgentConfig(file="agent.py", **config), Path(folder))
        workflow.program.start()
        process = launched(workflow)
        asyncio.run(
            all_of(workflow, roles, range(-1, 0), actions)
        )  # as a run's rehearsal does, of which the launcher learns
        before, own = cpu_with_children(process), cpu()
        asyncio.run(all_of(workflow, roles, range(count), actions))
        mine = cpu() - own
        return mine, cpu_with_children(process) - before


def programs(count: int) -> None:
    """CPU in all of programs with four requests each."""
    roles = {"worker": role()}
    mine, theirs = programs_cost(FOUR, roles, count, 4)
    print(
        f"{theirs + mine:.1f} s of CPU, {theirs:.1f} s of the programs and {mine:.1f} s "
        "of the run's process"
    )


def main() -> None:
    match sys.argv[1:]:
        case ["requests", *rest]:
            requests(int(rest[0]) if rest else 64, int(rest[1]) if rest[1:] else 3)
        case ["client", job]:
            asyncio.run(client(*json.loads(job)))
        case ["starts", *rest]:
            starts(int(rest[0]) if rest else 32)
        case ["programs", *rest]:
            programs(int(rest[0]) if rest else 128)
        case _:
            print(__doc__)


if __name__ == "__main__":
    main()
