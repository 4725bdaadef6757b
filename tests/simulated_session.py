"""A run as it is planned, without processes: the real plan, plugins, trainer, records and
checkpoints over policies whose weights are a digest of all that they were trained on, and engines
whose answers depend on these weights, the seed and the context alone.

So two runs say the same if and only if they have been trained on the same.
"""

import asyncio
import functools
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from rich.console import Console
from simulated_run import UPDATE

from marl_plugins.builtin.reward_model.backend import BesideRewardModel, ScorerConnection
from marl_plugins.builtin.reward_model.scorer import Scorer
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.sequences import sequences_of
from marl_plugins.core.trajectory import Generation
from marl_plugins.engine.plan.build import configure_plugins
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.fingerprint import fingerprint
from marl_plugins.engine.plan.problems import Problems
from marl_plugins.engine.plan.resume import MANIFEST, manifest_of
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.records.write import Records, cut_back
from marl_plugins.engine.runtime.batching import BatchBuilder
from marl_plugins.engine.runtime.checkpoints import Checkpoints
from marl_plugins.engine.runtime.experience import completed, forwarded, sequence_experience
from marl_plugins.engine.runtime.lifetime import plugins_started
from marl_plugins.engine.runtime.served import ServedEngines
from marl_plugins.engine.runtime.session import Session, connect
from marl_plugins.engine.runtime.trainer import Trainer

LETTERS = "0123456789abcdef"


@functools.cache
def tokenizer_of(model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


class SimulatedEngine:
    """One engine, which has a worker."""

    load, home = 0, None

    @property
    def handle(self):
        async def answered(function):
            return [{}]

        return SimpleNamespace(in_workers=SimpleNamespace(remote=answered))


class SimulatedEngines:
    """The engines of one policy, two of them, which are never busy."""

    in_flight, waiting, restarted, travelling, away = 256, 0, 0, (), ()

    def __init__(self, policy):
        self.policy, self.owner = policy.name, policy
        self.engines = [SimulatedEngine() for _ in range(2)]
        self.watchers, self.remarks = [], []

    async def pause(self):
        pass

    resume = pause

    async def generate(self, call, choose):
        assert choose(self.engines) in self.engines
        owner = self.owner if call.policy == self.policy else self.owner.world[call.policy]
        await asyncio.sleep(0)
        digest = hashlib.sha256(f"{owner.held}/{call.seed}/{call.context_ids}".encode()).hexdigest()
        tokenizer = owner.tokenizer
        ids = (
            *tokenizer.encode(digest[: max(1, min(3, call.max_tokens - 1))]),
            tokenizer.eos_token_id,
        )
        owner.said.add((call.context_ids, ids))
        return Generation(ids, (-0.5,) * len(ids), "stop", call.policy, owner.version)


class SimulatedProcesses:
    """A policy of a session: its weights are a digest."""

    followed = None

    def __init__(self, spec, args, tokenizer, world, critic, merge=True):
        self.spec, self.name, self.args, self.tokenizer, self.world = (
            spec,
            spec.name,
            args,
            tokenizer,
            world,
        )
        self.trained, self.critic, self.version = spec.trainable, critic, 0
        self.learnt = self.held = spec.model
        """What it has been trained to, and what its engines have."""
        self.batching = BatchBuilder(args, merge)
        self.longest = self.batching.longest
        self.said = set()
        """All that its engines have answered, with the context."""
        self.engines, self.owns_engines = SimulatedEngines(self), True
        self.group = SimpleNamespace(_actor_handlers=[None], duplicate_actors=1)
        self.trainer = SimpleNamespace(kl_ctl=SimpleNamespace(value=args.algo.kl.init_coef))

    async def wake(self):
        pass

    sleep = collect = wake

    async def forward(self, rows, known=()):
        return await completed(rows, sequences_of(rows, self.batching.merge), known, self._forward)

    async def _forward(self, sequences):
        batches = []
        for sequence in sequences:
            e = sequence_experience(sequence)
            seen = torch.tensor(sequence.ids, dtype=torch.float32).cumsum(0)[1:][None]
            e.action_log_probs = e.rollout_log_probs + 0.01 * torch.sin(seen) * e.action_mask
            e.kl = 0.01 * torch.cos(seen).abs() * e.action_mask
            if self.critic:
                e.values = torch.sin(2 * seen) * e.action_mask
            e.info["logprobs_diff"] = torch.zeros(1)
            batches.append(([sequence], e))
        return forwarded(self.name, [row for s in sequences for row in s.rows], batches)

    async def update(self, prepared, steps, step):
        self.check(prepared)
        learnt = hashlib.sha256(self.learnt.encode())
        for sequence, item in zip(prepared.sequences, prepared.items, strict=True):
            learnt.update(repr(sequence.ids).encode() + item.advantages.numpy().tobytes())
        self.learnt = learnt.hexdigest()
        return UPDATE | prepared.metrics

    def check(self, prepared):
        """What is trained on is what was shown and sampled, token for token."""
        for sequence in prepared.sequences:
            for row, start in zip(sequence.rows, sequence.starts, strict=True):
                action, ids = row.action, row.action.generation.ids
                assert tuple(sequence.ids[start : start + len(ids)]) == ids, row.name
                assert (
                    tuple(sequence.ids[:start])[-len(action.context_ids) :] == action.context_ids
                ), row.name
                assert row.trajectory.origin or (action.context_ids, ids) in self.said, row.name

    async def sync(self, version):
        if self.spec.follows:
            return await self.hold(await self.weights(), version)
        self.held, self.version = self.learnt, version
        return True

    async def weights(self):
        return self.world[self.spec.follows].learnt.encode()

    async def hold(self, weights, version):
        self.held, self.version = weights.decode(), version
        return True

    async def extension(self, name, method, *same, each=None):
        if each is None:
            return [True]
        return [[True] * sum(len(batch.groups) for batch in batches) for batches in each]

    def _folders(self, tag):
        return [
            self._folder(tag, part) for part in ("_actor", *(["_critic"] if self.critic else []))
        ]

    def _folder(self, tag, part):
        return Path(self.args.ckpt.path) / part / tag

    async def save(self, tag, state):
        for folder in self._folders(tag):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "weights.pt").write_text(self.learnt)

    async def further(self, extension):
        return f"{extension} of {self.learnt}".encode()

    async def give(self, pieces, version):
        await self.hold(pieces, version)

    async def save_model(self, folder=None, extension=""):
        pass

    def load(self, tag):
        self.learnt = (self._folders(tag)[0] / "weights.pt").read_text()


class SimulatedRewards(Scorer):
    """A reward model whose rewards are a function of what it is shown."""

    async def reward(self, messages):
        await asyncio.sleep(0)
        return hashlib.sha256(json.dumps(messages).encode()).digest()[0] / 64 - 2


class SimulatedSession(Session):
    """A session that starts no process."""

    def _tokenizers(self):
        found = {
            name: tokenizer_of(args.actor.model_name_or_path) for name, args in self.args.items()
        }
        for tokenizer in found.values():
            tokenizer.padding_side = "left"
        return found

    def start(self):
        run, world = self.plan.run, {}
        if isinstance(self.backend, BesideRewardModel):
            run.state(ScorerConnection).scorer = SimulatedRewards(run)
        for p in run.policies:
            critic = bool(p.trainable and self.args[p.name].critic.model_name_or_path)
            world[p.name] = SimulatedProcesses(
                p, self.args[p.name], self.chats[p.name].tokenizer, world, critic
            )
        for name, policy in world.items():
            owner = world[self.backend.engines_of(run, name)]
            policy.engines, policy.owns_engines = owner.engines, owner is policy
            policy.followed = world.get(policy.spec.follows)
            if policy.spec.served:
                policy.engines = ServedEngines(run, self.chats[name])
        self.policies = world
        connect(self)


def fresh(plan):
    """The plan as a new process would have it: nothing of a run that was made of it before is
    left."""
    again, problems = replace(plan, run=replace(plan.run, _states={})), Problems()
    configure_plugins(again, problems)
    if problems.errors:
        raise ConfigurationError(problems.errors)
    return again


def quiet(display):
    """A display that shows nothing."""
    display.console = Console(quiet=True)
    return display


def run_planned(plan, resume=False, with_changes=False):
    """Train as planned, or go on after the last saved step; the trainer."""
    plan = fresh(plan)
    run = plan.run
    output, folder = run.output.absolute(), _absolute(run.args.ckpt.path)
    with asyncio.Runner() as loop, plugins_started(loop, plan, "train"):
        session = SimulatedSession(plan)
        checkpoints = Checkpoints(
            folder, run.args.ckpt.max_num, fingerprint(plan, session.tools), session.critics, output
        )
        manifest = checkpoints.open(resume, with_changes)
        done = manifest["step"] if manifest else 0
        if manifest:
            cut_back(output, done)
        records = Records(output, run.args, describe(plan))
        session.start()
        if manifest:
            for name, policy in session.trained.items():
                policy.load(f"global_step{done}")
                policy.version = manifest["policies"][name]
            plan.plugins.restore(run, manifest["state"])
        trainer = Trainer(
            session, records, checkpoints, quiet(Display(False, list(run.recipe.roles)))
        )
        if manifest:
            trainer.restore(done, manifest.get("files", {}))
            for action in (
                a
                for step in trainer.rollouts.waiting.values()
                for t in step.trajectories
                for a in t.actions
            ):
                session.policies[action.policy].said.add(
                    (action.context_ids, action.generation.ids)
                )
        loop.run(trainer.fit(done))
        records.close()
    return trainer


def killed_after(plan, step):
    """The folders of a run as a kill in the step after `step` leaves them: later files are there,
    and are not named."""
    folder = _absolute(plan.run.args.ckpt.path)
    for later in folder.glob("manifest-*.json"):
        if int(later.stem.partition("-")[2]) > step:
            later.unlink()
    (folder / MANIFEST).write_bytes(manifest_of(folder, step).read_bytes())


def _absolute(path):
    return Path(path).absolute()


def recorded(plan, name):
    """The lines of a file of a run's folder."""
    return [json.loads(line) for line in (plan.run.output / name).read_text().splitlines()]
