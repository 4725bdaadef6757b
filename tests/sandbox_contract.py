"""The promises of every back end of the sandbox (marl_plugins/sandbox/program.py)."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from marl_plugins.sandbox import Limits, Program, ProgramResult, Sandbox

CONCURRENT_PROGRAMS = 50
"""Programs that run at the same time."""
LONG = Limits(seconds=60.0)
"""For what has to end by itself, however slow the machine is."""
SECRET = "MARL_CONTRACT_SECRET"


class SandboxContract:
    """One sandbox for all tests of a class."""

    kept: ClassVar[bool] = True
    """Whether it can keep a workspace between programs."""

    _runner: ClassVar[asyncio.Runner]
    _place: ClassVar[tempfile.TemporaryDirectory[str]]
    _opened: ClassVar[AbstractAsyncContextManager[Sandbox]]
    _sandbox: ClassVar[Sandbox]

    @classmethod
    def open(cls, workspaces: Path) -> AbstractAsyncContextManager[Sandbox]:
        """Returns the back end that is tested; kept workspaces lie in this folder."""
        raise NotImplementedError(
            f"{cls.__name__} needs a class method open(workspaces), which returns what gives a "
            "Sandbox"
        )

    @classmethod
    def setup_class(cls) -> None:
        os.environ[SECRET] = "secret"
        cls._place = tempfile.TemporaryDirectory()
        cls._runner = asyncio.Runner()
        cls._opened = cls.open(Path(cls._place.name))

        async def enter() -> Sandbox:
            return await cls._opened.__aenter__()

        cls._sandbox = cls._runner.run(enter())

    @classmethod
    def teardown_class(cls) -> None:
        async def leave() -> None:
            await cls._opened.__aexit__(None, None, None)

        cls._runner.run(leave())
        cls._runner.close()
        cls._place.cleanup()
        os.environ.pop(SECRET, None)

    def run(self, program: Program | str, workspace: Path | None = None) -> ProgramResult:
        """Runs a program and returns its result; a text is a program in Python."""
        return self.run_all([program], workspace)[0]

    def run_all(
        self, programs: Sequence[Program | str], workspace: Path | None = None
    ) -> list[ProgramResult]:
        """Runs programs at the same time and returns their results."""

        async def together() -> list[ProgramResult]:
            to_run = [Program(p, limits=LONG) if isinstance(p, str) else p for p in programs]
            return list(await asyncio.gather(*[self._sandbox.run(p, workspace) for p in to_run]))

        return self._runner.run(together())

    def test_what_a_program_prints(self) -> None:
        got = self.run("import sys\nprint(6 * 7)\nprint('no', file=sys.stderr)")
        assert (got.status, got.code, got.stdout, got.stderr) == ("finished", 0, "42\n", "no\n")
        assert got.seconds > 0

    def test_streams_in_the_order_of_writing(self) -> None:
        source = "import os\nos.write(1, b'a'); os.write(2, b'b'); os.write(1, b'c')"
        got = self.run(Program(source, merged=True, limits=LONG))
        assert (got.stdout, got.stderr) == ("abc", "")

    def test_exit_codes(self) -> None:
        got = self.run_all(
            [
                "import sys; sys.exit(3)",
                "raise ValueError('no')",
                "import os; os._exit(0)",
                "for for",
            ]
        )
        assert [(g.status, g.code) for g in got] == [
            ("failed", 3),
            ("failed", 1),
            ("finished", 0),
            ("failed", 1),
        ]
        assert got[1].stderr.endswith("ValueError: no\n")

    def test_a_program_that_kills_itself(self) -> None:
        got = self.run("import os; os.kill(os.getpid(), 9)")
        assert (got.status, got.code) == ("killed", -9)

    def test_standard_input(self) -> None:
        got = self.run(
            Program("import sys; print(sys.stdin.read()[::-1])", stdin="äb\n".encode(), limits=LONG)
        )
        assert got.stdout == "\nbä\n"
        assert "EOFError" in self.run("input()").stderr

    def test_bash(self) -> None:
        got = self.run(
            Program("read x; echo $((x + 1)); exit 4", "bash", stdin=b"41\n", limits=LONG)
        )
        assert (got.status, got.code, got.stdout) == ("failed", 4, "42\n")

    def test_pytest(self) -> None:
        good, bad = self.run_all(
            [
                Program(f"def test_it():\n    assert 1 + 1 == {n}\n", "pytest", limits=LONG)
                for n in (2, 3)
            ]
        )
        assert (good.status, bad.status) == ("finished", "failed")
        assert "assert (1 + 1) == 3" in bad.stdout

    def test_pytest_that_the_program_leaves_has_not_passed(self) -> None:
        leaving = (
            "import os\nos._exit(0)\n",
            "raise SystemExit\ndef test_it(): pass\n",
            "import os\ndef test_it():\n    os._exit(0)\n",
            "import atexit, os\natexit.register(lambda: os._exit(0))\ndef test_it():\n    assert "
            "False\n",
            "import os, pytest\ndef test_it():\n    os.write(1, b'1 passed')\n    os._exit(0)\n",
            "x = 1\n",
        )
        for got in self.run_all([Program(source, "pytest", limits=LONG) for source in leaving]):
            assert (got.status, got.code == 0) == ("failed", False), got

    def test_files(self) -> None:
        program = Program(
            "data = open('in/a.bin', 'rb').read()\nimport os\nos.makedirs('out')\nopen('out/b', "
            "'wb').write(data[::-1])",
            files={"in/a.bin": bytes(range(256)), "c": b""},
            wanted=("out/b", "c", "missing", "out", "in/missing/x"),
            limits=LONG,
        )
        got = self.run(program)
        assert got.status == "finished", got
        assert got.files == {"out/b": bytes(range(256))[::-1], "c": b""}
        assert got.names == ("c", "in", "out")

    def test_modules_in_the_workspace_are_imported_only_where_they_may_be(self) -> None:
        program = Program("import mine\nprint(mine.x)", files={"mine.py": b"x = 5"}, limits=LONG)
        without, with_modules = self.run_all([program, replace(program, modules=True)])
        assert without.status == "failed" and "No module named 'mine'" in without.stderr
        assert with_modules.stdout == "5\n"

    def test_a_file_that_is_a_link_is_not_there(self) -> None:
        source = (
            "import os\nos.symlink('/etc/hostname', 'a'); os.symlink('/etc', 'b'); os.mkfifo('c')"
        )
        assert self.run(Program(source, wanted=("a", "b/hostname", "c"), limits=LONG)).files == {}

    def test_time(self) -> None:
        program = Program(
            "print('begins', flush=True)\nwhile True: pass", limits=Limits(seconds=1.0)
        )
        got = self.run(program)
        assert (got.status, got.code, got.stdout) == ("time", None, "begins\n")
        assert "1 s" in got.reason

    def test_memory(self) -> None:
        greedy = Program("x = bytearray(10**9)", limits=replace(LONG, memory_mb=128))
        assert self.run(greedy).status == "memory"
        assert (
            self.run(
                Program("x = bytearray(50 * 2**20)", limits=replace(LONG, memory_mb=128))
            ).status
            == "finished"
        )

    def test_long_output_keeps_its_ends(self) -> None:
        source = "import sys\nfor n in range(300000): print(n)\nprint('end', file=sys.stderr)"
        got = self.run(Program(source, limits=replace(LONG, output_chars=1000)))
        assert got.status == "finished" and "bytes left out" in got.stdout
        assert (
            got.stdout.startswith("0\n1\n")
            and got.stdout.endswith("299999\n")
            and len(got.stdout) < 1100
        )
        assert got.stderr == "end\n"

    def test_too_much_output(self) -> None:
        got = self.run(Program("while True: print('x' * 10000)", limits=replace(LONG, output_mb=2)))
        assert (got.status, got.code) == ("output", None)

    def test_bytes_that_are_no_text(self) -> None:
        got = self.run("import os; os.write(1, bytes(range(256)))")
        assert got.status == "finished" and "abc" in got.stdout and "\ufffd" in got.stdout

    def test_the_environment_is_clean(self) -> None:
        got = self.run(
            f"import os\nprint(os.environ.get({SECRET!r}), os.environ['HOME'] == os.getcwd())"
        )
        assert got.stdout == "None True\n"

    def test_each_program_begins_in_an_empty_folder(self) -> None:
        source = "import os\nprint(os.listdir('.'))\nopen('mine', 'w').close()"
        assert {got.stdout for got in self.run_all([source] * 8)} == {"[]\n"}

    def test_a_kept_workspace(self) -> None:
        if not self.kept:
            return
        folder = Path(self._place.name) / "kept"
        folder.mkdir()
        (folder / "given").write_text("1")
        first = self.run("open('given', 'a').write('2'); open('made', 'w').write('3')", folder)
        second = self.run("print(open('given').read() + open('made').read())", folder)
        assert (first.status, second.stdout) == ("finished", "123\n"), (first, second)
        assert (folder / "made").read_text() == "3"

    def test_what_it_leaves_running_does_not_hold_the_answer(self) -> None:
        source = (
            "import os, time\nprint('done', flush=True)\nif os.fork() == 0:\n    "
            "os.setsid()\n    time.sleep(50)"
        )
        got = self.run(Program(source, limits=Limits(seconds=40.0)))
        assert (got.status, got.stdout) == ("finished", "done\n") and got.seconds < 40

    def test_none_is_lost_or_mixed_up(self) -> None:
        programs = [
            f"import time; time.sleep(0.02); print({n}); open('{n}', 'w')"
            for n in range(CONCURRENT_PROGRAMS)
        ]
        got = self.run_all(programs)
        assert [(g.stdout, g.names) for g in got] == [
            (f"{n}\n", (f"{n}",)) for n in range(CONCURRENT_PROGRAMS)
        ]

    def test_whatever_a_program_is_it_has_an_answer(self) -> None:
        for source in (
            "",
            "\0",
            "\udcff",
            "(" * 10000,
            "def f(): f()\nf()",
            "import ctypes; ctypes.string_at(0)",
        ):
            assert self.run(source).status in ("finished", "failed", "killed")
