"""The coach: a score from 0 to 10 for every action, while the rollout goes on (MAPPA, section 3).

Two kinds: `--coach.rubric FILE`, clear rules, offline and deterministic; and `--coach.model NAME`, a language model behind
any OpenAI-compatible endpoint. Either sees what the agent saw and did, never the label; only for the last action of the
last role does it get the label too. A verdict that cannot be had is missing: that action is not trained on, and is counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from marl_plugins import hookimpl
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure

if TYPE_CHECKING:
    import argparse

    from marl_plugins.core.trajectory import Action
    from marl_plugins.core.workflow import Seen
    from marl_plugins.run import Run

PROMPTS = Path(__file__).parent / "prompts"


class Coach(Protocol):
    """Gives a score in [0, 1] and writes `action.explanation`; raises `InfrastructureFailure` where it has no verdict."""

    async def score(self, action: Action, seen: Seen) -> float: ...


_coach: Coach | None = None
_scores: dict[str, list[float | None]] = defaultdict(list)


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("coach (marl_plugins.coach)")
    group.add_argument("--coach.rubric", metavar="FILE", help="rules in a .py file with `RUBRIC`; no model, no network")
    group.add_argument(
        "--coach.model", metavar="NAME", help="a model at an OpenAI-compatible endpoint, in the rubric's place"
    )
    group.add_argument(
        "--coach.base_url", metavar="URL", default="https://api.openai.com/v1", help="the endpoint (vLLM, Ollama, ...)"
    )
    group.add_argument(
        "--coach.api_key_env", metavar="NAME", default="OPENAI_API_KEY", help="environment variable that holds the key"
    )
    group.add_argument(
        "--coach.prompt", metavar="FILE", help="prompt for every action but the last; default: the package's"
    )
    group.add_argument(
        "--coach.last_prompt", metavar="FILE", help="prompt for the last role's last action; may use {label}"
    )
    group.add_argument("--coach.timeout", type=float, default=60.0, help="seconds for one request")
    group.add_argument("--coach.retries", type=int, default=4, help="of a request that failed in a way that may pass")
    group.add_argument("--coach.concurrency", type=int, default=32, help="requests in flight, in the whole run")


@hookimpl
def marl_configure(run: Run) -> list[str]:
    global _coach
    _scores.clear()
    given, args = run.on_command_line, run.args.coach
    rubric, model = args.rubric, args.model
    if rubric and model and ("coach.rubric" in given) != ("coach.model" in given):  # the command line beats the recipe
        rubric, model = (rubric, None) if "coach.rubric" in given else (None, model)
    if bool(rubric) == bool(model):
        got = "both" if rubric else "neither"
        return [f"marl_plugins.coach needs one of --coach.rubric FILE and --coach.model NAME, got {got}"]

    def path(name: str) -> Path | None:
        value = getattr(args, name)
        return None if value is None else Path(value) if f"coach.{name}" in given else run.folder / value

    try:
        if rubric:
            from marl_plugins.coach.rubric import RubricCoach, load_rubric

            file = path("rubric")
            assert file is not None
            _coach = RubricCoach(load_rubric(file, list(run.recipe.roles)))
        else:
            from marl_plugins.coach.endpoint import Endpoint, EndpointCoach, read_prompt

            endpoint = Endpoint(args.base_url, model, args.api_key_env, args.timeout, args.retries, args.concurrency)
            prompts = (
                read_prompt(path("prompt") or PROMPTS / "action.md", with_label=False),
                read_prompt(path("last_prompt") or PROMPTS / "last_action.md", with_label=True),
            )
            duties = {
                name: (run.folder / role.prompt).read_text(encoding="utf-8") for name, role in run.recipe.roles.items()
            }
            coach = EndpointCoach(endpoint, prompts, duties)
            if not run.dry_run:
                coach.probe()
            _coach = coach
    except ConfigurationError as error:
        return error.problems
    return []


@hookimpl
def marl_score_action(action: Action, seen: Seen) -> Awaitable[float]:
    return _score(action, seen)


async def _score(action: Action, seen: Seen) -> float:
    assert _coach is not None
    try:
        score = await _coach.score(action, seen)
    except InfrastructureFailure:
        _scores[action.role].append(None)
        raise
    _scores[action.role].append(score)
    return score


@hookimpl
def marl_log(step: int, metrics: dict[str, float]) -> None:
    """Mean score and missing verdicts of the step, by role."""
    for role, verdicts in sorted(_scores.items()):
        had = [v for v in verdicts if v is not None]
        if had:
            metrics[f"coach/{role}/score"] = sum(had) / len(had)
        metrics[f"coach/{role}/missing"] = float(len(verdicts) - len(had))
    _scores.clear()
