"""A run's files cut anywhere: a resumption from what is left of any file continues correctly, or
names the file at fault."""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import textwrap
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from simulated_run import simulated_trainer

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import replace_text
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.fingerprint import fingerprint
from marl_plugins.engine.plan.resume import read_manifest, tag, with_resumption
from marl_plugins.engine.records.read import RunReader, records
from marl_plugins.engine.records.report import markdown, summarise, write_report
from marl_plugins.engine.records.run_folder import record_start, replayed
from marl_plugins.engine.records.write import FILES, cut_back
from marl_plugins.engine.runtime.checkpoints import Checkpoints

SUMS = Path(__file__).parent / "recipes" / "sums"
PLUGIN = "from marl_plugins import hookimpl\n\n\n@hookimpl\ndef marl_log(step):\n    'é漢😀'\n"
SAVED, LAST = 2, 3
"""The step that is resumed, and the one that the run was in when it ended."""
FEATURES = ("mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")


class Run:
    """The folder of a small run that ended in its third step, and what a resumption reads of it."""

    def __init__(self, project):
        shutil.copytree(SUMS, project / "sums", ignore=shutil.ignore_patterns("__pycache__"))
        (project / "extra.py").write_text(PLUGIN)
        self.folder, self.checkpoints = project / "run", project / "run" / "checkpoints"
        words = ["--recipe", str(project / "sums/tiny.yaml"), "--plugin", str(project / "extra.py")]
        words += ["--ckpt.output_dir", str(self.folder), "--ckpt.path", str(self.checkpoints)]
        plan = build_plan(words)
        tasks = [Task(f"{n} é漢😀\x85\u2028", f"q{n}", "l") for n in range(2 * LAST)]
        trainer = simulated_trainer(
            self.folder, lambda t: 1.0, steps=LAST, samples=1, tasks=2, train_tasks=tasks
        )
        trainer.session.eval_tasks = trainer.session.eval_tasks[:1]
        asyncio.run(trainer.fit(0))
        record_start(plan, words, 0)
        self._save(plan)
        write_report(self.folder, ["a"], "a run")
        self.plans = {}
        self.files = {
            p: p.read_bytes()
            for p in project.rglob("*")
            if p.is_file() and p.is_relative_to(self.folder)
        }
        self.lines = {
            name: (self.folder / name).read_bytes().splitlines(keepends=True) for name in FILES
        }

    def _save(self, plan):
        checkpoints, names = (
            Checkpoints(self.checkpoints, 3, fingerprint(plan)),
            [p.name for p in plan.run.policies],
        )
        for step in (1, SAVED):
            for name in names:
                part = self.checkpoints / name / "_actor"
                (part / tag(step)).mkdir(parents=True)
                (part / "latest").write_text(tag(step))
                for file in FEATURES:
                    (part / tag(step) / file).write_bytes(os.urandom(40))
            checkpoints.commit(step, dict.fromkeys(names, step), plan.plugins.state(plan.run))

    def resume(self):
        """All that a resumed run reads before its processes start, and its report; the step that it
        continues from."""
        words, _ = replayed(["--resume", str(self.folder)])
        if tuple(words) not in self.plans:
            self.plans[tuple(words)] = build_plan(words)
        plan, step = with_resumption(self.plans[tuple(words)])
        manifest = Checkpoints(self.checkpoints, 3, fingerprint(plan)).open(resume=True)
        assert manifest["step"] == step
        cut_back(self.folder, step)
        report(self.folder)
        return step

    def kept(self, name):
        """Lines of a resumed file of records that are not those of the run."""
        found = (self.folder / name).read_bytes().splitlines(keepends=True)
        assert not found or found[-1].endswith(b"\n")
        steps = [json.loads(line)["step"] for line in found]
        assert steps == sorted(steps) and all(step <= SAVED for step in steps)
        return found

    def restore(self):
        for path, content in self.files.items():
            if not path.is_file() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def read(self):
        """What is read first of the way in which the run was started, and of its manifest; the
        saved step."""
        replayed(["--resume", str(self.folder)])
        return read_manifest(self.checkpoints)["step"]

    def refuses(self, path, whole=True):
        """Whether a resumption is refused, which names the file; else it continues after the right
        step."""
        try:
            step = self.resume() if whole else self.read()
        except ConfigurationError as refused:
            error = refused
        else:
            assert step == SAVED
            return False
        name = str(path.relative_to(self.folder))
        assert any(name in problem for problem in [*map(str, error.problems)]), (
            path,
            [*map(str, error.problems)],
        )
        return True


def cuts(content):
    """Sizes to cut a file at: its ends, about lines' ends, within characters of several bytes, and
    60 others at random.

    What reads it says the same wherever a line is cut in the middle.
    """
    ends = [n for n, byte in enumerate(content) if byte == ord("\n")]
    wide = [n for n, byte in enumerate(content) if byte > 127]
    draw = random.Random(0)
    about = {
        n + by
        for n in (0, *draw.sample(ends, min(len(ends), 8)), len(content))
        for by in range(-3, 4)
    }
    about |= {
        *draw.sample(wide, min(len(wide), 20)),
        *draw.sample(range(len(content)), min(len(content), 60)),
    }
    return sorted(size for size in about if 0 <= size <= len(content))


def report(folder):
    """A report without its picture."""
    assert "| before | after |" in markdown(summarise(RunReader(folder).metrics(), ["a"]), "a run")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("project"))


@pytest.fixture
def run(made):
    yield made
    made.restore()


def test_the_run_resumes_as_it_is(run):
    assert run.resume() == SAVED
    for name in FILES:
        whole = [line for line in run.lines[name] if json.loads(line)["step"] <= SAVED]
        assert run.kept(name) == whole
    assert sum(map(len, run.lines["trajectories.jsonl"])) > 2000 and run.lines["evaluations.jsonl"]


@pytest.mark.parametrize("name", FILES)
def test_records_continue_from_every_cut(made, tmp_path, name):
    path, content = tmp_path / name, made.files[made.folder / name]
    whole = [line for line in made.lines[name] if json.loads(line)["step"] <= SAVED]
    ends = list(accumulate(len(line) for line in whole))
    for size in cuts(content):
        path.write_bytes(content[:size])
        remarks = cut_back(tmp_path, SAVED)
        kept = path.read_bytes().splitlines(keepends=True)
        assert kept == whole[: sum(size >= end - 1 for end in ends)], (
            size
        )  # a line is complete without its line feed
        if name == "metrics.jsonl":
            assert bool(remarks) == (kept != whole)
            report(tmp_path)


def test_everything_else_is_used_whole_or_refused_by_name(run):
    """The files that a resumption parses, cut at many places; the others, weights and copies that
    are known by their digests among them, at some."""
    for path, content in run.files.items():
        start = path.name in ("command.json", "manifest.json")
        digested = tag(SAVED) in path.parts or (
            path.is_relative_to(run.folder / "run") and not start
        )
        end = len(content)
        some = (0, 1, end // 2, end - 1) if digested else range(0, end, max(611, end // 4))
        sizes = cuts(content)[:-1] if start else some
        sizes = () if path.name in FILES else sizes
        refused = 0
        for number, size in enumerate(sizes):
            path.write_bytes(content[:size])
            refused += run.refuses(
                path, whole=not start or number % 30 == 0 or size > len(content) - 3
            )
        assert refused in ((len(sizes), len(sizes) - 1) if start or digested else (0,)), (
            path
        )  # a last line feed may be missing
        path.write_bytes(content)


def test_a_file_that_is_gone_is_named(run):
    for path in run.files:
        path.unlink()
        unread = (
            *FILES,
            "report.md",
            "curves.png",
            "plan.json",
            "latest",
            "manifest-1.json",
            "manifest-2.json",
        )
        assert run.refuses(path) == (path.name not in unread and tag(1) not in path.parts), path
        run.restore()


@settings(max_examples=50)
@given(st.data())
def test_damage_is_named_or_harmless(made, data):
    """One or a few bytes replaced, anywhere in any file."""
    paths = sorted(made.files)
    path = data.draw(
        st.sampled_from(
            [
                p
                for p in paths
                if p.name in FILES or "run" in p.parts[-4:] or "checkpoints" in p.parts
            ]
        )
    )
    content = bytearray(made.files[path])
    at = data.draw(st.integers(0, len(content) - 1))
    new = data.draw(
        st.binary(min_size=1, max_size=4)
        | st.sampled_from([b"\n", b"\0", b"[", b"}", b"null", b'"', b"9", b"e999"])
    )
    content[at : at + len(new)] = new
    path.write_bytes(content)
    try:
        if not made.refuses(path) and path.name in FILES:
            allowed = {*made.lines[path.name], *bytes(content + b"\n").splitlines(keepends=True)}
            assert set(made.kept(path.name)) <= allowed
    finally:
        made.restore()


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"step": true}',
        b'{"step": -1}',
        b'{"step": 1',
        b'{"step": 1}{"step": 2}',
        b"\0\0\0",
        '{"step": 1, "a": "é"}'.encode("latin-1"),
    ],
)
def test_a_line_of_another_form_is_left_out_at_the_end_and_named_before_it(tmp_path, line):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line)
    assert len(cut_back(tmp_path, 2)) == 1  # step 2 is missing
    assert path.read_bytes() == b'{"step": 1}\n'
    before = b'{"step": 1}\n' + line + b'\n{"step": 2}\n'
    path.write_bytes(before)
    (tmp_path / "metrics.jsonl").write_bytes(before)
    with pytest.raises(ConfigurationError) as error:
        cut_back(tmp_path, 2)
    assert [p.split(": ")[0] for p in [*map(str, error.value.problems)]] == [
        f"{tmp_path / n}:2" for n in ("metrics.jsonl", "ledger.jsonl")
    ]
    assert all("remove that line" in p and len(p) < 700 for p in [*map(str, error.value.problems)])
    assert path.read_bytes() == before
    with pytest.raises(ConfigurationError, match=r"metrics\.jsonl:2: not a record of a run"):
        RunReader(tmp_path).metrics()


def test_a_step_that_was_damaged_does_not_hide_the_steps_after_it(tmp_path):
    path = tmp_path / "trajectories.jsonl"
    path.write_text('{"step": 1}\n{"step": 9}\n{"step": 1}\n{"step": 2}\n')
    with refused(
        ("records.order", "trajectories.jsonl:3"), ("records.order", "trajectories.jsonl:4")
    ):
        cut_back(tmp_path, 2)


def test_a_line_without_its_line_feed_is_completed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "é": 1}')
    assert cut_back(tmp_path, 2) == []
    with path.open("a") as file:
        file.write('{"step": 3}\n')
    assert [record.step for record in records(path, dict)] == [1, 2, 3]


FULL = """
    import asyncio, os, resource, sys
    from pathlib import Path
    from simulated_run import simulated_trainer
    from marl_plugins.core.failures import ConfigurationError, RunEnded
    from marl_plugins.engine.runtime.checkpoints import Checkpoints
    from marl_plugins.engine.records.write import FILES, cut_back
    from marl_plugins.engine.records.read import RunReader, records
    from marl_plugins.engine.plan.resume import tag

    RUN = {"roles": {}, "policies": {}, "plugins": {}, "flags": {}, "mapping": {}, "estimator": "reinforce", "warm_start": None, "policy_flags": {}, "recipe": {}, "files": {}}
    os.fsync = lambda descriptor: None  # as in all tests (conftest.py): what is full says so when it is written
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    ended = 0
    for number, limit in enumerate(range(300, 80_000, 7001)):
        folder = Path(sys.argv[1]) / str(number)
        checkpoints = Checkpoints(folder / "checkpoints", 2, RUN)
        trainer = simulated_trainer(folder, lambda t: 1.0, steps=4, samples=1)
        trainer.saving.checkpoints = checkpoints

        async def save(policy, name, state):
            part = folder / "checkpoints" / "p" / "_actor" / name
            part.mkdir(parents=True, exist_ok=True)
            (part / "states.pt").write_bytes(b"weights")

        type(trainer.session.policies["p"]).save = save
        trainer.plugins.state = lambda run: {"filler": "é" * 200}
        del trainer.saving.save  # the real one
        trainer.run.args.ckpt.save_steps = 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            asyncio.run(trainer.fit(0))
        except RunEnded as error:
            ended += 1
            assert "could not be written" in str(error), error
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        manifest = Checkpoints(folder / "checkpoints", 2, RUN).open(resume=True)
        step = manifest["step"] if manifest else 0
        assert step == (trainer.saving.last or 0), (step, trainer.saving.last)
        assert not cut_back(folder, step) or not step
        for name in FILES:
            if (folder / name).exists():
                assert all(r.step <= step for r in records(folder / name, dict)), name
        if step:
            assert [m["step"] for m in RunReader(folder).metrics()] == list(range(step + 1))
    print(ended, number + 1)
"""


def test_a_disk_that_is_full_at_any_byte_leaves_a_run_that_resumes(tmp_path):
    """A limit on the size of files stands for the disk: writing fails in the middle of records and
    manifests."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    words = [sys.executable, "-c", textwrap.dedent(FULL), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    ended, runs = map(int, done.stdout.splitlines()[-1].split())
    assert 5 < ended < runs


def test_a_file_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    replace_text(path, "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_text(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
