"""Tiny reward models, written by transformers' own classes: folders like any that are
downloaded."""

import torch
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from marl_plugins.engine.runtime.tiny_model import resolve

OTHER_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] not in ('user', 'assistant') %}"
    "{{ raise_exception('only user and assistant') }}{% endif %}"
    "{{ '[' + message['role'] + '] ' + message['content'] + '\n' }}{% endfor %}"
)
TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "problem 0 1 2 3 4 5 6 7 8 9",
    "user assistant [ ] + - =",
]


def same_tokenizer(folder, labels=1, seed=0, **config):
    """A reward model with the tokenizer and the template of the models `tiny`."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve("tiny"))
    tokenizer.save_pretrained(folder)
    size = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    size |= {"num_key_value_heads": 1, "max_position_embeddings": 512, "vocab_size": len(tokenizer)}
    torch.manual_seed(seed)
    model = Qwen2ForSequenceClassification(
        Qwen2Config(**size, num_labels=labels, pad_token_id=0, **config)
    )
    return saved(model, folder)


def other_tokenizer(folder, seed=0, positions=512, **config):
    """A reward model of another family, whose tokenizer has tokens of several bytes and another
    template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(vocab_size=300, special_tokens=["</s>"], initial_alphabet=alphabet),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>", pad_token="</s>")
    tokenizer.chat_template = OTHER_TEMPLATE
    tokenizer.save_pretrained(folder)
    size = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    torch.manual_seed(seed)
    size |= {"max_position_embeddings": positions, "vocab_size": len(tokenizer)}
    config = LlamaConfig(**size, num_labels=1, pad_token_id=0, **config)
    return saved(LlamaForSequenceClassification(config), folder)


def saved(model, folder):
    with torch.no_grad():
        model.score.weight.normal_(std=0.5)  # rewards that differ
    model.float().save_pretrained(folder)
    return str(folder)


def reference(folder, texts, dtype=torch.float64):
    """Rewards of rendered texts by transformers alone, one by one."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    ).eval()
    model.config.pad_token_id = (
        None  # upstream reads the last token, also where padding is the same token
    )
    with torch.no_grad():
        return [
            model(input_ids=torch.tensor([tokenizer.encode(text, add_special_tokens=False)]))
            .logits[0, 0]
            .item()
            for text in texts
        ]
