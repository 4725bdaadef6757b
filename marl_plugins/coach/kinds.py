"""The coach that the flags or the recipe name, made and not yet tried."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_plugins import ConfigurationError, Problem, at, use_tool
from marl_plugins.coach.ensemble import Ensemble
from marl_plugins.coach.flags import PREFIX, endpoint_of, kind_of, require_modules
from marl_plugins.coach.members import config_of, member_args, members_of, of_member
from marl_plugins.coach.memory import training_text
from marl_plugins.coach.rubric import RubricCoach, load_rules
from marl_plugins.coach.state import CoachState

if TYPE_CHECKING:
    from marl_plugins import Run
    from marl_plugins.asking.asker import Asker
    from marl_plugins.asking.cache import KeptAnswers
    from marl_plugins.coach.programs import CoachPrograms
    from marl_plugins.coach.state import Coach


def make_coach(run: Run) -> tuple[Coach | None, dict[str, Asker]]:
    """Returns the coach, and what its members that are models are asked through; nothing is opened.
    A single coach is the member "".

    Raises:
        ConfigurationError: A rubric, a prompt or a recording cannot be used, or a module is not
            installed; all at once.
    """
    shared = functools.cache(lambda: kept_answers(run))
    members = {name: member_args(run, member) for name, member in members_of(run).items()}
    coaches: dict[str, Coach] = {}
    askers: dict[str, Asker] = {}
    problems: list[Problem] = []
    for name, args in (members or {"": run.args.coach}).items():
        try:
            coach, asker = make_one(run, args, shared)
        except ConfigurationError as error:
            problems += of_member(name, error.problems)
            continue
        coaches |= {name: coach} if coach is not None else {}
        askers |= {name: asker} if asker is not None else {}
    if problems:
        raise ConfigurationError(problems)
    return (Ensemble(coaches, config_of(run)) if members else coaches.get("")), askers


def make_one(
    run: Run, args: Any, shared: Callable[[], KeptAnswers]
) -> tuple[Coach | None, Asker | None]:
    """Returns one coach by its flags (`args.rubric`, ...), and what it is asked through where it is
    a model.

    Args:
        shared: The verdicts that are kept.

    Raises:
        ConfigurationError: Its rubric, a prompt or a recording cannot be used, or a module is not
            installed.
    """
    kind = kind_of(args)
    if kind is None:
        return None, None
    if kind == "rubric":
        stages = run.state(CoachState).stages
        return RubricCoach(
            *load_rules(Path(args.rubric), list(run.recipe.roles)), lambda: stages.weights
        ), None
    # A rubric asks nobody: what asks takes 20 ms to import.
    from marl_plugins.asking.asker import endpoint_asker, policy_asker
    from marl_plugins.asking.limits import SpendingBudget
    from marl_plugins.asking.prompts import duties_of
    from marl_plugins.coach.model import PROMPTS, ModelCoach, Questions, read_prompt

    endpoint = endpoint_of(args) if kind == "model" else None
    prompt = read_prompt(Path(args.prompt or PROMPTS / "action.md"), with_label=False)
    last = read_prompt(Path(args.last_prompt or PROMPTS / "last_action.md"), with_label=True)
    programs = _programs(run)
    if endpoint is None:
        asker = policy_asker(
            run, args.policy, prefix=PREFIX, max_tokens=args.max_tokens, deadline=args.deadline
        )
    else:
        require_modules()
        if programs:
            endpoint = replace(endpoint, form="text")  # a program stands in text
        price = (args.price_in, args.price_out)
        budget = SpendingBudget(PREFIX, args.budget_tokens, args.budget, price)
        asker = endpoint_asker(endpoint, budget, shared())
    questions = Questions(
        (prompt, last), duties_of(run), args.corrections, functools.partial(told, run), programs
    )
    if kind == "policy" and args.train_every:
        from marl_plugins.coach.training import TrainedCoach

        return TrainedCoach(asker, questions, args.policy, run.state(CoachState).said), asker
    return ModelCoach(asker, questions), asker


def _programs(run: Run) -> CoachPrograms | None:
    """Returns what models run programs with, where the recipe lets them."""
    config = config_of(run)
    if not config.tools:
        return None
    from marl_plugins.coach.programs import CoachPrograms

    return CoachPrograms(use_tool(run, "python", "the coach"), config.max_calls)


def told(run: Run, role: str) -> str:
    """Returns what a model is told of a role's training."""
    state = run.state(CoachState)
    return training_text(run, role, state.stages, state.bias)


def kept_answers(run: Run) -> KeptAnswers:
    """Returns the verdicts that --coach.cache, --coach.record and --coach.replay keep.

    Raises:
        ConfigurationError: There is nothing to replay.
    """
    from marl_plugins.asking.cache import KeptAnswers

    args = run.args.coach
    if not args.replay:
        files = [Path(file) for file in (args.cache, args.record) if file]
        return KeptAnswers(PREFIX, Path(args.cache) if args.cache else None, files)
    kept = KeptAnswers(PREFIX, Path(args.replay), replay=True)
    kept.load()
    if not kept.known:
        raise ConfigurationError(
            Problem(
                "coach.empty_recording",
                at(flag="coach.replay"),
                f"{args.replay}: holds no verdicts",
                fix="--coach.record FILE keeps those of a run",
            )
        )
    return kept
