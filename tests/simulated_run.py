"""A training run without processes: the real trainer, rollout, records and display over simulated
engines and policies.

What fails, and when, is the caller's: `outcome(trajectory)` is the verifier, `answer(call)` comes
before every generation.
"""

import asyncio
from types import SimpleNamespace

import torch
from simulated import CharacterChat, simulated_engine

from marl_plugins.core.estimators import Estimator
from marl_plugins.core.policy import Policy
from marl_plugins.core.sequences import sequences_of
from marl_plugins.core.trajectory import Task
from marl_plugins.core.workflow import RoleSpec, Sampling
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.records.write import Records
from marl_plugins.engine.runtime.experience import completed, forwarded, sequence_experience
from marl_plugins.engine.runtime.roles import Cast
from marl_plugins.engine.runtime.rollout import Rollout
from marl_plugins.engine.runtime.trainer import Trainer

UPDATE = {
    "policy_loss": 0.5,
    "actor_lr": 1e-4,
    "actor_grad_norm": 2.0,
    "kl": 0.01,
    "optimiser_steps": 1.0,
    "fill_rows": 0.0,
}


DEFAULTS = {"queue": 0, "delays": False}
"""What a test may change for every run that the helpers of other tests make: rollouts that wait,
and answers that take a while."""


class SimulatedPolicy:
    """A policy whose updates change nothing but its version."""

    trained, owns_engines = True, True
    args = SimpleNamespace(ds=SimpleNamespace(param_dtype="fp32"))
    engines = SimpleNamespace(restarted=0, remarks=[])

    def __init__(self, name, **more):
        self.name = name
        self.spec = Policy(name, "tiny", **more)
        self.version = 0
        self.saved = []
        self.computed = []
        """The rows of each forward pass, by name."""

    async def wake(self):
        pass

    collect = wake

    async def sleep(self):
        pass

    async def forward(self, rows, known=()):
        return await completed(rows, sequences_of(rows), known, self.compute)

    async def compute(self, sequences):
        self.computed.append([row.name for sequence in sequences for row in sequence.rows])
        batches = []
        for sequence in sequences:
            experience = sequence_experience(sequence)
            experience.action_log_probs = experience.rollout_log_probs
            experience.kl = torch.zeros_like(experience.rollout_log_probs)
            experience.info["logprobs_diff"] = torch.zeros(1)
            batches.append(([sequence], experience))
        return forwarded(
            self.name, [row for sequence in sequences for row in sequence.rows], batches
        )

    async def save(self, tag, state):
        self.saved.append(state["step"])


class SimulatedPlugins:
    """The built-in answers to the hooks that a trainer and a rollout call, unless a named plugin
    answers."""

    def __init__(self, policies, outcome, answer, names=()):
        self.named = Plugins(names)
        engine = simulated_engine(DEFAULTS["delays"])

        async def generate(run, call, engines):
            answer(call)
            given = await engine(call)
            return type(given)(
                given.ids, given.logprobs, given.finish, call.policy, policies[call.policy].version
            )

        async def update(run, policy, prepared, steps, step):
            return dict(UPDATE)

        async def sync(run, policy, version):
            policy.version = version
            return True

        async def score(trajectory):
            return outcome(trajectory)

        self.hook = SimpleNamespace(
            marl_generate=generate,
            marl_score_action=lambda run, action, seen: None,
            marl_score_outcome=lambda run, trajectory: score(trajectory),
            marl_update=update,
            marl_sync=sync,
            marl_log=lambda run, step, metrics: None,
        )
        for hook in vars(self.hook):
            if self.named.claims(hook):
                setattr(self.hook, hook, getattr(self.named.hook, hook))

        self.parts = []
        """Functions of the step, each a plugin's `marl_step`."""

    def in_order(self, hook):
        made = self.parts if hook == "marl_step" else []
        named = [impl for impl in self.named.in_order(hook) if impl.plugin_name in self.named.names]
        return [
            *named,
            *(
                SimpleNamespace(plugin_name=f"plugin {n}", argnames=("step",), function=part)
                for n, part in enumerate(made)
            ),
        ]

    async def chain(self, name, value, check=None, **arguments):
        return (
            await self.named.chain(name, value, check, **arguments)
            if self.named.claims(name)
            else value
        )

    def owners(self, hook, run=None):
        return self.named.owners(hook)

    @property
    def labels(self):
        own = {f"plugin {n}": f"plugin {n}" for n in range(len(self.parts))}
        return self.named.labels | own

    def state(self, run):
        return self.named.state(run)

    def files(self, run):
        return []


async def ask_once(task, roles, tools):
    return await roles.a(q=task.prompt)


def simulated_trainer(
    folder,
    outcome,
    answer=lambda call: None,
    steps=6,
    eval_steps=1,
    samples=2,
    estimator=None,
    tasks=4,
    workflow=ask_once,
    best_metric_key="none",
    max_idle_steps=3,
    tools=None,
    plugins=(),
    queue=None,
    max_steps=None,
    seed=1,
    train_tasks=None,
):
    """A trainer of a system with one role `a` on a policy `p`, ten held-out tasks; `tasks` and
    `samples` are those of a step."""
    queue = DEFAULTS["queue"] if queue is None else queue
    args = SimpleNamespace(
        train=SimpleNamespace(
            **{"seed": seed, "num_episodes": 1},
            **{
                "async_enable": queue > 0,
                "async_queue_size": queue,
                "partial_rollout_enable": False,
            },
        ),
        algo=SimpleNamespace(dynamic_filtering_enable=False),
        rollout=SimpleNamespace(n_samples_per_prompt=samples, batch_size=tasks),
        eval=SimpleNamespace(steps=eval_steps, n_samples_per_prompt=1, temperature=0.0),
        ckpt=SimpleNamespace(save_steps=-1, disable_ds=False, best_metric_key=best_metric_key),
        logger=SimpleNamespace(
            logging_steps=1, tensorboard_dir=None, wandb=SimpleNamespace(key=None)
        ),
    )
    states = {}
    run = SimpleNamespace(
        grader_module=None,
        section=lambda kind: None,
        scorers=[],
        state=lambda kind: states.setdefault(kind, kind()),
        args=args,
        recipe=SimpleNamespace(
            limits=SimpleNamespace(task_seconds=60.0), roles={"a": None}, populations={}
        ),
        policies=[],
        policy_args={},
        max_steps=max_steps,
        max_idle_steps=max_idle_steps,
        episode_steps=lambda tasks: [1] * steps,
    )
    policies = {"p": SimulatedPolicy("p")}
    plugins = SimulatedPlugins(policies, outcome, answer, plugins)
    run.scorers += [f"plugin {name}" for name in plugins.owners("marl_score_action")]
    chat = CharacterChat()
    chat.tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: chat.text(ids))
    role = RoleSpec(
        "a", "p", lambda f: [{"role": "user", "content": f["q"]}], chat, Sampling(1.0, 1.0, 8, 100)
    )
    cast = Cast({"a": [role]})
    train_tasks = train_tasks or [Task(f"t{n}", f"q{n}", "l") for n in range(tasks * steps)]
    session = SimpleNamespace(
        plan=SimpleNamespace(run=run, plugins=plugins),
        policies=policies,
        trained=policies,
        backend=SimpleNamespace(metrics=dict),
        cast=cast,
        train_tasks=train_tasks,
        tasks_by_id={task.id: task for task in train_tasks},
        eval_tasks=[Task(f"e{n}", f"held {n}", "l") for n in range(10)],
        estimator=estimator or Estimator(),
        rollout=Rollout(run, plugins, workflow, cast, tools or {}, {"p": None}),
    )
    trainer = Trainer(session, Records(folder, args, {}), None, Display(False, ["a"]))

    async def save(step):
        await policies["p"].save("", {"step": step})
        trainer.saving.last = step

    trainer.saving.save = save
    return trainer


def simulated_run(folder, outcome, **settings):
    """Train to the end; the trainer."""
    trainer = simulated_trainer(folder, outcome, **settings)
    asyncio.run(trainer.fit(0))
    return trainer
