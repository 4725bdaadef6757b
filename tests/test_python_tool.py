"""The python tool runs real processes: limits on time, memory, output and what a program leaves
behind."""

import asyncio
import time

import pytest

from marl_plugins.builtin.tools.python import (
    PythonToolConfig,
    find_programs,
    python_tool,
    run_program,
)
from marl_plugins.core.tools import ToolCall
from marl_plugins.sandbox import OnDemandSandbox
from marl_plugins.sandbox.section import SandboxConfig


@pytest.fixture(scope="module")
def run():
    """Run a program of the tool; the sandbox is the same for all tests."""
    sandbox = OnDemandSandbox(SandboxConfig())
    with asyncio.Runner() as runner:

        async def program(text, limits):
            return await run_program(text, PythonToolConfig(**limits), sandbox.sandbox)

        yield lambda text, **limits: runner.run(program(text, limits))
        runner.run(sandbox.close())


def test_output_and_success(run):
    got = run("print(6 * 7)")
    assert (got.output, got.ok) == ("42", True)


def test_a_traceback_is_the_answer(run):
    got = run("x = 1\nraise ValueError('no')")
    assert not got.ok
    assert got.output.endswith("ValueError: no")
    assert 'program.py", line 2' in got.output


def test_calls_share_the_slots():
    async def both():
        call = python_tool(PythonToolConfig(concurrency=1)).run
        started = time.monotonic()
        await asyncio.gather(
            *[call(ToolCall("import time; time.sleep(0.3)", "t", 0, 1)) for _ in range(3)]
        )
        return time.monotonic() - started

    assert asyncio.run(both()) >= 0.9


def test_other_work_goes_on_while_a_program_runs():
    async def both():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        call = python_tool(PythonToolConfig()).run
        ticking = asyncio.create_task(tick())
        await call(ToolCall("import time; time.sleep(0.5)", "t", 0, 1))
        ticking.cancel()
        return ticks

    assert asyncio.run(both()) > 15


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ("```python\nprint(1)\n```", ["print(1)\n"]),
        ("a ```py\nx\n``` b ```python\ny\n```", ["x\n", "y\n"]),
        ("```\nprint(1)\n```", []),
        ("```python\nunfinished", []),
        ("```pythonic\nx\n```", []),
    ],
)
def test_programs_are_fenced_blocks_marked_as_python(text, programs):
    assert find_programs(text) == programs
