"""Checks that the table of refusals does not reach, each called with one bad input: the code and the
places of what it returns.
"""

import copy
from types import SimpleNamespace

import pytest
import ray
from refusals import briefs, found_by, refused

from marl_plugins.builtin import reinforce_pp
from marl_plugins.core.estimators import Estimator, check_estimator
from marl_plugins.core.failures import ConfigurationError, RunEnded
from marl_plugins.core.recipe.addresses import wrong_address, wrong_variables
from marl_plugins.engine.plan import files
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.checks import policies
from marl_plugins.engine.processes import cluster
from marl_plugins.engine.records import run_folder
from marl_plugins.engine.records.write import cut_back
from marl_plugins.engine.runtime.checkpoints import Checkpoints
from marl_plugins.sandbox import checks as sandbox_checks
from marl_plugins.sandbox.section import SandboxConfig
from marl_plugins.streaming import checks as streaming


@pytest.fixture(scope="module")
def run():
    """A run that has nothing wrong."""
    return build_plan(["--recipe", "vote/tiny.yaml"]).run


def space(root=None, **values):
    """Nested attributes, as in `space(a__b=1).a.b`, of a copy of `root`."""
    root = copy.deepcopy(root) or SimpleNamespace()
    for name, value in values.items():
        *parts, last = name.split("__")
        below = root
        for part in parts:
            below = below.__dict__.setdefault(part, SimpleNamespace())
        setattr(below, last, value)
    return root


# --- addresses and variables


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (wrong_variables("a $ alone"), "variable.name"),
        (wrong_variables("$NOBODY_HAS_SET_THIS"), "variable.unset"),
        (wrong_address("ftp://host", "http://host"), "address.form"),
        (wrong_address("http://me:secret@host", "http://host"), "address.secret"),
        (wrong_address("http://host/?api_key=secret", "http://host"), "address.secret"),
    ],
)
def test_addresses(found, code):
    assert briefs(found) == [(code,)]


# --- estimators


class Mine(Estimator):
    def estimate(self, rows, rewards):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("fields", "run", "code"),
    [
        ({"gamma": 2}, {}, "estimator.gamma"),
        ({"needs_critic": True}, {}, "estimator.critic"),
        ({"scope": "group"}, {}, "estimator.no_group"),
        ({"scope": "action", "group_by": "task"}, {}, "estimator.scope"),
        ({"scope": "group", "group_by": "task"}, {"samples": 1}, "estimator.samples"),
        ({"scope": "group", "group_by": "task"}, {"turns": 2}, "estimator.turns"),
    ],
)
def test_estimators(fields, run, code):
    found = check_estimator(Mine(**fields), **{"samples": 2, "roles": 1, **run})
    assert briefs(found) == [(code, "Mine")]


def policy(name, trainable=True, follows=""):
    return SimpleNamespace(name=name, trainable=trainable, follows=follows)


def run_of(roles=()):
    mapping = dict(roles)
    recipe = SimpleNamespace(
        mapped_roles=[*mapping], policies_of=lambda role: (mapping[role],), policies={}
    )
    return SimpleNamespace(recipe=recipe, device="cpu")


@pytest.mark.parametrize(
    ("follower", "code", "key"),
    [
        (policy("b", False, "b"), "policies.untrained", "follows"),
        (policy("b", False, "c"), "policies.unknown", "follows"),
        (policy("b", True, "a"), "policies.trained_follower", "trainable"),
    ],
)
def test_followers(follower, code, key):
    found = policies.check_followers(run_of(), [policy("a"), follower])
    assert briefs(found) == [(code, f"policies.b.{key}")]


# --- gradients that are taken early


@pytest.mark.parametrize(
    ("changed", "estimator", "code", "flag"),
    [
        ({"train__max_epochs": 2}, "reinforce", "streaming.epochs", "train.max_epochs"),
        ({"ds__param_dtype": "fp16"}, "reinforce", "streaming.dtype", "ds.param_dtype"),
        (
            dict.fromkeys(
                [f"actor__gradient_checkpointing_{name}" for name in ("enable", "reentrant")], True
            ),
            "reinforce",
            "streaming.checkpointing",
            "actor.gradient_checkpointing_reentrant",
        ),
        (
            {"actor__policy_loss_type": "gspo", "algo__advantage__is_correction_level": "token"},
            "reinforce",
            "streaming.gspo",
            "actor.policy_loss_type",
        ),
        (
            {"reward__clip_range": (-1, 1)},
            "flash_reinforce",
            "streaming.clip_range",
            "reward.clip_range",
        ),
        ({"ds__ring_attn_size": 2}, "reinforce", "streaming.ring", "ds.ring_attn_size"),
    ],
)
def test_a_policy_whose_gradients_cannot_be_taken_early(run, changed, estimator, code, flag):
    args = space(run.args, actor__model_name_or_path="tiny", **changed)
    found = streaming._of_a_policy(args, "p", SimpleNamespace(estimator=estimator))
    assert briefs(found) == [(code, flag)]


def test_a_run_whose_gradients_cannot_be_taken_early():
    run = SimpleNamespace(
        advantages=SimpleNamespace(accumulators=None),
        optimiser_steps=2,
        trajectories=8,
        args=space(train__batch_size=4),
        need_step=["mine"],
    )
    codes = ["streaming.optimiser_steps", "streaming.estimator", "streaming.whole_step"]
    assert briefs(streaming._of_the_run(run)) == [(code,) for code in codes]


# --- the sandbox


SERVICE = {"isolation": "service", "url": "http://127.0.0.1:8080"}


@pytest.mark.parametrize(
    ("settings", "packages", "expected"),
    [
        ({"url": "http://127.0.0.1:8080"}, True, ("sandbox.url", "tools.sandbox.url")),
        ({"warm_up": "absent.py"}, True, ("sandbox.warm_up", "tools.sandbox.warm_up")),
        ({"isolation": "service"}, True, ("sandbox.url", "tools.sandbox.isolation")),
        ({**SERVICE, "imports": ["json"]}, True, ("sandbox.service", "tools.sandbox.imports")),
        ({**SERVICE, "warm_up": "absent.py"}, True, ("sandbox.service", "tools.sandbox.warm_up")),
        (SERVICE, False, ("sandbox.packages", "tools.sandbox.isolation")),
    ],
)
def test_the_sandbox(settings, packages, expected, tmp_path):
    found = sandbox_checks.check_sandbox(SandboxConfig(**settings), tmp_path, packages)
    assert briefs(found) == [expected]


# --- the plan


def test_an_evaluation_that_nothing_scores():
    plan = SimpleNamespace(
        run=space(
            recipe__grader=None,
            args__reward__remote_url=None,
            args__eval__dataset="a.jsonl",
            section=lambda kind: None,
        ),
        plugins=SimpleNamespace(claims=lambda hook, run: hook == "marl_score_action"),
    )
    assert ("scores.evaluation", "eval.dataset") in briefs(files._scorers(plan))


def test_returns_of_several_roles_that_are_normalised_together():
    flags = {
        "scope": "trajectory",
        "normalise": "global",
        "discount": 1.0,
        "distance": "longest",
        "origin": "action",
    }
    run = space(**{f"args__reinforce_pp__{name}": value for name, value in flags.items()})
    run.estimator, run.given = "reinforce", {}
    run.recipe = SimpleNamespace(roles=["a", "b"], populations={})
    expected = ("reinforce_pp.trajectory_scope", "reinforce_pp.scope", "reinforce_pp.normalise")
    assert briefs(reinforce_pp.marl_configure(run=run)) == [expected]


# --- flags of plugins

MATHCHAT = "--recipe mathchat/tiny.yaml"
PRICES = "--recipe tool_user/tiny.yaml --plugin marl_plugins.mean_group"
COOPERATING = f"{PRICES} --plugin marl_plugins.cooperation --mean_group.scales tau"
CASES = "--recipe kuhn_poker/population.yaml --plugin marl_plugins.mean_group"
FILTERED = f"{MATHCHAT} --algo.dynamic_filtering_enable --algo.dynamic_filtering_range"
COACH = f"{MATHCHAT} --coach.model m"
FLAGS = [
    ("filtering.range", f"{FILTERED} 2 3"),
    ("filtering.no_role", f"{FILTERED} 0 1 --filtering.by nobody"),
    ("ema.beta", f"{MATHCHAT} --train.enable_ema --train.ema_beta 1"),
    ("flags.idle", f"{MATHCHAT} --train.ema_beta 0.9"),
    ("tasks.best_metric", f"{MATHCHAT} --ckpt.best_metric_key eval/outcom"),
    ("mean_group.no_policy", f"{PRICES} --mean_group.groups shopper+x"),
    ("mean_group.twice", f"{PRICES} --mean_group.groups clerk+clerk"),
    ("mean_group.tau", f"{PRICES} --mean_group.scales tau"),
    ("mean_group.tau_of_0", f"{COOPERATING} --mean_group.low 0"),
    (
        "mean_group.penalty",
        f"{CASES} --mean_group.scales max_tokens --reward.stop_properly_penalty_coef 0.5",
    ),
    ("endpoint.no_price", f"{COACH} --coach.budget 5"),
    ("coach.empty_recording", f"{COACH} --coach.replay nowhere.jsonl"),
    ("coach.too_slow", f"{COACH} --coach.per_minute 1"),
]
"""A code, and a command that is answered with it; others stand in docs/no_effect.md."""


@pytest.mark.parametrize(("code", "words"), FLAGS)
def test_flags_of_plugins(code, words):
    try:
        found = build_plan(words.split()).run.warnings
    except ConfigurationError as error:
        found = error.problems
    assert code in {problem.code for problem in found}


def test_a_preset_with_which_tau_has_an_effect_is_not_said_to_have_none():
    words = f"{COOPERATING} --plugin marl_plugins.competence --cooperation.preset 0.5,0.25"
    try:
        found = build_plan(words.split()).run.warnings
    except ConfigurationError as error:
        found = error.problems
    assert "mean_group.no_effect" not in {problem.code for problem in found}


# --- the records


def test_records_that_are_missing(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert briefs(cut_back(tmp_path, 2)) == [("records.missing", "metrics.jsonl")]


def test_a_command_that_was_changed(tmp_path, monkeypatch):
    file = tmp_path / run_folder.COMMAND_FILE
    file.parent.mkdir()
    file.write_text("")
    monkeypatch.setattr(run_folder, "read_entries", lambda path: [{"digest": "0"}])
    assert found_by(run_folder._last_entry, tmp_path) == [("run_folder.damaged", file.name)]


def test_checkpoints_that_cannot_be_written(tmp_path):
    # A folder where a file has to go.
    (tmp_path / "solver" / "_actor" / "latest").mkdir(parents=True)
    with refused(("resume.unwritable", "ckpt.path")):
        Checkpoints(tmp_path, 1, {}).open(resume=False)


# --- processes


@pytest.mark.parametrize(
    ("raised", "expected"), [(Exception("not up in time."), RunEnded), (KeyError("x"), KeyError)]
)
def test_a_node_that_is_not_up_in_time_ends_the_run_and_no_fault_is_taken_for_it(
    monkeypatch, raised, expected
):
    def slow(**options):
        raise raised

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(ray, "init", slow)
    recipe = space(limits__silence_seconds=1.0)
    run = SimpleNamespace(device="cuda", recipe=recipe, state=lambda kind: kind())
    with pytest.raises(expected) as caught, cluster.ray_cluster(run, False, None):
        pass
    assert str(raised) in str(caught.value)
