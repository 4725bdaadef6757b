"""A random tiny model, built on the spot: Qwen2 architecture, one token per byte, a chat template.

A `tiny` model (marl_plugins/tiny.py) stands where a folder or hub name would; what comes out is a
model folder like any other and takes exactly the same way. 0.36 M parameters with the defaults.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from marl_plugins.core.files import cache_folder
from marl_plugins.core.recipe.kept_models import SMOLLM2, is_smollm2
from marl_plugins.core.recipe.tiny import SPECIAL, is_tiny, parse

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '>\n' + message['content'] }}"
    "{{ eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>\n' }}{% endif %}"
)


SHOWN_TOOLS = (
    "{% if tools %}{{ '<tools>' }}{% for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}"
    "{{ eos_token + '\n' }}{% endif %}"
)
"""Begins the chat template of a model with `tools=1`."""


def made_once(
    name: str,
    make: Callable[[Path], None],
    wait: Callable[[], None] = lambda: None,
    among: str = "tiny",
) -> str:
    """Returns the folder `name` among the models that were made here; `make(folder)` fills it,
    unless it is there.

    Args:
        wait: Called before this process waits for another one that is making the folder.
        among: The folder of the cache that it lies in.
    """
    cache = cache_folder() / "openrlhf-marl" / among
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / name
    if folder.is_dir():
        return str(folder)
    unfinished = f".new-{name}-"
    with _lock(cache / f".{name}.lock", wait) as alone:
        for left in (
            cache.glob(f"{unfinished}????????") if alone else ()
        ):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        if not folder.is_dir():
            fresh = Path(tempfile.mkdtemp(dir=cache, prefix=unfinished))
            try:
                make(fresh)
                fresh.rename(folder)
            except OSError:
                if (
                    not folder.is_dir()
                ):  # another process was faster, on a file system without locks
                    raise
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return str(folder)


@contextmanager
def _lock(path: Path, wait: Callable[[], None]) -> Iterator[bool]:
    """Keeps other processes away; a lock ends with the process that has it. Gives whether it could
    be had: file systems without locks exist. The file goes with the lock, so who has waited for it
    looks whether it is still the one that others would lock."""
    while True:
        file, locked = path.open("w"), True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            locked = False
        if not locked or (path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())):
            break
        file.close()
    with file:
        try:
            yield locked
        finally:
            path.unlink(missing_ok=True)


def resolve(model: str) -> str:
    """Returns the folder of a `tiny` model or of `smollm2`, made if it is not there yet; any other
    model's name unchanged."""
    if is_smollm2(model):
        from marl_plugins.engine.runtime.gguf_model import make_folder

        return made_once(SMOLLM2, make_folder, among="models")
    if not is_tiny(model):
        return model
    settings = parse(model)
    name = "-".join(
        ["bytes"]
        + [f"{name}{value}" for name, value in settings.items() if name != "tools" or value]
    )
    return made_once(name, lambda folder: build(folder, **settings))


def build(
    folder: Path, *, seed: int, hidden: int, layers: int, heads: int, positions: int, tools: int = 0
) -> None:
    """Writes a model folder: float32 weights, configuration, tokenizer."""
    import torch
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    # Qwen2's own tokenizer class with a vocabulary of single bytes and no merges: transformers
    # picks the class by the model's type, whatever else the folder says.
    vocabulary = {
        token: number for number, token in enumerate([*SPECIAL, *sorted(ByteLevel.alphabet())])
    }
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=positions,
    )
    tokenizer.chat_template = (SHOWN_TOOLS if tools else "") + CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        Qwen2ForCausalLM(config).save_pretrained(folder)
