"""Examples of a role: earlier turns of each of its conversations, and of nothing else."""

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_runs import planned
from refusals import refused

from marl_plugins.core.recipe.prompts import prompt_renderer, read_examples
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.plan.fingerprint import compared, fingerprint

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1).filter(
    str.strip
)


@settings(max_examples=50, deadline=None)
@given(pairs=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4), question=TEXTS)
def test_examples_stand_between_system_and_user_as_they_are(tmp_path_factory, pairs, question):
    """Whatever their texts hold: braces are no fields, and quoted YAML is text."""
    import yaml

    file = tmp_path_factory.getbasetemp() / "examples.yaml"
    items = [{"user": user, "assistant": assistant} for user, assistant in pairs]
    file.write_text(yaml.safe_dump(items, allow_unicode=True), encoding="utf-8")
    shown = prompt_renderer("{q}", "Be short.", read_examples(file))({"q": question})
    middle = [t for u, a in pairs for t in (("user", u), ("assistant", a))]
    texts = [(message["role"], message["content"]) for message in shown]
    assert texts == [("system", "Be short."), *middle, ("user", question)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- {user: a}",
        "- a: [",
        "- {user: a, assistant: 2024-13-01}",
    ],
)
def test_other_files_are_no_examples(text, tmp_path):
    recipe = shutil.copytree(recipes_root() / "mails", tmp_path / "mails")
    (recipe / "prompts" / "reader_examples.yaml").write_text(text)
    with refused(
        ("roles.examples", "recipe.yaml:9", "roles.reader.examples", "reader_examples.yaml")
    ):
        planned("recipe.yaml", folder=recipe)


def test_a_run_with_other_examples_is_another_run(tmp_path):
    recipe = shutil.copytree(recipes_root() / "mails", tmp_path / "mails")
    before = compared(fingerprint(planned("recipe.yaml", folder=recipe)))
    file = recipe / "prompts" / "reader_examples.yaml"
    file.write_text(file.read_text().replace("2718 fan broken", "2718 fan late"))
    after = compared(fingerprint(planned("recipe.yaml", folder=recipe)))
    changed = [place for place in before if before[place] != after[place]]
    assert len(changed) == 1 and "examples of role reader" in str(changed)
