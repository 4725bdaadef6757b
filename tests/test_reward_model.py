"""`--reward.model_name_or_path`: what is refused, what the model reads, and whose scores a run
has."""

import json
import struct
from types import SimpleNamespace

import pytest
import torch
from plugin_pairs import words
from refusals import refused
from reward_models import other_tokenizer, same_tokenizer
from simulated_session import SimulatedRewards, recorded, run_planned
from transformers import AutoTokenizer

from marl_plugins.builtin.reward_model.scale import Scale
from marl_plugins.builtin.reward_model.scorer import TOO_LONG, Renderer, answer_to
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe

MODEL = "reward.model_name_or_path"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reward_models")
    return {
        "same": same_tokenizer(folder / "same"),
        "other": other_tokenizer(folder / "other", positions=64),
    }


def plan_of(folder, model, *more):
    return build_plan([*words(folder, []), f"--{MODEL}", str(model), *more])


def test_a_model_with_two_labels_is_refused(tmp_path):
    with refused(("reward_model.labels", MODEL, "two")) as caught:
        plan_of(tmp_path, same_tokenizer(tmp_path / "two", labels=2))
    assert "2 labels" in str(caught.value)


def renamed(folder, change):
    """Changes the names of a model's tensors in its file, which stays as long as it was."""
    file = folder / "model.safetensors"
    content = file.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.dumps(
        {change.get(k, k): v for k, v in json.loads(content[8 : 8 + size]).items()}
    ).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])


def test_a_head_of_another_name_would_be_random_and_is_refused(tmp_path):
    folder = same_tokenizer(tmp_path / "model")
    renamed(tmp_path / "model", {"score.weight": "value_head.weight"})
    with refused(("reward_model.no_head", MODEL, "model")) as caught:
        plan_of(tmp_path, folder)
    assert '"value_head_prefix": "value_head"' in str(caught.value)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda f: (f / "chat_template.jinja").unlink(), "models.no_template"),
        (lambda f: (f / "model.safetensors").write_bytes(b"<html>"), "models.broken_weights"),
        (
            lambda f: (f / "model.safetensors").rename(f / "model.bin"),
            "reward_model.no_safetensors",
        ),
    ],
)
def test_a_folder_that_is_no_reward_model_is_refused(tmp_path, change, code):
    folder = same_tokenizer(tmp_path / "model")
    change(tmp_path / "model")
    with pytest.raises(ConfigurationError, match=r"reward\.model_name_or_path") as caught:
        plan_of(tmp_path, folder)
    assert [problem.code for problem in caught.value.problems] == [code]


def test_flags_without_effect_are_refused(tmp_path, models):
    flags = ("--reward.normalize_enable", "--reward_model.roles", "critic")
    with refused(
        ("flags.idle", "reward.normalize_enable"),
        ("flags.idle", "reward_model.roles"),
    ):
        build_plan([*words(tmp_path, []), *flags])
    with refused(
        ("reward_model.no_role", "reward_model.roles"),
        ("reward_model.no_statistics", "reward.normalize_enable"),
    ):
        plan_of(tmp_path / "again", models["same"], *flags, "critics")


def test_two_who_score_the_outcome_are_refused(tmp_path, models):
    (tmp_path / "function.py").write_text(
        "def reward_func(queries, prompts, labels):\n    return [1.0]\n"
    )
    with refused(("flags.pointless", "reward.remote_url"), ("reward_model.twice", MODEL)):
        plan_of(tmp_path, models["same"], "--reward.remote_url", str(tmp_path / "function.py"))


def test_the_plan_shows_its_devices_and_what_it_scores(tmp_path, models):
    plan = plan_of(
        tmp_path, models["other"], "--reward.num_gpus_per_node", "3", "--data.max_len", "128"
    )
    described = describe(plan)
    assert described["devices"]["reward model"] == 3
    assert described["devices_together"] == sum(described["devices"].values())
    assert described["scores"]["outcomes"] == "marl_plugins.builtin.reward_model"
    assert "(r + 10) / 20" in described["reward model"]
    assert [w.code for w in plan.run.warnings if w.code.startswith("reward_model")] == [
        "reward_model.short"
    ]


def ids_of_upstream(folder, prompt, answer):
    """What upstream's data set makes of a preferred answer for a reward model that is trained on
    messages."""
    cpu.install()
    from openrlhf.datasets.reward_dataset import RewardDataset, preprocess_data

    tokenizer, data = AutoTokenizer.from_pretrained(folder), RewardDataset.__new__(RewardDataset)
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    line = {"chosen": messages, "rejected": messages}
    read = preprocess_data(line, apply_chat_template=tokenizer.apply_chat_template)
    data.tokenizer, data.max_length, data.is_dpo = tokenizer, 4096, False
    data.prompts, data.chosens, data.rejects, data.extras = ([part] for part in read)
    return data[0][0][0].tolist()


@pytest.mark.parametrize("name", ["same", "other"])
@pytest.mark.parametrize("answer", ["", "12", "the quick fox\n\n", "größer 漢字"])
def test_it_reads_what_upstream_trains_reward_models_on(models, name, answer):
    ids = Renderer(models[name]).ids(
        answer_to(SimpleNamespace(task=SimpleNamespace(prompt="2 + 3?"), answer=answer))
    )
    assert ids == ids_of_upstream(models[name], "2 + 3?", answer)


@pytest.mark.parametrize("name", ["same", "other"])
def test_an_answer_cannot_end_before_its_end(models, name):
    """The spelling of a control token is text; upstream's data set, which knows its answers, lets it
    be one."""
    renderer, tokenizer = Renderer(models[name]), AutoTokenizer.from_pretrained(models[name])
    spelled, plain = (
        renderer.ids([{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}])
        for answer in (f"12 {tokenizer.eos_token}", "12 -")
    )
    special = set(tokenizer.all_special_ids)
    assert sum(i in special for i in spelled) == sum(i in special for i in plain) > 0
    assert f"12 {tokenizer.eos_token}" in tokenizer.decode(spelled)


def test_messages_that_its_template_does_not_take_and_those_too_long_are_told_apart(models):
    renderer = Renderer(models["other"])
    with refused(("reward_model.template", MODEL)):
        renderer.ids(
            [{"role": "system", "content": "be brief"}, {"role": "assistant", "content": "yes"}]
        )
    with pytest.raises(InfrastructureFailure) as caught:
        renderer.ids(
            [{"role": "user", "content": "漢" * 80}, {"role": "assistant", "content": "yes"}]
        )
    assert caught.value.kind == TOO_LONG


def test_a_tokenizer_of_another_model_in_its_folder_is_refused(tmp_path):
    folder = same_tokenizer(tmp_path / "model")
    AutoTokenizer.from_pretrained(other_tokenizer(tmp_path / "other")).save_pretrained(folder)
    with refused(("models.vocabulary", MODEL, "model")):
        Renderer(folder)


def test_the_scale_is_that_of_upstreams_clipping():
    cpu.install()
    from openrlhf.models.utils import compute_reward

    rewards, scale = [-31.5, -5.0, -1.25, 0.0, 2.5, 4.0, 77.0], Scale(-5.0, 4.0)
    mask = torch.ones(len(rewards), 1)
    clipped = compute_reward(
        torch.tensor(rewards), 0.0, torch.zeros_like(mask), mask, reward_clip_range=(-5.0, 4.0)
    )
    scores = [scale.score(r) for r in rewards]
    assert [-5 + 9 * s for s in scores] == pytest.approx(clipped.flatten().tolist())
    assert scale.metrics(scores) == pytest.approx(
        {"reward_model/reward": clipped.mean().item(), "reward_model/clipped": 4 / 7}
    )
    with pytest.raises(ValueError, match="nan"):
        scale.score(float("nan"))


def expected(run, messages):
    import asyncio

    return asyncio.run(SimulatedRewards(run)._score(messages))


def test_outcomes_of_training_are_the_models_and_those_of_evaluations_the_graders(tmp_path, models):
    plan = plan_of(tmp_path, models["same"], "--eval.steps", "1")
    run_planned(plan)
    trained = recorded(plan, "trajectories.jsonl")
    assert len(trained) == 16
    for t in trained:
        messages = [
            {"role": "user", "content": t["prompt"]},
            {"role": "assistant", "content": t["answer"]},
        ]
        assert t["outcome"] == pytest.approx(expected(plan.run, messages))
        assert {a["reward"] for a in t["actions"]} == {t["outcome"]}
    metrics = recorded(plan, "metrics.jsonl")
    outcomes = [t["outcome"] for t in trained if t["step"] == 1]
    assert metrics[1]["reward_model/reward"] == pytest.approx(
        20 * sum(outcomes) / len(outcomes) - 10
    )
    assert all((8 * m["eval/outcome"]).is_integer() for m in metrics if "eval/outcome" in m)


def test_without_a_grader_it_scores_evaluations_too(tmp_path, models):
    line = [*words(tmp_path, []), f"--{MODEL}", models["same"], "--eval.steps", "1"]
    recipe = tmp_path / "recipe" / "both.yaml"
    recipe.write_text(recipe.read_text() + "grader: null\n")
    plan = build_plan(line)
    run_planned(plan)
    assert all(
        0.4 <= m["eval/outcome"] <= 0.6
        for m in recorded(plan, "metrics.jsonl")
        if "eval/outcome" in m
    )


def test_every_action_of_a_role_is_scored_after_its_conversation(tmp_path, models):
    plan = plan_of(tmp_path, models["same"], "--reward_model.roles", "critic")
    assert describe(plan)["scores"]["actions"] == "marl_plugins.builtin.reward_model"
    run_planned(plan)
    trained = recorded(plan, "trajectories.jsonl")
    for t in trained:
        assert t["outcome"] in (0.0, 1.0)  # the grader's
        for a in t["actions"]:
            if a["role"] != "critic":
                assert a["score"] is None and a["reward"] is None
                continue
            shown = [{"role": role, "content": text} for role, text in a["shown"]]
            messages = [*shown, {"role": "assistant", "content": a["text"]}]
            assert a["score"] == a["reward"] == pytest.approx(expected(plan.run, messages))
