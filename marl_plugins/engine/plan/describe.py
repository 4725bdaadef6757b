"""A plan in JSON values: for `--dry-run` and `plan.json`."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

from marl_plugins.core.cases import CaseSection
from marl_plugins.core.demonstrations import WarmStartConfig
from marl_plugins.core.problems import as_json
from marl_plugins.core.recipe.schema import Recipe
from marl_plugins.core.recipe.tasks import FileTasks
from marl_plugins.core.redaction import shown_flag, shown_url
from marl_plugins.core.run import is_partial, queue_size
from marl_plugins.engine.hosts import upstream_cli
from marl_plugins.engine.hosts.devices import engine_gpus, training_gpus
from marl_plugins.engine.plan.devices import needed_cpus, needed_devices
from marl_plugins.engine.plan.estimate import estimate
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.rehearsed import RehearsalResult
from marl_plugins.engine.plan.resolve_plugins import is_from_plugin

PENALTIES = ("reward.overlong_buffer_len", "reward.stop_properly_penalty_coef")
"""Upstream's flags that change rewards after credit."""


def describe(plan: Plan) -> dict[str, Any]:
    """Returns the resolved plan."""
    run = plan.run
    return {
        "recipe": run.recipe.name,
        "device": run.device,
        "openrlhf": upstream_cli.upstream_version(),
        "plugins": plan.plugins.versions(),
        **_given(without=plan.options.without),
        "roles": {
            name: {
                **players(run.recipe, name),
                **_given(prompt=role.prompt and str(run.folder / role.prompt)),
                "tools": role.tools,
                **_given(calls=role.calls),
                "max_turns": role.max_turns,
                "max_new_tokens": run.longest_answer(name),
            }
            for name, role in run.recipe.roles.items()
        },
        "policies": {
            p.name: {
                "model": p.shown_model,
                **_given(endpoint=p.served and shown_url(p.served.address)),
                "trainable": p.trainable,
                "follows": p.follows or None,
                **({"train_every": p.train_every} if p.train_every > 1 else {}),
                **_given(template=dict(p.template)),
                "max_len": run.policy_args[p.name].data.max_len,
                "engines": run.policy_args[p.name].vllm.num_engines,
                "ranks": training_gpus(run.policy_args[p.name]) if p.trainable else 0,
                "zero_stage": run.policy_args[p.name].ds.zero_stage,
                "learning_rate": run.policy_args[p.name].actor.adam.lr,
                "kl": run.policy_args[p.name].algo.kl.init_coef,
                "critic": run.policy_args[p.name].critic.model_name_or_path
                if p.trainable
                else None,
                "flags": {name: shown_flag(name, value) for name, value in p.flags.items()},
            }
            for p in run.policies
        },
        "devices": needed_devices(run),
        "devices_together": sum(needed_devices(run).values()),
        **_given(
            cpus=run.device != "cpu" and needed_cpus(run),
            estimate=estimate(plan),
        ),
        "tasks": plan.counted,
        **_tasks(plan),
        "steps": _steps(plan),
        **({"async": _lag(plan)} if queue_size(run.args) else {}),
        "step": _step(plan),
        "lengths": {role: lengths.line for role, lengths in plan.lengths.items()},
        "estimator": _estimator(plan),
        "scores": _scorers(plan),
        "rewards": _reward_range(plan),
        **({"warm_start": warm.model_dump()} if (warm := run.section(WarmStartConfig)) else {}),
        **plugin_descriptions(plan),
        "output": str(run.output),
        "checkpoints": run.args.ckpt.path,
        "flags": {
            name: shown_flag(name, flag_value(run.args, name))
            for name in sorted(run.given)
            if not name.startswith("policy.")
        },
        "warnings": [as_json(warning) for warning in run.warnings],
    }


def _given(**values: Any) -> dict[str, Any]:
    """Returns the parts of a plan that are there."""
    return {name: value for name, value in values.items() if value}


def players(recipe: Recipe, role: str) -> dict[str, Any]:
    """Returns who plays a role: `policy`, or `policies` where there are several."""
    names = recipe.policies_of(role)
    return {"policy": names[0]} if len(names) == 1 else {"policies": list(names)}


def _reward_range(plan: Plan) -> str:
    """Describes what rewards look like after credit."""
    then = [f"marl_credit of {name}" for name in plan.plugins.owners("marl_credit")]
    then += [f"--{name}" for name in PENALTIES if name in plan.run.given]
    return f"the scores, in [0, 1]{', then ' if then else ''}{', '.join(then)}"


def _tasks(plan: Plan) -> dict[str, Any]:
    """Describes where the tasks come from, with the fields that were taken, and the first one;
    nothing of a hub's, read at the start."""
    shown: dict[str, Any] = {
        "task_source": {split: _source(plan, split) for split in plan.counted if split != "steps"}
    }
    if plan.counted.get("train"):
        first = plan.tasks("train")[0]
        shown["first_task"] = {
            "id": first.id,
            "prompt": shortened(first.prompt),
            "label": None if first.label is None else shortened(str(first.label)),
            "metadata": shortened(", ".join(first.metadata)),
        }
    return shown


def _source(plan: Plan, split: str) -> str:
    """Describes where the tasks of a split come from."""
    tasks, owners = plan.tasks(split), plan.plugins.owners("marl_tasks")
    if isinstance(tasks, FileTasks):
        return f"{tasks.path}: {tasks.fields}"
    if owners:
        return f"plugin {' or '.join(owners)}"
    args, loader = plan.run.args, plan.run.recipe.tasks
    if loader and not (split == "eval" and args.eval.dataset):
        return f"{plan.run.folder / loader}: load({split!r})"
    return (args.eval.dataset if split == "eval" else args.data.prompt_dataset) or "none"


def _step(plan: Plan) -> dict[str, int]:
    """The size of a full step; of one with all tasks, where there are fewer than a step takes."""
    args = plan.run.args
    tasks = min(args.rollout.batch_size, plan.counted.get("train", args.rollout.batch_size))
    trajectories = tasks * args.rollout.n_samples_per_prompt
    return {
        "tasks": tasks,
        "trajectories": trajectories,
        "optimiser_steps": trajectories // args.train.batch_size,
        "trajectories_per_optimiser_step": args.train.batch_size,
    }


def _steps(plan: Plan) -> str:
    """Describes how the number of training steps comes about."""
    run, counted = plan.run, plan.counted
    if "steps" not in counted:
        return "known when the tasks are read, at the start"
    tasks = counted["train"]
    size = run.args.rollout.batch_size
    episodes = run.args.train.num_episodes
    steps, rest = len(run.episode_steps(tasks)), tasks % size
    text = f"{tasks} tasks / {size} = {steps} steps an episode"
    if rest and steps > tasks // size:
        text += f" (the last with {rest} tasks)"
    elif rest:
        text += (
            f" ({rest} tasks are left over each time: fewer trajectories than --train.batch_size)"
        )
    text += f" x {episodes} episodes = {steps * episodes} steps"
    return (
        text
        if counted["steps"] == steps * episodes
        else f"{text}, ended after {counted['steps']} (--max_steps)"
    )


def _lag(plan: Plan) -> dict[str, Any]:
    """Describes what rollouts during updates do: which weights sample a row, and the devices that
    work at the same time."""
    lag, policies = queue_size(plan.run.args), plan.run.policy_args
    first = "steps 1 and 2" if lag == 1 else f"steps 1 to {lag + 1}"
    begun = "begun" if is_partial(plan.run.args) else "sampled"
    return {
        "versions": f"a step is {begun} by the weights of {lag + 1} steps before it ({first}: by "
        "the first)",
        **(
            {"changes": "answers go on by newer weights as soon as these are there"}
            if is_partial(plan.run.args)
            else {}
        ),
        "devices": {
            p.name: {
                "engines": engine_gpus(policies[p.name]),
                "training": training_gpus(policies[p.name]),
            }
            for p in plan.run.policies
            if p.trainable
        },
    }


def _estimator(plan: Plan) -> str:
    """Describes which estimator trains: a built-in one by its name, or a plugin's by its class."""
    estimator = plan.plugins.call_while_planning("marl_estimator", run=plan.run)
    name = type(estimator).__name__
    if not is_from_plugin(estimator):
        plugin = type(estimator).__module__
        return f"{plan.run.args.algo.advantage.estimator} ({name} of {plugin})"
    return f"{name} of plugin {' or '.join(plan.plugins.owners('marl_estimator'))}"


def _scorers(plan: Plan) -> dict[str, str]:
    """Describes who scores actions and outcomes."""
    run = plan.run
    grader = run.folder / run.recipe.grader if run.recipe.grader else None
    by_grader = {
        kind: f"{grader}: {kind}"
        for kind in ("score_action", "score_outcome")
        if hasattr(run.grader_module, kind)
    }
    if run.state(RehearsalResult).by_role:
        by_grader["score_outcome"] += ", one per role"
    remote = run.args.reward.remote_url
    return {
        "actions": ", ".join(
            [
                *plan.plugins.owners("marl_score_action", run),
                *(["cases"] if run.section(CaseSection) else []),
            ]
        )
        or by_grader.get("score_action", "not scored separately; each gets the outcome's score"),
        "outcomes": ", ".join(plan.plugins.owners("marl_score_outcome", run))
        or by_grader.get(
            "score_outcome",
            f"{shown_flag('reward.remote_url', remote)}: reward_func" if remote else "not scored",
        ),
    }


def plugin_descriptions(plan: Plan) -> dict[str, Any]:
    """Returns the parts of the plan that plugins describe."""
    answers = plan.plugins.call_while_planning("marl_describe", run=plan.run)
    return {name: value for answer in answers for name, value in answer.items()}


def first_lines(plan: Plan) -> list[str]:
    """Returns what plugins say at the start of a run: the texts among what they describe."""
    return [
        f"{name}: {value}"
        for name, value in plugin_descriptions(plan).items()
        if isinstance(value, str)
    ]


def shortened(text: str, most: int = 200) -> str:
    """Returns a text on one line, its end left out where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def flag_value(args: SimpleNamespace, name: str) -> Any:
    """Returns a flag's value in nested arguments, as JSON; None where an estimator or engine has no
    such flag."""
    value: Any = args
    for part in name.split("."):
        value = getattr(value, part, None)
    return (
        copy.copy(value)
        if isinstance(value, str | int | float | bool | list | type(None))
        else str(value)
    )
