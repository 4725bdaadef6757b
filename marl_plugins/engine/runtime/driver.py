"""A training run from beginning to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from marl_plugins.core.failures import RunEnded
from marl_plugins.engine.plan.describe import describe, first_lines
from marl_plugins.engine.plan.fingerprint import fingerprint
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.resume import accepted, saved_steps
from marl_plugins.engine.processes.cluster import own_cluster, prepare_environment, ray_cluster
from marl_plugins.engine.processes.fork_server import fork_server
from marl_plugins.engine.records.best import put_back
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.records.report import legend, table, write_report
from marl_plugins.engine.records.run_folder import record_start
from marl_plugins.engine.records.tokenizers import record_tokenizers
from marl_plugins.engine.records.write import Records, cut_back, held, move_aside, writing
from marl_plugins.engine.runtime.checkpoints import Checkpoints
from marl_plugins.engine.runtime.collector import without_collector
from marl_plugins.engine.runtime.lifetime import (
    plugins_started,
    run_until_terminated,
    terminated_like_interrupted,
)
from marl_plugins.engine.runtime.session import Session

if TYPE_CHECKING:
    from marl_plugins.engine.runtime.trainer import Trainer


def train(plan: Plan, words: Sequence[str]) -> int:
    """Trains as planned, and returns the exit code 0.

    Args:
        words: As typed after `openrlhf train`, for the run's folder.

    Raises:
        ConfigurationError: What could only be known now (a model that does not load, too few
            devices).
        RunEnded: A run that had to end in a known way.
        KeyboardInterrupt: The user stopped it; everything started has been shut down.
    """
    run, debug = plan.run, plan.options.debug
    output, checkpoint_folder = (
        Path(run.args.ckpt.output_dir).absolute(),
        Path(run.args.ckpt.path).absolute(),
    )
    display = Display(plan.options.json, list(run.recipe.roles))
    for line in (*(f"warning: {warning}" for warning in run.warnings), *first_lines(plan)):
        display.say(line)
    prepare_environment(run, debug)
    with (
        held("ckpt.output_dir", output),
        held("ckpt.path", checkpoint_folder),
        fork_server(debug) as python,
        terminated_like_interrupted(),
        asyncio.Runner() as loop,
        plugins_started(loop, plan, "train"),
        ExitStack() as stack,
    ):
        with display.phase("loading tasks and tokenizers", announce=True), without_collector():
            session = Session(plan, output if run.args.ckpt.load_enable else None)
        cluster = ray_cluster(run, debug, python, (output, checkpoint_folder), session.models)
        if joined := not own_cluster():  # what a node lacks is said before anything is computed
            stack.enter_context(cluster)
        session.warm_start(display)
        now = fingerprint(plan, session.tools)
        checkpoints = Checkpoints(
            checkpoint_folder, run.args.ckpt.max_num, now, session.critics, run.output
        )
        with display.phase("checking what is saved"):
            manifest = checkpoints.open(run.args.ckpt.load_enable, plan.options.resume_with_changes)
        started, done = time.monotonic(), manifest["step"] if manifest else 0
        for change in accepted(checkpoints.new_changes):
            if change not in run.warnings:  # tasks of a hub are read only now
                display.say(f"warning: {change}")
        if not manifest and (aside := move_aside(output, keep_start=bool(plan.options.resume))):
            display.say(f"records of an earlier run moved to {aside}")
        for remark in cut_back(output, done) if manifest else ():
            display.say(f"warning: {remark}")
        record_start(plan, words, done, session.day)
        with writing("the tokenizers", output):
            record_tokenizers(
                output, {name: chat.tokenizer for name, chat in session.chats.items()}
            )
        with saying_how_to_resume(checkpoints), nullcontext() if joined else cluster:
            from marl_plugins.engine.runtime.trainer import Trainer

            recorded = Records(
                output,
                run.args,
                describe(plan),
                not plan.options.no_trainer_logprobs,
                plan.options.logged_trajectories,
            )
            with closing(recorded) as records:  # first: a login that fails is said at once
                starting = (
                    f"starting engines and training processes (policies: {len(run.policies)})"
                )
                with display.phase(starting, announce=True), without_collector():
                    session.start()
                display.say(f"policies are ready after {time.monotonic() - started:.0f} s")
                for line in session.placed():
                    display.say(line)
                if manifest:
                    for name, policy in session.trained.items():
                        policy.version = manifest["policies"][name]
                    plan.plugins.restore(run, manifest["state"])
                    display.say(f"resuming after step {done}")
                trainer = Trainer(session, records, checkpoints, display)
                if manifest:
                    trainer.restore(done, manifest.get("files", {}))
                    trainer.best.restore(manifest.get("best", {}), saved_steps(checkpoint_folder))
                    put_back(output)
                last = run_until_terminated(loop, session, train_and_save(trainer, done))
    try:
        with writing("the report", output):
            title = f"{run.recipe.name}, seed {run.args.train.seed}"
            summary, problem = write_report(
                output, list(run.recipe.roles), title, bool(run.recipe.populations)
            )
        display.report(summary, *table(summary), legend(summary))
        if problem:
            display.say(problem)
    finally:
        display.say(
            f"finished step {last} after {time.monotonic() - started:.0f} s; weights, records and "
            f"report.md in {output}; every action: openrlhf inspect {output}"
        )
    return 0


async def train_and_save(trainer: Trainer, done: int) -> int:
    """Trains from the step after `done` to the end, saves the models, and returns the last step's
    number."""
    last = await trainer.fit(done)
    await trainer.saving.save_models()
    return last


@contextmanager
def saying_how_to_resume(checkpoints: Checkpoints) -> Iterator[None]:
    """Makes every early end say from where, if from anywhere, the run can be resumed."""
    try:
        yield
    except (RunEnded, KeyboardInterrupt) as error:
        text = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
        raise type(error)(f"{text}; {checkpoints.what_is_saved()}") from error
