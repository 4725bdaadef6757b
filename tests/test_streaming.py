"""Forward passes during the rollout: the step is the same as without, whatever arrives first."""

import asyncio
import functools
import json
import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import conversations, without_seconds
from simulated_run import simulated_trainer

from marl_plugins.builtin.reinforce_pp import ReinforcePlusPlus
from marl_plugins.core.rows import Row, rows_to_be
from marl_plugins.core.sequences import sequences_of, tree_of
from marl_plugins.core.trajectory import Task, Trajectory
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.fingerprint import fingerprint
from marl_plugins.engine.runtime.experience import (
    NAMES,
    completed,
    forwarded,
    sequence_experience,
    tree_batch,
)
from marl_plugins.streaming.part import StreamingPart, TaskGroups

from openrlhf.models import Actor  # isort: skip  # after the host support
from transformers import Qwen2Config, Qwen2ForCausalLM  # isort: skip
from refusals import refused

SUMS = ["--recipe", "tests/recipes/sums/tiny.yaml", "--plugin", "marl_plugins.streaming"]


# --- what is known and what is left
# ---------------------------------------------------------------------------------------


async def model(sequences):
    """Numbers of each token that depend on it and on all before it, masked as upstream's are; and a
    number of each sequence."""
    batches = []
    for sequence in sequences:
        e = sequence_experience(sequence)
        seen = torch.tensor(sequence.ids, dtype=torch.float64).cumsum(0)[1:][None]
        for number, name in enumerate(sorted(set(NAMES.values()) - {"action_mask"})):
            setattr(e, name, torch.sin(seen * (number + 1)).float() * e.action_mask)
        e.info["logprobs_diff"] = e.kl.sum(-1) / e.action_mask.sum(-1)
        batches.append(([sequence], e))
    return forwarded("p", [row for s in sequences for row in s.rows], batches, 0.25, [-1.0, 1.0])


async def at_once(rows):
    return await completed(rows, sequences_of(rows), [], model)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_rows_that_were_forwarded_in_parts_are_as_if_they_were_at_once(data):
    """Conversations cut into any parts; afterwards rows are left out, and have got rewards."""
    count = data.draw(st.integers(1, 5))
    trajectories = [
        conversations(data.draw(st.integers(0, 10**6)), data.draw(st.integers(1, 6)))
        for _ in range(count)
    ]
    for number, trajectory in enumerate(trajectories):
        trajectory.task = Task(f"t{number}", "p")
    cuts = data.draw(st.lists(st.integers(0, count), min_size=1, max_size=3).map(sorted))
    parts = [trajectories[a:b] for a, b in zip(cuts, [*cuts[1:], count], strict=True)]
    known = [asyncio.run(at_once(rows)) for part in parts if (rows := rows_to_be(part, "p"))]
    possible = [Row(t, action, 0.5 + n) for t in trajectories for n, action in enumerate(t.actions)]
    rows = (
        data.draw(st.lists(st.sampled_from(possible), min_size=1, unique_by=id))
        if data.draw(st.booleans())
        else possible
    )
    anew = []

    async def forward(sequences):
        anew.extend(sequences)
        return await model(sequences)

    found, want = (
        asyncio.run(completed(rows, sequences_of(rows), known, forward)),
        asyncio.run(at_once(rows)),
    )
    assert (
        found.rows is rows
        and found.diffs == want.diffs
        and (found.kl_coef, found.clip_range) == (0.25, [-1.0, 1.0])
    )
    assert [(s.ids, s.starts, s.rows) for s in found.sequences] == [
        (s.ids, s.starts, s.rows) for s in want.sequences
    ]
    for name, tensor in vars(want.tokens).items():
        assert torch.equal(getattr(found.tokens, name), tensor), name
    done = [[id(row.action) for row in s.rows] for part in known for s in part.sequences]
    assert all([id(row.action) for row in s.rows] not in done for s in anew)
    assert len(anew) + sum(
        [id(row.action) for row in s.rows] in done for s in found.sequences
    ) == len(found.sequences)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_row_shares_a_micro_batch_with_changes_no_bit_of_it_on_cpu(dtype):
    """Upstream's model with eager attention; conversations of 16 tokens or more in micro-batches of
    other sizes and orders.

    Below that (one vector of a processor with AVX-512) how far a row is padded decides in what
    order its softmax is summed.
    """
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = Qwen2Config(
        vocab_size=1000, num_key_value_heads=2, attn_implementation="eager", **sizes
    )
    actor = Actor(Qwen2ForCausalLM(config).to(dtype).eval(), temperature=0.7)
    actor.packing_samples = False
    trajectories = [conversations(seed, 4) for seed in range(8)]
    for action in (a for t in trajectories for a in t.actions if a.before is None or not a.extends):
        action.shown_ids += tuple(range(16))
    sequences = sequences_of([Row(t, action, 0.0) for t in trajectories for action in t.actions])

    @torch.no_grad()
    def computed(order, size):
        found = {}
        for start in range(0, len(order), size):
            part = order[start : start + size]
            e = tree_batch([tree_of([sequences[n]]) for n in part])
            log_probs = actor(e.sequences, e.action_mask, e.attention_mask)
            found |= {
                n: row[: len(sequences[n].ids) - 1] for n, row in zip(part, log_probs, strict=True)
            }
        return found

    numbers = list(range(len(sequences)))
    alone = computed(numbers, 1)
    for size in (3, 8, len(numbers)):
        together = computed(random.Random(size).sample(numbers, len(numbers)), size)
        assert all(torch.equal(alone[n], together[n]) for n in numbers), size


# --- during a rollout
# --------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 4), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_what_is_computed_together_does_not_depend_on_what_arrives_first(
    tasks, samples, together, draw
):
    expected = [
        Trajectory(Task(f"t{n}", "p"), sample, 1, place=n)
        for n in range(tasks)
        for sample in range(samples)
    ]
    order, groups = draw.sample(expected, len(expected)), TaskGroups(tasks, together, samples)
    found = [batch for trajectory in order if (batch := groups.add(trajectory))]
    assert len(found) == groups.count
    want = [[t for t in expected if t.place // together == n] for n in range(-(-tasks // together))]
    assert sorted(found, key=lambda batch: batch[0].place) == want
    last = [max(order.index(t) for t in batch) for batch in found]
    assert last == sorted(last)  # none waits for tasks that come later in the step


class Slow:
    """A policy whose forward passes last until they are let go."""

    def __init__(self, fails=None):
        self.name, self.spec, self.running, self.asked = "p", SimpleNamespace(trainable=True), 0, []
        self.go, self.fails = asyncio.Semaphore(0), fails

    async def forward(self, rows):
        self.running += 1
        assert self.running == 1, "ranks would be asked in different orders"
        await self.go.acquire()
        self.running -= 1
        if self.fails:
            raise self.fails
        self.asked.append([row.trajectory.task.id for row in rows])
        return SimpleNamespace(policy="p", rows=rows)


def arrived(place):
    trajectory = conversations(place, 1)
    trajectory.task, trajectory.place, trajectory.sample = Task(f"t{place}", "p"), place, 0
    return trajectory


def test_what_the_rollouts_end_leaves_is_done_after_it():
    async def run():
        policy = Slow()
        options = SimpleNamespace(tasks=1, gradients=False)
        args = SimpleNamespace(streaming=options, rollout=SimpleNamespace(n_samples_per_prompt=1))
        run = SimpleNamespace(args=args)
        step = SimpleNamespace(
            number=1,
            tasks=[Task(f"t{n}", "p") for n in range(3)],
            policies={"p": policy},
            estimator=ReinforcePlusPlus(),
            ended=asyncio.Event(),
            forwarded=[],
        )
        part = StreamingPart(run, step, {})
        during = asyncio.create_task(part.during_rollout())
        for place in (1, 0):
            part.arrived(arrived(place))
        policy.go.release()
        for _ in range(20):  # the second waits for the first
            await asyncio.sleep(0)
        assert policy.asked == [["t1"]] and policy.running
        part.arrived(arrived(2))
        step.ended.set()
        for _ in range(2):
            policy.go.release()
        await during
        return policy.asked, step, part

    found, step, part = asyncio.run(run())
    assert found == [["t1"], ["t0"], ["t2"]]
    assert [f.rows[0].trajectory.task.id for f in step.forwarded] == ["t1", "t0", "t2"]
    assert part.metrics() == {"streaming/rows": 3.0, "streaming/hidden": 1.0}


def streaming(tmp_path, tasks):
    """A trained run with the plugin in it, and one without."""
    trainers = []
    for number, together in enumerate((None, tasks)):
        draw = random.Random(7)

        async def conversation(task, roles, tools, draw=draw):
            for _ in range(draw.randrange(6)):
                await asyncio.sleep(0)
            said = await roles.a(q=task.prompt)
            return await roles.a(q=said, continues=said) if draw.random() < 0.7 else said

        trainer = simulated_trainer(
            tmp_path / str(number),
            lambda t: (t.place * 7 + t.sample) % 5 / 4,
            steps=2,
            eval_steps=-1,
            tasks=5,
            samples=2,
            workflow=conversation,
            estimator=ReinforcePlusPlus(),
        )
        if together:
            trainer.run.args.streaming = SimpleNamespace(tasks=together, gradients=False)
            trainer.plugins.parts.append(functools.partial(StreamingPart, trainer.run, means={}))
        trainers.append(trainer)
    return trainers


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_run_has_the_same_records_with_it_and_computes_no_row_twice(tmp_path, tasks):
    without, streamed = streaming(tmp_path, tasks)
    records = []
    for trainer in (without, streamed):
        asyncio.run(trainer.fit(0))
        text = (trainer.records.folder / "trajectories.jsonl").read_text().splitlines()
        records.append(without_seconds([json.loads(line) for line in text]))
    assert records[0] == records[1]
    once = without.session.policies["p"].computed
    early = streamed.session.policies["p"].computed
    assert len(once) == 2 and len(early) == 2 * -(-5 // tasks)
    assert sorted(name for rows in early for name in rows) == sorted(
        name for rows in once for name in rows
    )


# --- the plan
# --------------------------------------------------------------------------------------------------


LINES = ("recipe.yaml:25", "recipe.yaml:28", "recipe.yaml:29")


def test_devices_that_are_shared_with_engines_are_refused(monkeypatch):
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    words = ["--recipe", "mathchat", "--plugin", "marl_plugins.streaming"]
    shared = [
        ("streaming.shared_devices", *LINES, policy, "marl_plugins.streaming")
        for policy in ("solver", "coder", "verifier")
    ]
    with refused(*shared):
        build_plan(words)


def test_a_resumed_run_may_compute_in_other_portions():
    one, other = build_plan(SUMS), build_plan([*SUMS, "--streaming.tasks", "4"])
    assert fingerprint(one) == fingerprint(other)
