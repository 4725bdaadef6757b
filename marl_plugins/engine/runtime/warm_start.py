"""Supervised training of a tiny model on a recipe's demonstrations, so that a demo starts from a
partly competent model.

A fixed number of steps, whatever accuracy they reach. The result is a model folder like any other,
cached by content: the model's name, every demonstration, and the settings. Demonstrations come from
training tasks only.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from marl_plugins.core.demonstrations import Demonstration, WarmStartConfig
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.runtime.tiny_model import made_once

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RECIPE_VERSION = 1
"""Raised when the training below changes, so that older caches are not taken for it."""


DECAY_SHARE_OF_STEPS = 0.3
"""The share of the steps in which the learning rate falls to zero; copying is learned late, at the
full rate."""


def draw(
    demonstrate: Callable[[Task, random.Random], Iterable[Demonstration]],
    tasks: Sequence[Task],
    config: WarmStartConfig,
) -> list[Demonstration]:
    """Returns `steps x batch_size` demonstrations, from the training tasks in a fixed shuffled
    order, as often as it takes.

    Raises:
        ValueError: There is none of any task.
    """
    rng = random.Random(config.seed)
    order = list(tasks)
    drawn: list[Demonstration] = []
    while len(drawn) < config.steps * config.batch_size:
        rng.shuffle(order)
        before = len(drawn)
        for task in order:
            drawn += demonstrate(task, rng)
        if len(drawn) == before:
            raise ValueError(f"`demonstrate` yields nothing for any of {len(order)} tasks")
    drawn = drawn[: config.steps * config.batch_size]
    rng.shuffle(drawn)
    return drawn


def warm_start(
    model: str,
    folder: str,
    rows: Sequence[tuple[list[int], list[int]]],
    config: WarmStartConfig,
    display: Display,
) -> str:
    """Returns the folder of `model` (whose weights lie in `folder`) after the warm start; trained
    now unless it is in the cache.

    Args:
        rows: The demonstrations, as `encode` returns them.
    """
    content = json.dumps([RECIPE_VERSION, model, config.model_dump(), rows])
    key = hashlib.blake2b(content.encode(), digest_size=10).hexdigest()

    def make(target: Path) -> None:
        display.say(
            f"warm start: {config.steps} supervised steps on demonstrations; once, then kept in "
            f"{target.parent}"
        )
        with display.phase("warm start", config.steps, announce=True) as tick:
            train(folder, target, rows, config, tick)

    return made_once(
        f"warm-{key}",
        make,
        lambda: display.say("warm start: another run is making it; waiting for that one"),
    )


@contextmanager
def _all_cores() -> Iterator[None]:
    """The run's processes share the cores, one thread each; before they start, this one may have
    all."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(
    folder: str,
    target: Path,
    rows: Sequence[tuple[list[int], list[int]]],
    config: WarmStartConfig,
    done: Callable[[], None],
) -> None:
    """Trains with AdamW, linear warm-up, constant rate, linear decay; cross-entropy over what the
    roles said."""
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with torch.random.fork_rng(), _all_cores():
        torch.manual_seed(config.seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        optimiser = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.0
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser,
            lambda step: min(
                1.0, (step + 1) / 50, (config.steps - step) / (DECAY_SHARE_OF_STEPS * config.steps)
            ),
        )
        for step in range(config.steps):
            batch = rows[step * config.batch_size : (step + 1) * config.batch_size]
            parts = zip(*batch, strict=True)
            # Padded behind: the model is causal, and does not see it.
            ids, masks = (pad_sequence([*map(torch.tensor, part)], True) for part in parts)
            mask = masks[:, 1:].bool()
            logits = model(input_ids=ids).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits[mask], ids[:, 1:][mask])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            done()
        model.save_pretrained(target)
        AutoTokenizer.from_pretrained(folder).save_pretrained(target)
