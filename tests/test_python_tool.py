"""The python tool runs real processes: limits on time, memory, output and what a program leaves
behind."""

import asyncio
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_plugins.builtin.tools.python import PythonToolConfig, find_programs, run_program, runner
from marl_plugins.core.tools import ToolCall
from marl_plugins.sandbox import OnDemandSandbox
from marl_plugins.sandbox.section import SandboxConfig
from marl_plugins.sandbox.streams import HeadAndTail


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


def test_an_endless_program_is_stopped_with_its_children(run):
    mark = f"marl-{os.getpid()}"
    program = (
        f"import subprocess, time\nsubprocess.Popen(['sleep', '77.{os.getpid()}'])\n"
        f"print('{mark}', flush=True)\ntime.sleep(600)"
    )
    started = time.monotonic()
    got = run(program, seconds=1.0)
    assert time.monotonic() - started < 60
    assert not got.ok
    assert got.output == f"{mark}\nstopped after 1 s"
    assert not [
        p
        for p in os.listdir("/proc")
        if p.isdigit() and f"77.{os.getpid()}".encode() in _command(p)
    ]


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_a_busy_loop_is_stopped(run):
    got = run("while True: pass", seconds=0.5)
    assert not got.ok


def test_memory_is_limited(run):
    got = run("x = bytearray(400 * 2**20); print('had it')", memory_mb=128)
    assert not got.ok
    assert "MemoryError" in got.output
    assert run("x = bytearray(50 * 2**20); print('had it')", memory_mb=256).output == "had it"


def test_a_flood_of_output_neither_hangs_nor_grows(run):
    got = run("for i in range(300000): print(i)\nprint('end')", output_chars=1000)
    assert got.ok
    assert got.output.startswith("0\n1\n")
    assert got.output.endswith("end")
    assert "bytes left out" in got.output
    assert len(got.output) < 1100


def test_it_runs_in_a_clean_folder_and_environment(run, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    got = run(
        "import os; print(os.listdir('.'), os.environ.get('OPENAI_API_KEY'), len(os.environ))"
    )
    assert got.output.startswith("[] None")


def test_reading_standard_input_does_not_hang(run):
    assert "EOFError" in run("input()").output


def test_calls_share_the_slots():
    async def both():
        call = runner(PythonToolConfig(concurrency=1))
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

        call = runner(PythonToolConfig())
        ticking = asyncio.create_task(tick())
        await call(ToolCall("import time; time.sleep(0.5)", "t", 0, 1))
        ticking.cancel()
        return ticks

    assert asyncio.run(both()) > 15


def test_a_program_in_a_session_of_its_own_does_not_hold_the_run(run):
    program = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nelse:\n  "
        "  print('parent')"
    )
    started = time.monotonic()
    got = run(program, seconds=100.0)
    assert time.monotonic() - started < 60
    assert got.output.startswith("parent")


def test_closing_its_output_does_not_escape_the_time_limit(run):
    started = time.monotonic()
    got = run("import os, time; os.close(1); os.close(2); time.sleep(600)", seconds=1.0)
    assert not got.ok
    assert time.monotonic() - started < 60


def test_signals_without_a_name_are_numbered(run):
    assert run("import os; os.kill(os.getpid(), 40)").output == "killed by signal 40"


def test_a_program_that_ended_well_is_not_blamed_for_a_child_that_holds_the_pipe(run):
    program = (
        "import os, time\nprint('done', flush=True)\nif os.fork() == 0:\n    "
        "time.sleep(600)\nelse:\n    os._exit(0)"
    )
    got = run(program, seconds=60.0)
    assert (got.output, got.ok) == ("done", True)


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


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(0, 60))
def test_head_and_tail_keep_the_ends(chunks, limit):
    kept = HeadAndTail(limit)
    for chunk in chunks:
        kept.add(chunk)
    whole = b"".join(chunks)
    if len(whole) <= limit:
        assert kept.head + kept.tail == whole
    else:
        assert whole.startswith(kept.head)
        assert whole.endswith(kept.tail)
        assert len(kept.head) + len(kept.tail) == limit
