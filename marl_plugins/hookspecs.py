"""The hooks: everything a plugin can change, in the order in which data passes them.

    task -> workflow -> actions -> trajectory -> scores -> credit -> select -> advantages -> grid -> update -> weight sync

A plugin is a module (or a `.py` file) with functions of these names, each marked with `@marl_plugins.hookimpl`. It may take
any subset of a hook's arguments. All hooks are called in the controller process, which holds the run; no hook is called
per token. Four kinds:

* **each**: all implementations are called, in the order in which the plugins were named.
* **first**: the first answer that is not None wins; the built-in comes last. Two plugins that both claim one are an error.
* **chain**: the value passes through the implementations in the order in which the plugins were named.
* **around**: a *first* that other plugins may wrap (`@hookimpl(wrapper=True)`, a generator function with one `yield`).

Hooks marked *async* are awaited (write them as `async def`; a plain function's answer is taken as well); the others must not be
`async def`. A wrapper around an awaited one gets and returns an awaitable.
Nothing between `marl_tasks` and `marl_sync` may block the event loop. A hook that is awaited may ask a policy of the run:
`text = await run.ask("judge", [{"role": "user", "content": question}], max_tokens=64)` (`run` is what `marl_configure` got).

Tests that any plugin has to pass are in `marl_plugins.contracts`, for its author to run.

`VERSION` is major.minor: the major changes when a plugin that worked may no longer (a hook or an argument gone, or another
meaning), the minor when something is added. A plugin may state what it was written for as `MARL_HOOKS = "1.0"`; another major is
refused, and so is a minor that is not there yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import argparse

    from marl_plugins.core.estimators import Estimator
    from marl_plugins.core.rows import Row
    from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory
    from marl_plugins.core.workflow import Call, Seen, Tool, Workflow
    from marl_plugins.run import Policy, Run
    from marl_plugins.runtime.engines import EnginePool
    from marl_plugins.runtime.policy import PolicyHost

VERSION = "1.0"

hookspec = pluggy.HookspecMarker("marl")


@hookspec
def marl_options(parser: argparse.ArgumentParser) -> None:
    """Add flags. *each*; once, before the command line is parsed; heavy imports are not allowed here.

    Name them after the plugin; they are read as `run.args.<plugin>.<name>` and may stand in a recipe's `flags:`.

    Example:

        @hookimpl
        def marl_options(parser):
            parser.add_argument("--brevity.limit", type=int, default=64, help="tokens before the penalty starts")
    """


@hookspec
def marl_configure(run: Run) -> Sequence[str] | None:
    """Complete or refuse the configuration. *each*; once, before anything is started; also for `--dry-run`: nothing may be
    opened or asked over a network here (`marl_start`).

    Returns: problems, each saying what was got, what was expected and the cure; they are shown together with all others.

    Example:

        @hookimpl
        def marl_configure(run):
            if run.args.brevity.limit < 1:
                return [f"--brevity.limit is {run.args.brevity.limit}; it must be at least 1"]
    """


@hookspec
def marl_start(run: Run) -> None:
    """Open what a training needs besides (a file, a service), and try it. *each*; once, when the whole configuration is right
    and before any process is started; not for `--dry-run`, nor for `openrlhf eval`.

    Raise `ConfigurationError` when it cannot be had.

    Example:

        @hookimpl
        def marl_start(run):
            log.open(run.output / "brevity.log")
    """


@hookspec(firstresult=True)
def marl_tasks(run: Run, split: str) -> Sequence[Task] | None:
    """The tasks of a split, `train` or `eval`. *first*; once per split at start. Built-in: the recipe's loader or data files.

    Example:

        @hookimpl
        def marl_tasks(run, split):
            return [Task(str(n), f"{n}+{n}=", str(2 * n)) for n in range(100)]
    """


@hookspec(firstresult=True)
def marl_workflow(run: Run) -> Workflow | None:
    """How roles and tools call each other on one task. *first*; once at start. Built-in: the recipe's `workflow.py`.

    Example:

        @hookimpl
        def marl_workflow(run):
            async def workflow(task, roles, tools):
                return await roles.solver(problem=task.prompt)
            return workflow
    """


@hookspec(firstresult=True)
def marl_policies(run: Run) -> Sequence[Policy] | None:
    """The trainable and frozen models. *first*; once at configuration. Built-in: the recipe's `mapping` and `policies`.

    A plugin that needs one policy more adds it as a wrapper (`recipe_policy(run, name)` in marl_plugins/run.py makes it).

    Example:

        @hookimpl
        def marl_policies(run):
            return [dataclasses.replace(p, trainable=p.name != "judge") for p in policies_of(run)]
    """


@hookspec
def marl_tools(run: Run) -> Sequence[Tool] | None:
    """Tools that roles may name. *each*; while the configuration is checked, and again at start. Built-in: `python`.

    Two tools of one name are an error.

    Example:

        @hookimpl
        def marl_tools(run):
            async def shout(call):
                return ToolResult("shout", call, call.upper(), ok=True)
            return [Tool("shout", shout, find=lambda text: re.findall(r"<shout>(.*?)</shout>", text))]
    """


@hookspec(firstresult=True)
def marl_generate(call: Call, engines: EnginePool) -> Awaitable[Generation] | None:
    """Answer one request of a role by the engines of its policy. *around, async*; once per action, and for each question of a
    plugin (`run.ask`), whose `call.role` is empty.
    Built-in: `marl_plugins.routing`, the least loaded engine.

    Raise `InfrastructureFailure` when no engine can answer; the trajectory is then left out.

    Example:

        @hookimpl(wrapper=True)
        def marl_generate():
            answer = yield
            async def timed():
                started = time.monotonic()
                generation = await answer
                waited.append(time.monotonic() - started)
                return generation
            return timed()
    """


@hookspec(firstresult=True)
def marl_score_action(action: Action, seen: Seen) -> Awaitable[float | None] | None:
    """Score one action in [0, 1], or None for a missing verdict. *first, async*; once per action, while the rollout goes on.

    `seen` is a frozen view of what the action depended on, and holds no label. Only for the last action of the recipe's last
    role is it a `SeenLast`, with the label and the system's answer; that role is scored once the workflow has ended. Write
    `action.explanation` for people. Raise `InfrastructureFailure` for a verdict that cannot be had, `RunPaused` where none can
    be had from now on. Never called in an evaluation.
    Built-in: the recipe grader's `score_action`, if it has one.

    Example:

        @hookimpl
        async def marl_score_action(action, seen):
            return 1.0 if action.generation.finish == "stop" else 0.0
    """


@hookspec(firstresult=True)
def marl_score_outcome(trajectory: Trajectory) -> Awaitable[float | None] | None:
    """Score a finished trajectory in [0, 1]. *first, async*; once per trajectory; in evaluations too, so be deterministic.

    Not called for agent failures (0 by definition) nor for infrastructure failures (never scored).
    Built-in: the recipe grader's `score_outcome`, or the function of `--reward.remote_url file.py`.

    Example:

        @hookimpl
        async def marl_score_outcome(trajectory):
            return float(trajectory.answer == trajectory.task.label)
    """


@hookspec
def marl_credit(trajectories: Sequence[Trajectory]) -> Any:
    """Turn scores into one reward (a real number) per action. *chain*; once per step.

    Each action's `reward` is its score (the outcome's, where no action was scored) when the first plugin gets it. Change
    `action.reward` in place, None to leave an action out (with the reason in `action.unscored`), and return the trajectories;
    an `async def` is awaited. Raise `RunPaused` to save the step before and end the run.

    Example:

        @hookimpl
        def marl_credit(trajectories):
            for t in trajectories:
                for a in t.actions:
                    a.reward = None if a.reward is None else a.reward - 0.01 * len(a.generation.ids)
            return trajectories
    """


@hookspec
def marl_select(rows: Sequence[Row], run: Run, steps: int) -> Sequence[Row]:  # type: ignore[empty-body]
    """Choose the rows to train on, before statistics are taken. *chain*; once per step, over all policies together.

    `steps` is K, the optimiser steps that are due; fewer than usual in an episode's last batch.

    Return the kept rows; say why by setting `row.action.left_out` on the others.

    Example:

        @hookimpl
        def marl_select(rows):
            for row in rows:
                if row.action.generation.finish == "length":
                    row.action.left_out = "truncated"
            return [row for row in rows if row.action.left_out is None]
    """


@hookspec(firstresult=True)
def marl_estimator(run: Run) -> Estimator | None:
    """The advantage estimator. *first*; once at start. Built-in: what `--algo.advantage.estimator` names, which is
    `marl_plugins.reinforce_pp` (`reinforce`, `flash_reinforce`), `.groups` (`rloo`, `reinforce_baseline`, `dr_grpo`,
    `group_norm`) or `.gae`.

    Return an `Estimator` (marl_plugins/core/estimators.py): override the stages in which it differs from plain returns.

    Example:

        @hookimpl
        def marl_estimator(run):
            class Clipped(Estimator):
                def apply(self, rows, advantages, statistics):
                    return advantages.clamp(-1, 1)
            return Clipped(gamma=run.args.algo.advantage.gamma)
    """


@hookspec(firstresult=True)
def marl_update(host: PolicyHost, rows: Sequence[Row], steps: int) -> Awaitable[dict[str, float]] | None:
    """Train one policy on its rows, whose advantages are done. *around, async*; once per policy and step, concurrently.

    Returns the host's metrics. Built-in: fill the grid, upstream's append and fit.

    Example:

        @hookimpl(wrapper=True)
        def marl_update(host, rows):
            print(f"{host.policy.name}: {len(rows)} rows")
            return (yield)
    """


@hookspec(firstresult=True)
def marl_sync(host: PolicyHost, version: int) -> Awaitable[bool] | None:
    """Bring a policy's engines to the weights of `version`; True when done. *around, async*; once per updated policy and step.

    Built-in: one transfer of the whole state on CPU, upstream's own broadcast on GPUs.

    Example:

        @hookimpl(wrapper=True)
        def marl_sync(host, version):
            print(f"{host.policy.name} -> version {version}")
            return (yield)
    """


@hookspec
def marl_log(step: int, metrics: dict[str, float]) -> None:
    """See (or add to) the metrics of a finished step before they are written. *each*; once per step.

    Example:

        @hookimpl
        def marl_log(step, metrics):
            metrics["brevity/limit"] = 64
    """


@hookspec
def marl_state() -> Any:
    """State to keep in checkpoints (JSON values), under the plugin's name. *each*; at every save.

    Example:

        @hookimpl
        def marl_state():
            return {"seen": seen}
    """


@hookspec
def marl_restore(state: Any) -> None:
    """Take back what `marl_state` returned; called only for a plugin that has saved state. *each*; on resume, before step one.

    Example:

        @hookimpl
        def marl_restore(state):
            global seen
            seen = state["seen"]
    """
