"""The hooks: everything a plugin can change, in the order in which data passes them.

    task -> workflow -> actions -> trajectory -> scores -> exchange -> credit -> select -> forward
         -> advantages -> layout -> update -> sync

A plugin is a module (or a `.py` file) with functions of these names, each marked with
`@marl_plugins.hookimpl`. It may take any subset of a hook's arguments. Every hook that is called
after the run exists takes `run`. All hooks are called in the controller process, which holds the
run; no hook is called per token. Four kinds:

* **each**: all implementations are called, in the order in which the plugins were named.
* **first**: the first answer that is not None wins; the built-in comes last. Two plugins that both
  claim one are an error.
* **chain**: the value passes through the implementations in the order in which the plugins were
  named.
* **around**: a *first* that other plugins may wrap (`@hookimpl(wrapper=True)`, a generator function
  with one `yield`).

Hooks marked *async* are awaited (write them as `async def`; a plain function's answer is accepted
too); the others must not be `async def`. A wrapper around an awaited hook receives an awaitable and
returns one. Nothing between `marl_tasks` and `marl_sync` may block the event loop. A hook of a step
(`marl_step` to `marl_sync`) may ask a
policy of the run: `text = await run.ask("judge", [{"role": "user", "content": question}],
max_tokens=64)`.

What a plugin keeps from one hook to the next belongs to the run, not to the module:
`run.state(Baselines)` is the run's one `Baselines()`. `marl_plugins.core.processes` describes what
hooks are given of a running policy.

What was sampled stays as it was: after each plugin's `marl_exchange`, `marl_credit`,
`marl_credit_step` and `marl_select` it is compared. If an action, its ids, log-probs or context
were added, dropped, repeated or replaced, or a trajectory was in a way that the hook does not
allow, the run is saved and ends, naming the plugin. Any other exception of a hook ends a run in the
same way, even `sys.exit`, with exit code 1.

Choose the hook by what you need: `marl_credit` gets one trajectory or more, `marl_credit_step` the
whole step, for which the run then waits. Mark an implementation that only some runs need with
`@marl_plugins.applies_if(condition)`: where `condition(run)` is false, it is not called, and the
run does not wait for it.

`marl_plugins.contracts` has the tests that every plugin has to pass, for its author to run.

`VERSION` is major.minor: the major changes when a plugin that worked may no longer (a hook or an
argument removed, or another meaning), the minor when something is added. A plugin may state the
version that it was written for, as `MARL_HOOKS = "7.0"`; another major is refused, and so is a
minor that does not exist yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import pluggy

if TYPE_CHECKING:
    import argparse
    from pathlib import Path
    from types import SimpleNamespace

    from pydantic import JsonValue

    from marl_plugins.core.command import Command
    from marl_plugins.core.estimators import Estimator
    from marl_plugins.core.exchange import Exchange
    from marl_plugins.core.findings import Finding
    from marl_plugins.core.policy import Policy
    from marl_plugins.core.problems import Problem
    from marl_plugins.core.process_backend import ProcessBackend
    from marl_plugins.core.processes import Engines, PolicyProcesses, PreparedRows
    from marl_plugins.core.roles import Call
    from marl_plugins.core.rows import Row
    from marl_plugins.core.run import Run
    from marl_plugins.core.run_plan import RunPlan
    from marl_plugins.core.scoring import Outcome, Seen
    from marl_plugins.core.section import Section
    from marl_plugins.core.steps import Step, StepPart
    from marl_plugins.core.table import Table
    from marl_plugins.core.tools import Tool
    from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory
    from marl_plugins.core.workflow import Workflow

VERSION = "7.0"

Purpose = Literal["train", "evaluate", "judge"]
"""What a run is started for: `openrlhf train`; `openrlhf eval`, which scores outcomes only;
`openrlhf export --table rejudged`, which scores recorded actions and starts no engines."""

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Chained: TypeAlias = Sequence[T] | Awaitable[Sequence[T]]
"""What a plugin of a chain gives to the next one, at once or awaited."""


@dataclass(frozen=True)
class Kind:
    """The way in which a hook's implementations are called.

    Args:
        name: See the module's text.
        awaited: Whether answers are awaited.
        own: Whether each plugin is asked for something of its own, so that no other may wrap it.
    """

    name: Literal["each", "first", "chain", "around"]
    awaited: bool = False
    own: bool = False


def hook(
    name: Literal["each", "first", "chain", "around"], *, awaited: bool = False, own: bool = False
) -> Callable[[F], F]:
    """Declare a hook and its kind; `KINDS` collects them."""

    def declare(function: F) -> F:
        function.__dict__["kind"] = Kind(name, awaited, own)
        declared: F = pluggy.HookspecMarker("marl")(
            function, firstresult=name in ("first", "around")
        )
        return declared

    return declare


@hook("each", own=True)
def marl_options(parser: argparse.ArgumentParser) -> None:
    """Add flags. *each*; once, before the command line is parsed: no heavy imports.

    Name them after the plugin: `run.args.<plugin>.<name>`. They may stand in a recipe's `flags:`.
    The types `at_least(1)`, `above(0)`, `between(0, 1)` and `recipe_file` report wrong values with
    their place. In a mutually exclusive group, a flag on the command line replaces the recipe's.

        @hookimpl
        def marl_options(parser):
            about = "tokens before the penalty starts"
            parser.add_argument("--brevity.limit", type=at_least(1), default=64, help=about)
    """


@hook("each", own=True)
def marl_commands() -> Sequence[Command] | None:
    """The plugin's commands: `openrlhf NAME ...`. *each*; when a command is not built in, of all
    plugins that are found (shipped, entry points) or named with `--plugin`; no heavy imports.

    `Command(name, usage, about, main)`; `main(words)` gets the words after the name and returns the
    exit code.

        @hookimpl
        def marl_commands():
            about = "mean length by role of a run's records"
            return [Command("brevity", "RUN", about, show_lengths)]
    """


@hook("each", own=True)
def marl_tables() -> Mapping[str, Table] | None:
    """Tables of `openrlhf export RUN --table NAME`, by name. *each*; of all plugins that are found
    or named; no heavy imports.

    A `Table` makes rows, and numbers to be printed, of a run's records (`RunReader`), a selection
    (`Filter`), and further words of the command line.

        @hookimpl
        def marl_tables():
            return {"lengths": Table({"role": "string", "tokens": "int64"}, rows_of_lengths)}
    """


@hook("each", own=True)
def marl_sections() -> Mapping[str, type[Section]] | None:
    """The recipe's keys that the plugin owns, each with its model. *each*; when a recipe is read;
    no heavy imports. [Below a key](#a-section-of-the-recipe) everything is the plugin's.

        class Brevity(Section):
            words: int = pydantic.Field(64, ge=1)

        @hookimpl
        def marl_sections():
            return {"brevity": Brevity}
    """


@hook("each")
def marl_rehearse(plan: RunPlan) -> Sequence[Problem | str] | None:
    """Try the run without any model. *each*; once, when recipe, flags and tasks are right, before
    `marl_configure`; also for `--dry-run`: start nothing and use no network.

    Returns: problems, as `marl_configure` does. The built-in one runs the workflow with invented
    answers.

        @hookimpl
        def marl_rehearse(plan):
            longest = max(len(task.prompt.split()) for task in plan.tasks("train"))
            if longest > plan.run.section(Brevity).words:
                got = f"a task of {longest} words is longer than an answer may be"
                return [Problem("brevity.task", got=got, severity="warning")]
    """


@hook("each")
def marl_configure(run: Run) -> Sequence[Problem | str] | None:
    """Check the configuration. *each*; once, before anything is started; also for `--dry-run`: open
    nothing and use no network (`marl_start` is for that).

    Returns: problems, which are reported together with all others. One of severity `warning`
    prevents nothing; a plain sentence is an error of code `other`.

        @hookimpl
        def marl_configure(run):
            limit, longest = run.args.brevity.limit, run.args.data.max_len
            if limit > longest:
                where, got = at(flag="brevity.limit"), f"{limit} is above --data.max_len {longest}"
                return [Problem("brevity.limit", where, got, fix="lower it", severity="warning")]
    """


@hook("each", own=True)
def marl_describe(run: Run) -> Mapping[str, JsonValue] | None:
    """Parts of the plan, by name, as JSON values. *each*; when the configuration is right. They are
    in `--dry-run` and `plan.json`; a text is also printed when a run starts.

        @hookimpl
        def marl_describe(run):
            limit = run.args.brevity.limit
            return {"brevity": f"answers of more than {limit} tokens are penalised"}
    """


@hook("each", own=True)
def marl_doctor(run: Run | None, args: SimpleNamespace, static: bool) -> Sequence[Finding] | None:
    """Lines of `openrlhf doctor`: whether what the plugin needs exists, and works. *each*; of all
    plugins that are built in, shipped, or named.

    `run` is the checked run of `--recipe` or `--plugin`, None without them; `args` are the plugin's
    flags on doctor's own command line (`args.brevity.limit`). With `static`, start nothing and send
    no request.

        @hookimpl
        def marl_doctor(run, static):
            return [check_extra("brevity", ["tiktoken"], "counting words", used=run is not None)]
    """


@hook("each", awaited=True, own=True)
def marl_start(run: Run, purpose: Purpose) -> Awaitable[None] | None:
    """Open what the plugin needs (a file, a service), and try it. *each, async*; once, when the
    configuration is right and before any process is started; not for `--dry-run`.

    Raise `ConfigurationError` when something is unavailable. The event loop then stands still until
    all processes have started, which takes minutes. `marl_stop` runs in another task: don't open a
    task group here.

        @hookimpl
        def marl_start(run, purpose):
            run.output.mkdir(parents=True, exist_ok=True)
            run.state(Log).file = (run.output / f"brevity-{purpose}.log").open("a")
    """


@hook("each", awaited=True, own=True)
def marl_stop(run: Run) -> Awaitable[None] | None:
    """Close what `marl_start` or a later hook opened. *each, async*; once, after the last other
    hook and the end of the engines, in reverse order of the plugins, also when the run or
    `marl_start` failed.

        @hookimpl
        async def marl_stop(run):
            if file := run.state(Log).file:
                file.close()
    """


@hook("first")
def marl_tasks(run: Run, split: str) -> Sequence[Task] | None:
    """The tasks of a split, `train` or `eval`. *first*; once per split, when the configuration is
    checked (a hub's: when a run starts). Built-in: the recipe's loader or data files.

        @hookimpl
        def marl_tasks(run, split):
            return [Task(str(n), f"{n}+{n}=", str(2 * n)) for n in range(100)]
    """


@hook("first")
def marl_workflow(run: Run) -> Workflow | None:
    """Returns the workflow: how roles and tools call each other on one task. *first*; when the
    configuration is checked, and again at start. Built-in: the recipe's `workflow.py`, graph or
    program.

    The check runs it on invented answers, in another thread, before `marl_start`, with the
    [variants](recipes.md#variants) of its attribute `variants`. A workflow from a file that is not
    Python is a `WorkflowFile` of `marl_plugins.engine.plan.workflow_file`.

        @hookimpl
        def marl_workflow(run):
            async def workflow(task, roles, tools):
                return await roles.solver(problem=task.prompt)
            return workflow
    """


@hook("first")
def marl_policies(run: Run) -> Sequence[Policy] | None:
    """The trainable and frozen models. *first*; once at configuration. Built-in: the recipe's
    `mapping` and `policies`.

    Add one more in a wrapper; `run.recipe_policy(name)` makes the one that the recipe describes. A
    policy that a flag excludes from the run has that flag as `excluded_by`.

        @hookimpl(wrapper=True)
        def marl_policies(run):
            return [dataclasses.replace(p, trainable=p.name != "judge") for p in (yield)]
    """


@hook("first")
def marl_processes(run: Run) -> ProcessBackend | None:
    """Returns the back-end that gives policies their training processes. *first*; once at
    configuration, when the policies are known. Built-in: every trained policy has its own processes
    and devices for the whole run (`OwnProcesses`).

    It states what it needs of the cluster before anything starts; import Ray in its `open`.

        @hookimpl
        def marl_processes(run):
            return SharedSeats(run.args.process_groups.seats)
    """


@hook("each", own=True)
def marl_extensions(run: Run) -> Sequence[str] | None:
    """Classes that run inside every training process: subclasses of `Extension`, each named as
    "module:Class". *each*; once, before processes start; heavy imports belong in that module.

    An extension wraps the training step, adds metrics after a fit, and keeps state in checkpoints.
    The controller calls its methods by name: `await policy.extension("WeightAverage", "save",
    folder)`.

        @hookimpl
        def marl_extensions(run):
            return ["my_package.averages:WeightAverage"]
    """


@hook("each", own=True)
def marl_weights(run: Run) -> Mapping[str, str] | None:
    """Further weights of every trained policy, which an extension keeps: the name of its class, by
    a name. *each*; once, before processes start.

    They are evaluated after the weights, with metrics NAME/outcome and so on, and saved in
    `<ckpt.output_dir>/NAME/POLICY`. The extension puts them into the model meanwhile (`in_place`).

        @hookimpl
        def marl_weights(run):
            return {"average": "WeightAverage"}
    """


@hook("each")
def marl_tools(run: Run) -> Sequence[Tool] | None:
    """Tools that roles may name, none twice. *each*; while the configuration is checked, and again
    at start. Built-in: `python`, and those of the recipe's `tools:`.

        @hookimpl
        def marl_tools(run):
            async def shout(call):
                return ToolResult("shout", call.text, call.text.upper(), ok=True)
            return [Tool("shout", shout, find=lambda text: re.findall(r"<shout>(.*?)</shout>",
            text))]
    """


@hook("chain")
def marl_batch(  # type: ignore[empty-body]
    tasks: Sequence[Task], run: Run, step: int, all_tasks: Sequence[Task]
) -> Sequence[Task]:
    """Choose the tasks of a training step. *chain*; once per step, before its rollout begins.

    Return as many as `tasks`, none twice. The choice must depend on the run's seed, the step and
    saved state alone: a resumed run repeats its steps.

        @hookimpl
        def marl_batch(tasks, step, all_tasks):
            easy = [task for task in all_tasks if task.metadata["level"] == "easy"]
            return tasks if step > 50 else random.Random(step).sample(easy, len(tasks))
    """


@hook("each", own=True)
def marl_step(run: Run, step: Step) -> StepPart | None:
    """A plugin's part of one training step. *each*; for every step, before its rollout begins.

    A `StepPart` sees trajectories as they arrive, may work during the rollout, sees the selected
    rows, may change what policies are updated with, and has metrics. It lasts for the step. With
    `--train.async_enable` those of several steps exist at the same time, and what one keeps of a
    rollout is saved with it (`record`, `restore`).

        @hookimpl
        def marl_step(run, step):
            class Longest(StepPart):
                seconds = 0.0
                def arrived(self, trajectory):
                    self.seconds = max(self.seconds, trajectory.seconds)
                def metrics(self):
                    return {"longest/seconds": self.seconds}
            return Longest()
    """


@hook("around", awaited=True)
def marl_generate(run: Run, call: Call, engines: Engines) -> Awaitable[Generation] | None:
    """Answer one request of a role by the engines of its policy. *around, async*; once per action,
    and for each question of a plugin (`run.ask`), whose `call.role` is empty. Built-in:
    `marl_plugins.builtin.routing`, the least loaded engine.

    Raise `InfrastructureFailure` when no engine can answer.

        @hookimpl(wrapper=True)
        def marl_generate(run):
            answer = yield
            async def timed():
                started = time.monotonic()
                generation = await answer
                run.state(Waits).seconds.append(time.monotonic() - started)
                return generation
            return timed()
    """


@hook("first", awaited=True)
def marl_score_action(run: Run, action: Action, seen: Seen) -> Awaitable[float | None] | None:
    """Score one action in [0, 1], or None for a missing verdict. *first, async*; once per action,
    while the rollout continues; never in an evaluation. Built-in: the recipe grader's
    `score_action`.

    `seen` is a frozen view of what the action depended on. Only for the last action of the recipe's
    last role, once the workflow has ended, it is a `SeenLast`, with the label and the answer. Write
    `action.explanation` for people. Raise `InfrastructureFailure` for an unavailable verdict,
    `RunPaused` if all further ones are unavailable too. A plain function that returns None leaves
    the action to the next implementation; None from an awaitable is a missing verdict.

        @hookimpl
        async def marl_score_action(action, seen):
            return 1.0 if action.generation.finish == "stop" else 0.0
    """


@hook("first", awaited=True)
def marl_score_outcome(run: Run, trajectory: Trajectory) -> Awaitable[Outcome] | None:
    """Score a finished trajectory in [0, 1]. *first, async*; once per trajectory, except for
    failures; in evaluations too, so be deterministic. Built-in: the recipe grader's
    `score_outcome`, or the function of `--reward.remote_url file.py`.

    Returns one number for the team, or [one per role](recipes.md#outcomes-per-role). None as in
    `marl_score_action`.

        @hookimpl
        async def marl_score_outcome(trajectory):
            return float(trajectory.answer == trajectory.task.label)
    """


@hook("chain", awaited=True)
def marl_exchange(  # type: ignore[empty-body]
    trajectories: Sequence[Trajectory], run: Run, exchange: Exchange
) -> Chained[Trajectory]:
    """Take whole trajectories out of a step, or bring others in, between its rollout and credit.
    *chain, async*; once per step, with all of its trajectories; engines and tools still answer.

    Return the list that goes on to credit; a trajectory that is not in it needs a reason:
    `exchange.leave_out(trajectory, reason)`.

    `exchange.write(trajectory)` gives its words as JSON values, for other runs. `await
    exchange.read(record, origin)` replays such a record through the run's own workflow and graders.
    It returns a trajectory with `Trajectory.origin`, or raises `RefusedRecord`. `await
    exchange.again(trajectory, origin)` does the same with a trajectory of an earlier step, ids and
    log-probs included. `await exchange.ask(task)` plays any task now, beside the step. Keep what
    was taken in on disk, by step: a resumed run repeats its steps.

        @hookimpl
        async def marl_exchange(trajectories, exchange):
            for trajectory in trajectories:
                if not trajectory.infrastructure_failure:
                    outbox.put(exchange.write(trajectory))
            return [*trajectories, *[await exchange.read(record, "alice") for record in
            inbox.take(4)]]
    """


@hook("chain", awaited=True)
def marl_credit(  # type: ignore[empty-body]
    trajectories: Sequence[Trajectory], run: Run
) -> Chained[Trajectory]:
    """Turn scores into one reward (a real number) per action, of one trajectory or more.
    *chain, async*; every trajectory passes once: a step's together or, where no plugin needs the
    whole step, as they arrive.

    The first plugin gets each action's score, or its role's outcome, as `reward`. Change it in
    place, None to leave an action out, and return the same trajectories. `action.unscored` is for
    failures of infrastructure alone. `action.add_reward(term, value)` also records the term;
    `action.notes` is for anything else. Raise `RunPaused` to save the step before and end the run.

        @hookimpl
        def marl_credit(trajectories):
            for action in (a for t in trajectories for a in t.actions if a.reward is not None):
                action.add_reward("brevity", -0.01 * len(action.generation.ids))
            return trajectories
    """


@hook("chain", awaited=True)
def marl_credit_step(  # type: ignore[empty-body]
    trajectories: Sequence[Trajectory], run: Run
) -> Chained[Trajectory]:
    """Change rewards by all trajectories of a step together. *chain, async*; once per step, after
    `marl_credit` of all plugins. Otherwise as `marl_credit`.

    A run with such a plugin waits for whole steps: `--streaming.gradients` is refused with it.

        @hookimpl
        def marl_credit_step(trajectories):
            rewarded = [a for t in trajectories for a in t.actions if a.reward is not None]
            mean = sum(a.reward for a in rewarded) / max(1, len(rewarded))
            for action in rewarded:
                action.add_reward("baseline", -mean)
            return trajectories
    """


@hook("chain", awaited=True)
def marl_select(rows: Sequence[Row], run: Run, steps: int) -> Chained[Row]:  # type: ignore[empty-body]
    """Choose the rows to train on, before statistics are taken. *chain, async*; once per step, over
    all policies together.

    `steps` is the number of optimiser steps planned. Return the kept rows; say why by setting
    `row.action.left_out` on the others.

        @hookimpl
        def marl_select(rows):
            for row in rows:
                if row.action.generation.finish == "length":
                    row.action.left_out = "truncated"
            return [row for row in rows if row.action.left_out is None]
    """


@hook("first")
def marl_estimator(run: Run) -> Estimator | None:
    """The advantage estimator. *first*; once at start. Built-in: by `--algo.advantage.estimator`,
    `marl_plugins.builtin.reinforce_pp` (`reinforce`, `flash_reinforce`), `.groups` (`rloo`,
    `reinforce_baseline`, `dr_grpo`, `group_norm`) or `.gae`. See [An estimator](#an-estimator).

        @hookimpl
        def marl_estimator(run):
            class Clipped(Estimator):
                def apply(self, rows, advantages, statistics):
                    return advantages.clamp(-1, 1)
            return Clipped(gamma=run.args.algo.advantage.gamma)
    """


@hook("around", awaited=True)
def marl_update(
    run: Run, policy: PolicyProcesses, prepared: PreparedRows, steps: int, step: int
) -> Awaitable[dict[str, float]] | None:
    """Train one policy on rows whose advantages are known. *around, async*; in every step once per
    policy that has rows, concurrently. Returns metrics. Built-in: `policy.update`, upstream's
    append and fit.

        @hookimpl(wrapper=True)
        def marl_update(policy, prepared):
            print(f"{policy.name}: {len(prepared.rows)} rows")
            return (yield)
    """


@hook("around", awaited=True)
def marl_sync(run: Run, policy: PolicyProcesses, version: int) -> Awaitable[bool] | None:
    """Bring a policy's engines to the weights of `version`; True when done. *around, async*; once
    per updated policy and step, and when a run begins or is resumed. Wrap the built-in, because
    `policy.sync` sets the version: engines take the weights from Ray's store, piece by piece.

    With `--train.partial_rollout_enable` it is called during a rollout, while the engines pause.
    After a policy come its followers (`policy.spec.follows`), which may hold other weights:
    `policy.hold(weights, version)`.

        @hookimpl(wrapper=True)
        def marl_sync(policy, version):
            print(f"{policy.name} -> version {version}")
            return (yield)
    """


@hook("each")
def marl_log(run: Run, step: int, metrics: dict[str, float]) -> None:
    """See (or add to) the metrics of a finished step before they are written. *each*; once per
    step, after every other hook of the step, even if its evaluation has paused the run.

        @hookimpl
        def marl_log(run, metrics):
            metrics["brevity/limit"] = run.args.brevity.limit
    """


@hook("each", own=True)
def marl_state(run: Run) -> JsonValue:
    """State to keep in checkpoints (JSON values); None for nothing. *each*; after every step that
    was trained, for a plugin that also implements `marl_restore`.

        @hookimpl
        def marl_state(run):
            return run.state(Baselines).by_role

        @hookimpl
        def marl_restore(run, state):
            run.state(Baselines).by_role = state
    """


@hook("each", own=True)
def marl_restore(run: Run, state: JsonValue) -> None:
    """Take back what `marl_state` returned; only if there was something. *each*; on resume, before
    step one.

        @hookimpl
        def marl_restore(run, state):
            run.state(Baselines).by_role = state
    """


@hook("each", own=True)
def marl_files(run: Run) -> Sequence[Path]:  # type: ignore[empty-body]
    """Files below `--ckpt.path` that belong to the plugin's state. *each*; at every save.

    They are checked before a run is resumed. Never change or remove one: it is removed together
    with the last saved step that names it.

        @hookimpl
        def marl_files(run):
            return run.state(Buffer).files
    """


KINDS: dict[str, Kind] = {
    name: spec.kind for name, spec in vars().copy().items() if name.startswith("marl_")
}
"""The kind of every hook, by name."""
