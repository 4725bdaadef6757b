"""`openrlhf verdicts RUN --recipe RECIPE`: what a run's coach has said, as a supervised data set
for a judge of one's own.

    records -> the question of each verdict, asked again in words -> prompt, completion ->
    train.jsonl, held_out.jsonl

The prompt is what the coach was shown, made again from the records with the run's recipe and flags;
the digest that was recorded with the verdict says that it is the same, word for word but for the
nonce, which is the one that a policy of the run would be given. The completion is the verdict in
the form that the prompt asks for. Rules (a rubric) were shown no prompt: their verdicts stand under
the package's, which is how a judge is taught rules. What cannot be used is counted by its reason:

    failed           the coach was asked and gave no verdict
    unjudged         nobody was asked, or a release that recorded no verdicts
    other_question   the recipe, the flags or the prompts are not those that the coach was asked
                     with
    ran_programs     the coach ran programs first, so the question is not all that it was shown
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_plugins import ConfigurationError, Problem, Seen, SeenLast, at, between, derive_seed
from marl_plugins.coach import correcting, verdict
from marl_plugins.coach.corrections import print_report
from marl_plugins.coach.flags import add_flags
from marl_plugins.coach.notes import NOTES, digest_of
from marl_plugins.coach.rejudge import read_trajectories, read_words
from marl_plugins.coach.state import CoachState
from marl_plugins.coach.verdict import Verdict

# inside: plans a run and reads its records
from marl_plugins.core.files import replace_text
from marl_plugins.core.options import step_range
from marl_plugins.core.recipe.texts import json_line
from marl_plugins.engine.records.read import TRAJECTORIES

if TYPE_CHECKING:
    from marl_plugins import Action, Run, Trajectory
    from marl_plugins.asking.request import JudgeRequest
    from marl_plugins.coach.model import Questions

REASONS = ("failed", "unjudged", "other_question", "ran_programs")
COLUMNS = ("actions", "written", "by_rules", *REASONS)
EXAMPLE = """\
Example:

  openrlhf verdicts runs/mine --recipe mathchat --coach.model qwen3-32b --held_out 0.2

and then, for TRL's SFTTrainer:

  datasets.load_dataset("json", data_files="runs/mine/verdicts/train.jsonl")

Give the recipe and the coach's flags of the run. Nobody is asked. `openrlhf coach` asks another
coach about the same actions."""


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line; flags of `openrlhf train` that are not listed are
    passed on."""
    from marl_plugins.engine.hosts.upstream_cli import UpstreamParser

    parser = UpstreamParser(
        prog="openrlhf verdicts",
        usage="openrlhf verdicts RUN --recipe RECIPE [--coach.* ...] [--to FOLDER] [--steps A:B] "
        "[--held_out SHARE] [--json]",
        description="Make a data set for supervised training of a judge of what a run's coach has "
        "said.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run's output folder")
    add(
        "--recipe",
        required=True,
        metavar="PATH",
        help="the run's recipe: a YAML file, its folder, or a shipped recipe",
    )
    add("--to", type=Path, metavar="FOLDER", help="where the files go; default: RUN/verdicts")
    add(
        "--steps",
        type=step_range,
        default=(0, None),
        metavar="A:B",
        help="steps A to B only, both included",
    )
    add(
        "--held_out",
        type=between(0, 1),
        default=0.1,
        metavar="SHARE",
        help="of the tasks, whose verdicts go to held_out.jsonl",
    )
    add(
        "--form",
        choices=["text", "json"],
        default="text",
        help="in which form the judge is to answer; a policy's is text",
    )
    add("--json", action="store_true", help="print one JSON object instead of a table")
    add_flags(parser)
    return parser


def main(words: Sequence[str]) -> int:
    """Runs the command, and returns its exit code.

    Raises:
        ConfigurationError: The flags or the records cannot be used, no verdict can, or the files
            are there already.
    """
    from marl_plugins.engine.plan.build import build_plan

    parsed = read_words(make_parser(), words, own=("to", "steps", "held_out", "form"))
    if parsed is None:
        return 0
    options, passed_on = parsed
    folder = options.to or options.run / "verdicts"
    files = {side: folder / f"{side}.jsonl" for side in ("train", "held_out")}
    if taken := [path for path in files.values() if path.exists()]:
        raise ConfigurationError(
            Problem(
                "files.exists",
                got=f"{taken[0]} is there already: remove it, or name another folder with --to",
            )
        )
    run = build_plan(passed_on).run
    trajectories = read_trajectories(options.run, options.steps, list(run.recipe.roles))
    rows, counts = rows_of(run, trajectories, options.form)
    if not rows:
        raise ConfigurationError(nothing_to_write(options.run, counts))
    written = write(rows, files, options.held_out)
    report = {"files": {str(path): count for path, count in written.items()}, "roles": counts}
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print_report(report, COLUMNS)
    return 0


def rows_of(
    run: Run, trajectories: Sequence[Trajectory], form: str
) -> tuple[list[dict[str, Any]], dict[str, dict[str, int]]]:
    """Returns a line for each verdict, and by role how many actions there are and what became of
    them."""
    from marl_plugins.asking.policy import derived_nonce

    questions, nonce = questions_of(run), derived_nonce(run.args.train.seed)
    rows: list[dict[str, Any]] = []
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for trajectory, action in ((t, a) for t in trajectories for a in t.actions):
        note = action.notes.get(NOTES) or {}
        counts[action.role]["actions"] += 1
        if "score" not in note:
            counts[action.role]["failed" if action.unscored else "unjudged"] += 1
            continue
        if note.get("runs"):
            counts[action.role]["ran_programs"] += 1
            continue
        by_rules = "asked" not in note
        request = question(trajectory, action, note, questions)
        if not by_rules and note["asked"] != digest_of(request):
            counts[action.role]["other_question"] += 1
            continue
        counts[action.role].update(["written", *(["by_rules"] if by_rules else [])])
        answer = answer_of(action, note, questions.corrections and not by_rules)
        rows.append(row_of(trajectory, action, note, request, answer, nonce(request), form))
    return rows, {role: {name: count[name] for name in COLUMNS} for role, count in counts.items()}


def questions_of(run: Run) -> Questions:
    """Returns the questions of the run's coach; for rules, those of a model with the package's
    prompts."""
    from marl_plugins.asking.prompts import duties_of
    from marl_plugins.coach.model import PROMPTS, Questions, read_prompt

    package = (
        read_prompt(PROMPTS / "action.md", with_label=False),
        read_prompt(PROMPTS / "last_action.md", with_label=True),
    )
    return run.state(CoachState).questions or Questions(package, duties_of(run))


def question(
    trajectory: Trajectory, action: Action, note: Mapping[str, Any], questions: Questions
) -> JudgeRequest:
    """Returns the question that the coach was asked of a recorded action."""
    seen = Seen.of(trajectory, action)
    if note["knew_the_label"]:
        seen = SeenLast(**vars(seen), label=trajectory.task.label, answer=trajectory.answer)
    corrections = questions.corrections and "asked" in note
    return replace(
        questions, training=lambda role: note.get("training", ""), corrections=corrections
    ).of(action, seen)


Answer = Callable[[str, str], str]
"""`(nonce, form)` to what the coach said."""


def answer_of(action: Action, note: Mapping[str, Any], with_correction: bool) -> Answer:
    recorded = Verdict(
        **{name: note[name] for name in Verdict.model_fields if name in note},
        explanation=action.explanation,
    )

    def answer(nonce: str, form: str) -> str:
        text = verdict.answer(recorded, nonce, form, note["knew_the_label"])
        return (
            correcting.with_it(text, recorded.correction, nonce, form) if with_correction else text
        )

    return answer


def row_of(
    trajectory: Trajectory,
    action: Action,
    note: Mapping[str, Any],
    request: JudgeRequest,
    answer: Answer,
    nonce: str,
    form: str,
) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": request.prompt(nonce, form)}],
        "completion": [{"role": "assistant", "content": answer(nonce, form)}],
        "task": trajectory.task.id,
        "sample": trajectory.sample,
        "step": trajectory.step,
        "action": action.path,
        "role": action.role,
        "score": note["score"] / 10,
        "outcome": trajectory.outcome_of(action.role),
        "knew_the_label": note["knew_the_label"],
        "by_rules": "asked" not in note,
    }


def held_out(task: str, share: float) -> bool:
    """Returns whether a task is held out: a function of its name alone, so that it is the same one
    in the data of every run."""
    return derive_seed("held out", task) < share * 2**31


def write(
    rows: Sequence[Mapping[str, Any]], files: Mapping[str, Path], share: float
) -> dict[Path, int]:
    """Writes the files, and returns the number of lines of each.

    Raises:
        ConfigurationError: They cannot be written.
    """
    sides: dict[str, list[str]] = {side: [] for side in files}
    for row in rows:
        side = "held_out" if held_out(str(row["task"]), share) else "train"
        sides[side].append(json_line(row) + "\n")
    for side, path in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, "".join(sides[side]))
        except OSError as error:
            raise ConfigurationError(
                Problem("files.unwritable", at(file=path), f"cannot be written: {error.strerror}")
            ) from None
    return {path: len(sides[side]) for side, path in files.items()}


def nothing_to_write(run: Path, counts: Mapping[str, Mapping[str, int]]) -> Problem:
    totals = {reason: sum(count[reason] for count in counts.values()) for reason in REASONS}
    told = ", ".join(
        f"{reason.replace('_', ' ')} {count}" for reason, count in totals.items() if count
    )
    fix = "a run with a coach records them"
    if totals["other_question"]:
        fix = "give the recipe and the coach's flags of the run"
    return Problem(
        "coach.no_verdicts",
        where=at(file=run / TRAJECTORIES),
        got=f"holds no verdict that can be used ({told})",
        fix=fix,
    )
