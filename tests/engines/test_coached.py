"""An endpoint as the coach of a whole run, corrected actions, and critics: saved when the key is
refused, and resumed."""

import textwrap

import pytest
from engines.relay import Started
from openai_server import Reply, openai_server, verdict

MARKER = """
    from pathlib import Path
    from marl_plugins import hookimpl

    @hookimpl
    def marl_log(step):
        Path(__file__).with_name("trained").write_text(str(step))
"""


BETTER = "so be it"
"""What the coach would have said, whoever was asked."""
SMALLER = """
extends: recipe.yaml
mapping: {first: first, second: second, judge: first}
policies:
  second: {flags: {actor.num_gpus_per_node: 1, ref.num_gpus_per_node: 1}}
  judge: null
"""
"""Two policies of one process each: what a critic on two ranks does is a test of policies."""


@pytest.fixture(scope="module")
def coached(tmp_path_factory, relay, template):
    """An endpoint as the coach, which refuses the key once a step has been trained; a critic per
    policy."""
    folder = tmp_path_factory.mktemp("coached")
    (relay / "smaller.yaml").write_text(SMALLER)
    (folder / "marker.py").write_text(textwrap.dedent(MARKER))
    trained, renewed = folder / "trained", folder / "renewed"

    def answer(body, count):
        if trained.exists() and not renewed.exists():
            return Reply("key has expired", 401)
        return (
            Reply("busy", 503) if count % 10 == 0 else verdict(body, 5 + count % 5, better=BETTER)
        )

    with openai_server(answer) as (url, bodies):
        words = ["--plugin", "marl_plugins.coach", "--coach.model", "m", "--coach.base_url", url]
        words += ["--coach.corrections"]
        words += [
            "--plugin",
            str(folder / "marker.py"),
            "--algo.advantage.estimator",
            "gae",
            "--critic.adam.lr",
            "1e-3",
        ]
        run = Started(folder, relay / "smaller.yaml", *words, template=template)
        run.run(code=1)
        run.bodies, run.renew = bodies, renewed.touch
        run.log_before = run.log.read_text()
        yield run


@pytest.fixture(scope="module")
def renewed(coached):
    """The key is accepted again, and the run is resumed."""
    coached.renew()
    return coached.run("--ckpt.load_enable")


def test_a_run_that_cannot_go_on_is_saved_where_it_stands(coached):
    """The recipe saves every second step; what could not be judged is step 2."""
    assert "refuses the key (401); is $OPENAI_API_KEY right?" in coached.log_before
    assert "step 1 is saved" in coached.log_before
    assert "Traceback" not in coached.log_before


def test_and_goes_on_from_there(renewed):
    assert "resuming after step 1" in renewed.log.read_text()
    assert [m["step"] for m in renewed.metrics] == [1, 2, 3]
    assert not renewed.processes()


def test_the_coach_judged_every_action_and_the_label_stood_in_one_prompt_of_each_trajectory(
    renewed,
):
    for m in renewed.metrics:
        assert m["coach/missing"] == 0.0
        assert 0.5 <= m["coach/first/score"] <= 0.9
        assert m["coach/repeats"] > 0
    judged = [a for _, a in renewed.actions]
    assert all(a["score"] is not None and a["explanation"] for a in judged)
    with_label = [b for b in renewed.bodies if "The right answer:" in b["messages"][0]["content"]]
    assert len(with_label) >= sum(
        any(a["role"] == "judge" for a in t["actions"]) for t in renewed.trajectories
    )


def test_corrected_actions_are_recorded(renewed):
    assert {a["notes"]["coach"]["correction"] for _, a in renewed.actions} == {BETTER}


def test_critics_are_trained_beside_their_policies(renewed):
    for m in renewed.metrics:
        for policy in ("first", "second"):
            assert (
                m[f"policy/{policy}/critic_optimiser_steps"]
                == m[f"policy/{policy}/optimiser_steps"]
                == 2
            )
            assert m[f"policy/{policy}/critic_loss"] > 0
    for policy in ("first", "second"):  # rewards lie between 0.5 and 0.9, values begin near 0
        values = [m[f"policy/{policy}/critic_values"] for m in renewed.metrics]
        assert values[-1] > values[0] + 0.05
