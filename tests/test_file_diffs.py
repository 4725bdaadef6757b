"""What `--file_diffs` records of a call: applied to the files before it, a diff gives the files
after it."""

import asyncio
import subprocess
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from marl_plugins.core.trajectory import Task
from marl_plugins.engine.runtime.file_diffs import (
    Content,
    DiffedWorkspace,
    cut,
    difference,
)
from marl_plugins.sandbox.workspace import Workspaces


def diffs(task, *works, most=100_000):
    """The diff of each call, a call being what is done in the folder."""

    async def main():
        workspaces = Workspaces()
        found = []
        async with workspaces.of(task) as real:
            workspace = DiffedWorkspace(real, most)
            for n, work in enumerate(works):
                folder = await workspace.opened()
                work(folder)
                await workspace.note(f"coder.{n}")
                found.append(workspace.diff)
        workspaces.close()
        return found

    return asyncio.run(main())


TEXTS = st.dictionaries(
    st.sampled_from(["a.txt", "d/b.csv", "c d.py"]),
    st.text("ab \n\r\x0c\u2028é", min_size=1, max_size=12),
    max_size=3,
)


@settings(max_examples=15, deadline=None)
@given(before=TEXTS, after=TEXTS)
def test_git_makes_the_files_after_a_call_of_those_before_it(before, after):
    def content(files, path):
        return Content(len(files[path].encode()), files[path]) if path in files else None

    changed = [path for path in sorted({*before, *after}) if before.get(path) != after.get(path)]
    diff = "".join(
        difference(path, content(before, path), content(after, path)) for path in changed
    )
    with tempfile.TemporaryDirectory() as folder:
        for path, text in before.items():
            (Path(folder) / path).parent.mkdir(exist_ok=True)
            (Path(folder) / path).write_bytes(text.encode())
        if changed:
            command = ["git", "apply", "--unidiff-zero", "--whitespace=nowarn"]
            subprocess.run(command, input=diff.encode(), cwd=folder, check=True)
        found = {
            str(f.relative_to(folder)): f.read_bytes().decode()
            for f in Path(folder).rglob("*")
            if f.is_file()
        }
    assert found == after


def test_a_link_is_no_file_and_a_diff_is_bounded(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret words")
    linked, long = diffs(
        Task("t", "p"),
        lambda folder: (folder / "f").symlink_to(secret),
        lambda folder: (folder / "g").write_text("line\n" * 500),
        most=200,
    )
    assert linked == ""
    assert long == cut("--- /dev/null\n+++ b/g\n@@ -0,0 +1,500 @@\n" + "+line\n" * 500, 200)
    assert len(long) < 250
