"""A session is what a run is made of: tasks, tools, estimator, tokenizers, roles, and, once
started, policies and the rollout."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.demonstrations import WarmStartConfig, encode
from marl_plugins.core.failures import ConfigurationError, first_line, place_of
from marl_plugins.core.policy import Policy
from marl_plugins.core.problems import Problem, Where, at
from marl_plugins.core.process_backend import ProcessBackend
from marl_plugins.core.recipe.tiny import is_tiny
from marl_plugins.core.roles import Sampling
from marl_plugins.core.run import EngineConnection
from marl_plugins.engine.manager import extensions_of
from marl_plugins.engine.plan.devices import needed_devices
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.resolve_plugins import estimator_of, has_critics, tools_of
from marl_plugins.engine.plan.tasks import check_tasks, from_hub, task_warnings
from marl_plugins.engine.plan.user_code_thread import failure_of, where_of
from marl_plugins.engine.plan.workflow_file import workflow_of
from marl_plugins.engine.processes.model_code import refuse_code
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.records.run_folder import first_day
from marl_plugins.engine.runtime.collector import without_collector
from marl_plugins.engine.runtime.roles import make_cast
from marl_plugins.engine.runtime.tiny_model import resolve

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from marl_plugins.engine.runtime.policy import UpstreamPolicy
    from marl_plugins.engine.runtime.rollout import Rollout


class Session:
    """One run's parts; `start` starts its processes.

    Args:
        plan: What is to be run. Its arguments are copied: here the models' names become folders.
        begun: Output folder of the run that this one continues or evaluates: chat templates that
            ask for today's date get the day on which that one began.

    Raises:
        ConfigurationError: What shows only now: tasks, tools, estimator, a tokenizer or its chat
            template.
    """

    rollout: Rollout
    """Only once started."""

    def __init__(self, plan: Plan, begun: Path | None = None):
        self.plan = plan
        self.day = first_day(begun) if begun else date.today()
        self.policies: dict[str, UpstreamPolicy] = {}
        self.args = {name: copy.deepcopy(args) for name, args in plan.run.policy_args.items()}
        for policy in plan.run.policies:
            self._load_from(policy.name, resolve(policy.model))
            critic = self.args[policy.name].critic
            critic.model_name_or_path = critic.model_name_or_path and resolve(
                critic.model_name_or_path
            )
        if not plan.options.trust_remote_code:
            rewards = (args.reward.model_name_or_path for args in self.args.values())
            refuse_code([*self.models, *filter(None, rewards)])
        self.train_tasks, self.eval_tasks = plan.tasks("train"), plan.tasks("eval")
        self.tasks_by_id = {task.id: task for task in self.train_tasks}
        if problems := check_tasks(plan):
            raise ConfigurationError(problems)
        self.tools = tools_of(plan.plugins, plan.run)
        self.estimator = estimator_of(plan)
        self.chats = self._chats()
        self.cast = make_cast(plan.run, self.args, self.chats, self.tools)

    @property
    def backend(self) -> ProcessBackend:
        """Gives policies their training processes."""
        backend = self.plan.run.processes
        assert isinstance(backend, ProcessBackend), "a plan with problems is not run"
        return backend

    @property
    def critics(self) -> bool:
        """Returns whether the policies have critics."""
        return has_critics(self.plan.run)

    @property
    def trained(self) -> dict[str, UpstreamPolicy]:
        """The policies that are updated."""
        return {name: policy for name, policy in self.policies.items() if policy.trained}

    @property
    def models(self) -> list[str]:
        """Returns the names or folders of the models that processes load, on whatever node."""
        of_policies = ((args.actor, args.critic) for args in self.args.values())
        named = dict.fromkeys(one.model_name_or_path for both in of_policies for one in both)
        return [*filter(None, named)]

    def warm_start(self, display: Display) -> None:
        """Trains the tiny models on the recipe's demonstrations, where it has some; it takes
        seconds when they are in the cache. Before that it says what the plan could not say of tasks
        from a hub.

        Raises:
            ConfigurationError: A demonstration is wrong.
        """
        run = self.plan.run
        for warning in task_warnings(self.plan):
            if (from_hub(run, "train") or from_hub(run, "eval")) and warning not in run.warnings:
                display.say(f"warning: {warning}")
        from marl_plugins.engine.runtime.warm_start import draw, warm_start

        config, module = run.section(WarmStartConfig), run.demonstrations_module
        # A model of somebody else's has nothing to learn from them.
        learners = [
            policy
            for policy in run.policies
            if is_tiny(policy.model) and not policy.served and policy.name in self.cast.policies
        ]
        if config is None or module is None or not learners:
            return
        roles = {role: specs[0] for role, specs in self.cast.members.items()}
        try:
            demonstrations = draw(module.demonstrate, self.train_tasks, config)
            with without_collector():  # of the seconds that this takes, four in ten
                rows = [encode(d, roles[d.role]) for d in demonstrations]
        except Exception as error:  # of the user's `demonstrate`, or of what it yields
            failure = failure_of(error, place_of(module.demonstrate))
            problem = Problem("warm_start.demonstration", where_of(failure.place), failure.said)
            raise ConfigurationError(problem) from error
        made: dict[str, str] = {}
        for policy in learners:
            folder = self.args[policy.name].actor.model_name_or_path
            if policy.model not in made:
                made[policy.model] = warm_start(policy.model, folder, rows, config, display)
            self._load_from(policy.name, made[policy.model])

    def _load_from(self, policy: str, folder: str) -> None:
        """The folder that a policy's model is loaded from, and its critic's, unless that has a
        model of its own.

        Upstream makes a new value head where the two are the same, and expects one in the folder
        where they are not.
        """
        args = self.args[policy]
        if args.critic.model_name_or_path == args.actor.model_name_or_path:
            args.critic.model_name_or_path = folder
        args.actor.model_name_or_path = folder

    def placed(self) -> list[str]:
        """Returns a line for each node with the processes that are there; none where there is one
        node."""
        places: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for policy in self.policies.values():
            ranks = policy.training.where if policy.training is not None else ()
            engines = [engine.where for engine in policy.engines.engines if policy.owns_engines]
            for what, of_them in (("rank", ranks), ("engine", engines)):
                for where in filter(None, of_them):
                    places[where.node, where.host][f"{policy.name} {what}"] += 1
        lines = [
            f"node {host}: " + ", ".join(f"{what}s {n}" for what, n in sorted(there.items()))
            for (_, host), there in places.items()
        ]
        return sorted(lines) if len(lines) > 1 else []

    def start(self) -> None:
        """Starts every process of every policy at once and waits for all of them."""
        from marl_plugins.engine.processes.engines import RestartBudget
        from marl_plugins.engine.processes.placement import free_devices, nodes_for
        from marl_plugins.engine.runtime.policy import UpstreamPolicy, start
        from marl_plugins.engine.runtime.served import ServedEngines

        run, limits = self.plan.run, self.plan.run.recipe.limits
        restarts = RestartBudget(limits.engine_restarts)
        lengths = self.schedule_lengths
        self.backend.open(run)
        extensions = extensions_of(self.plan.plugins, run)
        owners = {p.name: self.backend.engines_of(run, p.name) for p in run.policies}
        made: dict[str, UpstreamPolicy] = {}
        nodes = nodes_for(needed_devices(run), free_devices())
        owning_first = sorted(run.policies, key=lambda p: owners[p.name] != p.name)
        for p in owning_first:
            shares = owners[p.name] != p.name
            words = ServedEngines(run, self.chats[p.name]) if p.served else None
            made[p.name] = UpstreamPolicy(
                p,
                self.args[p.name],
                run.device,
                self.chats[p.name].tokenizer,
                lengths[p.name],
                restarts,
                limits.silence_seconds,
                merge=self.plan.options.sequences != "actions",
                trees=self.plan.options.sequences == "trees",
                backend=self.backend,
                extensions=extensions,
                shared=made[owners[p.name]].engines if shares else words,
                kind=None if shares else self.backend.engine_kind(run, p.name),
                node=nodes.get(p.name, ""),
            )
        self.policies = {p.name: made[p.name] for p in run.policies}
        for policy in self.policies.values():
            policy.followed = self.policies.get(
                policy.spec.follows
            )  # an evaluation may do without it
        try:
            start(list(self.policies.values()), limits.silence_seconds)
        except BaseException:
            self.kill()  # processes that wait for the one that failed would not end by themselves
            raise
        connect(self)

    def kill(self) -> None:
        """Ends every process of every policy at once, whatever it is doing."""
        self.plan.run.state(EngineConnection).ask = None
        for policy in self.policies.values():
            policy.kill()
        self.backend.close()

    @property
    def schedule_lengths(self) -> dict[str, int]:
        """Optimiser steps of the whole run by policy, for the learning-rate schedules, which
        `--max_steps` does not shorten: a run that is resumed without it continues the same
        schedule."""
        run = self.plan.run
        steps = list(
            enumerate(
                run.episode_steps(len(self.train_tasks)) * run.args.train.num_episodes, start=1
            )
        )
        epochs = {name: args.train.max_epochs for name, args in self.args.items()}
        return {
            p.name: max(1, epochs[p.name] * sum(k for step, k in steps if p.is_due(step)))
            for p in run.policies
        }

    def _chats(self) -> dict[str, ChatFormat]:
        chats, problems = {}, []
        for policy in self.plan.run.policies:
            try:
                chats[policy.name] = self._chat(policy)
            except ConfigurationError as error:
                problems += error.problems
        if problems:
            raise ConfigurationError(problems)
        return chats

    def _chat(self, policy: Policy) -> ChatFormat:
        args, trusted = self.args[policy.name], self.plan.options.trust_remote_code
        name, fast = args.actor.model_name_or_path, not args.data.disable_fast_tokenizer
        tokenizer = load_tokenizer(name, at(policy=policy.name), trusted, fast)
        tokenizer.padding_side = "left"
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return ChatFormat(tokenizer, policy.name, (), policy.template, self.day, ends(name))


def load_tokenizer(model: str, where: Where, trusted: bool, fast: bool) -> PreTrainedTokenizerBase:
    """Returns a model's tokenizer.

    Args:
        where: Of the model, for messages.
        trusted: Whether code of its own may run.
        fast: Whether it is to be one of the library `tokenizers`.

    Raises:
        ConfigurationError: It cannot be loaded, or is that of another model.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trusted, use_fast=fast)
        config = AutoConfig.from_pretrained(model, trust_remote_code=trusted)
    except Exception as error:  # transformers and tokenizers raise what they like at damaged files
        got = f"the tokenizer of {model!r} cannot be loaded: {first_line(error)}"
        raise ConfigurationError(Problem("models.tokenizer", where, got)) from error
    rows = config.get_text_config().vocab_size
    if len(tokenizer) > rows:
        got = f"its tokenizer has {len(tokenizer)} tokens, and its model {rows}"
        fix = "put the model's own tokenizer into its folder, or enlarge its embedding"
        raise ConfigurationError(Problem("models.vocabulary", where, got, fix=fix))
    loaded: PreTrainedTokenizerBase = tokenizer
    return loaded


def ends(model: str) -> list[int]:
    """Returns the ids at which a model's engines end an answer, by its generation_config.json."""
    from transformers import GenerationConfig

    try:
        ids = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:  # it has none
        return []
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def connect(session: Session) -> None:
    """Lets rollouts, and questions of plugins, use the policies' engines."""
    from marl_plugins.engine.runtime.questions import make_ask
    from marl_plugins.engine.runtime.rollout import Rollout

    run, pools = (
        session.plan.run,
        {name: policy.engines for name, policy in session.policies.items()},
    )
    workflow = workflow_of(session.plan.plugins, run)
    session.rollout = Rollout(
        run, session.plan.plugins, workflow, session.cast, session.tools, pools
    )
    samplings = {
        name: Sampling(
            args.rollout.temperature,
            args.rollout.top_p,
            None,
            args.data.max_len,
            stop_ids=session.chats[name].stops,
        )
        for name, args in session.args.items()
    }
    run.state(EngineConnection).ask = make_ask(
        session.rollout.generate, session.chats, samplings, run.args.train.seed
    )
