"""A frozen policy of the run as the coach: planned, asked through the run's own way to its engines,
repeatable."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest
from openai_server import nonce_in, verdict
from refusals import briefs, refused
from simulated import CharacterChat, credit, make_trajectory

from marl_plugins import coach, reward_backprop
from marl_plugins.cli import main
from marl_plugins.coach import distil
from marl_plugins.commands.evaluate import only_players
from marl_plugins.core.credit import rewards_from_scores
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.run import EngineConnection
from marl_plugins.core.scoring import Seen, SeenLast
from marl_plugins.core.trajectory import Generation
from marl_plugins.core.workflow import Sampling
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.fingerprint import fingerprint
from marl_plugins.engine.records.read import Filter
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


def problems(*words):
    with pytest.raises(ConfigurationError) as caught:
        build_plan([*words, "--dry-run"])
    return briefs(caught.value.problems)


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


def test_all_mistakes_are_reported_at_once_with_exit_code_2(recipe, capsys):
    words = [
        "--coach.policy",
        "jugde",
        "--coach.budget",
        "3",
        "--coach.base_url",
        "http://127.0.0.1:9/v1",
    ]
    words += ["--coach.max_missing", "2", "--coach.prompt", "nowhere.md"]
    assert main(["train", "--recipe", str(recipe), *words]) == 2
    err = capsys.readouterr().err
    for part in (
        "--coach.policy: there is no frozen policy of the name 'jugde'; did you mean 'judge'?",
        "--coach.budget: is about an endpoint, and this coach is a policy of the run (jugde)",
        "--coach.base_url: is about an endpoint",
        "--coach.max_missing: 2 is out of range: expected at least 0 and at most 1",
        "nowhere.md: cannot be read: No such file",
    ):
        assert part in err


def test_a_policy_that_is_trained_cannot_be_the_coach(recipe):
    words = [
        "--recipe",
        str(recipe.with_name("tiny.yaml")),
        "--plugin",
        "marl_plugins.coach",
        "--coach.policy",
        "coder",
    ]
    with refused(("coach.trained_policy", "coach.policy", "coder")):
        build_plan(words)
    recipe.write_text(RECIPE.replace("trainable: false, ", ""))
    assert "coach.trained_policy" in {code for code, *_ in problems("--recipe", str(recipe))}


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


def test_an_answer_longer_than_the_policys_context_is_refused(recipe):
    assert [
        code for code, *_ in problems("--recipe", str(recipe), "--coach.max_tokens", "8192")
    ] == ["coach.no_room"]


def test_another_coach_on_the_command_line_leaves_the_recipes_policy_idle(recipe):
    rubric = str(ROOT / "recipes" / "mathchat" / "tiny_rubric.py")
    for words in (["--coach.rubric", rubric], ["--coach.model", "m"]):
        plan = build_plan(["--recipe", str(recipe), *words])
        assert "judge" not in describe(plan)["policies"]
        (idle,) = [w for w in plan.run.warnings if w.code == "policies.idle"]
        assert "'judge'" in idle.got and words[0] in idle.got
        assert plan.run.args.coach.policy is None
    plan = build_plan(["--recipe", str(recipe), "--coach.policy", "judge"])
    assert "judge" in describe(plan)["policies"] and not plan.run.warnings
    recipe.write_text(
        RECIPE.replace("policies:\n", "policies:\n  second: {model: tiny, trainable: false}\n")
    )
    (problem,) = problems("--recipe", str(recipe))  # nobody excludes it
    assert problem[0] == "policies.unused"
    recipe.write_text(
        recipe.read_text().replace("second: {model: tiny", 'second: {model: "tiny:positions=4096"')
    )
    text = recipe.read_text().replace(
        "coach.policy: judge", "coach.policy: second\n  coach.max_tokens: 99"
    )
    recipe.write_text(text)
    plan = build_plan(["--recipe", str(recipe), "--coach.policy", "judge"])
    (idle,) = plan.run.warnings
    assert idle.code == "policies.idle" and "'second'" in idle.got and "--coach.policy" in idle.got
    recipe.write_text(RECIPE)
    playing = ["--mapping", "solver=a,coder=a,verifier=judge"]
    assert (
        "judge"
        in describe(build_plan(["--recipe", str(recipe), "--coach.rubric", rubric, *playing]))[
            "policies"
        ]
    )
    text = RECIPE.replace("flags:\n  coach.policy: judge\n", f"flags: {{coach.rubric: {rubric}}}")
    recipe.write_text(text)
    assert problems("--recipe", str(recipe))[0][0] == "policies.unused"


def test_a_data_set_of_its_verdicts_holds_the_very_words_that_it_was_shown_and_said(recipe):
    prompts, answers = [], []

    def model(prompt):
        prompts.append(prompt)
        answers.append(verdict(body(prompt), 8, says="Good."))
        return answers[-1]

    run = started(recipe, model)
    trajectory = make_trajectory({"solver": []})
    only, view = trajectory.actions[0], Seen.of(trajectory, trajectory.actions[0])
    assert scores(run, (only, view)) == [0.8]
    ((_, _, line),) = distil.verdicts_of(run, [trajectory], Filter())
    assert "".join(map(chr, CharacterChat().opening(line["prompt"]))) == prompts[0]
    assert line["completion"][0]["content"] == answers[0]


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


def test_an_answer_without_a_verdict_is_asked_about_once(recipe, action, seen):
    def comes_round(prompt):
        return (
            verdict(body(prompt), 4)
            if "That holds no verdict" in prompt
            else "Seven of ten, I think."
        )

    run = started(recipe, comes_round)
    assert scores(run, (action, seen)) == [0.4]
    assert metrics(run)["coach/asked_again"] == 1
    run = started(recipe, lambda prompt: "Seven of ten, I think.")
    (failure,) = scores(run, (action, seen))
    assert (failure.kind, metrics(run)["coach/requests"]) == ("coach_verdict", 2)
    assert "no verdict" in action.explanation


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


def test_a_text_that_is_no_utf8_is_judged_as_well(recipe, action, seen):
    def model(prompt):
        prompt.encode()  # as a tokenizer does
        return verdict(body(prompt), 4 if "\\ud83d" in prompt else 0)

    run = started(recipe, model)
    action.text = "half of \ud83d"
    assert scores(run, (action, seen)) == [0.4]


def test_an_answer_ends_where_the_policys_context_does(recipe):
    run = started(recipe, lambda prompt: "x" * 100)

    def length(question, limit):
        return len(
            asyncio.run(run.ask("judge", [{"role": "user", "content": question}], max_tokens=limit))
        )

    assert length("?", 10) == 10
    assert length("?" * 8180, 10) == 8192 - len("u:^a:") - 8180


def test_nobody_can_be_asked_before_the_engines_run(recipe):
    run = build_plan(["--recipe", str(recipe)]).run
    with pytest.raises(RuntimeError, match="the engines are not running"):
        asyncio.run(run.ask("judge", [{"role": "user", "content": "?"}], max_tokens=1))


def test_the_attributor_asks_the_policy_too(recipe):
    def model(prompt):
        word = prompt.rpartition("CONTRIBUTION ")[2].partition(":")[0]
        blamed = "The member: coder" in prompt
        return (
            f"Traced.\nPASSED_ON {word}: a wrong plan\nCONTRIBUTION {word}: {-8 if blamed else 0}"
        )

    words = ["--plugin", "marl_plugins.reward_backprop", "--reward_backprop.attributor", "model"]
    run = started(recipe, model, *words)
    trajectory = make_trajectory({"solver": [], "coder": ["solver"], "verifier": ["coder"]})
    trajectory.outcome = 0.0
    rewards_from_scores([trajectory])
    asyncio.run(reward_backprop.marl_credit_step([trajectory], run))
    found = {a.role: a.notes["reward_backprop"]["contribution"] for a in trajectory.actions}
    assert found == pytest.approx({"solver": 0.0, "coder": -1.0, "verifier": 0.0})
    assert "passed on: a wrong plan" in trajectory.actions[1].explanation
