"""The multi-agent training loop: one direction of data, one function per arrow.

    tasks -> rollout -> credit -> rows -> select -> advantages (all policies together) -> update -> weight sync

Each policy's forward passes, update and broadcast are upstream's; what spans the policies is here.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.exceptions import RayTaskError

from marl_plugins.core.credit import rewards_from_scores, sum_over_scope
from marl_plugins.core.estimators import Estimator
from marl_plugins.core.failures import RunEnded, RunPaused
from marl_plugins.core.intervals import wilson
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.rows import Row, rows_of
from marl_plugins.core.tasks import batches
from marl_plugins.core.trajectory import Task, Trajectory
from marl_plugins.run import Run, optimiser_steps
from marl_plugins.runtime.checkpoints import Checkpoints, tag
from marl_plugins.runtime.display import Display
from marl_plugins.runtime.policy import PolicyHost, advantages, raised_by
from marl_plugins.runtime.records import Records
from marl_plugins.runtime.rollout import Rollout

EMPTY_STEPS = 3
"""So many steps in a row without a single row to train on end the run."""


class Trainer:
    """One run's loop.

    Args:
        run: The plan.
        hosts: The policies, frozen ones included.
        rollout: Runs workflows.
        train_tasks, eval_tasks: Read at start.
    """

    def __init__(
        self,
        run: Run,
        hosts: Mapping[str, PolicyHost],
        rollout: Rollout,
        estimator: Estimator,
        train_tasks: Sequence[Task],
        eval_tasks: Sequence[Task],
        records: Records,
        checkpoints: Checkpoints,
        display: Display,
    ):
        self.run = run
        self.hosts = hosts
        self.trained = {name: host for name, host in hosts.items() if host.trainer is not None}
        self.rollout = rollout
        self.estimator = estimator
        self.train_tasks = train_tasks
        self.eval_tasks = eval_tasks
        self.records = records
        self.checkpoints = checkpoints
        self.display = display
        self.plugins = run.plugins
        self.empty_steps = self.saved = 0
        self.shown: set[str] = set()

    def schedule(self) -> Iterator[tuple[int, int, list[Task]]]:
        """All training steps of the run as (step from 1, optimiser steps, tasks); a function of the seed alone."""
        step = 0
        steps = optimiser_steps(self.run, len(self.train_tasks))
        for episode in range(self.run.args.train.num_episodes):
            order = batches(self.train_tasks, self.run.args.train.seed, episode, self.run.args.rollout.batch_size)
            for k, tasks in zip(steps, order, strict=False):
                step += 1
                yield step, k, tasks

    async def fit(self, done: int) -> int:
        """Train from the step after `done` to the end; the last step's number."""
        args = self.run.args
        self.saved = done
        if done:  # the engines have loaded the original models
            await _all(self.plugins.hook.marl_sync(host=h, version=h.version) for h in self.trained.values())
        evaluating = self.eval_tasks and args.eval.steps > 0
        if evaluating and not done:
            metrics = await self.evaluate()
            self.records.step(0, metrics, [], None)
            self.display.evaluation(0, metrics)
        schedule = [s for s in self.schedule() if self.run.max_steps is None or s[0] <= self.run.max_steps]
        for step, k, tasks in schedule:
            if step <= done:
                continue
            try:
                metrics, trajectories, ledger = await self.train_step(step, k, tasks)
            except RunPaused:  # nothing of this step has been trained on: what stands is the step before
                if done and done != self.saved:
                    await self.save(done)
                raise
            last = step == schedule[-1][0]
            if evaluating and (last or step % args.eval.steps == 0):
                evaluation = await self.evaluate()
                metrics |= evaluation
                self.display.evaluation(step, evaluation)
            self.plugins.hook.marl_log(step=step, metrics=metrics)
            with writing("the records", self.records.folder):
                self.records.step(step, metrics, trajectories, ledger)
            if step % max(1, args.logger.logging_steps) == 0:
                self.display.step(metrics)
            done = step
            if args.ckpt.save_steps > 0 and step % args.ckpt.save_steps == 0:
                await self.save(step)
        return done

    async def train_step(
        self, step: int, k: int, tasks: Sequence[Task]
    ) -> tuple[dict[str, float], list[Trajectory], Ledger]:
        """One step: rollout, credit, advantages, update and weight sync."""
        seconds: dict[str, float] = {}
        for host in self.hosts.values():
            host.step = step
        with self._timed("rollout", seconds), self._progress("rollout", len(tasks) * self.samples) as tick:
            await _all(host.wake() for host in self.hosts.values())
            trajectories = await self.rollout.train(tasks, self.samples, step, tick)
            await _all(host.sleep() for host in self.hosts.values())
        self._show_first_prompts(trajectories)
        with self._timed("advantages", seconds), self._progress("advantages"):
            rows = await self.credited_rows(trajectories, k)
            ledger = Ledger.of(step, trajectories, rows)
            by_policy = await self.advantages(rows)
        metrics = summary(trajectories, ledger)
        metrics["drift/max"] = max((self.drift[p] for p in by_policy), default=0.0)
        with self._timed("update", seconds), self._progress("update"):
            updates = await self._update(by_policy, k)
        with self._timed("sync", seconds), self._progress("weight sync"):
            await self._sync([self.trained[p] for p in updates])
        for policy, status in updates.items():
            metrics |= {f"policy/{policy}/{name}": value for name, value in status.items()}
            metrics[f"policy/{policy}/drift"] = self.drift[policy]
        metrics["grad_norm/max"] = max((s.get("actor_grad_norm", 0.0) for s in updates.values()), default=0.0)
        metrics["kl/mean"] = _mean([s["kl"] for s in updates.values() if "kl" in s])
        metrics["engines/restarted"] = float(sum(h.engines.restarted for h in self.hosts.values()))
        metrics |= {f"seconds/{name}": value for name, value in seconds.items()}
        self._count_empty(step, ledger, updates)
        return {"step": float(step), **metrics}, trajectories, ledger

    @property
    def samples(self) -> int:
        return int(self.run.args.rollout.n_samples_per_prompt)

    async def credited_rows(self, trajectories: list[Trajectory], k: int) -> list[Row]:
        """Scores to rewards to returns to the rows that are trained on."""
        rewards_from_scores(trajectories)
        trajectories = await self.plugins.chain("marl_credit", trajectories)
        sum_over_scope(trajectories, self.estimator.return_scope)
        rows = list(
            await self.plugins.chain("marl_select", rows_of(trajectories, frozenset(self.trained)), run=self.run, steps=k)
        )
        for row in rows:
            self._check_version(row)
        return rows

    def _check_version(self, row: Row) -> None:
        """Training on rows sampled by other weights than those that are trained aborts."""
        g, host = row.action.generation, self.trained[row.action.policy]
        if (g.policy, g.version) != (host.policy.name, host.version):
            raise RunEnded(
                f"row {row.name} was sampled from policy {g.policy!r} version {g.version}, but would train policy "
                f"{host.policy.name!r} at version {host.version}; the run's engines and policies are out of step"
            )

    async def advantages(self, rows: Sequence[Row]) -> dict[str, list[Row]]:
        """Advantages of all rows of all policies together; the rows by policy."""
        by_policy: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_policy[row.action.policy].append(row)
        hosts = [self.trained[name] for name in by_policy]
        await _all(host.make_experience(by_policy[host.policy.name]) for host in hosts)
        self.drift = {host.policy.name: host.drift() for host in hosts}
        if hosts:
            advantages(hosts, self.estimator)
        return dict(by_policy)

    async def _update(self, by_policy: Mapping[str, list[Row]], k: int) -> dict[str, dict[str, float]]:
        hook = self.plugins.hook
        names = list(by_policy)
        results = await _all(hook.marl_update(host=self.trained[n], rows=by_policy[n], steps=k) for n in names)
        return dict(zip(names, results, strict=True))

    async def _sync(self, hosts: Iterable[PolicyHost]) -> None:
        """Every updated policy's engines to its new weights; a sync that did not happen ends the run, for what is sampled next
        would be trained by other weights than it was sampled from."""
        hook, hosts = self.plugins.hook, list(hosts)
        due = {host.policy.name: host.version + 1 for host in hosts}
        done = await _all(hook.marl_sync(host=host, version=due[host.policy.name]) for host in hosts)
        for host, ok in zip(hosts, done, strict=True):
            if not ok or host.version != due[host.policy.name]:
                raise RunEnded(
                    f"policy {host.policy.name!r} was updated and its engines were not brought to version "
                    f"{due[host.policy.name]} (marl_sync gave {ok!r})"
                )

    def _count_empty(self, step: int, ledger: Ledger, updates: Mapping[str, Any]) -> None:
        self.empty_steps = 0 if updates else self.empty_steps + 1
        if self.empty_steps >= EMPTY_STEPS:
            raise RunPaused(
                f"no row to train on in {EMPTY_STEPS} steps in a row, up to step {step}; last ledger: {ledger.record()}; "
                "mend the cause"
            )

    async def evaluate(self) -> dict[str, float]:
        """Success on the evaluation tasks."""
        await _all(host.wake() for host in self.hosts.values())
        metrics = await evaluation(self.rollout, self.eval_tasks, self.run.args.eval, self.display)
        await _all(host.sleep() for host in self.hosts.values())
        return metrics

    async def save(self, step: int) -> None:
        """Save every policy and the plugins' state as one step."""
        with self._progress("checkpoint"), writing(f"step {step}", self.checkpoints.folder):
            state = {"step": step}
            await _all(host.save(tag(step), state) for host in self.trained.values())
            versions = {name: host.version for name, host in self.trained.items()}
            self.checkpoints.commit(step, versions, self.run.fingerprint(), self.plugins.state())
        self.saved = step

    async def save_models(self) -> None:
        """Each policy's weights in Hugging Face format, in its own folder."""
        with self._progress("saving models"), writing("the final weights", self.records.folder):
            await _all(host.save_model() for host in self.trained.values())

    def _show_first_prompts(self, trajectories: Sequence[Trajectory]) -> None:
        """Print the context of every role's first action, as the model saw it; once per role."""
        prompts: dict[str, str] = {}
        for action in (a for t in trajectories for a in t.actions):
            if action.role not in self.shown:
                self.shown.add(action.role)
                tokenizer = self.rollout.roles[action.role].chat.tokenizer
                prompts[action.role] = tokenizer.decode(list(action.context_ids), skip_special_tokens=False)
        if prompts:
            self.display.first_prompts({role: prompts[role] for role in self.rollout.roles if role in prompts})

    @contextmanager
    def _timed(self, phase: str, seconds: dict[str, float]) -> Iterator[None]:
        started = time.monotonic()
        yield
        seconds[phase] = time.monotonic() - started

    def _progress(self, name: str, total: int | None = None) -> Any:
        return self.display.phase(name, total)


FULL_DISK = ("inline_container.cc", "I/O error", "No space left")
"""What torch and safetensors say when a file cannot be written to its end."""


@contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """What cannot be written (a full disk, a folder that has gone) ends the run; what was saved before stays.

    torch and safetensors have exceptions of their own for a full disk, which say little.
    """
    try:
        yield
    except (OSError, RayTaskError) as error:
        cause = raised_by(error) if isinstance(error, RayTaskError) else error
        if not isinstance(cause, OSError) and not any(sign in str(cause) for sign in FULL_DISK):
            raise
        reason = cause.strerror or cause if isinstance(cause, OSError) else "writing failed, as it does on a full disk"
        free = shutil.disk_usage(folder).free / 2**20 if folder.exists() else 0
        raise RunEnded(f"{what} could not be written to {folder} ({free:.0f} MB free): {reason}") from error


async def _all(work: Iterable[Any]) -> list[Any]:
    """Await all at once; the first known failure of a remote process ends the run with its own message."""
    try:
        return list(await asyncio.gather(*work))
    except RayTaskError as error:
        cause = raised_by(error)
        if isinstance(cause, FloatingPointError):
            raise RunEnded(f"{cause}; nothing of this step was synced or saved") from error
        raise


async def evaluation(rollout: Rollout, tasks: Sequence[Task], args: Any, display: Display) -> dict[str, float]:
    """Success on tasks, with its interval over tasks; what is lost to infrastructure counts as wrong and is reported beside.

    Args:
        args: `eval.n_samples_per_prompt` and `eval.temperature`.
    """
    started = time.monotonic()
    with display.phase("evaluation", len(tasks) * args.n_samples_per_prompt) as tick:
        found = await rollout.evaluate(tasks, args.n_samples_per_prompt, args.temperature, tick)
    rate = _mean([t.outcome or 0.0 for t in found])
    low, high = wilson(rate, len(tasks))
    return {
        "eval/outcome": rate,
        "eval/low": low,
        "eval/high": high,
        "eval/tasks": float(len(tasks)),
        "eval/lost": float(sum(t.infrastructure_failure is not None for t in found)),
        "eval/seconds": time.monotonic() - started,
    }


def summary(trajectories: Sequence[Trajectory], ledger: Ledger) -> dict[str, float]:
    """Metrics of a rollout: outcome, and by role reward, response length, tool calls and how they went."""
    scored = [t.outcome for t in trajectories if t.outcome is not None]
    actions = [a for t in trajectories if not t.infrastructure_failure for a in t.actions]
    metrics = {
        **({"outcome/mean": _mean(scored)} if scored else {}),
        "reward/mean": _mean([a.reward for a in actions if a.reward is not None]),
        "rows/generated": float(ledger.generated.total()),
        "rows/trained": float(ledger.trained.total()),
        "rows/left_out": float(sum(c.total() for c in ledger.left_out.values())),
        "trajectories/lost": float(ledger.lost.total()),
        "trajectories/failed": float(ledger.failed.total()),
        "tokens/sampled": float(sum(len(a.generation.ids) for a in actions)),
    }
    roles: dict[str, list[Any]] = defaultdict(list)
    for action in actions:
        roles[action.role].append(action)
    for role, mine in sorted(roles.items()):
        calls = [r for a in mine for r in a.tool_results]
        metrics[f"role/{role}/actions"] = float(len(mine))
        metrics[f"role/{role}/reward"] = _mean([a.reward for a in mine if a.reward is not None])
        metrics[f"role/{role}/advantage"] = _mean([a.advantage for a in mine if a.advantage is not None])
        for turn in sorted({a.turn for a in mine}) if any(a.turn for a in mine) else ():
            values = [a.advantage for a in mine if a.turn == turn and a.advantage is not None]
            metrics[f"role/{role}/advantage/turn{turn}"] = _mean(values)
        metrics[f"role/{role}/response_length"] = _mean([float(len(a.generation.ids)) for a in mine])
        metrics[f"role/{role}/truncated"] = _mean([float(a.generation.finish == "length") for a in mine])
        metrics[f"role/{role}/tool_call_rate"] = _mean([float(bool(a.tool_results)) for a in mine])
        if calls:
            metrics[f"role/{role}/tool_success"] = _mean([float(r.ok) for r in calls])
    return metrics


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
