"""A frozen policy of the run as the coach, on real engines."""

import pytest
from engines.relay import Started

RECIPE = """
extends: recipe.yaml
mapping: {first: first, second: first, judge: first}
plugins: [tools.py, marl_plugins.coach]
policies:
  second: null
  judge: {model: "tiny:seed=2,positions=4096", trainable: false, flags: {data.max_len: 4096}}
flags:
  coach.policy: judge
  coach.max_tokens: 8
  rollout.batch_size: 3
  eval.steps: -1
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory, relay, template):
    """One trained policy and a coach that plays no role, and says nothing that can be read."""
    (relay / "judged.yaml").write_text(RECIPE)
    return Started(tmp_path_factory.mktemp("judged"), relay / "judged.yaml", template=template).run(
        code=1
    )


def test_every_action_is_judged_by_its_engine_and_asked_about_once_more(judged):
    assert [m["step"] for m in judged.metrics] == [1, 2]
    for m, entry in zip(judged.metrics, judged.ledger, strict=True):
        actions = sum(role["generated"] for role in entry["roles"].values())
        assert m["coach/requests"] == 2 * actions
        assert m["coach/asked_again"] == actions
        assert m["coach/missing"] == m["coach/step_left_out"] == 1.0


def test_what_it_did_not_judge_is_left_out_with_its_reason(judged):
    for entry in judged.ledger:
        for role in entry["roles"].values():
            assert role["left_out"] == {"infrastructure:coach_verdict": role["generated"]}
            assert role["trained"] == 0
    said = [a["explanation"] for t in judged.trajectories for a in t["actions"]]
    assert all(text.startswith("no verdict: twice no verdict in the answer") for text in said)


def test_three_steps_without_verdicts_end_the_run_saved(judged):
    text = judged.log.read_text()
    assert "no row to train on in 3 consecutive steps" in text
    assert "step 2 is saved" in text
    assert "Traceback" not in text
    assert not judged.processes()
