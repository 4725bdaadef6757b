"""`openrlhf corrections RUN`: the better actions that a run's coach gave, as data sets in TRL's
formats.

    records -> corrections (notes of actions) -> those that can be used -> POLICY-sft.jsonl,
    POLICY-dpo.jsonl

An SFT line is a conversational prompt and completion, a DPO line a prompt with `chosen` (the
correction) and `rejected` (what the agent said); both name the task, the step, the scores and the
coach's reason. With `--coach.corrections_coef` the run trains on them itself (`teach`). What cannot
be used is counted by its reason:

    empty      the coach gave an empty one
    unchanged  it is what the agent said
    label      the coach knew the label, and the correction holds it although nothing that the agent
               was shown does, the task itself left out: who learns it learns the answers by heart
    too_long   more tokens than the role may write, or than the context has room for
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from marl_plugins import Action, ConfigurationError, Problem, Trajectory, at, json_value
from marl_plugins.coach.notes import NOTES
from marl_plugins.coach.rejudge import read_trajectories

# inside: reads the records of a run
from marl_plugins.core.files import read_bytes, replace_text
from marl_plugins.core.options import step_range
from marl_plugins.core.recipe.texts import json_line
from marl_plugins.core.trajectory import Correction
from marl_plugins.engine.records.read import TRAJECTORIES

NUMBER = re.compile(r"(?<![\w.])[+-]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?!\d)")
"""Of a text; a unit may follow at once, as in 42kg."""
MAX_INTEGER_DIGITS = 1000
REASONS = ("empty", "unchanged", "label", "too_long")
COLUMNS = ("actions", "corrections", "written", *REASONS)
EXAMPLE = """\
Example:

  openrlhf corrections runs/mine --steps 1:40

and then, for TRL's SFTTrainer or DPOTrainer:

  datasets.load_dataset("json", data_files="runs/mine/corrections/coder-sft.jsonl")

The corrections are those of a run with --coach.corrections, or with a rubric that has
CORRECTIONS."""


def make_parser() -> argparse.ArgumentParser:
    from marl_plugins.engine.hosts.upstream_cli import UpstreamParser

    parser = UpstreamParser(
        prog="openrlhf corrections",
        usage="openrlhf corrections RUN [--to FOLDER] [--steps A:B] [--json]",
        description="Make data sets for supervised training and for DPO of the better actions that "
        "a run's coach gave.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run's output folder")
    add("--to", type=Path, metavar="FOLDER", help="where the files go; default: RUN/corrections")
    add(
        "--steps",
        type=step_range,
        default=(0, None),
        metavar="A:B",
        help="steps A to B only, both included",
    )
    add("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def main(words: Sequence[str]) -> int:
    """Runs the command, and returns its exit code.

    Raises:
        ConfigurationError: The records cannot be read or hold no correction, or the files cannot be
            written.
    """
    options = make_parser().parse_args(list(words))
    plan = read_plan(options.run)
    trajectories = read_trajectories(options.run, options.steps, list(plan["roles"]))
    rows, counts = usable(trajectories, room_of(options.run, plan))
    if not counts:
        raise ConfigurationError(
            Problem(
                "coach.no_corrections",
                where=at(file=options.run / TRAJECTORIES),
                got="holds no corrected action",
                fix="a coach gives them with --coach.corrections (a model), or with CORRECTIONS in "
                "its rubric",
            )
        )
    report = {"files": write(rows, options.to or options.run / "corrections"), "roles": counts}
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print_report(report, COLUMNS)
    return 0


def read_plan(run: Path) -> dict[str, Any]:
    """Returns the plan that a run has left.

    Raises:
        ConfigurationError: There is none, or it is of an earlier release.
    """
    path = run / "plan.json"
    try:
        plan: dict[str, Any] = json_value(read_bytes(path))
        complete = all("max_new_tokens" in role for role in plan["roles"].values())
        if complete and all("max_len" in policy for policy in plan["policies"].values()):
            return plan
    except OSError as error:
        raise ConfigurationError(
            Problem(
                "files.unreadable",
                at(file=path),
                str(error.strerror),
                fix="expected a run's output folder",
            )
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            Problem("run_folder.plan", at(file=path), f"is no plan of a run: {error}")
        ) from None
    raise ConfigurationError(
        Problem(
            "run_folder.old",
            at(file=path),
            "an earlier release wrote it, which recorded no corrections",
        )
    )


Room = Callable[[Action, str], bool]
"""Whether a correction of an action has no more tokens than the role may write and the context has
room for."""


def room_of(run: Path, plan: Mapping[str, Any]) -> Room:
    """Counts with the tokenizer of the policy's saved weights or of its model; without one, as the
    action has characters a token."""
    from marl_plugins.engine.plan.lengths import counter_of

    counters = {
        name: (counter_of(str(run / name)) if (run / name).is_dir() else None)
        or counter_of(policy["model"])
        for name, policy in plan["policies"].items()
    }

    def fits(action: Action, correction: str) -> bool:
        counter, ids = counters[action.policy], action.generation.ids
        tokens = (
            counter.count_text(correction)
            if counter
            else len(correction) * max(1, len(ids)) / max(1, len(action.text))
        )
        left = plan["policies"][action.policy]["max_len"] - len(action.context_ids)
        return bool(tokens <= min(left, plan["roles"][action.role]["max_new_tokens"]))

    return fits


def usable(
    trajectories: Sequence[Trajectory], fits: Room
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, int]]]:
    """Returns the lines of each policy, and by role how many actions there are, how many
    corrections, and what became of them."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for trajectory, action in ((t, a) for t in trajectories for a in t.actions):
        note = action.notes.get(NOTES) or {}
        counts[action.role]["actions"] += 1
        if "correction" not in note:
            continue
        refused = why_refused(trajectory, action, note, fits)
        counts[action.role].update(["corrections", refused or "written"])
        if not refused:
            rows[action.policy].append(row_of(trajectory, action, note["correction"]))
    if not any(count["corrections"] for count in counts.values()):
        return {}, {}
    return dict(rows), {
        role: {name: count[name] for name in COLUMNS} for role, count in counts.items()
    }


def teach(judged: Iterable[tuple[Trajectory, Action]], coef: float) -> dict[str, float]:
    """Has the corrected actions of a step trained on in addition to what was said
    (`--coach.corrections_coef`), as far as they have a
    reward and can be used; how many there are by role and what became of them. Too long ones are
    found where they are trained."""
    counts: Counter[str] = Counter()
    for trajectory, action in judged:
        note = action.notes.get(NOTES) or {}
        if "correction" not in note or action.reward is None:
            continue
        refused = why_refused(trajectory, action, note, lambda action, correction: True)
        counts[f"coach/{action.role}/corrections/{refused or 'used'}"] += 1
        if not refused:
            action.correction = Correction(note["correction"], coef)
    return {name: float(count) for name, count in sorted(counts.items())}


def why_refused(trajectory: Trajectory, action: Action, note: Mapping[str, Any], fits: Room) -> str:
    """Returns why a correction is not used; empty where it is."""
    correction = str(note["correction"])
    if not correction.strip():
        return "empty"
    if correction.strip() == action.text.strip():
        return "unchanged"
    if note.get("knew_the_label", True) and leaks(
        correction, trajectory.task.label, material_of(trajectory, action)
    ):
        return "label"
    return "" if fits(action, correction) else "too_long"


def material_of(trajectory: Trajectory, action: Action) -> str:
    """Returns what the agent was shown, without the task's own text, whose numbers say nothing of
    the answer."""
    shown = "\n".join(text for _, text in action.messages[:-1])
    return shown.replace(trajectory.task.prompt, "")


def leaks(correction: str, label: Any, material: str) -> bool:
    """Returns whether a correction holds a label that the material does not."""
    return any(holds(correction, part) and not holds(material, part) for part in parts_of(label))


def parts_of(label: Any) -> Iterator[str]:
    """Yields the texts of a label: each answer that a list accepts, each value of a mapping, the
    number at the end of GSM8K's."""
    if isinstance(label, list | tuple | dict):
        for part in label.values() if isinstance(label, dict) else label:
            yield from parts_of(part)
    elif label is not None and (text := str(label).rpartition("####")[2].strip()):
        yield text


def holds(text: str, part: str) -> bool:
    """Returns whether a text has a part of a label in it: a number by its value, anything else word
    by word, whatever its case."""
    value = number(part)
    if value is not None:
        return any(number(figure) == value for figure in NUMBER.findall(text))
    words = r"\s+".join(re.escape(word) for word in part.split())
    return re.search(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE) is not None


def number(text: str) -> Fraction | None:
    """Returns the value of a number; None of one with more digits than any label has, which Python
    would refuse to read."""
    return (
        Fraction(text.replace(",", ""))
        if len(text) <= MAX_INTEGER_DIGITS and NUMBER.fullmatch(text)
        else None
    )


def row_of(trajectory: Trajectory, action: Action, correction: str) -> dict[str, Any]:
    """Returns what the lines of both files have in common, with both answers."""
    root = action
    while root.before is not None:
        root = root.before
    return {
        "prompt": [{"role": role, "content": text} for role, text in action.messages[:-1]],
        "correction": correction,
        "said": action.text,
        **({"tools": root.offered} if root.offered else {}),
        "task": trajectory.task.id,
        "sample": trajectory.sample,
        "step": trajectory.step,
        "action": action.path,
        "role": action.role,
        "score": action.score,
        "outcome": trajectory.outcome,
        "reason": action.explanation,
    }


def write(rows: Mapping[str, Sequence[Mapping[str, Any]]], folder: Path) -> dict[str, int]:
    """Writes the files of every policy, and returns the number of lines of each.

    Raises:
        ConfigurationError: They cannot be written.
    """

    def said(text: str) -> list[dict[str, str]]:
        return [{"role": "assistant", "content": text}]

    written = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for policy, mine in rows.items():
            for kind, answers in (("sft", ("completion",)), ("dpo", ("chosen", "rejected"))):
                lines = []
                for row in mine:
                    about = {
                        k: v
                        for k, v in row.items()
                        if k not in ("prompt", "correction") and (k != "said" or kind == "sft")
                    }
                    texts = dict(
                        zip(answers, (said(row["correction"]), said(row["said"])), strict=False)
                    )
                    lines.append(json_line({"prompt": row["prompt"], **texts, **about}) + "\n")
                path = folder / f"{policy}-{kind}.jsonl"
                replace_text(path, "".join(lines))
                written[str(path)] = len(lines)
    except OSError as error:
        raise ConfigurationError(
            Problem("files.unwritable", at(file=folder), f"cannot be written: {error.strerror}")
        ) from None
    return written


def print_report(report: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Prints the counts by role as a table, and the files."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_edge=False, pad_edge=False)
    table.add_column("role", overflow="fold")
    for name in columns:
        table.add_column(name.replace("_", " "), justify="right")
    for role, counts in report["roles"].items():
        table.add_row(Text(role), *(str(counts[name]) for name in columns))
    Console(highlight=False, width=120).print(table)
    for path, lines in report["files"].items():
        print(f"{path}: {lines} lines")
