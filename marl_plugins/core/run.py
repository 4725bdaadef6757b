"""The run, as plugins and the runtime read it: checked, frozen, the same from the first hook to the
last."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, TypeVar

from marl_plugins.core.cases import CaseSection
from marl_plugins.core.demonstrations import WarmStartConfig
from marl_plugins.core.estimators import Estimator
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import from_home
from marl_plugins.core.loading import load_file
from marl_plugins.core.policy import (
    Policy as Policy,  # copied recipes and plugins import it from here
)
from marl_plugins.core.policy import ServedModel
from marl_plugins.core.problems import Problem, Where, at, meant
from marl_plugins.core.recipe.prompts import Render, prompt_renderer, read_examples
from marl_plugins.core.recipe.schema import PolicyConfig, Recipe, RoleConfig, Sections
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.core.recipe.tiny import WORDS
from marl_plugins.core.section import Section
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Generation

S = TypeVar("S")
SectionT = TypeVar("SectionT", bound=Section)

MOST_IDLE_STEPS = 3
"""Steps and evaluations without a result, in a row, after which a run is paused: the default of
`--max_idle_steps`."""


@dataclass(frozen=True)
class Answer:
    """The answer of a policy to a plugin's question.

    Args:
        context_ids: The question, as the policy was shown it.
    """

    context_ids: tuple[int, ...]
    generation: Generation
    text: str


Ask = Callable[[str, Sequence[Mapping[str, str]], int, bool], Awaitable[Answer]]
"""`ask(policy, messages, max_tokens, sampled)`, see `Run.ask` and `Run.sample`."""


class PlannedProcesses(ABC):
    """The part of a `ProcessBackend` (marl_plugins.core.process_backend) that is asked while a run
    is planned."""

    lasting = True
    """Whether a policy has the same processes for the whole run, so that what they hold between two
    updates stays."""
    adapters = False
    """Whether a policy may be an adapter of its model (`--ds.lora.rank` above 0)."""

    def problems(self, run: Run) -> Sequence[Problem]:
        """Returns what is wrong with giving the policies of this run their processes, as in
        `marl_configure`."""
        return []

    @abstractmethod
    def devices(self, run: Run) -> Mapping[str, int]:
        """Returns the devices that training processes need, by policy, or together under a name
        that is shown."""

    def engines_of(self, run: Run, policy: str) -> str:
        """Returns the policy whose engines answer for this one: itself, unless several share one
        pool."""
        return policy

    def object_store_bytes(self, run: Run) -> int:
        """Returns the bytes of Ray's object store that are needed for what the back-end keeps
        there."""
        return 0

    def check_cluster(self, run: Run) -> None:  # noqa: B027
        """Checks the cluster, once Ray has been reached.

        Raises:
            ConfigurationError: It lacks what the back-end needs.
        """


@dataclass
class EngineConnection:
    """The way to the run's engines for plugins, once they run."""

    ask: Ask | None = None


@dataclass(frozen=True)
class RecipeFiles:
    """A recipe with the files that it names.

    Args:
        recipe: The checked recipe.
        folder: The recipe's folder; its files are relative to it.
    """

    recipe: Recipe
    folder: Path

    def role(self, name: str) -> RoleConfig:
        return self.recipe.roles[name]

    def prompt(self, role: str) -> str:
        """Returns the text of a role's prompt file; empty where a program has its prompts.

        Raises:
            ConfigurationError: It cannot be read.
        """
        file = self.role(role).prompt
        return "" if file is None else self._text(role, file)

    def system(self, role: str) -> str | None:
        """Returns the text of a role's system prompt file, if it has one.

        Raises:
            ConfigurationError: It cannot be read.
        """
        file = self.role(role).system
        return None if file is None else self._text(role, file)

    def opening(self, role: str) -> Render:
        """Returns what renders a role's opening messages: system, examples, user.

        Raises:
            ConfigurationError: A file cannot be read.
        """
        file = self.role(role).examples
        examples = read_examples(self.folder / file) if file else []
        return prompt_renderer(self.prompt(role), self.system(role), examples)

    def followup(self, role: str) -> str | None:
        """Returns the text of the file of a role's later messages in one conversation, if it has
        one.

        Raises:
            ConfigurationError: It cannot be read.
        """
        file = self.role(role).followup
        return None if file is None else self._text(role, file)

    def _text(self, role: str, file: str) -> str:
        try:
            return read_text(self.folder / file)
        except ConfigurationError as error:
            raise ConfigurationError(
                [problem.within(role=role) for problem in error.problems]
            ) from None

    @cached_property
    def workflow_module(self) -> ModuleType:
        return load_file(self.folder / self.recipe.workflow)

    @cached_property
    def grader_module(self) -> ModuleType | None:
        return load_file(self.folder / self.recipe.grader) if self.recipe.grader else None

    @cached_property
    def tasks_module(self) -> ModuleType | None:
        return load_file(self.folder / self.recipe.tasks) if self.recipe.tasks else None


@dataclass(frozen=True)
class Run(RecipeFiles):
    """Everything a plugin may know of the run it takes part in.

    Args:
        sections: The recipe's sections that plugins own, by name; see `section`.
        tools: The tools that roles may name, by name; known once the plugins have brought them.
        args: All flags for the whole run, nested as upstream has them (`args.actor.adam.lr`), the
            plugins' included.
        device: `cpu` or `cuda`.
        plugins: Names of the plugins, in order, without the built-in ones.
        estimator: `--algo.advantage.estimator`, which names a built-in one; None where a plugin
            brings its own.
        given, on_command_line: Flags that were given by name, anywhere; on the command line, for
            all policies.
        policies: In the order of their first role; then those that play none.
        policy_args: All flags for each policy, with its own applied.
        processes: Gives policies their training processes; None as long as the policies are not
            known.
        claims: By hook, the plugins that score, credit and select in some run; see `called`.
        advantages: What makes the advantages; None but in `marl_configure` of a plan without other
            problems.
        warnings: What is worth knowing before the run starts.
        max_steps, max_idle_steps, max_lag: As on the command line.
    """

    args: SimpleNamespace
    device: str
    plugins: tuple[str, ...] = ()
    sections: Sections = field(default_factory=dict)
    tools: Mapping[str, Tool] = field(default_factory=dict, compare=False)
    estimator: str | None = None
    given: frozenset[str] = frozenset()
    on_command_line: frozenset[str] = frozenset()
    policies: tuple[Policy, ...] = ()
    policy_args: Mapping[str, SimpleNamespace] = field(default_factory=dict)
    processes: PlannedProcesses | None = None
    claims: Mapping[str, Sequence[tuple[str, Callable[[Run], bool]]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    advantages: Estimator | None = None
    warnings: tuple[Problem, ...] = ()
    max_steps: int | None = None
    max_idle_steps: int = MOST_IDLE_STEPS
    max_lag: int | None = None
    _states: dict[type, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def reward_module(self) -> ModuleType | None:
        """The file of upstream's `--reward.remote_url`."""
        remote = self.args.reward.remote_url
        return load_file(Path(remote)) if remote else None

    def state(self, kind: type[S]) -> S:
        """Returns the one `kind()` of this run, made when it is first asked for: where a plugin
        keeps what lasts longer than a hook.

        Every hook of the run gets the same object, also when the plan has replaced the run
        meanwhile (`dataclasses.replace` shares it); another plan in the same process has another.
        """
        if kind not in self._states:
            self._states.setdefault(kind, kind())  # graders ask from threads, too
        state: S = self._states[kind]
        return state

    def section(self, kind: type[SectionT]) -> SectionT | None:
        """Returns the section that a plugin has declared as this model, with defaults; None where
        it is absent and a key is required."""
        return next(
            (section for section in self.sections.values() if isinstance(section, kind)), None
        )

    async def ask(
        self, policy: str, messages: Sequence[Mapping[str, str]], *, max_tokens: int
    ) -> str:
        """Returns a policy's answer to chat messages, from its own engines with its own chat
        template: for plugins.

        Greedy, and through `marl_generate` like every request, with an empty `call.role`. From
        hooks of a step (`marl_generate` to `marl_sync`); a trained policy in a rollout or an
        evaluation only, because its engines may sleep at other times (`--vllm.enable_sleep`). A
        frozen policy's never do. An evaluation has only the policies that play a role.

        Args:
            messages: Each with `role` and `content`.
            max_tokens: Maximum number of new tokens, also bounded by what `--data.max_len` leaves.

        Raises:
            InfrastructureFailure: No engine is left, or the messages leave no room for an answer.
            ConfigurationError: The run has no such policy.
            RuntimeError: The engines are not running.
        """
        return (await self._answer(policy, messages, max_tokens, sampled=False)).text

    async def sample(
        self, policy: str, messages: Sequence[Mapping[str, str]], *, max_tokens: int
    ) -> Answer:
        """Returns an answer as `ask` does, but sampled as the policy's actions are, and with its
        tokens: what can be trained on.

        The same question has the same answer as long as the policy has the same weights.
        """
        return await self._answer(policy, messages, max_tokens, sampled=True)

    async def _answer(
        self, policy: str, messages: Sequence[Mapping[str, str]], max_tokens: int, *, sampled: bool
    ) -> Answer:
        ask = self.state(EngineConnection).ask
        if ask is None:
            raise RuntimeError("run.ask: the engines are not running; ask from a hook of a step")
        return await ask(policy, messages, max_tokens, sampled)

    @property
    def trained_roles(self) -> dict[str, RoleConfig]:
        """The roles whose policy, or any of whose policies, is updated."""
        trained = {p.name for p in self.policies if p.trainable}
        roles = self.recipe.mapped_roles
        return {
            role: self.recipe.roles[role]
            for role in roles
            if trained.intersection(self.recipe.policies_of(role))
        }

    @property
    def turns(self) -> int:
        """The most turns that a trained role takes, as far as the recipe says: one with a followup
        prompt takes at least two."""
        return max(
            (max(role.max_turns, 1 + bool(role.followup)) for role in self.trained_roles.values()),
            default=1,
        )

    def recipe_policy(self, name: str) -> Policy:
        """Returns the policy that the recipe describes under a name, with the model that this run
        gives it."""
        config = self.recipe.policies.get(name, PolicyConfig())
        flag_model = self.args.actor.model_name_or_path
        model = config.model or self.recipe.model
        trainable = (
            config.trainable
            if "trainable" in config.model_fields_set
            else not (config.follows or config.endpoint)
        )
        served = None
        if config.endpoint:
            served, model = ServedModel(config.endpoint, config.model or "", config.key), WORDS
        elif flag_model and ("actor.model_name_or_path" in self.on_command_line or not model):
            model = flag_model
        elif model and model.startswith((".", "~/")):  # a recipe's paths are relative to it
            model = str((self.folder / from_home(model)).absolute())
        return Policy(
            name,
            model or "",
            trainable,
            config.flags,
            follows=config.follows or "",
            template=config.template,
            served=served,
        )

    @property
    def output(self) -> Path:
        """Folder of the records and of the final weights."""
        return Path(self.args.ckpt.output_dir)

    @property
    def trajectories(self) -> int:
        """Trajectories of a full training step."""
        return int(self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt)

    @property
    def optimiser_steps(self) -> int:
        """K of a full batch: trajectories of a step over trajectories per optimiser step (design:
        the trajectory is the unit)."""
        return int(self.trajectories // self.args.train.batch_size)

    def episode_steps(self, tasks: int) -> list[int]:
        """Returns optimiser steps (K per epoch) of each batch of an episode of `tasks` tasks.

        The last batch may be smaller; where it holds fewer trajectories than one optimiser step it
        is left out.
        """
        size, samples = self.args.rollout.batch_size, self.args.rollout.n_samples_per_prompt
        sizes = [min(size, tasks - start) for start in range(0, tasks, size)]
        return [k for k in (n * samples // self.args.train.batch_size for n in sizes) if k]

    def unused_flag(self, flag: str, estimators: Iterable[str]) -> list[Problem]:
        """Returns the problem with a plugin's flag that was given although it does not belong to
        the run's estimator."""
        names = list(estimators)
        if flag not in self.given or self.estimator in names:
            return []
        got = (
            f"belongs to --algo.advantage.estimator {' or '.join(names)}, and the run has "
            f"{self.estimator or 'an estimator of a plugin'}"
        )
        flags = ("algo.advantage.estimator",)
        return [
            Problem(
                "flags.other_estimator",
                at(flag=flag),
                got,
                fix="remove one of the two",
                flags=flags,
            )
        ]

    def idle_flags(self, flags: Iterable[str], without: str) -> list[Problem]:
        """Returns the problem with each flag that was given and has no effect without another."""
        got, fix = f"has no effect without --{without}", "add it, or remove this one"
        return [Problem("flags.idle", at(flag=f), got, fix=fix) for f in flags if f in self.given]

    def called(self, hook: str) -> list[str]:
        """Returns the plugins that score, credit or select in this run, in the order of calls."""
        return [name for name, applies in self.claims.get(hook, ()) if applies(self)]

    @property
    def need_step(self) -> tuple[str, ...]:
        """The plugins that need a whole step at once, as `NAME (HOOK)`."""
        hooks = ("marl_credit_step", "marl_select")
        return tuple(f"{name} ({hook})" for hook in hooks for name in self.called(hook))

    @property
    def scorers(self) -> list[str]:
        """Who scores actions."""
        grader = ["the recipe's grader"] if hasattr(self.grader_module, "score_action") else []
        cases = ["the recipe's cases"] if self.section(CaseSection) else []
        plugins = map("plugin {}".format, self.called("marl_score_action"))
        return [*plugins, *grader, *cases]

    def replaced_rewards(self, plugin: str) -> list[Problem]:
        """Returns that nothing is left of what other plugins make of rewards, because one that
        comes after them writes its own (in `marl_credit_step`)."""
        steps = takewhile(lambda name: name != plugin, self.called("marl_credit_step"))
        if not (before := list(dict.fromkeys([*self.called("marl_credit"), *steps]))):
            return []
        got = f"its rewards are replaced by those of {plugin}"
        where, fix = at(plugin=before), "leave out one, or write marl_credit_step and name it last"
        return [Problem("plan.replaced_rewards", where, got, fix=fix, severity="warning")]

    def lost_effect(
        self, where: Where, effect: Literal["baseline", "factor", "samples"]
    ) -> list[Problem]:
        """Returns that nothing is left of what a plugin does to rewards, where that is so.

        Args:
            effect: `baseline`: one number is taken off all rewards of a policy; `factor`: they are
                multiplied by one; `samples`: they depend on those of other samples of the task.
        """
        estimator = self.advantages
        if effect == "samples":
            lost = self.args.rollout.n_samples_per_prompt == 1
            got = "would depend on other samples of a task, of which there is one"
            fix, flag = "--rollout.n_samples_per_prompt 4", "rollout.n_samples_per_prompt"
        else:
            lost = (
                estimator is not None
                and (estimator.return_scope, estimator.gamma) == ("action", 1.0)
                and self._are_of_one_policy(estimator.compared)
                and (effect == "baseline" or self._are_of_one_policy(estimator.divided))
            )
            got = f"the same {effect} for all rows of a policy, which {type(estimator).__name__} "
            got += "compares with each other alone, so that nothing of it is left"
            fix, flag = "compare several policies", "algo.advantage.estimator"
        problem = Problem(
            "plan.lost_effect", where, got, fix=fix, severity="warning", flags=(flag,)
        )
        return [problem] if lost else []

    def _are_of_one_policy(self, common: Sequence[str] | None) -> bool:
        """Returns whether rows that have this in common are always of one policy; None: there are
        none."""
        if common is None:
            return False
        one_each = "role" in common and not self.recipe.populations.keys() & self.trained_roles
        trained = [policy for policy in self.policies if policy.trainable]
        return one_each or "policy" in common or len(trained) == 1

    @cached_property
    def demonstrations_module(self) -> ModuleType | None:
        warm = self.section(WarmStartConfig)
        return load_file(self.folder / warm.demonstrations) if warm else None

    @property
    def is_partial(self) -> bool:
        """Returns whether engines get new weights in the middle of answers."""
        return is_partial(self.args)

    def longest_answer(self, role: str) -> int:
        """Returns the maximum number of tokens of one generation of a role, by whatever policy."""
        own = self.role(role).max_new_tokens
        limits = [
            self.policy_args[policy].rollout.max_new_tokens
            for policy in self.recipe.policies_of(role)
        ]
        return int(own or max(limit or 1 for limit in limits))


def queue_size(args: SimpleNamespace) -> int:
    """Returns how many rollouts wait to be trained: `--train.async_queue_size` with
    `--train.async_enable`, else 0."""
    return int(args.train.async_queue_size) if args.train.async_enable else 0


def is_partial(args: SimpleNamespace) -> bool:
    """Returns whether engines get new weights in the middle of answers
    (`--train.partial_rollout_enable`)."""
    return bool(queue_size(args) and args.train.partial_rollout_enable)


class ProcessEnvironment(dict[str, str]):
    """What plugins add to the environment of all processes of the run, in `marl_configure`."""


class ShareTemperatures(dict[str, float]):
    """The factor of the temperature at which a policy's actions get their shares of a team's
    reward, by policy: above 0. One plugin of a run sets it between two steps; where it names no
    policy the factor is 1."""

    competition: float | None = None
    """By which part of the rewards' mean policies compete: the factor of the baseline in
    `marl_plugins.competence`, in place of its own flag."""


class AnswerLimits(dict[str, float]):
    """The factor of the most new tokens that a policy's answers may have in rollouts of training,
    by policy: at least 0, and more than 1 counts as 1. One plugin of a run sets it between two
    steps; where it names no policy the factor is 1."""


def max_lag(run: Run) -> int:
    """Returns by how many versions of its policy the oldest token of a row that is trained may be
    older than the weights that it trains: `--async.max_lag`, or the rollouts that wait."""
    return run.max_lag if is_partial(run.args) and run.max_lag is not None else queue_size(run.args)


class ToolUsers(dict[str, list[str]]):
    """The users of the run's tools that are no roles, by the tool's name."""


def use_tool(run: Run, name: str, user: str) -> Tool:
    """Returns a tool of the run for a plugin that calls it itself, from `marl_configure` on.

    Args:
        user: Whose calls they are, in messages: `the coach`.

    Raises:
        ConfigurationError: The run has no such tool.
    """
    if name not in run.tools:
        got, fix = f"{user} uses it, and the run does not have it", meant(name, run.tools)
        raise ConfigurationError(Problem("tools.unknown", at(tool=name), got, fix=fix))
    note_user(run, name, user)
    return run.tools[name]


def note_user(run: Run, name: str, user: str) -> None:
    """Notes who uses a tool without being a role that names it."""
    run.state(ToolUsers).setdefault(name, []).append(user)


def tool_users(run: Run, name: str) -> list[str]:
    """Returns who uses a tool, as far as it is known: `agents`, where a role names it, and users of
    `use_tool`."""
    agents = ["agents"] if any(name in role.tools for role in run.recipe.roles.values()) else []
    return list(dict.fromkeys([*agents, *run.state(ToolUsers).get(name, ())]))
