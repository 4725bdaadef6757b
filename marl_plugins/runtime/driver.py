"""Start a run: Ray, engines, training processes, all at once; then the loop; then leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.estimators import check_estimator
from marl_plugins.core.failures import ConfigurationError, RunEnded
from marl_plugins.core.prompts import prompt_renderer
from marl_plugins.core.tiny import is_tiny
from marl_plugins.core.workflow import RoleSpec, Sampling, Tool
from marl_plugins.hosts import cpu
from marl_plugins.plan.checks import check_tasks
from marl_plugins.run import Policy, Run, critic_gpus, describe, needed_devices, optimiser_steps, training_gpus
from marl_plugins.runtime.checkpoints import Checkpoints
from marl_plugins.runtime.display import Display
from marl_plugins.runtime.records import Records, held
from marl_plugins.runtime.report import legend, table, write_report
from marl_plugins.runtime.tiny_model import resolve


def train(run: Run, *, debug: bool, as_json: bool) -> int:
    """Train as planned; exit code 0.

    Raises:
        ConfigurationError: What could only be known now (a model that does not load, too few devices).
        RunEnded: A run that had to end in a known way.
        KeyboardInterrupt: The user stopped it; everything started has been shut down.
    """
    display = Display(as_json, list(run.recipe.roles))
    for warning in run.warnings:
        display.say(f"warning: {warning}")
    prepare_environment(run, debug)
    with held(_absolute(run.args.ckpt.output_dir)):
        run.plugins.planned("marl_start", run=run)
        return _train(run, display, debug)


def _train(run: Run, display: Display, debug: bool) -> int:
    roles = list(run.recipe.roles)
    critics = any(critic_gpus(args) for args in run.policy_args.values())
    checkpoints = Checkpoints(_absolute(run.args.ckpt.path), run.args.ckpt.max_num, critics)
    session = Session(run)
    session.warm_start(display)
    manifest = checkpoints.open(run.args.ckpt.load_enable, run.fingerprint())
    done = manifest["step"] if manifest else 0
    if run.args.ckpt.load_enable and not manifest:
        display.say(f"no saved step in {checkpoints.folder}: starting from the beginning")
    started = time.monotonic()
    with _how_to_go_on(checkpoints), ray_cluster(run, debug), terminated_like_interrupted():
        from marl_plugins.runtime.trainer import Trainer

        with display.phase("starting engines and training processes"):
            session.start()
        records = Records(_absolute(run.args.ckpt.output_dir), run.args, describe(run), done)
        if records.moved_to:
            display.say(f"records of an earlier run moved to {records.moved_to}")
        display.say(f"{len(session.hosts)} policies ready after {time.monotonic() - started:.0f} s")
        if manifest:
            for name, host in session.trained.items():
                host.version = manifest["policies"][name]
            run.plugins.restore(manifest["state"])
            display.say(f"resuming after step {done}")
        trainer = Trainer(
            run,
            session.hosts,
            session.rollout,
            session.estimator,
            session.train_tasks,
            session.eval_tasks,
            records,
            checkpoints,
            display,
        )

        async def work() -> int:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
            try:
                last = await trainer.fit(done)
                await trainer.save_models()
            except asyncio.CancelledError:
                session.kill()  # else a thread that waits for a training process would be waited for
                raise
            return last

        try:
            last = asyncio.run(work())
        except asyncio.CancelledError:  # SIGTERM
            raise KeyboardInterrupt from None
        records.close()
    summary, problem = write_report(records.folder, roles, f"{run.recipe.name}, seed {run.args.train.seed}")
    display.report(summary, *table(summary), legend(summary))
    if problem:
        display.say(problem)
    display.say(f"finished step {last} after {time.monotonic() - started:.0f} s; weights and records in {records.folder}")
    return 0


def _absolute(folder: str) -> Path:
    return Path(folder).absolute()


def prepare_environment(run: Run, debug: bool) -> None:
    """This process's environment, before anything heavy is imported; the workers get it through Ray."""
    os.environ[cpu.DEVICE] = run.device
    if run.device == "cpu":
        os.environ.update(cpu.environment())
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray refuses more logical devices than it lists
    for name, value in quiet(debug).items():
        os.environ.setdefault(name, value)
    if not debug:
        warnings.filterwarnings("ignore")  # upstream's stack; this package's own are errors in its tests
        logging.disable(logging.INFO)
    for args in run.policy_args.values():  # Ray's workers have another working folder
        args.ckpt.path, args.ckpt.output_dir = str(_absolute(args.ckpt.path)), str(_absolute(args.ckpt.output_dir))


def quiet(debug: bool) -> dict[str, str]:
    """Environment of all processes: no usage statistics, no bars of workers between ours."""
    env = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NCCL_DEBUG": "WARN",
        "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",  # upstream's own setting, train_ppo_ray.py:28
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's coming default; says so at every start otherwise
        "PYTHONWARNINGS": "ignore",
    }
    if not debug:
        env |= {
            "VLLM_LOGGING_LEVEL": "ERROR",
            "TQDM_DISABLE": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "RAY_DEDUP_LOGS": "0",
        }
    return env


@contextmanager
def _how_to_go_on(checkpoints: Checkpoints) -> Any:
    """Say with every early end from where, if from anywhere, the run can be continued."""
    try:
        yield
    except (RunEnded, KeyboardInterrupt) as error:
        manifest = checkpoints.manifest()
        saved = "no step was saved (--ckpt.save_steps N saves every N steps)"
        if manifest:
            saved = f"step {manifest['step']} is saved in {checkpoints.folder}; go on with --ckpt.load_enable"
        text = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
        raise type(error)(f"{text}; {saved}") from error


@contextmanager
def terminated_like_interrupted() -> Any:
    """SIGTERM (Slurm, Kubernetes) takes the same way out as Ctrl-C; while the loop runs, asyncio has a handler of its own.

    Entered once Ray is there: `ray.init` puts in a handler that exits, which aborts the process inside Ray's own calls.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ray_cluster(run: Run, debug: bool) -> Any:
    """Ray for the length of a run: the cluster in RAY_ADDRESS (or of the Ray job we run in), else one of our own.

    Raises:
        ConfigurationError: The cluster has fewer devices than the plan needs.
    """
    import psutil
    import ray

    devices = needed_devices(run)
    needed = sum(devices.values())
    env = {**quiet(debug), cpu.DEVICE: run.device, **(cpu.environment() if run.device == "cpu" else {})}
    options: dict[str, Any] = {}
    if not os.environ.get("RAY_ADDRESS"):
        options = {"address": "local", "include_dashboard": False}
        if run.device == "cpu":  # logical devices: every process holds one, whatever the machine has
            logical = run.logical_gpus or needed
            options |= {"num_gpus": logical, "num_cpus": needed + 4, "object_store_memory": 2**30}
    before = set(psutil.Process().children())
    try:
        ray.init(runtime_env={"env_vars": env}, log_to_driver=debug, logging_level="ERROR", **options)
    except (ConnectionError, ValueError) as error:
        raise ConfigurationError(
            f"Ray cannot be reached or started (RAY_ADDRESS {os.environ.get('RAY_ADDRESS')!r}): {error}"
        ) from error
    ours = set(psutil.Process().children()) - before  # a raylet and a GCS server, unless the cluster is someone else's
    if not debug:
        importlib.import_module("ray._private.tensor_serialization_utils")  # shows its warnings, whatever was said before
        warnings.filterwarnings("ignore")
    try:
        found = int(ray.cluster_resources().get("GPU", 0))
        if found < needed:
            parts = ", ".join(f"{name} {count}" for name, count in devices.items())
            raise ConfigurationError(
                f"the plan needs {needed} GPUs ({parts}) and Ray has {found}; use --train.colocate_all, fewer engines "
                "(--vllm.num_engines), fewer ranks (--actor.num_gpus_per_node), a shared mapping (--mapping shared), or more GPUs"
            )
        free = int(ray.available_resources().get("GPU", 0))
        if free < needed:
            print(f"the plan needs {needed} GPUs and {free} of {found} are free: waiting for the others", file=sys.stderr)
        yield
    finally:
        everyone = set(ours)
        for process in ours:
            with contextlib.suppress(psutil.NoSuchProcess):
                everyone.update(process.children(recursive=True))
        ray.shutdown()
        _, left = psutil.wait_procs(everyone, timeout=10)  # workers end a moment after `ray.shutdown` has returned
        for process in left:
            process.kill()


class Session:
    """What the loop is built from: tokenizers, roles, tools, and, once started, the processes of every policy."""

    def __init__(self, run: Run):
        self.run = run
        for policy in run.policies:
            self._load_from(policy, resolve(policy.model))
            critic = run.policy_args[policy.name].critic
            critic.model_name_or_path = critic.model_name_or_path and resolve(critic.model_name_or_path)
        self.train_tasks, self.eval_tasks = run.tasks("train"), run.tasks("eval")
        problems = check_tasks(run)
        if problems:
            raise ConfigurationError(problems)
        self.tools = self._tools()
        estimator = run.plugins.hook.marl_estimator(run=run)
        problems = check_estimator(
            estimator,
            run.args.rollout.n_samples_per_prompt,
            len(run.trained_roles),
            max((role.max_turns for role in run.trained_roles.values()), default=1),
            critic=any(critic_gpus(args) for args in run.policy_args.values()),
        )
        if problems:
            raise ConfigurationError(problems)
        self.estimator = estimator
        self.tokenizers = self._tokenizers()
        self.chats = self._chats()
        self.roles = self._roles()

    def warm_start(self, display: Display) -> None:
        """Train the tiny models on the recipe's demonstrations, where it has some; seconds when they are in the cache."""
        from marl_plugins.runtime.warm_start import draw, warm_start

        config, module = self.run.recipe.warm_start, self.run.demonstrations_module
        if config is None or module is None:
            return
        demonstrations = draw(module.demonstrate, self.train_tasks, config)
        playing = {role.policy for role in self.roles.values()}  # whoever plays no role has nothing to learn from them
        for policy in self.run.policies:
            if is_tiny(policy.model) and policy.name in playing:
                folder = self.run.policy_args[policy.name].actor.model_name_or_path
                self._load_from(policy, warm_start(policy.model, folder, demonstrations, self.roles, config, display))

    def _load_from(self, policy: Policy, folder: str) -> None:
        """The folder that a policy's model is loaded from, and its critic's, unless that has a model of its own.

        Upstream makes a new value head where the two are the same, and expects one in the folder where they are not.
        """
        args = self.run.policy_args[policy.name]
        if args.critic.model_name_or_path == args.actor.model_name_or_path:
            args.critic.model_name_or_path = folder
        args.actor.model_name_or_path = folder

    def start(self) -> None:
        """Start every process of every policy at once and wait for all of them."""
        run = self.run
        self.hosts = self._start()
        self.trained = {name: host for name, host in self.hosts.items() if host.trainer is not None}
        from marl_plugins.runtime.questions import Questions
        from marl_plugins.runtime.rollout import Rollout

        pools = {name: host.engines for name, host in self.hosts.items()}
        longest = {name: args.data.max_len for name, args in run.policy_args.items()}
        run.questions = Questions(run.plugins, pools, self.chats, longest, run.args.train.seed)
        self.rollout = Rollout(
            run.plugins,
            run.plugins.hook.marl_workflow(run=run),
            self.roles,
            self.tools,
            pools,
            run.args.train.seed,
            run.recipe.limits.task_seconds,
        )

    def _tools(self) -> dict[str, Tool]:
        tools: dict[str, Tool] = {}
        for given in self.run.plugins.hook.marl_tools(run=self.run):
            for tool in given or ():
                if tool.name in tools:
                    raise ConfigurationError(f"two plugins bring a tool called {tool.name!r}; rename one")
                tools[tool.name] = tool
        return tools

    def _tokenizers(self) -> dict[str, Any]:
        from transformers import AutoTokenizer

        tokenizers, problems = {}, []
        for policy in self.run.policies:
            args = self.run.policy_args[policy.name]
            name = args.actor.model_name_or_path
            try:
                tokenizer = AutoTokenizer.from_pretrained(
                    name, trust_remote_code=True, use_fast=not args.data.disable_fast_tokenizer
                )
            except (OSError, ValueError) as error:
                problems.append(
                    f"policy {policy.name!r}: the tokenizer of {name!r} cannot be loaded: {str(error).splitlines()[0]}"
                )
                continue
            tokenizer.padding_side = "left"
            if tokenizer.pad_token is None:
                tokenizer.pad_token = tokenizer.eos_token
            tokenizers[policy.name] = tokenizer
        if problems:
            raise ConfigurationError(problems)
        return tokenizers

    def _chats(self) -> dict[str, ChatFormat]:
        chats, problems = {}, []
        for policy, tokenizer in self.tokenizers.items():
            try:
                chats[policy] = ChatFormat(tokenizer, policy)
                self._try_template(policy, chats[policy])
            except ConfigurationError as error:
                problems += error.problems
        if problems:
            raise ConfigurationError(problems)
        return chats

    def _roles(self) -> dict[str, RoleSpec]:
        roles = {}
        for name, role in self.run.recipe.roles.items():
            policy = self.run.recipe.policy_of(name)
            args = self.run.policy_args[policy]
            roles[name] = RoleSpec(
                name=name,
                policy=policy,
                render=prompt_renderer(
                    (self.run.folder / role.prompt).read_text(encoding="utf-8"),
                    (self.run.folder / role.system).read_text(encoding="utf-8") if role.system else None,
                ),
                chat=self.chats[policy],
                sampling=Sampling(
                    temperature=args.rollout.temperature,
                    top_p=args.rollout.top_p,
                    max_new_tokens=role.max_new_tokens or args.rollout.max_new_tokens,
                    max_len=args.data.max_len,
                    stop=tuple(role.stop),
                ),
                tools=tuple(self.tools[t] for t in role.tools),
                max_turns=role.max_turns,
                endless_tools_fail=role.endless_tools == "fail",
            )
        return roles

    def _try_template(self, policy: str, chat: ChatFormat) -> None:
        """Render what the policy's roles will need, so that a template that cannot is found out before anything is started."""
        import jinja2

        for name, role in self.run.recipe.roles.items():
            if self.run.recipe.policy_of(name) != policy:
                continue
            opening = [{"role": "system", "content": "?"}] if role.system else []
            try:
                chat.opening([*opening, {"role": "user", "content": "?"}])
                for tool in role.tools if role.max_turns > 1 else ():
                    chat.continuation([], {"role": self.tools[tool].message_role, "content": "?"})
            except jinja2.TemplateError as error:
                raise ConfigurationError(
                    f"policy {policy!r}: its chat template refuses the messages of role {name!r}: {error}"
                ) from None

    def _start(self) -> dict[str, Any]:
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        from marl_plugins.runtime.engines import Budget, EnginePool, start_engine, start_engines

        budget = Budget(self.run.recipe.limits.engine_restarts)
        max_steps = self._max_steps()
        launched, pools = {}, {}
        for policy in self.run.policies:
            args = self.run.policy_args[policy.name]
            shared = _placement_group(args) if policy.trainable and args.train.colocate_all else None
            if policy.trainable:
                launched[policy.name] = self._launch(policy, shared)
            pools[policy.name] = EnginePool(
                policy.name,
                start_engines(args, shared),
                functools.partial(start_engine, args) if self.run.device == "cpu" else None,
                budget,
            )
        hosts = {}
        waiting = []
        for policy in self.run.policies:
            args = self.run.policy_args[policy.name]
            trainer = None
            if policy.trainable:
                trainer, refs = self._trainer(
                    policy, launched[policy.name], pools[policy.name].handles, max_steps[policy.name]
                )
                waiting += [(policy.name, ref) for ref in refs]
            waiting += [(policy.name, handle.identify.remote(policy.name, 0)) for handle in pools[policy.name].handles]
            hosts[policy.name] = _host(policy, args, trainer, pools[policy.name], self.run)
        for name, reference in waiting:
            try:
                ray.get(reference)
            except (RayTaskError, RayActorError) as error:
                cause = str(error).strip().splitlines()
                model = self.run.policy_args[name].actor.model_name_or_path
                raise ConfigurationError(
                    f"policy {name!r}: model {model!r} could not be started: {cause[-1].strip()} (--debug shows all of it)"
                ) from error
        return hosts

    def kill(self) -> None:
        """End every process of every policy at once, whatever it is doing."""
        import ray

        for host in self.hosts.values():
            t = host.trainer
            groups = [] if t is None else [t.actor_model_group, t.critic_model_group, t.reference_model_group]
            for actor in (a for group in groups for a in getattr(group, "_actor_handlers", ())):
                ray.kill(actor)
            for engine in host.engines.engines:
                ray.kill(engine.handle)

    def _max_steps(self) -> dict[str, int]:
        """Optimiser steps of the whole run by policy, for the learning-rate schedules."""
        per_episode = optimiser_steps(self.run, len(self.train_tasks))
        episodes = self.run.args.train.num_episodes
        return {name: sum(per_episode) * episodes * args.train.max_epochs for name, args in self.run.policy_args.items()}

    def _launch(self, policy: Policy, shared: Any) -> Launched:
        """Start a policy's training processes (its critic's, and on GPUs its reference's); nothing is loaded yet."""
        from openrlhf.trainer.ray.launcher import RayActorGroup

        from marl_plugins.runtime.critic_actor import RemoteCriticActor
        from marl_plugins.runtime.policy_actor import RemotePolicyActor, RemoteReferenceActor

        args = self.run.policy_args[policy.name]
        group_of = shared or (
            _placement_group(args) if args.train.colocate_actor_ref and self.run.device != "cpu" else None
        )
        share = 0.2 if group_of else 1
        group = RayActorGroup(args.actor.num_nodes, args.actor.num_gpus_per_node, RemotePolicyActor, group_of, share)
        reference = None
        if args.algo.kl.init_coef > 0 and self.run.device != "cpu":
            reference = RayActorGroup(args.ref.num_nodes, args.ref.num_gpus_per_node, RemoteReferenceActor, group_of, share)
        critic = None
        if critic_gpus(args):
            share = 0.2 if shared else 1
            critic = RayActorGroup(args.critic.num_nodes, args.critic.num_gpus_per_node, RemoteCriticActor, shared, share)
        return Launched(group, reference, critic)

    def _trainer(self, policy: Policy, launched: Launched, engines: Sequence[Any], max_steps: int) -> tuple[Any, list[Any]]:
        """Upstream's trainer of a policy, and what to wait for until its models are loaded."""
        from marl_plugins.runtime.policy import PolicyTrainer, ReferenceInPolicy

        group, reference, critic = launched
        args = self.run.policy_args[policy.name]
        strategy = _strategy(args, training_gpus(args))
        on_cpu = self.run.device == "cpu"
        with_reference = on_cpu and args.algo.kl.init_coef > 0
        refs = group.async_init_model_from_pretrained(
            strategy,
            args.actor.model_name_or_path,
            max_steps,
            list(engines),
            with_reference,
        )
        if reference is not None:
            refs += reference.async_init_model_from_pretrained(strategy, args.actor.model_name_or_path)
        elif with_reference:
            reference = ReferenceInPolicy(group)
        if critic is not None:
            refs += critic.async_init_model_from_pretrained(
                _strategy(args, critic_gpus(args)), args.critic.model_name_or_path, max_steps
            )
        return PolicyTrainer(strategy, group, reference, list(engines), self.tokenizers[policy.name], critic), refs


class Launched(NamedTuple):
    """Groups of processes of one policy: its own, its reference's and its critic's, where it has them."""

    group: Any
    reference: Any
    critic: Any


def _strategy(args: Any, ranks: int) -> Any:
    """Upstream's DeepSpeed strategy for so many ranks.

    DeepSpeed wants rows; --train.batch_size counts trajectories. One micro-batch per rank, until each fit says how many.
    """
    from openrlhf.utils import get_strategy

    strategy = get_strategy(args)
    strategy.train_batch_size = args.train.micro_batch_size * ranks
    return strategy


def _host(policy: Policy, args: Any, trainer: Any, pool: Any, run: Run) -> Any:
    from marl_plugins.runtime.policy import PolicyHost

    return PolicyHost(policy, args, trainer, pool, run.device)


def _placement_group(args: Any) -> Any:
    """One bundle per training process, as upstream makes it for colocated models (train_ppo_ray.py:48-51)."""
    import ray
    from ray.util.placement_group import placement_group

    group = placement_group([{"GPU": 1, "CPU": 1}] * training_gpus(args), strategy="PACK")
    ray.get(group.ready())
    return group
