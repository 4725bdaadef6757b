"""Scores by a reward model's processes: messages to ids, ids to a reward, a reward to a score.

Every sequence goes through the model by itself, unpadded, whichever others wait: a batch's shape
changes the last bits of what comes out, and what arrives together is a matter of timing. So a score
is a function of the sequence alone, and a run repeats. Sequences that wait go to the processes
together, at most `--rollout.micro_batch_size` to each.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import ray
import torch
from ray.exceptions import GetTimeoutError, RayTaskError
from ray.util.placement_group import remove_placement_group

from marl_plugins.builtin.reward_model.checks import FLAG, problems_of
from marl_plugins.builtin.reward_model.scale import Scale
from marl_plugins.builtin.reward_model.worker import RemoteRewardActor
from marl_plugins.core.deadlines import not_counted
from marl_plugins.core.failures import (
    ConfigurationError,
    InfrastructureFailure,
    RunEnded,
    RunPaused,
    first_line,
    raised_by,
)
from marl_plugins.core.foreign import ForeignText
from marl_plugins.core.problems import Problem, at
from marl_plugins.engine.plan.models import positions_of
from marl_plugins.engine.plan.rehearsed import RehearsalResult
from marl_plugins.engine.processes.deaths import DEATHS
from marl_plugins.engine.processes.placement import bundles
from marl_plugins.engine.runtime.session import load_tokenizer

from openrlhf.trainer.ray.launcher import RayActorGroup  # isort: skip  # after the host support, installed above
from openrlhf.utils import get_strategy  # isort: skip

if TYPE_CHECKING:
    from types import SimpleNamespace

    from ray.util.placement_group import PlacementGroup

    from marl_plugins.core.run import Run
    from marl_plugins.core.trajectory import Action, Trajectory

TOO_LONG = "reward_model_too_long"
"""Of trajectories that are left out because the model has fewer positions, in the ledger."""
Messages = Sequence[Mapping[str, str]]


class Renderer:
    """Turns messages into the ids that a reward model reads, as upstream's data set for reward
    models does (reward_dataset.py): in the model's own chat template, with its end-of-sequence
    token last.

    Args:
        folder: The reward model's.

    Raises:
        ConfigurationError: Its tokenizer cannot be used, or is that of another model.
    """

    def __init__(self, folder: Path, disable_fast: bool = False):
        # Code of the model's own has been refused by the session, unless it is trusted.
        where = at(flag=FLAG, folder=folder)
        self.tokenizer = load_tokenizer(str(folder), where, trusted=True, fast=not disable_fast)
        self.longest = positions_of(str(folder))
        self.foreign = ForeignText(self.tokenizer)

    def ids(self, messages: Messages) -> list[int]:
        """Returns a conversation that ends with an assistant's message, as ids.

        Raises:
            ConfigurationError: The chat template does not take the messages.
            InfrastructureFailure: The model has fewer positions.
        """
        try:
            safe = [{**m, "content": self.foreign.hide(m["content"], m["role"])} for m in messages]
            text = str(self.tokenizer.apply_chat_template(safe, tokenize=False)).rstrip("\n")
        except Exception as error:  # a template raises what it likes
            roles = ", ".join(dict.fromkeys(message["role"] for message in messages))
            got = (
                f"its chat template does not take messages of {roles}: {type(error).__name__}: "
                f"{error}"
            )
            fix = (
                "change `chat_template` in its folder, or let it score the outcome, which is a "
                "user's and an assistant's message"
            )
            raise ConfigurationError(
                Problem("reward_model.template", at(flag=FLAG), got, fix=fix)
            ) from error
        end = self.tokenizer.eos_token
        if end and not text.endswith(end):
            text += " " + end
        ids = self.foreign.encode(text)
        if self.longest is not None and len(ids) > self.longest:
            raise InfrastructureFailure(
                TOO_LONG, f"{len(ids)} tokens; the reward model takes {self.longest}"
            )
        return ids


class Scorer:
    """A run's reward model: upstream's group of actors, and what waits for it."""

    def __init__(self, run: Run):
        self.run, self.scale = run, Scale.of(run)
        self.model: str = run.args.reward.model_name_or_path
        self.silence = run.recipe.limits.silence_seconds
        self.group: RayActorGroup | None = None
        self.renderer: Renderer | None = None
        self._placement: PlacementGroup | None = None
        self._waiting: list[tuple[list[int], asyncio.Future[float]]] = []
        self._work: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Checks the model, tries its chat template on what was rehearsed, starts its processes,
        and waits until they have loaded it.

        Raises:
            ConfigurationError: It cannot be used.
            RunEnded: A process of it died, or was not there in time.
        """
        folder = in_folder(self.model)
        if problems := [p for p in problems_of(folder, self.run) if p.severity == "error"]:
            raise ConfigurationError(problems)
        self.renderer = Renderer(folder, self.run.args.data.disable_fast_tokenizer)
        for messages in self._rehearsed():
            with contextlib.suppress(InfrastructureFailure):
                self.renderer.ids(messages)
        args, size = own_args(self.run.args), self.run.args.reward
        count = size.num_nodes * size.num_gpus_per_node
        self._placement = bundles(count, self.silence) if count > 1 else None
        share = 0.2 if self._placement else 1
        self.group = RayActorGroup(
            size.num_nodes, size.num_gpus_per_node, RemoteRewardActor, self._placement, share
        )
        strategy = get_strategy(args)
        strategy.train_batch_size = args.train.micro_batch_size * count
        loading = self.group.async_init_model_from_pretrained(strategy, self.model)
        try:
            ray.get(loading, timeout=self.silence)
        except GetTimeoutError:
            got = (
                f"the reward model {self.model} was not loaded within {self.silence:g} s "
                "(limits.silence_seconds)"
            )
            raise RunEnded(got) from None
        except DEATHS as error:
            raise RunEnded(
                f"a process of the reward model died while it was starting: {first_line(error)}"
            ) from error
        except RayTaskError as error:
            got = f"upstream cannot load it: {first_line(raised_by(error))}"
            raise ConfigurationError(
                Problem("reward_model.start", at(flag=FLAG, name=self.model), got)
            ) from error

    def end(self) -> None:
        """Ends all processes at once."""
        for handle in self.group._actor_handlers if self.group is not None else ():
            ray.kill(handle)
        if self._placement is not None:
            remove_placement_group(self._placement)
        self.group = self._placement = None

    async def outcome(self, trajectory: Trajectory) -> float:
        """Returns the score of the system's answer to the task's prompt."""
        return await self._score(answer_to(trajectory))

    async def action(self, action: Action) -> float:
        """Returns the score of an action, after all that was said before in its conversation."""
        return await self._score(conversation(action))

    async def _score(self, messages: Messages) -> float:
        try:
            return self.scale.score(await self.reward(messages))
        except (ConfigurationError, ValueError) as error:
            raise RunPaused(f"reward model {self.model}: {error}") from error

    async def reward(self, messages: Messages) -> float:
        """Returns the reward of a conversation, as the model gives it."""
        assert self.renderer is not None, "it is started"
        ids = self.renderer.ids(messages)
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((ids, future))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._answer())
        async with not_counted():
            reward: float = await future
        return reward

    async def _answer(self) -> None:
        """Answers those that wait, as long as there are any."""
        assert self.group is not None
        most = len(self.group._actor_handlers) * self.run.args.rollout.micro_batch_size
        while self._waiting:
            taken, self._waiting = self._waiting[:most], self._waiting[most:]
            try:
                rewards = await self._forward([ids for ids, _ in taken])
            except Exception as error:
                for _, future in (*taken, *self._waiting):
                    if not future.done():
                        future.set_exception(error)
                self._waiting = []
                return
            for (_, future), reward in zip(taken, rewards, strict=True):
                if not future.done():
                    future.set_result(reward)

    async def _forward(self, sequences: Sequence[list[int]]) -> list[float]:
        """Returns the rewards of sequences, each computed by itself.

        Every process gets as many: with ZeRO 3 each needs all others. What fills them up is
        computed, and not used.

        Raises:
            RunPaused: A process died, or answered nothing for too long.
        """
        assert self.group is not None
        ranks = len(self.group._actor_handlers)
        filled = [*sequences, *itertools.repeat(sequences[-1], -len(sequences) % ranks)]
        asked = self.group.async_run_method_batch(
            "forward",
            sequences=[torch.tensor([ids]) for ids in filled],
            attention_mask=[torch.ones(1, len(ids), dtype=torch.long) for ids in filled],
        )
        try:
            answers = await asyncio.wait_for(asyncio.gather(*asked), self.silence)
        except TimeoutError:
            got = (
                f"the reward model answered nothing for {self.silence:g} s (limits.silence_seconds)"
            )
            raise RunPaused(got) from None
        except DEATHS as error:
            raise RunPaused(f"a process of the reward model died: {first_line(error)}") from error
        return [float(reward) for reward in itertools.chain.from_iterable(answers)][
            : len(sequences)
        ]

    def _rehearsed(self) -> Iterator[Messages]:
        """Yields what it would have to read of the trajectories that the rehearsal left."""
        roles = self.run.args.reward_model.roles
        for trajectory in self.run.state(RehearsalResult).trajectories.values():
            if roles:
                yield from (
                    conversation(action) for action in trajectory.actions if action.role in roles
                )
            else:
                yield answer_to(trajectory)


def in_folder(model: str) -> Path:
    """Returns the folder of a model; one of the hub's is downloaded."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                model, allow_patterns=["*.json", "*.jinja", "*.safetensors", "*.model", "*.txt"]
            )
        )
    except (OSError, ValueError) as error:
        got = f"cannot be downloaded: {first_line(error)}"
        raise ConfigurationError(
            Problem("reward_model.download", at(flag=FLAG, name=model), got)
        ) from error


def own_args(args: SimpleNamespace) -> SimpleNamespace:
    """Returns the flags of the reward model's processes: no process shares a sequence with another
    one, none is packed."""
    own = copy.deepcopy(args)
    own.ds.ring_attn_size = own.ds.tensor_parallel_size = 1
    own.ds.packing_samples = own.train.dynamic_batch_enable = False
    return own


def answer_to(trajectory: Trajectory) -> list[dict[str, str]]:
    """Returns a task's prompt and the answer of the system."""
    return [
        {"role": "user", "content": trajectory.task.prompt},
        {"role": "assistant", "content": trajectory.answer or ""},
    ]


def conversation(action: Action) -> list[dict[str, str]]:
    """Returns what was said up to an action, and the action."""
    return [{"role": role, "content": text} for role, text in action.messages]
