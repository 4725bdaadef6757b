"""What programs cost as workflows: CPU of the run's process for a request, CPU of a program's
start, and what 10,000 leave behind.

    python -m benchmarks.agents requests [N [ROUNDS]]  CPU of a request at the endpoint, and of the
    same call of a role, N (64) in flight; median of 3 rounds
    python -m benchmarks.agents starts [N]    CPU of a program's start: N (32) forked, and as a new
                                              process
    python -m benchmarks.agents programs [N]  N (128) programs of four requests with the plain
    client: forked, and in one process
    python -m benchmarks.agents many [N]      N trajectories of two requests: memory, and what is
                                              left

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
import time
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
from openai import {client}
{made}
{define} main(prompt, endpoint):
    {inside}
    for n in range(4):
        messages = [{{"role": "user", "content": f"{{prompt}} {{n}}"}}]
        answer = {wait}client.chat.completions.create(model="worker", messages=messages)
    return answer.choices[0].message.content
"""
FORKED = FOUR.format(client="OpenAI", made="client = OpenAI()", define="def", inside="", wait="")
SHARED = FOUR.format(
    client="AsyncOpenAI",
    made="",
    define="async def",
    inside="client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)",
    wait="await ",
)


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
        time.sleep(1.0)  # a shared process is reaped
        return mine, cpu_with_children(process) - before


def programs(count: int) -> None:
    """CPU in all of programs with four requests each."""
    roles = {"worker": role()}
    for how, text, shared in (("forked", FORKED, False), ("in one process", SHARED, True)):
        mine, theirs = programs_cost(text, roles, count, 4, shared=shared)
        print(
            f"{how}: {theirs + mine:.1f} s of CPU, {theirs:.1f} s of the programs and {mine:.1f} s "
            "of the run's process"
        )


def many(count: int) -> None:
    """Memory of the run's process after each thousand trajectories, and what is left at the end."""
    roles = {"worker": role()}
    text = """
import asyncio, json

async def main(prompt, endpoint):
    host, port = endpoint.base_url.split("/")[2].split(":")
    body = json.dumps({"model": "worker", "messages": [{"role": "user", "content": prompt}]})
    for _ in range(2):
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: {host}\\r\\n"
        head += f"Connection: close\\r\\nContent-Length: {len(body)}\\r\\n"
        writer.write(f"{head}Authorization: Bearer {endpoint.api_key}\\r\\n\\r\\n{body}".encode())
        answer = await reader.read()
        writer.close()
    return json.loads(answer.rpartition(b"\\r\\n\\r\\n")[2])["choices"][0]["message"]["content"]
"""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "agent.py").write_text(text)
        workflow = AgentWorkflow(AgentConfig(file="agent.py", shared=True), Path(folder))
        workflow.program.start()

        asyncio.run(thousands(workflow, roles, count))
        process = launched(workflow)
        time.sleep(1.0)
        left = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        print(f"{len(left)} processes left")


async def thousands(workflow: Workflow, roles: Mapping[str, RoleSpec], count: int) -> None:
    for start in range(0, count, 500):
        await all_of(workflow, roles, range(start, min(start + 500, count)), 2)
        if (start + 500) % 1000 == 0:
            with open("/proc/self/statm") as file:  # noqa: ASYNC230
                pages = int(file.read().split()[1])
            mib, files = (
                pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
                len(os.listdir("/proc/self/fd")),
            )
            print(
                f"{start + 500}: {mib:.0f} MiB, {files} files, {len(asyncio.all_tasks())} tasks",
                flush=True,
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
        case ["many", *rest]:
            many(int(rest[0]) if rest else 10_000)
        case _:
            print(__doc__)


if __name__ == "__main__":
    main()
