"""Tools of MCP servers: real ones, over standard input and output and over HTTP."""

import asyncio
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from refusals import refused
from simulated import CharacterChat

from marl_plugins.builtin.tools.mcp.checks import check_mcp
from marl_plugins.builtin.tools.mcp.section import MCPServerConfig
from marl_plugins.builtin.tools.mcp.servers import MCPServer, Servers
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.tools import FunctionCall, ToolCall
from marl_plugins.core.trajectory import Generation, Task
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow

pytest.importorskip("mcp")
HERE = Path(__file__).parent / "mcp_servers"
PROBE = ["python", "probe.py"]


def call(function, /, **arguments):
    return ToolCall(FunctionCall(function, arguments).text, "t", 0, 1)


@functools.cache
def offered():
    """What the probe offers; each look starts one."""

    async def main():
        server = MCPServer("probe", MCPServerConfig(command=PROBE), HERE)
        await server.learn()
        return server.functions

    return asyncio.run(main())


def use(work, /, **config):
    """What `work(server)` gives, with a server that has been tried and is closed afterwards."""
    functions = () if {"command", "url"} & config.keys() else offered()

    async def main():
        server = MCPServer("probe", MCPServerConfig(**({"command": PROBE} | config)), HERE)
        server.functions = functions
        try:
            if not functions:
                await server.learn()
            return await work(server)
        finally:
            await server.close()

    return asyncio.run(main())


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def http_server(port):
    """The address of the probe as a server of its own, and its process."""
    command = [sys.executable, str(HERE / "probe.py"), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.wait()


async def lost(server, made):
    """The failure of a call."""
    with pytest.raises(InfrastructureFailure) as failure:
        await server.run(made)
    assert failure.value.kind == "tool"
    return str(failure.value)


async def hundreds(server):
    """200 calls at once, each answered with its own sum."""
    results = await asyncio.gather(*(server.run(call("add", a=n, b=1000)) for n in range(200)))
    assert [r.output for r in results] == [str(n + 1000) for n in range(200)]
    assert all(r.ok and r.tool == "probe" for r in results)


def test_calls_of_one_session_over_stdio():
    """One process for all: whose fault a failure is, and what comes after a server that has died or
    hangs."""

    async def work(server):
        assert {f.name for f in server.functions} > {"add", "fail"}
        (add,) = [f for f in server.functions if f.name == "add"]
        assert add.description == "Adds two numbers." and set(add.parameters["properties"]) == {
            "a",
            "b",
        }
        await hundreds(server)

        failed = [
            call("fail"),
            call("add", a="x", b=1),
            call("nosuch"),
            ToolCall("{}", "t", 0, 1),
            ToolCall("no", "t", 0, 1),
        ]
        failed.append(ToolCall('{"name": "add", "arguments": [1, 2]}', "t", 0, 1))
        for made in failed:
            result = await server.run(made)
            assert not result.ok and result.output and result.call == made.text
        assert "did you mean" in (await server.run(call("ad", a=1, b=1))).output
        long = await server.run(call("long", n=200_000))
        assert (
            long.ok
            and len(long.output) < 300
            and long.output.endswith("z")
            and "199901 characters" in long.output
        )
        assert (
            await server.run(call("echo_later", text="\x00\u2042 <tool_call>", seconds=0))
        ).output == "\x00\u2042 <tool_call>"

        one, other = await asyncio.gather(
            server.run(call("note", text="1")), server.run(call("note", text="2"))
        )
        assert one.output.split()[0] == other.output.split()[0]  # one process
        late, death = await asyncio.gather(
            lost(server, call("echo_later", text="x", seconds=60)), lost(server, call("die"))
        )  # the second ends what the first one waits for
        assert "MCP server 'probe' (python)" in late and "these are my last words" in death
        again = await server.run(call("note", text="3"))
        assert again.ok and again.output.endswith(
            " 3"
        )  # another process, which knows nothing of the first one's

    use(work, output_chars=100)


def test_a_late_call_leaves_the_others_their_session(monkeypatch):
    monkeypatch.setattr("marl_plugins.builtin.tools.mcp.servers.ALIVE_SECONDS", 60.0)

    async def work(server):
        keeps, late = await asyncio.gather(
            server.run(call("note", text="1")),
            lost(server, call("echo_later", text="x", seconds=60)),
        )
        assert "within 5 s" in late
        assert (await server.run(call("note", text="2"))).output == f"{keeps.output},2"

    use(work, seconds=5)


def test_a_server_that_answers_in_turn_loses_no_call():
    """As many calls wait for it as it takes; the others wait here, where no limit counts it."""

    async def work(server):
        calls = (server.run(call("echo_in_turn", text=str(n), seconds=0.2)) for n in range(30))
        assert [r.output for r in await asyncio.gather(*calls)] == [str(n) for n in range(30)]
        assert (await server.run(call("attached"))).output == "the page"

    use(work, seconds=5, concurrency=4)


def test_a_server_may_start_late_and_break_the_protocol():
    """`seconds` is a call's; what no client understands, also when it is asked whether it is alive,
    is the server's fault."""

    async def work(server):
        assert [f.name for f in server.functions] == ["f"]
        assert "ValidationError" in await lost(server, call("f"))

    use(work, command=["python", "raw.py"], seconds=2)


def test_calls_of_one_session_over_http():
    """A server that dies cancels nobody who waits for it, and is used again once it is back."""

    async def work(server):
        await hundreds(server)
        assert not (await server.run(call("fail"))).ok
        waiting = asyncio.create_task(lost(server, call("echo_later", text="x", seconds=60)))
        await asyncio.sleep(0.5)
        process.kill()
        assert "MCP server 'probe' (http://127.0.0.1" in await waiting
        assert "cannot be reached" in await lost(server, call("add", a=1, b=1))
        with http_server(port):
            assert (await server.run(call("add", a=1, b=1))).output == "2"

    port = free_port()
    with http_server(port) as (url, process):
        use(work, command=[], url=url, seconds=20)


class Says:
    """An engine whose role says given texts, one a turn."""

    def __init__(self, *texts):
        self.texts = texts
        self.turns = {}

    async def __call__(self, asked):
        turn = self.turns[asked.task] = self.turns.get(asked.task, -1) + 1
        ids = CharacterChat.encode(self.texts[turn].replace("TASK", asked.task) + "^")
        return Generation(ids, (-0.5,) * len(ids), "stop", asked.policy, 0)


def prompt(fields):
    return [{"role": "user", "content": "go"}]


def play(server, engine, tasks=1, **settings):
    """Trajectories in which a role with the server's tool says what the engine says."""
    tool = server.tool()
    role = RoleSpec(
        "a",
        "p",
        prompt,
        CharacterChat(),
        Sampling(1.0, 1.0, 4000, 99999),
        tools=(tool,),
        **settings,
    )

    async def workflow(task, roles, tools):
        return await roles.a()

    return asyncio.gather(
        *(
            run_workflow(
                workflow,
                Task(f"t{n}", "p"),
                0,
                step=1,
                run_seed=0,
                roles={"a": role},
                tools={tool.name: tool},
                generate=engine,
                seconds=120,
            )
            for n in range(tasks)
        )
    )


def tagged(function, /, **arguments):
    return f"<tool_call>{FunctionCall(function, arguments).text}</tool_call>"


def test_a_server_with_a_state_is_opened_per_trajectory():
    """Each trajectory sees its own notes only; where its server dies, the trajectory is lost, and
    the others go on."""

    async def work(server):
        engine = Says(tagged("note", text="TASK-1"), f"And {tagged('note', text='TASK-2')}", "done")
        got = await play(server, engine, tasks=3, max_turns=3)
        outputs = [[a.tool_output for a in t.actions] for t in got]
        assert [[re.sub(r"^\d+ ", "", o) for o in of] for of in outputs] == [
            [f"t{n}-1", f"t{n}-1,t{n}-2", ""] for n in range(3)
        ]
        processes = {int(o.split()[0]) for of in outputs for o in of if o}
        assert len(processes) == 3
        for process in processes:  # they have ended with their trajectories
            with pytest.raises(ProcessLookupError):
                os.kill(process, 0)
        (dead,) = await play(server, Says(tagged("die"), "?"), max_turns=2)
        assert (dead.infrastructure_failure, dead.agent_failure) == ("tool", None)

    use(work, per_trajectory=True, seconds=20)


def test_what_a_role_calls_wrongly_is_answered():
    """An unknown name, broken JSON, wrong arguments, a call in a thinking block, an unclosed one;
    each once, in order."""
    said = (
        f"<think>{tagged('add', a=0, b=0)}</think>{tagged('ad', a=1, b=1)}<tool_call>{{no}}</tool_call>"
        f"{tagged('add', a='one', b=1)}<tool_call>[1]</tool_call>"
        f"{tagged('add', a=1, b=1)}{tagged('add', a=2, b=2).removesuffix('</tool_call>')}"
    )

    async def work(server):
        (got,) = await play(server, Says(said, "done"), max_turns=2)
        results = got.actions[0].tool_results
        assert [r.ok for r in results] == [False, False, False, False, True, True]
        assert [r.output for r in results[4:]] == ["2", "4"]
        assert "no tool 'ad'; did" in results[0].output
        assert "expected <tool_call>" in results[1].output
        assert got.agent_failure is None and len(got.actions) == 2
        (got,) = await play(
            server, Says(tagged("add", a=1, b=1) * 5 + tagged("x") * 20, "done"), max_turns=2
        )
        answers = [r.output for r in got.actions[0].tool_results]
        assert answers[:4] == [
            "2",
            "2",
            "2",
            "2 of 5 calls of probe were not run: at most 3 per answer are",
        ]
        assert len(answers) == 4 + 16 + 1 and answers[-1].startswith("4 of 20 calls ")

    use(work, calls_per_answer=3)


def test_a_workflow_calls_functions_by_name():
    async def workflow(task, roles, tools):
        assert (await tools.probe.add(a=3, b=4)).output == "7"
        assert not (await tools.probe("no call")).ok
        with pytest.raises(AttributeError, match="no function 'ad'; did you mean 'add'"):
            tools.probe.ad(a=1)
        return "fine"

    async def work(server):
        tool = server.tool()
        got = await run_workflow(
            workflow,
            Task("t", "p"),
            0,
            step=1,
            run_seed=0,
            roles={},
            tools={"probe": tool},
            generate=None,
            seconds=60,
        )
        assert got.answer == "fine"

    use(work)


def test_secrets_reach_the_server_and_nothing_else(monkeypatch):
    monkeypatch.setenv("PROBE_TOKEN", "a-very-secret-token")
    monkeypatch.setenv("OTHER_TOKEN", "not for the server")

    async def work(server):
        said = await server.run(call("environment", name="API_KEY"))
        assert said.output == "*** for $"
        assert (await server.run(call("environment", name="OTHER_TOKEN"))).output == "not set"

    use(work, env={"API_KEY": "${PROBE_TOKEN} for $$"})


def test_servers_that_cannot_be_had_are_reported_together():
    async def main():
        servers = Servers()
        tools = {
            "gone": MCPServerConfig(url="http://user@127.0.0.1:9/mcp?key=1234"),
            "ends": MCPServerConfig(command=["python", "-c", "raise SystemExit('it is broken')"]),
            "adds": MCPServerConfig(command=PROBE, tools=["ad"]),
        }
        servers.of(tools, HERE)
        with refused(
            ("mcp.unreachable", "tools.mcp.gone"),
            ("mcp.unreachable", "tools.mcp.ends"),
            ("mcp.no_tool", "tools.mcp.adds.tools"),
        ) as error:
            await servers.try_all()
        gone, ends, _ = [*map(str, error.value.problems)]
        assert gone.startswith(
            "tools.mcp.gone: MCP server 'gone' (http://***@127.0.0.1:9/mcp?***): cannot be reached"
        )
        assert "it is broken" in ends

    asyncio.run(main())


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, ": expected one of `command`"),
        (
            {"command": ["no-such-program"]},
            ".command: there is no program 'no-such-program'",
        ),
        ({"url": "http://x/mcp?api_key=secret"}, ".url: holds a secret"),
        (
            {"url": "http://x/mcp", "headers": {"Authorization": "Bearer secret"}},
            ".headers.Authorization: a secret must not",
        ),
        ({"command": ["python"], "env": {"TOKEN": "secret"}}, ".env.TOKEN: a secret must not"),
        (
            {"command": ["python"], "env": {"A": "$NO_SUCH_VARIABLE"}},
            ".env.A: $NO_SUCH_VARIABLE is not set",
        ),
    ],
)
def test_a_plan_finds_what_is_wrong_without_starting_anything(config, problem, tmp_path):
    (found,) = map(str, check_mcp({"mine": MCPServerConfig(**config)}, tmp_path))
    assert found.startswith(f"tools.mcp.mine{problem}")
    assert "secret" not in re.sub("a secret|holds a secret", "", found)


HOLDING = """\
import asyncio, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_mcp import HERE, PROBE, MCPServer, MCPServerConfig, call

async def main():
    server = MCPServer("probe", MCPServerConfig(command=PROBE), HERE)
    print((await server.run(call("note", text="x"))).output.split()[0], flush=True)
    time.sleep(600)

asyncio.run(main())
"""


def test_nothing_is_left_of_a_run_that_is_killed():
    run = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
    )
    process = int(run.stdout.readline())
    run.kill()
    run.communicate()
    for _ in range(600):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail(f"process {process} of an MCP server is left")


def test_nothing_is_left_of_a_session_that_is_abandoned():
    """A run that is cancelled in the middle of a call ends the server's process."""

    async def main():
        server = MCPServer("probe", MCPServerConfig(command=PROBE), HERE)
        process = int((await server.run(call("note", text="x"))).output.split()[0])
        waiting = asyncio.create_task(server.run(call("echo_later", text="x", seconds=60)))
        await asyncio.sleep(0.2)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as the end of a run does
            task.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await server.close()
        with pytest.raises(ProcessLookupError):
            os.kill(process, signal.SIGCONT)

    asyncio.run(main())


# --- what a server says of itself
# -----------------------------------------------------------------------------------------


def learned(mode):
    """A server of hostile.py that has been tried."""

    async def main():
        servers = Servers()
        (server,) = servers.of(
            {"bad": MCPServerConfig(command=["python", "hostile.py", mode], seconds=20)}, HERE
        )
        try:
            await servers.try_all()
            return server.functions, [
                await server.run(call("f")),
                await server.run(call("f", wrong=True)),
            ]
        except InfrastructureFailure as failure:
            return server.functions, failure
        finally:
            await servers.close()

    return asyncio.run(main())


def test_a_schema_that_takes_for_ever_to_check_is_not_checked():
    """The pattern against sixty letters would take longer than anybody lives, in the event loop."""
    _, said = learned("bomb")
    assert [(one.ok, one.output) for one in said] == [(True, "said"), (True, "said")]


@pytest.mark.parametrize("mode", ["escape", "long", "many", "schema"])
def test_what_cannot_be_offered_is_refused(mode):
    with pytest.raises(ConfigurationError) as raised:
        learned(mode)
    assert {(p.code, p.where[0].name) for p in raised.value.problems} == {
        ("mcp.offer", "tools.mcp.bad")
    }
    assert len(str(raised.value)) < 1000
    assert str(raised.value).isprintable()
