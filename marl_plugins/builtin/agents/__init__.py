"""Programs in place of workflows (`agent: {file: my_agent.py, function: main}`): they talk to an
endpoint in the run's own process that speaks OpenAI's protocols and Anthropic's, in which the model
is the role and the key is the trajectory (docs/agents.md).

section.py        the recipe's key             workflow.py       a program as the workflow of a run
programs.py       runs it once                 launcher.py       forks Python programs from one that
    has imported what they do
server.py         the endpoint                 session.py        one trajectory's requests as calls
    of roles
requests.py, answers.py, responses.py, messages.py   the protocols: chat completions, and what comes
    to them; request_fields.py: what becomes of every field
conversations.py  which conversation a request continues, token for token
parents.py        which earlier answers it has probably seen
metrics.py        what is counted, and the end of a run whose program does not work
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_plugins import applies_if, hookimpl
from marl_plugins.builtin.agents.section import AgentConfig, ProgramOfRun, program_of
from marl_plugins.core.command import Command
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import Finding, check_extra, missing_extra
from marl_plugins.core.problems import Problem, Where, at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from marl_plugins.core.run import Run
    from marl_plugins.core.scoring import Seen
    from marl_plugins.core.section import Section
    from marl_plugins.core.steps import Step, StepPart
    from marl_plugins.core.trajectory import Action
    from marl_plugins.core.workflow import Workflow
    from marl_plugins.engine.plan.plan import Plan


def need_aiohttp(where: Where) -> None:
    """Raises `ConfigurationError` where the endpoint's library is not installed."""
    if missing := missing_extra("agents", "aiohttp", where):
        raise ConfigurationError(missing)


@hookimpl
def marl_commands() -> list[Command]:
    def main(words: Sequence[str]) -> int:
        need_aiohttp(at(command="serve"))
        from marl_plugins.builtin.agents.serving import main

        return main(words)

    return [
        Command(
            "serve", "RUN [--port PORT]", "a run's models behind the endpoint, until Ctrl-C", main
        )
    ]


@hookimpl
def marl_sections() -> dict[str, type[Section]]:
    return {"agent": AgentConfig}


@hookimpl
def marl_workflow(run: Run) -> Workflow | None:
    """Returns the program of a recipe that has one, as a workflow.

    Raises:
        ConfigurationError: All that is wrong with it.
    """
    config = program_of(run)
    if config is None:
        return None
    need_aiohttp(at(key="agent"))
    from marl_plugins.builtin.agents.workflow import make_workflow

    known = run.state(ProgramOfRun)
    if known.workflow is None:
        known.workflow = make_workflow(config, run.folder)
    return known.workflow


def _rewards_answers(run: Run) -> bool:
    config = program_of(run)
    return config is not None and config.rewards is not None


@hookimpl
@applies_if(_rewards_answers)
def marl_score_action(run: Run, action: Action, seen: Seen) -> Awaitable[float | None] | None:
    if not _rewards_answers(run):
        return None

    async def score() -> float | None:
        return action.score  # the program's, which writes it whenever it knows

    return score()


@hookimpl
def marl_rehearse(plan: Plan) -> list[Problem]:
    """Refuses rewards of the program's beside another scorer of answers."""
    run = plan.run
    if not _rewards_answers(run):
        return []
    owners = plan.plugins.owners("marl_score_action", run)
    if len(owners) == 1 and not hasattr(run.grader_module, "score_action"):
        return []
    got = f"the grader's score_action or a plugin ({', '.join(owners)}) scores answers, too"
    return [Problem("agents.rewards", at(key="agent.rewards"), got, fix="keep one of them")]


@hookimpl
def marl_doctor(run: Run | None) -> list[Finding]:
    used = run is not None and not run.recipe.workflow
    return [
        check_extra("agents", ["aiohttp"], "programs in place of workflows (`agent:`)", used=used)
    ]


@hookimpl
def marl_step(run: Run, step: Step) -> StepPart | None:
    if program_of(run) is None:
        return None
    from marl_plugins.builtin.agents.metrics import ProgramCounts

    return ProgramCounts(len(step.tasks) * run.args.rollout.n_samples_per_prompt)
