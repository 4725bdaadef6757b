"""The search for answers that lead into every branch of a workflow.

Each trial is a script that has led somewhere with one speaker's lines changed (candidates.py); one
that reaches a new line, branch, role or failure is changed further. It ends when everything is
reached, or after a number of trials and seconds.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, islice

from marl_plugins.builtin.rehearsal.candidates import AnswerKnowledge, candidates
from marl_plugins.builtin.rehearsal.noted import Notes
from marl_plugins.builtin.rehearsal.reached import Coverage
from marl_plugins.builtin.rehearsal.trial import MAX_ROLE_CALLS, Stage, Trial
from marl_plugins.core.trajectory import Task
from marl_plugins.core.workflow import Workflow
from marl_plugins.engine.plan.apart import Capture
from marl_plugins.engine.plan.script import TOOL, WORDS, FailureText, Script

MOST_TRIALS = 1_500
SEARCH_SECONDS = 1.5
"""Of the processor, in which trials are begun."""
MORE_CALLS = 60
"""Calls of roles in one trial of the search beyond those of a workflow that takes many."""
TOGETHER = 25
"""Trials after which somebody may look at the clock."""
LONG = 10 * MAX_ROLE_CALLS
"""Calls after which a loop is taken for one without an end."""
AT_A_TIME = 8
"""Scripts that change one speaker of one trial, before another has its turn."""
QUOTED = re.compile(r"'([^']+)'")


@dataclass
class Search:
    """Looks for answers that reach what trials have not reached.

    Args:
        tasks: The task with a label that can be recognised, and as it is.
        reached: What is executed of the workflow's file in all trials.
        wanted: The roles that the workflow is to call.
        most_calls: Calls of roles after which a trial is left.
    """

    stage: Stage
    tasks: tuple[Task, Task]
    known: AnswerKnowledge
    reached: Coverage
    wanted: Iterable[str]
    most_calls: int = MORE_CALLS
    trials: list[Trial] = field(default_factory=list)
    """Those that reached something new, and those before the search."""
    elsewhere: list[Trial] = field(default_factory=list)
    """Those on other tasks."""
    count: int = 0
    """The number of trials."""
    spent: float = 0.0
    """Seconds of the processor that trials have taken."""
    _more: bool = True
    _in_a_loop: bool = False
    _tried: set[object] = field(default_factory=set)
    _failures: set[tuple[str, str]] = field(default_factory=set)
    _notes: dict[str, Notes] = field(default_factory=dict)

    def add(self, trial: Trial, *, keep: bool = False) -> bool:
        """Adds a trial, and returns whether it brought anything new, or is to be kept anyway."""
        self.count += 1
        self._tried.add(trial.script.key)
        failures = {(failure.place, failure.kind or failure.text) for failure in trial.failures}
        spoken = {speaker for other in self.trials for speaker in other.answers}
        new = (
            self.reached.add(trial.reached)
            or bool(failures - self._failures)
            or not trial.answers.keys() <= spoken
        )
        looked_for = [self._merge(speaker, notes) for speaker, notes in trial.notes.items()]
        first = (
            new
            or any(looked_for)
            or (not any(other.complete for other in self.trials) and trial.complete)
        )
        self._failures |= failures
        for failure in trial.failures:
            if failure.kind == "KeyError":  # a key that an answer's JSON has to have
                self.known.vocabulary.keys |= dict.fromkeys(QUOTED.findall(failure.text))
        if first or keep:
            self.trials.append(trial)
        return first or keep

    def pass_by(self, trials: Iterable[Trial]) -> None:
        """Adds trials on other tasks, which are not changed further."""
        for trial in trials:
            self.reached.add(trial.reached)
            self.elsewhere.append(trial)

    def says_the_label(self, script: Script) -> bool:
        """Returns whether somebody says the task's label in a script, and may be shown it
        therefore."""
        label = self.known.label
        return bool(label) and any(
            label in line for lines in script.lines.values() for line in lines if line
        )

    @property
    def done(self) -> bool:
        """Returns whether everything was reached."""
        called = {
            call.spec.name for trial in (*self.trials, *self.elsewhere) for call in trial.calls
        }
        complete = any(trial.complete for trial in self.trials)
        return (
            complete
            and called >= set(self.wanted)
            and not self.reached.missed
            and not self.reached.missed_branches
        )

    def run_some(self, caught: Capture) -> bool:
        """Plays the next few scripts, and returns whether there are more to come."""
        began = time.thread_time()
        try:
            for script in islice(self._untried, TOGETHER):
                trial = self._played(script, caught)
                if (
                    self.add(trial) and self.done
                ) or trial.left_at is not None:  # where it waits, the next ones would, too
                    return False
                if (
                    self.count >= MOST_TRIALS
                    or self.spent + time.thread_time() - began > SEARCH_SECONDS
                ):
                    return False
            return self._more
        finally:
            self.spent += time.thread_time() - began

    def _played(self, script: Script, caught: Capture) -> Trial:
        """One trial; the first that is left in a loop is played again with more calls, in case the
        loop ends."""
        trial = self.play(script, caught)
        if trial.endless and self.most_calls < LONG and not self._in_a_loop:
            self._in_a_loop, self.most_calls, before = True, LONG, self.most_calls
            trial = self.play(script, caught)
            self.most_calls = before if trial.endless else len(trial.calls) + MORE_CALLS
        return trial

    def play(self, script: Script, caught: Capture, workflow: Workflow | None = None) -> Trial:
        """Returns one trial; what it raises is what the workflow (or another one) raises on the
        task and with texts as they are."""
        marked, real = self.tasks
        play = partial(
            self.stage.play, script, caught=caught, most_calls=self.most_calls, workflow=workflow
        )
        trial = play(marked)
        if trial.failures and not any(f.certain for f in trial.failures):
            again = play(marked, noting=False)
            if again.failures and marked != real:
                again.failures = play(real, noting=False).failures
            trial = again.after(trial)
        if trial.trajectory is not None:
            trial.trajectory.task = real
        return trial

    @cached_property
    def _untried(self) -> Iterator[Script]:
        return (script for script in self._scripts() if script.key not in self._tried)

    def _scripts(self) -> Iterator[Script]:
        """Scripts, for as long as trials bring anything new: first those of whole
        demonstrations."""
        said = self.known.said
        for n in range(max(map(len, said.values()), default=0)):
            yield Script(
                "", WORDS.text, {role: lines[n % len(lines)] for role, lines in said.items()}
            ).named()
        begun = -1
        while begun < self.count:
            begun, taken = self.count, 0
            turns: deque[Iterator[Script]] = deque()
            while turns or taken < len(self.trials):
                for trial in self.trials[taken:]:  # those found meanwhile, too
                    if trial.script.text is WORDS.text:
                        turns.extendleft(
                            self._changes(trial, by) for by in reversed(self._speakers(trial))
                        )
                taken = len(self.trials)
                if turns:
                    some = list(islice(turns[0], AT_A_TIME))
                    yield from some
                    turns.rotate(-1) if some else turns.popleft()
        self._more = False

    def _speakers(self, trial: Trial) -> list[str]:
        """Returns who speaks in a trial, those first whose answers the workflow looks into."""
        opaque = bool(self.known.vocabulary.patterns)
        return sorted(
            trial.answers,
            key=lambda by: not (self._notes.get(by, Notes()).looked or (opaque and TOOL not in by)),
        )

    def _changes(self, trial: Trial, speaker: str) -> Iterator[Script]:
        """A trial's script with other lines of one speaker: always the same, or after what it says
        now."""
        now = trial.script.lines.get(speaker)
        current = now[-1] if now else None
        texts: Iterable[str] = candidates(
            self.known, speaker, self._notes.get(speaker, Notes()), current
        )
        if (
            speaker.startswith(TOOL) or "except" in self.stage.source.text
        ):  # else nobody asks whether a role has failed
            texts = chain([FailureText("")], texts)
        for text in texts:
            changed = [trial.script.saying(speaker, text)]
            if trial.answers[speaker] > 1:
                changed.append(trial.script.saying(speaker, current, text))
            elif "<tool_call>" in text:
                changed.append(trial.script.saying(speaker, text, None))
            yield from changed

    def _merge(self, speaker: str, notes: Notes) -> bool:
        """Keep what was looked for in a speaker's answers; whether any text is new."""
        kept = self._notes.setdefault(speaker, Notes())
        new = not notes.texts.keys() <= kept.texts.keys()
        kept.texts |= notes.texts
        kept.as_json |= notes.as_json
        kept.as_number |= notes.as_number
        kept.looked |= notes.looked
        return new
