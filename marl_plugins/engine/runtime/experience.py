"""The rows of one update with their tensors, as one value: forward, advantages, update.

    forwarded = await policy.forward(rows)               log-probs, KL and values of one policy's
                                                         rows; in parts, if some are there before
                                                         the others
    prepared, ... = estimate([forwarded, ...], estimator)     advantages of all policies together
    await policy.update(prepared, steps, step)

Through the model go sequences (core/sequences.py); credit and advantages are each row's. Nothing of
a step waits anywhere else, so any number of such values may exist at a time.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

# Installs the host support, before upstream is imported below.
import marl_plugins.engine.processes.policy_actor  # isort: skip  # noqa: F401
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils.experience import Experience as Experience  # also for plugins
from openrlhf.trainer.ppo_utils.experience import make_experience_batch as make_experience_batch

from marl_plugins.core.estimators import Estimator
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.rows import Row
from marl_plugins.core.sequences import TokenSequence, TokenTree, sequences_of
from marl_plugins.core.trajectory import Action


@dataclass(frozen=True)
class SampledTokens:
    """Tensors (rows, N) over the sampled tokens of some rows, N being the most of one row; 0 past a
    row's end.

    Args:
        mask: 1 for a row's own tokens.
        log_probs, rollout_log_probs: The trainer's and the engine's.
        kl: The penalty of each token, 0 without a reference.
        values: A critic's; None without one.
        base_log_probs: The reference's, where the KL is a loss (`--algo.kl.use_loss`).
    """

    mask: Tensor
    log_probs: Tensor
    rollout_log_probs: Tensor
    kl: Tensor
    values: Tensor | None = None
    base_log_probs: Tensor | None = None

    def differences(self, other: SampledTokens, first: int) -> Tensor:
        """By how much log-probs and values of the same tokens differ, of the rows from `first`
        on."""
        pairs = (self.log_probs, other.log_probs), (self.values, other.values)
        own = self.mask[first:].bool()
        return torch.cat(
            [
                (a[first:] - b[first:]).abs()[own]
                for a, b in pairs
                if a is not None and b is not None
            ]
        )


NAMES = {
    "mask": "action_mask",
    "log_probs": "action_log_probs",
    "rollout_log_probs": "rollout_log_probs",
    "kl": "kl",
    "values": "values",
    "base_log_probs": "base_action_log_probs",
}
"""What upstream's `Experience` calls the tensors."""
LOGPROB_STEP = 2.0**-10
"""Nats. Training takes the difference of an engine's log-probs to the trainer's in such steps."""


@dataclass(frozen=True)
class ForwardedExperience:
    """Rows of one policy after their forward passes.

    Args:
        policy: Its name.
        rows: In the order in which they were given.
        sequences: What went through the model.
        tokens: Of the rows.
        diffs: Mean difference of policy's and reference's log-probs of each sequence.
        kl_coef: Coefficient of the KL penalty at the time of the forward passes.
        clip_range: Bounds of rewards, upstream's `--reward.clip_range`.
    """

    policy: str
    rows: Sequence[Row]
    sequences: Sequence[TokenSequence]
    tokens: SampledTokens
    diffs: Sequence[float]
    kl_coef: float = 0.0
    clip_range: Sequence[float] | None = None

    @property
    def drift(self) -> float:
        """Mean absolute difference of the trainer's and the engine's log-probs over the tokens that
        the run itself has sampled."""
        t, own = self.tokens, torch.tensor([not row.trajectory.origin for row in self.rows])
        mask = t.mask * own[:, None]
        difference = ((t.log_probs - t.rollout_log_probs).abs() * mask).sum()
        return (difference / mask.sum()).item() if own.any() else 0.0

    def rows_not_finite(self, name: str) -> list[str]:
        """Returns the names of the rows of which a tensor (`log_probs`, `kl`, `values`) is not
        finite."""
        good = torch.isfinite(getattr(self.tokens, name)).all(-1).tolist()
        return [row.name for row, finite in zip(self.rows, good, strict=True) if not finite]

    def outside_clip_range(self, returns: Tensor) -> int:
        """Counts how many of the returns (rows,), their baselines subtracted, upstream clips."""
        if not self.clip_range:
            return 0
        low, high = self.clip_range
        return int(((returns < low) | (returns > high)).sum())

    def token_rewards(self, rewards: Tensor) -> Tensor:
        """Turns rewards (rows,) into rewards (rows, tokens): each on the last token of its row, the
        KL penalty on every token."""
        penalised: Tensor = compute_reward(
            rewards.float(),
            self.kl_coef,
            self.tokens.kl,
            action_mask=self.tokens.mask,
            reward_clip_range=self.clip_range,
        )
        return penalised


@dataclass(frozen=True)
class ExtensionCall:
    """A method of an extension (engine/processes/extension.py) with its arguments, for every
    training process of a policy."""

    extension: str
    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class PreparedExperience:
    """Rows of one policy with their advantages, ready for an update.

    Args:
        sequences: What goes through the model.
        items: One experience per sequence, without padding.
        drift: Of the forward passes.
        clipped: Number of rows whose return `--reward.clip_range` changed.
        last: By normalisation group, the mean and deviation that the estimator's last stage
            (`apply`) has used.
        excluded: Indices of sequences that the policy is not given, because an extension adds their
            gradients; its critic gets all.
        calls: What extensions are asked to do after `prepare_fit`, before the policy's fit
            (`update` in policy.py).
        metrics: Numbers of the update that replace upstream's, where that sees only a part of the
            rows.
    """

    policy: str
    rows: Sequence[Row]
    sequences: Sequence[TokenSequence]
    items: Sequence[Experience]
    drift: float
    clipped: int = 0
    last: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    excluded: frozenset[int] = frozenset()
    calls: tuple[ExtensionCall, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    def reweighed(self, weights: Mapping[Row, float]) -> PreparedExperience:
        """See `PreparedRows.reweighed`; the gradients that have been taken are those of `excluded`
        sequences."""
        items = []
        for number, (sequence, item) in enumerate(zip(self.sequences, self.items, strict=True)):
            if any(row in weights for row in sequence.rows):
                if number in self.excluded:
                    raise ValueError(
                        f"row {sequence.name} of policy {self.policy!r} cannot be reweighed: its "
                        "gradient has been taken, for its advantages as they were, by "
                        f"{' and '.join(call.extension for call in self.calls)}; leave out that "
                        "plugin or this one"
                    )
                item = copy.copy(item)
                item.advantages = item.advantages.clone()
                for row, places in sequence.predicted:
                    item.advantages[places] *= weights.get(row, 1.0)
            items.append(item)
        for row, weight in weights.items():
            row.action.advantages = tuple(weight * value for value in row.action.advantages)
            row.action.advantage = weight * (row.action.advantage or 0.0)
        return replace(self, items=items)

    @property
    def for_policy(self) -> PreparedExperience:
        """Returns what the policy itself is trained on: the sequences that are not excluded, or a
        weightless one where there is none."""
        if not self.excluded:
            return self
        pairs = [*zip(self.sequences, self.items, strict=True)]
        left = [pair for number, pair in enumerate(pairs) if number not in self.excluded]
        if not left:
            sequence, item = min(pairs, key=lambda pair: len(pair[0].ids))
            left = [(sequence, weightless(item))]
        return replace(self, sequences=[s for s, _ in left], items=[item for _, item in left])


def forwarded(
    policy: str,
    rows: Sequence[Row],
    micro_batches: Iterable[tuple[Sequence[TokenSequence], Experience]],
    kl_coef: float = 0.0,
    clip_range: Sequence[float] | None = None,
) -> ForwardedExperience:
    """Returns rows after their forward passes: each row's part of the sequences' tensors.

    Args:
        micro_batches: Sequences with upstream's `Experience` of their forward pass; together they
            hold every row.
    """
    places = places_of(rows)
    said: dict[str, dict[Row, Tensor]] = defaultdict(dict)
    computed: list[tuple[TokenSequence, float]] = []
    for batch, experience in micro_batches:
        computed += zip(batch, experience.info["logprobs_diff"].tolist(), strict=True)
        for name, theirs in NAMES.items():
            whole = getattr(experience, theirs)
            if whole is None:
                continue
            for values, sequence in zip(whole, batch, strict=True):
                for row, where in sequence.predicted:
                    said[name][row] = values[where]
    tensors = {
        name: pad_sequence([mine[row] for row in rows], batch_first=True)
        for name, mine in said.items()
    }
    for number, row in enumerate(rows):
        if (
            row.trajectory.origin and not row.trajectory.replayed
        ):  # no engine of ours: trained on as if these weights had
            tensors["rollout_log_probs"][number] = tensors["log_probs"][number]
    computed.sort(key=lambda pair: places[pair[0].rows[0]])  # whatever micro-batches they were in
    sequences, differences = [s for s, _ in computed], [d for _, d in computed]
    return ForwardedExperience(
        policy, rows, sequences, SampledTokens(**tensors), differences, kl_coef, clip_range
    )


async def completed(
    rows: Sequence[Row],
    sequences: Sequence[TokenSequence],
    known: Sequence[ForwardedExperience],
    forward: Callable[[list[TokenSequence]], Awaitable[ForwardedExperience]],
) -> ForwardedExperience:
    """Returns rows after their forward passes, of which some are known.

    Args:
        sequences: Of the rows, in their order.
        known: Of the same weights; a sequence is taken from there if it had the same rows merged,
            whatever their rewards were.
        forward: Computes the others.
    """
    done = {actions_of(sequence) for f in known for sequence in f.sequences}
    left = [sequence for sequence in sequences if actions_of(sequence) not in done]
    parts = [*known, await forward(left)] if left else known
    if len(parts) == 1 and [*parts[0].rows] == [*rows]:
        whole = replace(parts[0], rows=rows)
        if [*map(actions_of, whole.sequences)] == [*map(actions_of, sequences)]:
            return whole
    return joined(rows, sequences, parts)


def actions_of(sequence: TokenSequence) -> tuple[Action, ...]:
    """Returns the actions of a sequence, which make it what it is."""
    return tuple(row.action for row in sequence.rows)


def joined(
    rows: Sequence[Row], sequences: Sequence[TokenSequence], parts: Sequence[ForwardedExperience]
) -> ForwardedExperience:
    """Returns rows as if they had been forwarded at once.

    Args:
        sequences: Of the rows, in their order.
        parts: Hold every one of the sequences, and may hold others.
    """
    theirs = {actions_of(s): d for p in parts for s, d in zip(p.sequences, p.diffs, strict=True)}
    # An action that was forwarded twice was so in one of the sequences the later time.
    numbered = enumerate(row.action for part in parts for row in part.rows)
    places = {action: number for number, action in numbered}
    order = [places[row.action] for row in rows]
    longest = max(len(row.action.generation.ids) for row in rows)
    tensors = {
        name: pad_sequence([v for p in parts for v in vars(p.tokens)[name]], batch_first=True)
        for name, values in vars(parts[0].tokens).items()
        if values is not None
    }
    tokens = SampledTokens(**{name: each[order, :longest] for name, each in tensors.items()})
    diffs = [theirs[actions_of(sequence)] for sequence in sequences]
    return replace(parts[0], rows=rows, sequences=sequences, tokens=tokens, diffs=diffs)


def places_of(rows: Sequence[Row]) -> dict[Row, int]:
    """Returns the place of each row."""
    return {row: number for number, row in enumerate(rows)}


def estimate(
    parts: Sequence[ForwardedExperience], estimator: Estimator
) -> list[PreparedExperience]:
    """Returns advantages of the rows of all policies together: baselines and statistics span all of
    them.

    What was given stays as it is; each action is told its advantages, for the records.

    Raises:
        RunEnded: The estimator cannot compare the rows, or gave advantages that are not finite.
    """
    parts = [f for f in parts if f.rows]
    if not parts:
        return []
    rows = [row for f in parts for row in f.rows]
    shaped = estimator.shape(rows, torch.tensor([row.reward for row in rows], dtype=torch.float32))
    rewards = torch.split(shaped, [len(f.rows) for f in parts])
    estimates = [
        before_statistics(f, mine, estimator) for f, mine in zip(parts, rewards, strict=True)
    ]
    statistics = estimator.statistics(
        [(f.rows, a, f.tokens.mask) for f, (_, a, _) in zip(parts, estimates, strict=True)]
    )
    prepared = []
    for f, mine, (reward, raw, returns) in zip(parts, rewards, estimates, strict=True):
        advantages = weighed(f.rows, estimator.apply(f.rows, raw, statistics))
        note_tokens(f, advantages)
        items = items_of(f, advantages, returns, (reward * f.tokens.mask).sum(-1))
        last = {
            key: estimator.mean_and_std(statistics, key)
            for key in dict.fromkeys(map(estimator.normalisation_group, f.rows))
        }
        prepared.append(
            PreparedExperience(
                f.policy, f.rows, f.sequences, items, f.drift, f.outside_clip_range(mine), last
            )
        )
    if broken := [row for row in rows if not all(map(math.isfinite, row.action.advantages))]:
        raise RunEnded(
            f"{type(estimator).__name__}: {len(broken)} rows have advantages that are not finite, "
            f"the first {broken[0].name}, "
            f"whose return is {broken[0].reward}; nothing of this step was trained on"
        )
    return prepared


def weighed(rows: Sequence[Row], advantages: Tensor) -> Tensor:
    """Returns advantages (rows, tokens), each row's multiplied by its weight."""
    weights = torch.tensor([row.weight for row in rows], dtype=advantages.dtype)
    return advantages * weights[:, None]


def before_statistics(
    f: ForwardedExperience, shaped: Tensor, estimator: Estimator
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the rewards, advantages and returns of a policy's rows, (rows, tokens) all, before
    the estimator's last stage.

    Args:
        shaped: (rows,).
    """
    reward = f.token_rewards(shaped)
    return reward, *estimator.estimate(reward, f.tokens.mask, f.tokens.values)


def note_tokens(f: ForwardedExperience, advantages: Tensor) -> None:
    """Writes advantages (rows, tokens) and the trainer's log-probs onto the rows' actions, for the
    records: one of each per sampled token, and the mean of the advantages."""
    sampled = f.tokens.mask.bool()
    counts = sampled.sum(-1).tolist()
    means = (advantages * f.tokens.mask).sum(-1) / f.tokens.mask.sum(-1)
    per_row = zip(
        torch.split(advantages[sampled], counts),
        torch.split(f.tokens.log_probs[sampled], counts),
        strict=True,
    )
    for row, mean, (values, log_probs) in zip(f.rows, means.tolist(), per_row, strict=True):
        row.action.advantage, row.action.advantages = mean, tuple(values.tolist())
        row.action.trainer_logprobs = tuple(log_probs.tolist())


def sequence_items(
    sequences: Sequence[TokenSequence], sampled: Mapping[str, Tensor]
) -> list[Experience]:
    """Returns sequences as upstream's replay buffer holds them: (T,) ids and mask, (T-1,) action
    mask and what else is said of tokens, numbers of no dimension.

    What is said per sample is the mean over the sequence's rows; `info["rows"]` says how many they
    are. Numbers in `info` are no tensors: hundreds of those are slow to send to a process.

    Args:
        sampled: By upstream's names, what is said of each sampled token, (tokens,), one row of the
            sequences after the other. It stands where the token is predicted, and 0 elsewhere.
    """
    lengths = [len(s.ids) - 1 for s in sequences]
    first, places = 0, []
    for s, length in zip(sequences, lengths, strict=True):
        places += [torch.arange(first + p.start, first + p.stop) for _, p in s.predicted]
        first += length
    place = torch.cat(places)

    def spread(values: Tensor) -> list[Tensor]:
        whole = torch.zeros(first, dtype=values.dtype)
        whole[place] = values
        return [mine.clone() for mine in torch.split(whole, lengths)]

    said = {"action_mask": torch.ones_like(place), **sampled}
    of_tokens = {name: spread(values) for name, values in said.items()}
    items = []
    for number, s in enumerate(sequences):
        ids, rows = torch.tensor(s.ids, dtype=torch.long), len(s.rows)
        reward = float(sum(row.reward for row in s.rows) / rows)
        generations = [row.action.generation for row in s.rows]
        items.append(
            Experience(
                sequences=ids,
                attention_mask=torch.ones_like(ids),
                prompts=[s.name],
                labels=[""],
                images=[None],
                mm_train_inputs=[None],
                rewards=torch.tensor(reward),
                scores=torch.tensor(reward),
                response_length=torch.tensor(sum(len(g.ids) for g in generations) / rows),
                truncated=torch.tensor(sum(g.finish == "length" for g in generations) / rows),
                total_length=torch.tensor(float(len(s.ids))),
                info={"reward": reward, "rows": float(rows)},
                **{name: each[number] for name, each in of_tokens.items()},
            )
        )
    return items


def unseen_items(sequences: Sequence[TokenSequence]) -> list[Experience]:
    """Returns sequences before a model has seen them: with the log-probs of the engines alone."""
    rows = [row for sequence in sequences for row in sequence.rows]
    logprobs = [value for row in rows for value in row.action.generation.logprobs]
    rollout = torch.tensor(logprobs, dtype=torch.float32)
    return sequence_items(sequences, {"rollout_log_probs": rollout})


def sequence_experience(sequence: TokenSequence) -> Experience:
    """Returns one sequence as a batch of upstream's, before a model has seen it."""
    return make_experience_batch(unseen_items([sequence]))


def tree_experience(tree: TokenTree, items: Sequence[Experience]) -> Experience:
    """Returns the experiences of a tree's sequences as one of the tree.

    Its attention mask is the tree's (engine/processes/trees.py). What is said per sample is the
    mean over rows.
    """
    if len(items) == 1:
        return items[0]
    rows = [item.info["rows"] for item in items]

    def mean(values: Sequence[Any]) -> Any:
        return sum(value * count for value, count in zip(values, rows, strict=True)) / sum(rows)

    whole = copy.copy(items[0])
    for f in fields(Experience):
        values = [getattr(item, f.name) for item in items]
        if f.name in ("sequences", "attention_mask"):
            of_tree = torch.tensor(tree.ids if f.name == "sequences" else tree.mask)
            setattr(whole, f.name, of_tree)
        elif isinstance(values[0], Tensor):
            per_token = Experience.is_step_tensor_field(f.name)
            setattr(whole, f.name, on_tree(tree, values) if per_token else mean(values))
    whole.info = {name: mean([item.info[name] for item in items]) for name in whole.info}
    whole.info["rows"] = sum(rows)
    return whole


def tree_batch(trees: Sequence[TokenTree]) -> Experience:
    """Returns trees as one batch of upstream's, before a model has seen them."""
    items = iter(unseen_items([sequence for tree in trees for sequence in tree.sequences]))
    return make_experience_batch(
        [tree_experience(tree, [next(items) for _ in tree.sequences]) for tree in trees]
    )


def on_tree(tree: TokenTree, values: Sequence[Tensor]) -> Tensor:
    """Returns what is said of the tokens of a tree's sequences, (T-1,) each and 0 where it is said
    of none, in their places in the tree."""
    whole = torch.zeros(len(tree.ids) - 1, dtype=values[0].dtype)
    for value, places in zip(values, tree.places, strict=True):
        whole[torch.tensor(places[1:]) - 1] += value
    return whole


def sequences_apart(
    trees: Sequence[TokenTree], experience: Experience
) -> Iterator[tuple[list[TokenSequence], Experience]]:
    """Yields each sequence of trees with its part of the tensors of their forward pass."""
    for number, tree in enumerate(trees):
        for sequence, places in zip(tree.sequences, tree.places, strict=True):
            predicted = torch.tensor(places[1:]) - 1
            mine = Experience(
                info={"logprobs_diff": experience.info["logprobs_diff"][number : number + 1]}
            )
            for name in NAMES.values():
                if (whole := getattr(experience, name)) is not None:
                    setattr(mine, name, whole[number : number + 1, predicted])
            yield [sequence], mine


def row_experience(row: Row) -> Experience:
    """Returns one row as a sequence of its own."""
    (sequence,) = sequences_of([row])
    return sequence_experience(sequence)


def in_steps(log_probs: Tensor, rollout: Tensor) -> Tensor:
    """Returns an engine's log-probs, whose difference to the trainer's is rounded to a step.

    The rest of an engine's batch decides the last bits of its log-probs, and
    `--algo.advantage.is_correction_*` makes weights of the loss of them. Where engine and trainer
    have the same weights in float32 they differ by far less than half a step, and the difference is
    0 whatever the batch was. Where it is larger (a lag, replayed rows, bfloat16), a token whose
    difference lies beside the middle of two steps may still be rounded either way.
    """
    return log_probs + ((rollout - log_probs) / LOGPROB_STEP).round() * LOGPROB_STEP


def items_of(
    f: ForwardedExperience, advantages: Tensor, returns: Tensor, total_rewards: Tensor
) -> list[Experience]:
    """Returns one experience per sequence, as upstream's replay buffer holds it: see
    `sequence_items`.

    Args:
        advantages, returns: (rows, tokens).
        total_rewards: (rows,), the KL penalty included.
    """
    places = places_of(f.rows)
    numbers = [[places[row] for row in sequence.rows] for sequence in f.sequences]
    order = torch.tensor([number for each in numbers for number in each])
    mask = f.tokens.mask[order].bool()
    tensors = {
        NAMES[name]: value
        for name, value in vars(f.tokens).items()
        if value is not None and name not in ("mask", "kl")
    }
    rollout = in_steps(f.tokens.log_probs, f.tokens.rollout_log_probs)
    tensors |= {"rollout_log_probs": rollout, "advantages": advantages, "returns": returns}
    sampled = {name: values[order][mask] for name, values in tensors.items()}
    items = sequence_items(f.sequences, sampled)
    kl = ((f.tokens.kl * f.tokens.mask).sum(-1) / f.tokens.mask.sum(-1)).tolist()
    total = total_rewards.tolist()
    for item, mine, diff in zip(items, numbers, f.diffs, strict=True):
        item.info |= {
            "kl": sum(kl[n] for n in mine) / len(mine),
            "logprobs_diff": diff,
            "return": sum(total[n] for n in mine) / len(mine),
        }
    return items


def weightless(item: Experience) -> Experience:
    """Returns a copy of a sequence that weighs nothing: no token of it is in any mask."""
    blank = copy.copy(item)
    blank.action_mask = torch.zeros_like(item.action_mask)
    blank.advantages = torch.zeros_like(item.advantages)
    blank.returns = torch.zeros_like(item.returns)
    blank.info = {**item.info, "rows": 0 * item.info["rows"]}
    return blank
