"""`env:` in a recipe: games of TextArena and servers of OpenEnv, as they are tried before a run and
played in it; what becomes of those that misbehave."""

import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from recipe_runs import played

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.environments.servers import ServerPool

TESTS = Path(__file__).parent
SERVER = [sys.executable, str(TESTS / "openenv_server.py"), "{port}"]
FLAGS = {
    "rollout.batch_size": 2,
    "train.batch_size": 2,
    "train.micro_batch_size": 2,
    "rollout.max_new_tokens": 4,
    "data.max_len": 500,
}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """`recipe(env, roles)`: the recipe's file; `textarena` is the stand-in."""
    monkeypatch.setenv("PYTHONPATH", f"{TESTS / 'standins'}:{os.environ.get('PYTHONPATH', '')}")

    def written(env, roles=None, **more):
        roles = roles or {"zero": {"example": "1"}, "one": {"example": "2"}}
        values = {"name": "mine", "roles": roles, "env": env, "model": "tiny", "flags": FLAGS}
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(values | more, sort_keys=False))
        return path

    return written


@pytest.fixture
def plan(recipe):
    """`plan(env)`: the plan, whose servers end with the test."""
    plans = []

    def planned(env, roles=None, **more):
        plans.append(build_plan(["--recipe", str(recipe(env, roles, **more))]))
        return plans[-1]

    yield planned
    for one in plans:
        if one.run.recipe and ServerPool in one.run._states:
            one.run.state(ServerPool).stop()


def problems(path):
    with pytest.raises(ConfigurationError) as raised:
        build_plan(["--recipe", str(path)])
    return {problem.code: str(problem) for problem in raised.value.problems}


def lowest(text):
    """Says 1, or 2 where it wins."""
    left = int(text.rpartition(" left")[0].split()[-1])
    return "2" if left == 2 else "1"


def rewards(trajectory):
    return json.loads(trajectory.answer)["rewards"]


# --- TextArena


def test_an_episode_is_a_trajectory_whose_players_are_roles(plan):
    mine = plan({"textarena": "Count-v0", "episodes": 5, "eval_episodes": 3})
    assert mine.run.warnings == ()
    train, evaluation = mine.tasks("train"), mine.tasks("eval")
    assert [len(train), len(evaluation)] == [5, 3]
    assert not {t.metadata["seed"] for t in train} & {t.metadata["seed"] for t in evaluation}
    trajectory = played(mine, train[1], lambda role, prompt: lowest(prompt))
    roles = [action.role for action in trajectory.actions]
    assert roles == [("zero", "one")[n % 2] for n in range(len(roles))]
    winner = roles[-1]
    assert trajectory.outcomes == {role: float(role == winner) for role in ("zero", "one")}
    assert {action.role: action.reward for action in trajectory.actions} == trajectory.outcomes
    # each answer follows the one before, and a player's own are one conversation
    for before, action in zip(trajectory.actions, trajectory.actions[1:], strict=False):
        assert before.path in action.parents
    later = trajectory.actions[2:]
    assert all(a.before is b for a, b in zip(later, trajectory.actions, strict=False))
    # in which nothing is shown twice, and not what it has said itself
    new = [action.opening[-1][1] for action in later]
    assert all("Say 1 or 2" not in text and text.count("left") == 2 for text in new)
    assert all(
        f"[Player {1 - 'zo'.index(a.role[0])}]" in t for a, t in zip(later, new, strict=True)
    )


def test_the_same_seed_is_the_same_episode_and_another_is_another(plan):
    mine = plan({"textarena": "Count-v0"})
    shown = [
        [a.opening for a in played(mine, mine.tasks("train")[n], lambda r, p: lowest(p)).actions]
        for n in (0, 0, 1)
    ]
    assert shown[0] == shown[1] != shown[2]


def test_thinking_plays_no_move_and_is_shown_to_nobody(plan):
    mine = plan({"textarena": "Count-v0", "options": {"start": 3}})
    says = {"zero": "<think>I could say 1</think>2", "one": "<think>or 2?</think>1"}
    trajectory = played(mine, mine.tasks("train")[0], lambda role, prompt: says[role])
    assert trajectory.outcomes == {"zero": 0.0, "one": 1.0}
    assert "[Player 0] 2\n" in trajectory.actions[1].opening[-1][1]
    # the record has what was sampled, and so has a conversation
    assert [action.text for action in trajectory.actions] == list(says.values())


def test_thinking_that_has_not_ended_is_no_move(plan):
    mine = plan({"textarena": "Count-v0", "options": {"start": 3}})
    says = {"zero": "<think>my secret plan is", "one": "1"}
    trajectory = played(mine, mine.tasks("train")[0], lambda role, prompt: says[role])
    assert json.loads(trajectory.answer)["invalid"] == "zero"


def test_an_invalid_move_costs_its_player_and_pays_nobody(plan):
    mine = plan({"textarena": "Count-v0", "invalid": -0.5})
    says = {"zero": "1", "one": "x"}
    trajectory = played(mine, mine.tasks("train")[0], lambda role, prompt: says[role])
    assert trajectory.outcomes == {"one": 0.25}
    assert [a.reward for a in trajectory.actions] == [None, 0.25, 0.25]
    assert json.loads(trajectory.answer)["invalid"] == "one"


def test_prompts_of_roles_are_around_what_the_game_shows(plan, tmp_path):
    (tmp_path / "move.md").write_text("{news} - your number?")
    (tmp_path / "all.md").write_text("{observation} - your number?")
    (tmp_path / "system.md").write_text("Play well.")
    roles = {
        "zero": {"prompt": "move.md", "system": "system.md", "example": "1"},
        "one": {"prompt": "all.md", "example": "1"},
    }
    mine = plan({"textarena": "Count-v0", "options": {"start": 3}, "conversation": False}, roles)
    actions = played(mine, mine.tasks("train")[0], lambda role, prompt: "1").actions
    assert actions[0].opening[0] == ("system", "Play well.")
    assert actions[0].opening[1][1] == "[GAME] 3 left - your number?"
    assert actions[2].opening[1][1] == "[GAME] 2 left\n[Player 1] 1\n[GAME] 1 left - your number?"
    assert "You are 1" in actions[1].opening[0][1] and actions[2].before is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Raises-v0", "no such square"),
        ("Hangs-v0", "does not answer within 0.5 s"),
        ("Text-v0", "'Error: no number'"),
        ("Ten-v0", "10.0; expected a number in [-1.0, 1.0]"),
        ("Silent-v0", "pays nobody"),
        ("Missing-v0", "Missing-v0 not found"),
    ],
)
def test_what_a_game_does_wrong_is_said_before_the_run(recipe, name, said):
    short = {"seconds": 0.5} if name == "Hangs-v0" else {}
    assert said in problems(recipe({"textarena": name} | short))["env.episode"]


def test_a_game_may_print_and_need_not_end(plan):
    prints = plan({"textarena": "Prints-v0", "options": {"start": 3}})
    assert played(prints, prints.tasks("train")[0], lambda r, p: "1").outcomes == {
        "zero": 1.0,
        "one": 0.0,
    }
    endless = plan({"textarena": "Endless-v0", "turns": 4})
    trajectory = played(endless, endless.tasks("train")[0], lambda r, p: "1")
    assert len(trajectory.actions) == 4 and set(trajectory.outcomes.values()) == {0.0}
    assert json.loads(trajectory.answer)["ended"] is False


def test_what_does_not_repeat_is_said(plan):
    codes = [warning.code for warning in plan({"textarena": "Unseeded-v0"}).run.warnings]
    assert "env.repeatable" in codes, codes


@pytest.mark.parametrize(
    ("env", "code"),
    [
        ({"textarena": "Count-v0", "openenv": {"app": "a:b"}}, "env.kind"),
        ({"textarena": "Count-v0", "players": ["zero", "two"]}, "env.players"),
        ({"textarena": "Count-v0", "rewards": [1, -1]}, "env.rewards"),
        ({"textarena": "Count-v0", "rewards": [0.0, math.inf]}, "recipe.value"),
        ({"textarena": "Count-v0", "invalid": math.nan}, "recipe.value"),
        ({"textarena": "Count-v0", "invalid": -2}, "env.invalid"),
        ({"textarena": "Count-v0", "scored": "step"}, "env.scored"),
        ({"textarena": "Count-v0", "show": ["board"]}, "env.pointless"),
        ({"verifiers": "sums"}, "env.episode"),
        ({"openenv": {}}, "env.server"),
        ({"textarena": "Count-v0", "python": "no/python"}, "env.python"),
    ],
)
def test_a_wrong_section(recipe, env, code):
    assert code in problems(recipe(env))


def test_a_grader_beside_it(recipe, tmp_path):
    (tmp_path / "grader.py").write_text("def score(trajectory): return 0.0\n")
    file = recipe({"textarena": "Count-v0"}, grader="grader.py")
    assert "env.pointless" in problems(file)


def test_data_beside_an_environment_are_refused(recipe):
    path = recipe({"textarena": "Count-v0"})
    path.write_text(path.read_text().replace("flags:", "flags:\n  eval.dataset: tasks.jsonl"))
    assert "env.data" in problems(path)


@pytest.mark.parametrize(("text", "said"), [("raise", "no such square"), ("die", "exit code 7")])
def test_a_game_that_fails_in_the_run_loses_its_trajectory_alone(plan, text, said):
    mine = plan({"textarena": "Count-v0"})
    lost = played(mine, mine.tasks("train")[0], lambda role, prompt: text)
    assert lost.infrastructure_failure == "program" and said in lost.detail and not lost.outcomes
    assert played(mine, mine.tasks("train")[0], lambda role, prompt: lowest(prompt)).outcomes


# --- OpenEnv

GUESS = {"show": ["hint"], "turns": 6, "episodes": 4, "scored": "step"}
ONE = {"player": {"example": "3"}}


def server(behaves="", **more):
    return {"openenv": {"command": [*SERVER, behaves or "well"], "ready_seconds": 60, **more}}


def test_each_step_of_a_server_pays_its_answer(plan):
    mine = plan(GUESS | server(), ONE)
    assert mine.run.warnings == ()
    ended = set()
    for task in mine.tasks("train"):
        digits = iter("0123456789")
        trajectory = played(mine, task, lambda r, p, digits=digits: f"I say {next(digits)}")
        *before, last = [action.score for action in trajectory.actions]
        found = json.loads(trajectory.answer)["ended"]
        assert before == [0.25] * len(before) and (last == 1.0 if found else len(before) == 5)
        assert trajectory.outcomes == {"player": last}
        ended.add(found)
    assert ended == {True, False}
    shown = "".join(text for action in trajectory.actions for _, text in action.opening)
    assert "correct" not in shown and "1 guesses" in shown


def test_an_action_is_the_last_object_of_what_is_said(plan):
    mine = plan(GUESS | server() | {"turns": 1}, ONE)
    for text in (
        '<think>{"guess": 1} or {2, 3}?</think>{"guess": 12}',
        'Not {a, b}, nor {"guess": 1}: {"guess": 12}. Good luck, {you}',
        '{"guess": {"guess": 3}}',
    ):
        trajectory = played(mine, mine.tasks("train")[0], lambda r, p, text=text: text)
        assert "guess: 0 to 9" in json.loads(trajectory.answer)["why"]


def test_an_answer_that_is_no_action_ends_the_episode_and_costs(plan):
    mine = plan(GUESS | server() | {"invalid": -0.8, "turns": 1}, ONE)
    for text in ("no idea", "²", '{"guess": "x"}', "{"):
        trajectory = played(mine, mine.tasks("train")[0], lambda r, p, text=text: text)
        assert [action.score for action in trajectory.actions] == [pytest.approx(0.1)]
        assert trajectory.outcomes == {"player": pytest.approx(0.1)}


@pytest.mark.parametrize(
    ("behaves", "said"),
    [
        ("silent", "does not answer within 0.5 s"),
        ("other", "does not speak OpenEnv's protocol: hello"),
        ("website", "no server of OpenEnv"),
        ("dies", "has left the session"),
        ("forgets", "there is no such session"),
    ],
)
def test_what_a_server_does_wrong_is_said_before_the_run(recipe, behaves, said):
    short = {"seconds": 0.5} if behaves == "silent" else {}
    env = GUESS | server(behaves) | short
    assert said in problems(recipe(env, ONE))["env.episode"]


@pytest.mark.parametrize(
    ("openenv", "said"),
    [
        ({"command": ["false"], "restarts": 0}, "has ended with 1"),
        ({"command": ["sleep", "60"], "ready_seconds": 0.5}, "does not answer within 0.5 s"),
        ({"command": ["no-such-program"]}, "no-such-program"),
    ],
)
def test_what_is_no_server_is_said_before_the_run(recipe, openenv, said):
    assert said in problems(recipe(GUESS | {"openenv": openenv}, ONE))["env.server"]


def test_a_slow_server_is_checked_and_no_mistake(plan, monkeypatch):
    """Longer in all than `seconds`, which are those of a step, and than the rehearsal waits."""
    monkeypatch.setattr("marl_plugins.environments.check.LEAST_SECONDS", 3.0)
    monkeypatch.setattr("marl_plugins.builtin.rehearsal.trial.ROLE_SECONDS", 0.5)
    mine = plan(GUESS | server("slow", ready_seconds=60) | {"turns": 10, "seconds": 2.0}, ONE)
    assert mine.run.warnings == ()


def test_trials_wait_for_each_other_at_a_slow_server(plan, monkeypatch):
    """The rehearsal has a limit for each of them, not for all."""
    monkeypatch.setattr("marl_plugins.engine.plan.user_code_thread.USER_CODE_SECONDS", 4.0)
    mine = plan(GUESS | server("slow", ready_seconds=60) | {"turns": 2}, ONE)
    assert mine.run.warnings == ()


def test_what_a_role_is_shown_has_to_be_named(recipe):
    env = GUESS | server() | {"show": []}
    assert "['hint', 'correct_answer']" in problems(recipe(env, ONE))["env.episode"]


def test_a_server_is_started_again_and_ends_with_the_run():
    """The run is killed: nobody tells the server."""
    text = f"""
import time
from pathlib import Path
from marl_plugins.environments.servers import ServerPool
pool = ServerPool()
command = {[*SERVER, "well"]!r}
pool.start(command, servers=1, sessions=1, folder=Path(), environment={{}}, restarts=3)
pool.wait(20)
print(next(iter(pool.keepers.values())).pid, flush=True)
time.sleep(60)
"""
    run = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    keeper = int(run.stdout.readline())
    (server_pid,) = children(keeper)
    os.kill(server_pid, signal.SIGKILL)
    wait_until(lambda: children(keeper) and children(keeper) != [server_pid])
    (again,) = children(keeper)
    run.kill()
    run.communicate()
    wait_until(lambda: not Path(f"/proc/{keeper}").exists() and not Path(f"/proc/{again}").exists())


def test_episodes_do_not_wait_for_a_server_that_has_ended_for_good(plan):
    mine = plan(GUESS | server(restarts=0, ready_seconds=60) | {"turns": 1}, ONE)
    task, says = mine.tasks("train")[0], lambda role, prompt: "3"
    assert played(mine, task, says).outcomes
    (keeper,) = mine.run.state(ServerPool).keepers.values()
    begun = time.monotonic()
    for process in children(keeper.pid):
        os.kill(process, signal.SIGKILL)
    lost = played(mine, task, says)  # it may still have its session
    keeper.wait()
    assert lost.infrastructure_failure == "program"
    lost = played(mine, task, says)
    assert lost.infrastructure_failure == "program" and "restarts" in lost.detail
    assert time.monotonic() - begun < 30


def children(process):
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in text.split()]


def wait_until(true):
    last = time.monotonic() + 20
    while not true():
        assert time.monotonic() < last
        time.sleep(0.05)


# --- the shipped recipes


@pytest.fixture(scope="session")
def textarena(request, tmp_path_factory):
    """The folder of the real package, kept with pytest's cache."""
    cache = getattr(request.config, "cache", None)
    folder = Path(cache.mkdir("textarena-0.7.4") if cache else tmp_path_factory.mktemp("textarena"))
    if not (folder / "textarena").exists():
        install = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps"]
        where = ["--python", sys.executable, "--target", str(folder)]
        subprocess.run([*install, *where, "textarena==0.7.4", "nltk==3.10.4"], check=True)
    return folder


def test_kuhn_poker_of_textarena(textarena, tmp_path, monkeypatch):
    """The recipe, with the real game: the demonstrations are what it shows."""
    monkeypatch.setenv("PYTHONPATH", f"{textarena}:{os.environ.get('PYTHONPATH', '')}")
    folder = shutil.copytree(recipes_root() / "environments", tmp_path / "environments")
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("venv/bin/python", sys.executable))
    mine = build_plan(["--recipe", str(folder / "tiny.yaml")])
    assert mine.run.warnings == ()
    rng, known = random.Random(0), set()
    for _ in range(600):
        known |= {d.fields["news"] for d in mine.run.demonstrations_module.demonstrate(None, rng)}
    scripts = (
        ["check"],
        ["bet", "call"],
        ["bet", "fold"],
        ["check", "bet", "fold"],
        ["call", "check"],
    )
    for task, script in zip(itertools.cycle(mine.tasks("train")[:3]), scripts, strict=False):
        said = itertools.chain(script, itertools.repeat(script[-1]))
        trajectory = played(mine, task, lambda role, prompt, said=said: next(said))
        shown = {action.opening[-1][1].strip() for action in trajectory.actions}
        assert shown <= known, shown - known
        assert trajectory.outcomes
