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
version that it was written for, as `MARL_HOOKS = "4.2"`; another major is refused, and so is a
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

VERSION = "4.2"

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
    """Add flags. *each*; once, before the command line is parsed: there is no run yet, and heavy
    imports are not allowed.

    Name them after the plugin: `run.args.<plugin>.<name>`. They may stand in a recipe's `flags:`.
    With a type of `marl_plugins` wrong values are reported with their place: `at_least(1)`,
    `above(0)`, `between(0, 1)`, `recipe_file`. In a mutually exclusive group, a flag on the command
    line replaces the recipe's.

    Example:

        @hookimpl
        def marl_options(parser):
            about = "tokens before the penalty starts"
            parser.add_argument("--brevity.limit", type=at_least(1), default=64, help=about)
    """


@hook("each", own=True)
def marl_commands() -> Sequence[Command] | None:
    """The plugin's commands: `openrlhf NAME ...`. *each*; when a command is not built in, of all
    plugins that are found (shipped, entry points) or named with `--plugin`. Heavy imports are not
    allowed.

    `Command(name, usage, about, main)`; `main(words)` gets the words after the name and returns the
    exit code.

    Example:

        @hookimpl
        def marl_commands():
            about = "mean length by role of a run's records"
            return [Command("brevity", "RUN", about, show_lengths)]
    """


@hook("each", own=True)
def marl_tables() -> Mapping[str, Table] | None:
    """Tables of `openrlhf export RUN --table NAME`, by name. *each*; of all plugins that are found
    or named with `--plugin`, so there is no run yet; heavy imports are not allowed here.

    A `Table` (marl_plugins/core/table.py) makes rows, and numbers to be printed, of a
    run's records (`RunReader`), of which of them are asked for (`Filter`), and of words of the
    command line that are not the command's own.

    Example:

        @hookimpl
        def marl_tables():
            return {"lengths": Table({"role": "string", "tokens": "int64"}, rows_of_lengths)}
    """


@hook("each", own=True)
def marl_sections() -> Mapping[str, type[Section]] | None:
    """The recipe's keys that the plugin owns, each with its model. *each*; when a recipe is read:
    there is no run yet, and heavy imports are not allowed.

    A name is a key of the recipe (`brevity`), or one below another (`tools.browser`). Wrong values
    are reported with file, line and key. `run.section(Brevity)` is the section in all hooks that
    take `run`; None if the recipe does not have it and a key is required. A field's type may be a
    `Model`, or a list or mapping of such.

    Example:

        class Brevity(Section):
            words: int = pydantic.Field(64, ge=1)

        @hookimpl
        def marl_sections():
            return {"brevity": Brevity}
    """


@hook("each")
def marl_rehearse(plan: RunPlan) -> Sequence[Problem | str] | None:
    """Try the run without any model. *each*; once, when recipe, flags and tasks are right, before
    `marl_configure`; also for `--dry-run`: start nothing and ask nothing over a network.

    The built-in one runs the workflow with invented answers, tries the grader on the results, and
    leaves both in `plan.run.state(RehearsalResult)`. `plan.tasks("train")` are the run's tasks,
    `plan.run` is the run.

    Returns: problems, as `marl_configure` does.

    Example:

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
    nothing and ask nothing over a network (`marl_start` is for that).

    Returns: problems (`Problem`) with place, what was got, what was expected and the fix, which are
    reported together with all others. One of severity `warning` prevents nothing. A plain sentence
    is an error of code `other`.

    Example:

        @hookimpl
        def marl_configure(run):
            limit, longest = run.args.brevity.limit, run.args.data.max_len
            if limit > longest:
                where, got = at(flag="brevity.limit"), f"{limit} is above --data.max_len {longest}"
                return [Problem("brevity.limit", where, got, fix="lower it", severity="warning")]
    """


@hook("each", own=True)
def marl_describe(run: Run) -> Mapping[str, JsonValue] | None:
    """Parts of the plan, by name, as JSON values. *each*; when the configuration is right, for
    `--dry-run` and `plan.json`.

    A text is also printed first when a run starts, as `NAME: TEXT`.

    Example:

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

    Example:

        @hookimpl
        def marl_doctor(run, static):
            return [check_extra("brevity", ["tiktoken"], "counting words", used=run is not None)]
    """


@hook("each", awaited=True, own=True)
def marl_start(run: Run, purpose: Purpose) -> Awaitable[None] | None:
    """Open what the plugin needs (a file, a service), and try it. *each, async*; once, when the
    whole configuration is right and before any process is started; not for `--dry-run`.

    Raise `ConfigurationError` when something is unavailable. The event loop is the run's, but it
    does not turn again until all processes have started, which takes minutes. `marl_stop` runs in
    another task: a task group or cancel scope cannot be opened here and closed there.

    Example:

        @hookimpl
        def marl_start(run, purpose):
            run.output.mkdir(parents=True, exist_ok=True)
            run.state(Log).file = (run.output / f"brevity-{purpose}.log").open("a")
    """


@hook("each", awaited=True, own=True)
def marl_stop(run: Run) -> Awaitable[None] | None:
    """Close what `marl_start` or a later hook opened. *each, async*; once, in the run's event loop,
    after the last other hook, also when the run failed. Ray and the engines have gone by then.

    Called for a plugin whose `marl_start` was reached, even if that failed. The `marl_stop` of all
    plugins is called, in reverse order, even if one of them raises.

    Example:

        @hookimpl
        async def marl_stop(run):
            if file := run.state(Log).file:
                file.close()
    """


@hook("first")
def marl_tasks(run: Run, split: str) -> Sequence[Task] | None:
    """The tasks of a split, `train` or `eval`. *first*; once per split, when the configuration is
    checked (a hub's: when a run starts). Built-in: the recipe's loader or data files.

    Example:

        @hookimpl
        def marl_tasks(run, split):
            return [Task(str(n), f"{n}+{n}=", str(2 * n)) for n in range(100)]
    """


@hook("first")
def marl_workflow(run: Run) -> Workflow | None:
    """Returns the workflow: how roles and tools call each other on one task. *first*; when the
    configuration is checked, and again at start. Built-in: the recipe's `workflow.py`, graph or
    program.

    The check runs the workflow on invented answers, in another thread, before `marl_start`. The
    workflow's attribute `variants`, if it has one, names answers and workflows to be run too
    ([recipes.md](recipes.md#variants)). A workflow from a file that is not Python is a
    `WorkflowFile` of `marl_plugins.engine.plan.workflow_file`, which knows what the check tries,
    how it is drawn, and its files.

    Example:

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

    A plugin that needs one more policy adds it in a wrapper (`run.recipe_policy(name)` makes the
    one that the recipe describes). A policy of the recipe that a flag excludes from the run has
    that flag as `excluded_by`.

    Example:

        @hookimpl(wrapper=True)
        def marl_policies(run):
            return [dataclasses.replace(p, trainable=p.name != "judge") for p in (yield)]
    """


@hook("first")
def marl_processes(run: Run) -> ProcessBackend | None:
    """Returns the back-end that gives policies their training processes. *first*; once at
    configuration, when the policies are known. Built-in: every trained policy has its own processes
    and devices for the whole run (`OwnProcesses`).

    A `ProcessBackend` states what it needs of the cluster before anything starts; import Ray in its
    `open`.

    Example:

        @hookimpl
        def marl_processes(run):
            return SharedSeats(run.args.process_groups.seats)
    """


@hook("each", own=True)
def marl_extensions(run: Run) -> Sequence[str] | None:
    """Classes that run inside every training process of every trained policy, in addition to its
    trainer: subclasses of `Extension`, each named as "module:Class". *each*; once, before processes
    start; heavy imports belong in that module.

    An extension wraps the training step and the weight sync, adds metrics after a fit, and keeps
    state in checkpoints. The controller calls its methods by name: `await
    policy.extension("WeightAverage", "save", folder)`.

    Example:

        @hookimpl
        def marl_extensions(run):
            return ["my_package.averages:WeightAverage"]
    """


@hook("each", own=True)
def marl_weights(run: Run) -> Mapping[str, str] | None:
    """Further weights of every trained policy, which an extension keeps: the name of its class, by
    the name of a folder for them. *each*; once, before processes start.

    They are evaluated after the weights, with metrics NAME/outcome and so on, and saved next to the
    weights: `<ckpt.output_dir>/NAME/POLICY`. The extension puts them into the model meanwhile
    (`in_place`).

    Example:

        @hookimpl
        def marl_weights(run):
            return {"average": "WeightAverage"}
    """


@hook("each")
def marl_tools(run: Run) -> Sequence[Tool] | None:
    """Tools that roles may name. *each*; while the configuration is checked, and again at start.
    Built-in: `python`, and `sql` and MCP servers where the recipe has them.

    Two tools of one name are an error.

    Example:

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

    `tasks` are the next ones of the data, or those that the plugin before has chosen; `all_tasks`
    are all training tasks. Return as many as there are in `tasks`, none twice. The choice must
    depend on the run's seed, the step and saved state alone: a resumed run repeats its steps.

    Example:

        @hookimpl
        def marl_batch(tasks, step, all_tasks):
            easy = [task for task in all_tasks if task.metadata["level"] == "easy"]
            return tasks if step > 50 else random.Random(step).sample(easy, len(tasks))
    """


@hook("each", own=True)
def marl_step(run: Run, step: Step) -> StepPart | None:
    """A plugin's part of one training step. *each*; for every step, before its rollout begins.

    A `StepPart` sees trajectories as they arrive, may work during the rollout, sees the rows that
    were credited and selected, may change what policies are updated with, and has metrics. It lasts
    for the step; the run keeps what lasts longer (`run.state`). With `--train.async_enable` the
    parts of several steps exist at the same time, and what one keeps of a rollout is saved with it
    (`record`, `restore`).

    Example:

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
    `marl_plugins.routing`, the least loaded engine.

    Raise `InfrastructureFailure` when no engine can answer; the trajectory is then left out.

    Example:

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
    while the rollout continues.

    `seen` is a frozen view of what the action depended on, without the label. Only for the last
    action of the recipe's last role it is a `SeenLast`, with the label and the system's answer;
    that role is scored once the workflow has ended. Write `action.explanation` for people. Raise
    `InfrastructureFailure` for an unavailable verdict, `RunPaused` if all further ones are
    unavailable too. A plain function that returns None leaves the action to the next
    implementation; None from an awaitable is a missing verdict. Never called in an evaluation.
    Built-in: the recipe grader's `score_action`, if it has one.

    Example:

        @hookimpl
        async def marl_score_action(action, seen):
            return 1.0 if action.generation.finish == "stop" else 0.0
    """


@hook("first", awaited=True)
def marl_score_outcome(run: Run, trajectory: Trajectory) -> Awaitable[Outcome] | None:
    """Score a finished trajectory in [0, 1]. *first, async*; once per trajectory; in evaluations
    too, so be deterministic.

    Returns one number for the team, or one for each role (`{"pro": 1.0, "con": 0.0}`, None for a
    role without an outcome), whose mean is then `trajectory.outcome`. A missing role that acted, or
    a name that is no role, is an error. Not called for agent failures (0 for every role) or
    infrastructure failures (never scored). None as in `marl_score_action`.
    Built-in: the recipe grader's `score_outcome`, or the function of `--reward.remote_url file.py`.

    Example:

        @hookimpl
        async def marl_score_outcome(trajectory):
            return float(trajectory.answer == trajectory.task.label)
    """


@hook("chain", awaited=True)
def marl_exchange(  # type: ignore[empty-body]
    trajectories: Sequence[Trajectory], run: Run, exchange: Exchange
) -> Chained[Trajectory]:
    """Take whole trajectories out of a step, or bring others in, between its rollout and credit.
    *chain, async*; once per step, with all trajectories of the step in its order; engines and tools
    still answer.

    Return the list that goes on to credit; a trajectory that is not in it needs a reason:
    `exchange.leave_out(trajectory, reason)`.

    `exchange.write(trajectory)` gives the words of a trajectory as JSON values, for other runs.
    `await exchange.read(record, origin)` replays such a record through the run's own workflow. It
    returns a trajectory, scored by the run's own graders, with `Trajectory.origin` set, or raises
    `RefusedRecord` if the words do not fit. `await exchange.again(trajectory, origin)` does the
    same with a trajectory of an earlier step of the run, ids and log-probs included. A resumed run
    repeats its steps: keep what was taken in on disk, by step.

    Example:

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
    *chain, async*; every trajectory passes once: all of a step at the same time or, where no plugin
    needs the whole step, some as they arrive.

    The first plugin gets each action's score as its `reward` (its role's outcome, if no action was
    scored). Change `action.reward` in place, None to leave an action out (with the reason in
    `action.unscored`), and return the same trajectories. `action.add_reward(term, value)` also
    records the term; `action.notes` is for anything else worth recording. `action.correction =
    Correction(text, coef)` is what the action should have been, to be trained on in addition. If
    you need the whole step, use `marl_credit_step`. Raise `RunPaused` to save the step before and
    end the run.

    Example:

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
    `marl_credit` of all plugins, with all trajectories in the step's order. Otherwise as
    `marl_credit`.

    A run with such a plugin waits for whole steps: `--streaming.gradients` is refused with it.

    Example:

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

    `steps` is K, the number of optimiser steps planned; fewer than usual in an episode's last
    batch.

    Return the kept rows; say why by setting `row.action.left_out` on the others.

    Example:

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
    `marl_plugins.reinforce_pp` (`reinforce`, `flash_reinforce`), `.groups` (`rloo`,
    `reinforce_baseline`, `dr_grpo`, `group_norm`) or `.gae`.

    Return an `Estimator` (marl_plugins/core/estimators.py): override the stages in which it differs
    from plain returns.

    Example:

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
    policy that has rows, concurrently.

    Returns upstream's metrics. Built-in: `policy.update`: micro-batches for every rank, upstream's
    append and fit.

    Example:

        @hookimpl(wrapper=True)
        def marl_update(policy, prepared):
            print(f"{policy.name}: {len(prepared.rows)} rows")
            return (yield)
    """


@hook("around", awaited=True)
def marl_sync(run: Run, policy: PolicyProcesses, version: int) -> Awaitable[bool] | None:
    """Bring a policy's engines to the weights of `version`; True when done. *around, async*; once
    per updated policy and step. Also for every trained policy when a run is resumed, with the saved
    version, or begins on a CPU. Wrap the built-in, because `policy.sync` sets the version. With
    `--train.partial_rollout_enable` it is called during a rollout, while the engines pause.

    After a policy come its followers (`policy.spec.follows`), with its version; also when a run
    begins. A follower may hold other weights: `policy.hold(weights, version)` (`Follower` in
    marl_plugins/core/processes.py).

    Built-in: one transfer of the whole state on CPU, upstream's own broadcast on GPUs.

    Example:

        @hookimpl(wrapper=True)
        def marl_sync(policy, version):
            print(f"{policy.name} -> version {version}")
            return (yield)
    """


@hook("each")
def marl_log(run: Run, step: int, metrics: dict[str, float]) -> None:
    """See (or add to) the metrics of a finished step before they are written. *each*; once per
    step, after every other hook of the step, even if its evaluation has paused the run: the step is
    trained, and saved.

    Example:

        @hookimpl
        def marl_log(run, metrics):
            metrics["brevity/limit"] = run.args.brevity.limit
    """


@hook("each", own=True)
def marl_state(run: Run) -> JsonValue:
    """State to keep in checkpoints (JSON values), under the plugin's name; None for nothing.
    *each*; at every save.

    A plugin that implements it also implements `marl_restore`.

    Example:

        @hookimpl
        def marl_state(run):
            return run.state(Baselines).by_role

        @hookimpl
        def marl_restore(run, state):
            run.state(Baselines).by_role = state
    """


@hook("each", own=True)
def marl_restore(run: Run, state: JsonValue) -> None:
    """Take back what `marl_state` returned; called only for a plugin that has saved state. *each*;
    on resume, before step one.

    Example:

        @hookimpl
        def marl_restore(run, state):
            run.state(Baselines).by_role = state
    """


@hook("each", own=True)
def marl_files(run: Run) -> Sequence[Path]:  # type: ignore[empty-body]
    """Files below `--ckpt.path` that belong to the plugin's state. *each*; at every save, after
    `marl_state`.

    Sizes and digests are noted with the step, and checked before a run is resumed from it. The
    plugin never changes or removes such a file: it is removed together with the last saved step
    that names it.

    Example:

        @hookimpl
        def marl_files(run):
            return run.state(Buffer).files
    """


KINDS: dict[str, Kind] = {
    name: spec.kind for name, spec in vars().copy().items() if name.startswith("marl_")
}
"""The kind of every hook, by name."""
