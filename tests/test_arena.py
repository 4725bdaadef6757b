"""What says that it estimates the policy gradient does, in exact expectation: all ways in which
rollouts can fall are enumerated, so nothing here is noise."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.arena import show
from benchmarks.arena.games import Game, Policy, chain, games
from benchmarks.arena.measure import beside, slope
from benchmarks.arena.package import Advantages, OfStep
from benchmarks.arena.references import Forks, Tree
from benchmarks.arena.rollouts import Batch, Estimate, OnRollouts, Random, expectation
from benchmarks.arena.ways import ways
from marl_plugins import competence, counterfactual, rae
from marl_plugins.builtin import groups
from marl_plugins.core.estimators import Estimator
from marl_plugins.core.trajectory import Trajectory


def stop_or_go(ask, task):
    """The agents decide how many actions there are."""
    first = ask("agent", task, (0, 1))
    if first.choice == 0:
        return 0.5
    return (0.2, 0.9)[ask("agent", (task, "second"), (0, 1), [first], 1).choice]


def two_voters(ask, task):
    """Twins beside each other in the very same context, and one who is asked where they differ."""
    votes = [ask("voter", task, (0, 1)) for _ in range(2)]
    yes = sum(said.choice for said in votes)
    return 0.9 * ask("decider", task, (0, 1), votes).choice if yes == 1 else 0.3 * yes


SMALL = [
    Game("chain", chain(2, 2), 1, skew=0.3),
    Game("stop or go", stop_or_go, 1),
    Game("two voters", two_voters, 1, skew=0.5),
]


def aside(game, estimate):
    """How far the exact expectation of an estimate is from the exact gradient, in lengths of it."""
    policy = Policy(game, game.start)
    samples = 2 if isinstance(estimate, OnRollouts) else 1
    mean = expectation(lambda draw: estimate(policy, draw, samples).gradient)
    return np.linalg.norm(mean - policy.gradient) / np.linalg.norm(policy.gradient)


@pytest.mark.parametrize("game", games(), ids=lambda game: game.name)
def test_the_gradient_is_that_of_finite_differences(game):
    assert slope(game) < 1e-9


def knowing(plugin, kind, **known):
    """A plugin's baseline as earlier steps have left it, whatever a batch would make of it."""

    def estimate(policy, draw, samples):
        advantages = Advantages(Estimator(), plugin)
        state = advantages.credit.run.state(kind)
        (state.now if kind is competence.Competence else state).update(known)
        return OnRollouts(advantages)(policy, draw, samples)

    return estimate


@pytest.mark.parametrize("game", SMALL, ids=lambda game: game.name)
def test_what_says_unbiased_is(game):
    learns = {"rae": (rae, rae.Baselines), "competence": (competence, competence.Competence)}
    tried = 0
    for way in (way for way in ways() if way.unbiased):
        estimate = way.estimate
        if way.name in learns:
            estimate = knowing(*learns[way.name], **dict.fromkeys(game.roles, 0.3))
        elif isinstance(estimate, Forks):
            estimate = replace(estimate, width=2)
        elif isinstance(estimate, OfStep):
            estimate = OfStep(counterfactual, ["--counterfactual.siblings", "2"])
        assert aside(game, estimate) < 1e-6, way.name  # rewards are 32-bit numbers
        tried += 1
    assert tried > 10


@pytest.mark.parametrize("game", SMALL, ids=lambda game: game.name)
def test_forks_of_one_role_are_unbiased_for_all(game):
    """With the samples of a task, which train what comes before."""
    words = ["--counterfactual.siblings", "2", "--counterfactual.roles", game.roles[-1]]
    estimate = OfStep(counterfactual, words)
    policy = Policy(game, game.start)
    mean = expectation(lambda draw: estimate(policy, draw, 2).gradient)
    np.testing.assert_allclose(mean, policy.gradient, atol=1e-7)


def own_return_twice(keys, samples, values, otherwise):
    return (groups.sum_by(keys, values) + values) / (
        groups.sum_by(keys, values.new_ones(len(values))) + 1
    )


class LaterAsOften(Forks):
    """Siblings' later actions trained as their first one, as often as they are sampled."""

    def __call__(self, policy, draw, samples):
        whole = super().__call__(policy, draw, samples)
        return whole._replace(gradient=2 * whole.gradient)


def rloo():
    return next(way.estimate for way in ways() if way.name == "rloo")


def test_planted_bugs_are_found(monkeypatch):
    """Each on some game; and without them, none is."""
    assert max(aside(game, rloo()) for game in SMALL) < 1e-6
    worst = {
        "a tree whose depths weigh as they have actions": Tree(by_level=False),
        "actions trained twice": LaterAsOften(2),
    }
    for bug, estimate in worst.items():
        assert max(aside(game, estimate) for game in SMALL) > 0.05, bug
    with monkeypatch.context() as planted:
        planted.setattr(groups, "mean_of_others", own_return_twice)
        assert min(aside(game, rloo()) for game in SMALL) > 0.05
    forks = OfStep(counterfactual, ["--counterfactual.siblings", "2"])
    with monkeypatch.context() as planted:
        planted.setattr(Trajectory, "ancestors", lambda self, path: [])
        assert max(aside(game, forks) for game in SMALL) > 0.05
    with monkeypatch.context() as planted:
        alone = lambda keys, samples, values, otherwise: values  # noqa: E731
        planted.setattr(groups, "mean_of_others", alone)
        assert min(aside(game, rloo()) for game in SMALL) > 0.05


def test_noise_is_no_bias_and_bias_is_none_of_noise():
    """Of 200 sets of unbiased estimates none is called biased, nearly all of those with a bias of
    15 degrees are."""
    policy = Policy(SMALL[2], SMALL[2].start)
    truth, draw = policy.gradient, np.random.default_rng(0)
    directions = draw.normal(size=(3, *truth.shape))
    wrong = directions[0] - truth * (directions[0] * truth).sum() / np.square(truth).sum()
    bias = np.tan(np.radians(15)) * np.linalg.norm(truth) / np.linalg.norm(wrong) * wrong

    def judged(shift):
        weights = draw.normal(size=(60, 3)) * (0.3, 0.05, 0.01)
        noise = np.tensordot(weights, directions, 1) * np.linalg.norm(truth)
        return beside(policy, [Estimate(truth + shift + each, 1, 1) for each in noise]).biased

    assert sum(judged(0.0) for _ in range(200)) == 0
    assert sum(judged(bias) for _ in range(40)) > 35


def test_random_rollouts_have_the_policys_chances():
    game = SMALL[1]
    policy, draw = Policy(game, game.start), Random(0)
    counts = np.bincount(Batch.drawn(policy, draw, 4000).leaves, minlength=3) / 4000
    np.testing.assert_allclose(counts, policy.reach, atol=0.03)


def test_the_record_breaks_no_claim():
    record = show.recorded()
    assert show.broken(record) == []
    assert all(game["finite differences"] < 1e-9 for game in record["games"].values())
    assert {way.name for way in ways()} == set(record["ways"])
