"""What a run's coach has said, as a supervised data set for a judge of one's own: the rows of
`openrlhf export RUN --table verdicts --recipe RECIPE`.

    records -> the question of each verdict, asked again in words -> prompt, completion

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from marl_plugins import Filter, RunReader, Seen, SeenLast, derive_seed
from marl_plugins.coach import correcting, verdict
from marl_plugins.coach.corrections import about, message
from marl_plugins.coach.notes import NOTES, digest_of, noted_verdict
from marl_plugins.coach.rejudge import planned, read_trajectories
from marl_plugins.coach.state import CoachState

if TYPE_CHECKING:
    from marl_plugins import Action, Run, Trajectory
    from marl_plugins.asking.request import JudgeRequest
    from marl_plugins.coach.model import Questions

RESULTS = ("by_model", "by_rules", "failed", "unjudged", "other_question", "ran_programs")
Row = dict[str, Any]


def lines_of(
    reader: RunReader, selection: Filter, words: Sequence[str]
) -> Iterator[tuple[Action, str, Row | None]]:
    run = planned(words).run
    return verdicts_of(run, read_trajectories(reader, selection, run), selection)


def verdicts_of(
    run: Run, trajectories: Iterable[Trajectory], selection: Filter
) -> Iterator[tuple[Action, str, Row | None]]:
    """Yields every action, what became of its verdict, and a row where that can be used."""
    from marl_plugins.asking.policy import derived_nonce

    form = "json" if run.args.coach.form == "json" else "text"
    questions, nonce = questions_of(run), derived_nonce(run.args.train.seed)
    for trajectory in trajectories:
        for action in filter(selection.has_action, trajectory.actions):
            note = action.notes.get(NOTES) or {}
            if "score" not in note:
                yield action, "failed" if action.unscored else "unjudged", None
                continue
            if note.get("runs"):
                yield action, "ran_programs", None
                continue
            by_rules = "asked" not in note
            request = question(trajectory, action, note, questions)
            if not by_rules and note["asked"] != digest_of(request):
                yield action, "other_question", None
                continue
            word, recorded = nonce(request), noted_verdict(action)
            assert recorded is not None, "it has a score"
            answer = verdict.answer(recorded, word, form, note["knew_the_label"])
            if questions.corrections and not by_rules:
                answer = correcting.with_it(answer, recorded.correction, word, form)
            yield (
                action,
                "by_rules" if by_rules else "by_model",
                {
                    "prompt": message(request.prompt(word, form), "user"),
                    "completion": message(answer),
                    "knew_the_label": note["knew_the_label"],
                    "by_rules": by_rules,
                    "fold": fold(trajectory.task.id),
                    **about(trajectory, action),
                    "score": note["score"] / 10,
                },
            )


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


def fold(task: str) -> float:
    """Returns a number in [0, 1) that says on which side a task is where some are held out: a
    function of its name alone, so that it is the same one in the data of every run."""
    return derive_seed("held out", task) / 2**31
