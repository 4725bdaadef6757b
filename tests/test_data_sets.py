"""Data sets as public ones are laid out, read by the hub's own library from folders here."""

import json
import shutil
from collections import Counter
from datetime import date
from types import SimpleNamespace

import datasets
import pytest
import test_plan
from datasets import Dataset, DatasetDict
from refusals import refused

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe.sources import Source, read_sources, sources_of, with_paths
from marl_plugins.core.recipe.tasks import read_tasks
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.engines_only import only_players
from marl_plugins.engine.plan.tasks import _of_split
from marl_plugins.engine.records.run_folder import _named

recipe = test_plan.recipe  # the fixture

GSM8K = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: main/test-*}
- config_name: socratic
  data_files:
  - {split: train, path: socratic/train-*}
---
"""


PIXEL = b"P5 1 1 255 \x00"


def rows(count, start=0, **more):
    return Dataset.from_list(
        [{"question": f"{n}+1?", "answer": str(n + 1), **more} for n in range(start, start + count)]
    )


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def gsm8k(tmp_path):
    """openai/gsm8k: two configurations, by the card."""
    folder = tmp_path / "gsm8k"
    for part, split, count in (("main", "train", 9), ("main", "test", 4), ("socratic", "train", 5)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        rows(count, 100 * (split == "test")).to_parquet(
            folder / part / f"{split}-00000-of-00001.parquet"
        )
    (folder / "README.md").write_text(GSM8K)
    return str(folder)


@pytest.fixture
def verl(tmp_path):
    """What verl's preprocessing scripts write."""
    folder = tmp_path / "verl"
    folder.mkdir()
    for split, count in (("train", 6), ("test", 3)):
        Dataset.from_list(
            [
                {
                    "data_source": "openai/gsm8k" if n % 2 else "math",
                    "prompt": [
                        {"role": "system", "content": "Be brief."},
                        {"role": "user", "content": f"{split} {n}+1?"},
                    ],
                    "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
                    "extra_info": {"split": split, "index": n},
                }
                for n in range(count)
            ]
        ).to_parquet(folder / f"{split}.parquet")
    return folder


def read(split, train=None, evaluation=None, **flags):
    """Tasks as a run with these flags reads them."""
    data = {
        "prompt_dataset": train,
        "prompt_split": "train",
        "prompt_probs": None,
        "max_samples": 10**8,
        "input_key": "input",
        "label_key": None,
    }
    run = SimpleNamespace(
        given={"eval.split" if name == "eval_split" else f"data.{name}" for name in flags},
        args=SimpleNamespace(
            data=SimpleNamespace(**{k: flags.get(k, v) for k, v in data.items()}),
            eval=SimpleNamespace(dataset=evaluation, split=flags.get("eval_split", "train")),
            train=SimpleNamespace(seed=7),
        ),
    )
    return read_sources(run, split)


def test_no_split_is_assumed_for_evaluation(gsm8k):
    with refused(("tasks.no_split", "eval.dataset", gsm8k)) as caught:
        read("eval", evaluation=f"{gsm8k}@main")
    assert "train, test" in str(caught.value)
    assert len(read("eval", evaluation=f"{gsm8k}@main:test")) == 4
    assert read("eval", evaluation=f"{gsm8k}@main", eval_split="test")[0].prompt == "100+1?"
    assert len(read("eval", evaluation=f"{gsm8k}@main:test[:50%]")) == 2
    assert len(read("train", f"{gsm8k}@main")) == 9 == len(read("train", f"{gsm8k}@main:train"))
    with refused(("tasks.hub", "eval.dataset", gsm8k)):
        read("eval", evaluation=f"{gsm8k}@main:validation")
    with refused(("tasks.hub", "data.prompt_dataset", gsm8k)):  # which configuration?
        read("train", gsm8k)


def test_layouts(gsm8k, tmp_path):
    plain = tmp_path / "plain" / "more"  # files by their names, no card; a folder as its part
    plain.mkdir(parents=True)
    shutil.copy(f"{gsm8k}/main/test-00000-of-00001.parquet", plain / "test.parquet")
    assert len(read("eval", evaluation=f"{plain}:test")) == 4
    assert len(read("eval", evaluation=f"{plain.parent}@more:test")) == 4
    rows(3).save_to_disk(tmp_path / "one")
    assert len(read("eval", evaluation=f"{tmp_path}/one")) == 3  # which has no splits
    with refused(("tasks.hub", "eval.dataset", f"{tmp_path}/one")):
        read("eval", evaluation=f"{tmp_path}/one:test")
    DatasetDict(train=rows(3), test=rows(2)).save_to_disk(tmp_path / "two")
    assert len(read("train", f"{tmp_path}/two")) == 3
    assert len(read("eval", evaluation=f"{tmp_path}/two:test")) == 2
    with refused(("tasks.no_split", "eval.dataset", f"{tmp_path}/two")):
        read("eval", evaluation=f"{tmp_path}/two")


def test_verls_layout(verl):
    for tasks in (read_tasks(verl / "train.parquet"), read("train", str(verl))):
        assert [t.label for t in tasks] == ["1", "2", "3", "4", "5", "6"]
        assert tasks[1].prompt == "Be brief.\n\ntrain 1+1?"
        assert tasks[1].metadata["type"] == "openai/gsm8k"
        assert tasks[1].metadata["extra_info"] == {"index": 1, "split": "train"}
        assert "reward_model" not in tasks[1].metadata
    kept = Dataset.from_parquet(str(verl / "test.parquet")).add_column("solution", ["So 1."] * 3)
    kept.to_parquet(verl / "kept.parquet")
    assert [t.label for t in read_tasks(verl / "kept.parquet")] == ["1", "2", "3"]
    asked = read_tasks(verl / "test.parquet", "prompt", "extra_info.index")
    assert [t.label for t in asked] == [0, 1, 2]
    with refused(("tasks.no_field", "test.parquet: row 1")):
        read_tasks(verl / "test.parquet", "prompt", "extra_info.number")


def test_columns_and_values_that_are_no_json(tmp_path):
    data = [
        {"id": n % 2, "ask": f"{n}?", "right": None, "on": date(2024, 1, n + 1)} for n in (0, 1)
    ]
    Dataset.from_list(data * 2).save_to_disk(tmp_path / "dated")
    tasks = read("train", f"{tmp_path}/dated", input_key="ask", label_key="right", max_samples=3)
    assert [t.id for t in tasks] == ["0", "1", "2"] and {t.label for t in tasks} == {None}
    assert tasks[1].metadata == {"id": 1, "on": "2024-01-02"}
    picture = {"question": ["?"], "answer": ["!"], "image": [{"bytes": PIXEL, "path": None}]}
    pictures = Dataset.from_dict(picture).cast_column("image", datasets.Image())
    pictures.save_to_disk(tmp_path / "seen")
    (problem,) = _of_split("train", read("train", f"{tmp_path}/seen"))
    assert (problem.code, problem.names("task")) == ("tasks.json", ("train/0",))


def test_sets_are_mixed_as_upstream_mixes_them(gsm8k):
    both = f"{gsm8k}@main,other={gsm8k}@socratic"
    assert [t.id for t in read("train", both)][8:11] == ["gsm8k/8", "other/0", "other/1"]
    tasks = read("train", both, prompt_probs="0.75,0.25")
    parts = [read("train", f"{gsm8k}@main"), read("train", f"{gsm8k}@socratic")]
    expected = datasets.interleave_datasets(
        [Dataset.from_dict({"q": [t.prompt for t in part]}) for part in parts],
        probabilities=[0.75, 0.25],
        seed=7,
        stopping_strategy="all_exhausted",
    )["q"]
    assert [t.prompt for t in tasks] == list(expected)
    with refused(("tasks.shares", "data.prompt_probs")):
        read("train", both, prompt_probs="3,1")
    with refused(("tasks.shares", "data.prompt_probs")):
        read("train", both, prompt_probs="0.7,0.2,0.1")
    counts = Counter(t.dataset for t in tasks)
    assert counts["gsm8k"] > counts["other"] >= 5 and len({t.id for t in tasks}) == len(tasks)


def test_how_sets_are_written(tmp_path):
    assert sources_of("a=x/y#e53f@main:test[:50%]+train:16, b=c.jsonl::4,d/e") == [
        Source("x/y", "a", "e53f", "main", "test[:50%]+train", 16),
        Source("c.jsonl", "b", samples=4),
        Source("d/e", "e"),
    ]
    odd = tmp_path / "a,b=c:1.jsonl"
    odd.write_text(json.dumps({"prompt": "?"}))
    assert sources_of(str(odd)) == [Source(str(odd))] and len(read("train", str(odd))) == 1
    text = "a=x/y#e53f@main:test[:50%]:16,c.jsonl::4,d/e:train"
    assert with_paths(text, lambda path: path) == text
    assert with_paths(text, lambda path: f"r/{path}") == (
        "a=r/x/y#e53f@main:test[:50%]:16,r/c.jsonl::4,r/d/e:train"
    )
    for wrong in ("a,a", "x/a,y/a", "a:0", "type=a", "a=b=c", "a@", "a.csv:test"):
        with pytest.raises(ConfigurationError):
            sources_of(wrong)


def test_the_plan_reads_local_sets_and_says_what_they_lack(recipe, tmp_path, gsm8k):
    Dataset.from_list([{"problem": f"{n}?"} for n in range(64)]).save_to_disk(tmp_path / "bare")
    recipe.edit("data.jsonl", f"{tmp_path}/bare").warned("tasks.no_label")
    assert len(recipe.plan().tasks("train")) == 64
    both = f"x={gsm8k}@main:test:4,y={gsm8k}@main:test[:50%]:2"
    assert describe(recipe.plan("--eval.dataset", both))["task_source"]["eval"] == both
    recipe.plan(
        "--eval.dataset", both, "--eval.steps", "1", "--ckpt.best_metric_key", "eval/x/pass@4"
    )
    with refused(("tasks.best_metric", "ckpt.best_metric_key")):
        recipe.plan(
            "--eval.dataset", both, "--eval.steps", "1", "--ckpt.best_metric_key", "eval/y/pass@4"
        )
    with refused(("tasks.no_split", "eval.dataset", gsm8k)):
        recipe.plan("--eval.dataset", f"{gsm8k}@main")


def test_a_set_of_the_hub_is_refused_in_the_plan_without_a_split(recipe, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with refused(("tasks.no_split", "eval.dataset", "openai/gsm8k")):
        recipe.plan("--eval.dataset", "openai/gsm8k@main")
    recipe.plan("--eval.dataset", "openai/gsm8k@main:test")


def test_a_runs_folder_copies_every_file_of_a_list(recipe):
    recipe.write(more_jsonl=(recipe.folder / "data.jsonl").read_text().replace("?", "!"))
    recipe.edit("data.prompt_dataset: data.jsonl", "data.prompt_dataset: a=data.jsonl,more.jsonl")
    plan = recipe.plan()
    assert [t.id for t in plan.tasks("train")][::64] == ["a/0", "more/0"]
    assert {"data.jsonl", "more.jsonl"} <= {*_named(plan, recipe.folder)}


def test_samples_of_a_training_set_are_refused(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"input": "1", "label": "1"}\n')
    args = SimpleNamespace(
        data=SimpleNamespace(prompt_dataset=f"{file}::8", max_samples=None),
        eval=SimpleNamespace(dataset=""),
    )
    with refused(("tasks.samples", "data.prompt_dataset")):
        read_sources(SimpleNamespace(args=args), "train")


def test_of_tasks_from_the_hub_only_their_own_split_is_unread(recipe):
    from_hub = ("--eval.dataset", "owner/name:test", "--eval.steps", "1")
    counted = recipe.plan(*from_hub).counted
    assert counted["train"] and "eval" not in counted
    with pytest.raises(ConfigurationError) as caught:
        recipe.plan(*from_hub, "--data.max_samples", "1")
    assert [problem.code for problem in caught.value.problems] == ["tasks.too_few"]
    recipe.write(wrong_py="async def run(task, roles, tools):\n    return task.nothing\n")
    recipe.edit("workflow.py", "wrong.py")
    with pytest.raises(ConfigurationError) as caught:
        recipe.plan(*from_hub)
    assert [problem.code for problem in caught.value.problems] == ["rehearsal.raises"]


def test_evaluation_tasks_that_training_never_looks_at_are_said(recipe):
    recipe.write(other_jsonl='{"problem": "one and one?", "answer": "2"}\n')
    words = ("--eval.dataset", str(recipe.folder / "other.jsonl"))
    trained = recipe.plan(*words).run
    evaluated = recipe.plan(*words, "--eval.steps", "1").run
    for run, told in ((trained, True), (only_players(trained), False), (evaluated, False)):
        assert ("tasks.not_evaluated" in [w.code for w in run.warnings]) == told


def test_a_folder_in_a_recipe_lies_beside_it(recipe):
    (recipe.folder / "set").mkdir()
    (recipe.folder / "data.jsonl").rename(recipe.folder / "set" / "train.jsonl")
    recipe.edit("data.jsonl", "set")
    assert recipe.plan().counted["train"]
