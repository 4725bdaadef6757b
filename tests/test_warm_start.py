"""The warm start: a fixed number of steps, cached by content, on training tasks only."""

import contextlib
import random
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from refusals import refused

from marl_plugins.core.demonstrations import Demonstration, WarmStartConfig, encode
from marl_plugins.core.trajectory import Task
from marl_plugins.core.workflow import RoleSpec, Sampling

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from marl_plugins.core.conversation import ChatFormat  # noqa: E402
from marl_plugins.core.recipe.prompts import prompt_renderer  # noqa: E402
from marl_plugins.engine.plan.build import build_plan  # noqa: E402
from marl_plugins.engine.records.display import Display  # noqa: E402
from marl_plugins.engine.runtime.session import Session  # noqa: E402
from marl_plugins.engine.runtime.tiny_model import made_once, resolve  # noqa: E402
from marl_plugins.engine.runtime.warm_start import draw, warm_start  # noqa: E402

MODEL = "tiny:hidden=16,layers=1,positions=64"
TASKS = [Task(str(n), f"{n}?", str(n)) for n in range(7)]


def demonstrate(task, rng):
    yield Demonstration("a", {"q": task.prompt}, said=[task.label])
    yield Demonstration("a", {"q": "noise"}, said=[str(rng.random())[:4]])


@pytest.fixture
def roles(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    chat = ChatFormat(transformers.AutoTokenizer.from_pretrained(resolve(MODEL)), "p")
    return {"a": RoleSpec("a", "p", prompt_renderer("{q}", None), chat, Sampling(1.0, 1.0, 9, 60))}


def test_demonstrations_are_drawn_from_all_tasks_and_the_same_every_time():
    config = WarmStartConfig(demonstrations="x", steps=5, batch_size=4)
    one, two = draw(demonstrate, TASKS, config), draw(demonstrate, TASKS, config)
    assert one == two and len(one) == 20
    assert {d.fields["q"] for d in one} >= {t.prompt for t in TASKS}
    other = draw(demonstrate, TASKS, config.model_copy(update={"seed": 1}))
    assert other != one


def test_a_task_that_cannot_be_demonstrated_ends_a_run_with_the_place(tmp_path):
    """The plan has tried the first task alone."""
    folder = shutil.copytree(Path(__file__).parent / "recipes" / "sums", tmp_path / "sums")
    (folder / "demonstrations.py").write_text(
        "seen = []\n"
        "def demonstrate(task, rng):\n"
        "    seen.append(task)\n"
        "    if task.id != seen[0].id:\n"
        "        raise ValueError(task.id)\n"
        "    return []\n"
    )
    with (folder / "tiny.yaml").open("a") as recipe:
        recipe.write("warm_start: {demonstrations: demonstrations.py, steps: 1}\n")
    session = Session(build_plan(["--recipe", str(folder / "tiny.yaml")]))
    with refused(("warm_start.demonstration", "demonstrations.py:5")):
        session.warm_start(Display(as_json=True))


def test_no_demonstration_of_any_task_is_an_error():
    with pytest.raises(ValueError, match="7 tasks"):
        draw(lambda task, rng: [], TASKS, WarmStartConfig(demonstrations="x", steps=1))


def test_it_learns_and_is_cached_by_content(roles):
    config = WarmStartConfig(demonstrations="x", steps=30, batch_size=8, learning_rate=0.01)
    demonstrations = draw(demonstrate, TASKS, config)

    def start(config=config, demonstrations=demonstrations):
        rows = [encode(d, roles[d.role]) for d in demonstrations]
        return warm_start(MODEL, resolve(MODEL), rows, config, Display(as_json=True))

    threads = torch.get_num_threads()
    folder = start()
    written = Path(folder, "model.safetensors").stat()
    assert start() == folder and Path(folder, "model.safetensors").stat() == written
    assert torch.get_num_threads() == threads
    assert start(config.model_copy(update={"steps": 29})) != folder
    shuffled = list(demonstrations)
    random.Random(1).shuffle(shuffled)
    assert start(demonstrations=shuffled) != folder

    def loss(path):
        model = transformers.AutoModelForCausalLM.from_pretrained(path)
        ids, mask = encode(Demonstration("a", {"q": "3?"}, said=["3"]), roles["a"])
        labels = [i if m else -100 for i, m in zip(ids, mask, strict=True)]
        return model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss.item()

    assert loss(folder) < loss(resolve(MODEL))
    assert transformers.AutoTokenizer.from_pretrained(folder).chat_template


def test_of_two_runs_at_a_time_one_makes_it_and_the_other_waits(tmp_path, monkeypatch):
    """Also if the first one is killed: the second one makes it then."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache, made, waited = tmp_path / "openrlhf-marl" / "tiny", [], threading.Event()
    first = textwrap.dedent("""
        import time
        from marl_plugins.engine.runtime.tiny_model import made_once

        def make(folder):
            folder.joinpath("by").write_text("first")
            print("began", flush=True)
            time.sleep(600)

        made_once("m", make)
    """)

    def second():
        made.append(
            made_once("m", lambda folder: folder.joinpath("by").write_text("second"), waited.set)
        )

    with subprocess.Popen([sys.executable, "-c", first], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"began\n"
        thread = threading.Thread(target=second)
        thread.start()
        assert waited.wait(60) and not made
        process.kill()
        thread.join(60)
    assert made == [str(cache / "m")] and (cache / "m" / "by").read_text() == "second"
    assert {path.name for path in cache.iterdir()} == {"m"}  # what the first had begun is gone too


def test_who_waits_for_one_that_fails_is_not_disturbed_by_a_third(tmp_path, monkeypatch):
    """The first one's lock goes with its file; the third finds no file, and must not take what the
    second makes for a leftover."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fail, waited, making, go_on = (threading.Event() for _ in range(4))
    found = []

    def first(folder):
        making.set()
        assert fail.wait(60)
        raise ValueError("no")

    def second(folder):
        making.set()
        assert go_on.wait(60)
        folder.joinpath("by").write_text("second")

    def one(make, wait=lambda: None):
        with contextlib.suppress(ValueError):
            found.append(made_once("m", make, wait))

    threads = [threading.Thread(target=one, args=(first,))]
    threads[0].start()
    assert making.wait(60)
    making.clear()
    threads.append(threading.Thread(target=one, args=(second, waited.set)))
    threads[1].start()
    assert waited.wait(60)
    fail.set()
    assert making.wait(60)
    waited.clear()
    threads.append(
        threading.Thread(
            target=one, args=(lambda folder: folder.joinpath("by").write_text("third"), waited.set)
        )
    )
    threads[2].start()
    assert waited.wait(60)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert (
        len(found) == 2
        and (tmp_path / "openrlhf-marl" / "tiny" / "m" / "by").read_text() == "second"
    )
