"""Token-exact conversations with real tokenizers: the tiny model's, and chat templates of other
families."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from marl_plugins.core.conversation import ChatFormat

pytest.importorskip("transformers")
from transformers import AutoTokenizer

from marl_plugins.engine.runtime.tiny_model import resolve

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
THINK_STRIPPING = (  # keeps what follows </think> of earlier assistant messages only
    "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] if m.role == "
    "'assistant' else m.content }}<eos>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
DROPS_ASSISTANTS = (
    "{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}{% endif %}{% endfor %}"
)

tokenizer = AutoTokenizer.from_pretrained(resolve("tiny"))


def chat_format(template=None):
    fresh = AutoTokenizer.from_pretrained(resolve("tiny"))
    if template is not None:
        fresh.chat_template = template
    return ChatFormat(fresh, "p")


@pytest.mark.parametrize("template", [None, CHATML, LLAMA, THINK_STRIPPING])
@pytest.mark.parametrize("ended", [True, False])
def test_a_turn_reads_as_the_template_writes_it(template, ended):
    """Sampled text, then the continuation: the same text as rendering the whole conversation,
    wherever that is possible."""
    chat = chat_format(template)
    sampled = [
        *chat.tokenizer.encode("call it", add_special_tokens=False),
        *([chat.tokenizer.eos_token_id] if ended else []),
    ]
    opening = chat.opening([{"role": "user", "content": "go"}])
    ids = [*opening, *sampled, *chat.continuation(sampled, [{"role": "user", "content": "42"}])]
    whole = chat.tokenizer.apply_chat_template(
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "call it"},
            {"role": "user", "content": "42"},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert chat.tokenizer.decode(ids, skip_special_tokens=False) == whole


@given(st.lists(st.integers(2, 258), min_size=1, max_size=20), st.text(max_size=20))
def test_sampled_ids_are_never_changed_whatever_they_are(sampled, answer):
    """Ids that no text would encode to (broken bytes, special tokens) stay as they were sampled."""
    chat = chat_format()
    opening = chat.opening([{"role": "user", "content": "go"}])
    context = (
        opening + tuple(sampled) + chat.continuation(sampled, [{"role": "user", "content": answer}])
    )
    assert context[: len(opening)] == opening
    assert list(context[len(opening) : len(opening) + len(sampled)]) == sampled


def test_no_chat_template_is_said_with_the_cure():
    bare = AutoTokenizer.from_pretrained(resolve("tiny"))
    bare.chat_template = None
    with refused(("models.no_template", "judge")):
        ChatFormat(bare, "judge")


def test_a_template_that_loses_turns_is_refused():
    with refused(("models.template", "p")):
        chat_format(DROPS_ASSISTANTS).continuation([5], [{"role": "user", "content": "x"}])
