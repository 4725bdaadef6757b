"""A frozen policy of the run as the coach: planned, asked through the run's own way to its engines,
repeatable."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest
from openai_server import nonce_in, verdict
from refusals import briefs
from simulated import CharacterChat, credit, make_trajectory

from marl_plugins import coach
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.run import EngineConnection
from marl_plugins.core.scoring import SeenLast
from marl_plugins.core.trajectory import Generation
from marl_plugins.core.workflow import Sampling
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.engines_only import only_players
from marl_plugins.engine.plan.fingerprint import fingerprint
from marl_plugins.engine.runtime.questions import make_ask

ROOT = Path(__file__).resolve().parent.parent
SECRET = "the-label-42"
RECIPE = """
extends: tiny.yaml
plugins: [marl_plugins.coach, answers.py]
policies:
  judge: {model: "tiny:seed=9,positions=8192", trainable: false, flags: {data.max_len: 8192}}
flags:
  coach.policy: judge
"""
ANSWERS = """
from marl_plugins import hookimpl
from refusals import briefs, briefs

@hookimpl
def marl_generate(call, engines):
    return engines(call)
"""


@pytest.fixture
def recipe(tmp_path):
    """A recipe whose coach is a policy that plays no role; its engines are whatever function stands
    for them."""
    folder = tmp_path / "sums"
    shutil.copytree(ROOT / "tests" / "recipes" / "sums", folder)
    (folder / "coached.yaml").write_text(RECIPE)
    (folder / "answers.py").write_text(ANSWERS)
    return folder / "coached.yaml"


def started(recipe, model, *words):
    """A run whose engines run: `model(prompt)` is what its judge answers, late and in any order."""
    plan = build_plan(["--recipe", str(recipe), *words])
    run, noise = plan.run, random.Random()

    async def engine(call):
        await asyncio.sleep(noise.random() * 0.005)
        answer = model("".join(map(chr, call.context_ids)))
        if call.sampling.temperature:  # what is sampled does not repeat
            answer += str(noise.random())
        ids = CharacterChat.encode(answer)[: call.max_tokens]
        return Generation(ids, (0.0,) * len(ids), "stop", call.policy, 0)

    async def generate(call):
        return await plan.plugins.hook.marl_generate(run=run, call=call, engines=engine)

    args = run.policy_args["judge"]
    chats, samplings = (
        {"judge": CharacterChat()},
        {"judge": Sampling(1.0, 1.0, None, args.data.max_len)},
    )
    run.state(EngineConnection).ask = make_ask(generate, chats, samplings, args.train.seed)
    return run


def body(prompt):
    """A prompt as the endpoint's stand-in takes it."""
    return {"messages": [{"content": prompt}]}


def scores(run, *pairs):
    """The coach's scores of actions, asked for all at once."""

    async def all_of_them():
        return await asyncio.gather(
            *(coach.marl_score_action(run, *pair) for pair in pairs), return_exceptions=True
        )

    return asyncio.run(all_of_them())


def metrics(run):
    found = {}
    coach.marl_log(run, found)
    return found


def test_the_coachs_policy_is_planned_as_engines_without_a_role(recipe):
    plan = build_plan(["--recipe", str(recipe), "--policy.judge.vllm.num_engines", "2"])
    shown = describe(plan)
    assert shown["policies"]["judge"]["trainable"] is False
    assert shown["policies"]["judge"]["ranks"] == 0
    assert shown["devices"] == {"solver": 2, "coder": 2, "verifier": 2, "judge": 2}
    assert fingerprint(plan)["policies"]["judge"]["trainable"] is False
    assert {r["policy"] for r in shown["roles"].values()} == {"solver", "coder", "verifier"}
    plan = build_plan(["--recipe", str(recipe), "--mapping", "shared"])
    assert describe(plan)["devices"] == {"shared": 2, "judge": 1}
    plan = build_plan(
        ["--recipe", str(recipe), "--mapping", "solver=a,coder=a,verifier=judge"]
    )  # it may play one as well
    assert describe(plan)["devices"] == {"a": 2, "judge": 1}


def test_what_is_not_trained_has_its_devices_to_itself_and_never_sleeps(recipe, monkeypatch):
    """So it can be asked after the rollout too, and be spread over more devices than the trained
    ones."""
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    recipe.write_text(RECIPE.replace("tiny.yaml", "recipe.yaml"))
    plan = build_plan(["--recipe", str(recipe), "--policy.judge.vllm.tensor_parallel_size", "4"])
    assert {name: a.vllm.enable_sleep for name, a in plan.run.policy_args.items()} == {
        **dict.fromkeys(("solver", "coder", "verifier"), True),
        "judge": False,
    }
    assert describe(plan)["devices"]["judge"] == 4
    run = only_players(plan.run)  # an evaluation asks no coach, and wakes nobody up
    assert [p.name for p in run.policies] == ["solver", "coder", "verifier"]
    assert not any(run.policy_args[p.name].vllm.enable_sleep for p in run.policies)


def test_a_judge_of_its_own_actions_is_said(recipe):
    words = ["--recipe", str(recipe), "--mapping", "solver=a,coder=judge,verifier=judge"]
    assert ("coach.judges_itself", "judge") in briefs(build_plan(words).run.warnings)
    text = "coach: {members: {one: {policy: judge}, rules: {rubric: rules.py}}}\n"
    recipe.write_text(RECIPE.replace("flags:\n  coach.policy: judge\n", text))
    shutil.copy(ROOT / "recipes" / "mathchat" / "tiny_rubric.py", recipe.with_name("rules.py"))
    assert ("coach.judges_itself", "judge") in briefs(build_plan(words).run.warnings)
    assert "coach.judges_itself" not in {
        warning.code for warning in build_plan(words[:2]).run.warnings
    }


def test_its_verdicts_are_read_as_an_endpoints_and_the_label_reaches_the_last_action_alone(
    recipe, action, seen
):
    prompts = []

    def model(prompt):
        prompts.append(prompt)
        return verdict(
            body(prompt), 8 if "the member" in prompt.lower() else 0, correct="no", says="Good."
        )

    run = started(recipe, model)
    last = make_trajectory({"verifier": []}).actions[0]
    label = SeenLast("t", "What is it?", "verifier", (("user", "?"),), (), SECRET, "an answer")
    assert scores(run, (action, seen), (last, label)) == [0.8, 0.8]
    assert "Good." in action.explanation
    assert sum(SECRET in prompt for prompt in prompts) == 1
    assert metrics(run)["coach/requests"] == 2


def test_results_depend_on_the_question_and_the_seed_alone(recipe, seen):
    """Neither on when they are asked nor on what else is asked at the time; so a resumed run
    repeats."""
    actions = make_trajectory({"solver": [], "coder": [], "verifier": []}).actions
    nonces = {}

    def model(prompt):
        word = nonce_in(body(prompt))
        nonces.setdefault(prompt.replace(word, ""), set()).add(word)
        return verdict(body(prompt), int(word, 16) % 11)

    run = started(recipe, model)
    alone = [scores(run, (a, seen))[0] for a in actions]
    run = started(recipe, model)
    assert scores(run, *[(a, seen) for a in actions] * 5) == alone * 5
    assert all(len(words) == 1 for words in nonces.values())
    assert len(set.union(*nonces.values())) == 3
    run = started(recipe, model, "--train.seed", "7")
    scores(run, *[(a, seen) for a in actions])
    assert all(len(words) == 2 for words in nonces.values())


@pytest.mark.parametrize(("sampled", "temperature"), [(False, 0.0), (True, 0.7)])
def test_a_question_ends_where_the_policys_answers_end(sampled, temperature):
    calls = []

    async def generate(call):
        calls.append(call)
        return Generation((1,), (0.0,), "stop", "judge", 0)

    own = Sampling(0.7, 0.9, None, 100, stop_ids=(151645,))
    ask = make_ask(generate, {"judge": CharacterChat()}, {"judge": own}, 1)
    asyncio.run(ask("judge", [{"role": "user", "content": "?"}], 5, sampled))
    (asked,) = (call.sampling for call in calls)
    assert (asked.temperature, asked.max_new_tokens, asked.stop_ids) == (temperature, 5, (151645,))


def test_a_question_that_is_too_long_or_finds_no_engine_is_a_missing_verdict(recipe, action, seen):
    run = started(
        recipe, lambda prompt: "", "--policy.judge.data.max_len", "500", "--coach.max_tokens", "9"
    )
    (failure,) = scores(run, (action, seen))
    assert failure.kind == "too_long" and "no room in 500 (--data.max_len)" in str(failure)

    def gone(prompt):
        raise InfrastructureFailure("engine", "policy 'judge' has no engine left")

    run = started(recipe, gone)
    trajectory = make_trajectory({"solver": []})
    trajectory.actions_scored = True
    (failure,) = scores(run, (trajectory.actions[0], seen))
    assert failure.kind == "engine"
    credit(coach, [trajectory], run)
    assert metrics(run)["coach/missing"] == 1.0
