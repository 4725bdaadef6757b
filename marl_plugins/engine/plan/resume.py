"""Checks whether a saved step can be resumed: what differs between the run that was saved and the
run of now, and what is on disk.

    manifest + fingerprint of now (engine/plan/fingerprint.py) -> differences, each in plain words

A difference that makes resuming impossible (policies, their models, processes and optimisers) is
refused. Any other changes
what is learned: it is refused too, unless `--resume_with_changes` accepts it.
"""

from __future__ import annotations

import contextlib
import json
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import json_value, read_bytes
from marl_plugins.core.problems import Problem, Where, at, first_of
from marl_plugins.engine.plan.fingerprint import (
    MISSING,
    Compared,
    compared,
    digest,
    fingerprint,
)
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.resolve_plugins import has_critics

SCHEMA_VERSION = 3
MANIFEST = "manifest.json"
COMMAND_FILE = Path("run") / "command.json"
"""In a run's folder: how it was started (engine/records/run_folder.py)."""


def changed(
    step: int, saved: Mapping[Where, Compared], now: Mapping[Where, Compared]
) -> list[Problem]:
    """Returns the differences between a saved step's fingerprint and the one of now:
    `resume.changed` or `resume.fixed`."""
    problems = []
    for where, known in {**saved, **now}.items():
        if not known.required and not (where in saved and where in now):
            continue
        before, after = saved.get(where, MISSING), now.get(where, MISSING)
        if before.value == after.value:
            continue
        got = f"has changed since step {step} was saved"
        if before.shown != after.shown:
            got = (
                f"was {_shown(before.shown)} when step {step} was saved, and is "
                f"{_shown(after.shown)} now"
            )
        another = "or start a new run with another --ckpt.path"
        problems.append(
            Problem(
                "resume.fixed",
                where,
                got,
                fix=f"a resumed run cannot change it: restore it, {another}",
            )
            if known.fixed
            else Problem(
                "resume.changed",
                where,
                got,
                fix=f"restore it, accept the change with --resume_with_changes, {another}",
            )
        )
    # another mapping has other policies, and their flags
    return [problem for problem in problems if "mapping" in problem.names("flag")] or problems


def _shown(value: Any) -> str:
    return "not set" if value is None else value if isinstance(value, str) else json.dumps(value)


def differences(
    step: int,
    saved: Mapping[Where, Compared],
    now: Mapping[Where, Compared],
    with_changes: bool,
) -> list[str]:
    """Returns the differences that `--resume_with_changes` has accepted, each as a sentence.

    Raises:
        ConfigurationError: There are others.
    """
    changes = changed(step, saved, now)
    if problems := [
        problem for problem in changes if problem.code == "resume.fixed" or not with_changes
    ]:
        raise ConfigurationError(problems)
    return [str(replace(problem, fix="")) for problem in changes]


def manifest_of(folder: Path, step: int) -> Path:
    """Returns a copy of the manifest as it was when a step was saved; it names the step while
    `manifest.json` names a later one."""
    return folder / f"manifest-{step}.json"


def saved_steps(folder: Path) -> list[int]:
    """Returns steps with such a copy."""
    names = (
        re.fullmatch(r"manifest-(\d+)\.json", path.name) for path in folder.glob("manifest-*.json")
    )
    return sorted(int(name.group(1)) for name in names if name)


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as JSON has them, with a digest of their own."""
    content: dict[str, Any] = json.loads(json.dumps(values))
    return content | {"digest": digest(content)}


def is_whole(values: Mapping[str, Any]) -> bool:
    """Returns whether sealed values are those that were sealed."""
    return bool(
        values.get("digest")
        == digest({name: value for name, value in values.items() if name != "digest"})
    )


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Returns the last complete step below `--ckpt.path`, or None.

    Raises:
        ConfigurationError: A manifest that cannot be read, is damaged, missing although steps are
            saved, or of another schema.
    """
    path = folder / MANIFEST
    try:
        return _manifest(read_bytes(path))
    except FileNotFoundError:
        if not (steps := saved_steps(folder)):
            return None
        got, fix = f"missing, though step {steps[-1]} is saved", way_out(folder, steps[-1] + 1)
        raise ConfigurationError(Problem("resume.gone", at(file=path), got, fix=fix)) from None
    except OSError as error:
        raise ConfigurationError(
            Problem("files.unreadable", at(file=path), f"cannot be read: {error.strerror}")
        ) from None
    except ValueError as error:
        got, fix = f"cannot be read: {error}", way_out(folder)
        raise ConfigurationError(Problem("resume.manifest", at(file=path), got, fix=fix)) from None


def _manifest(data: bytes) -> dict[str, Any]:
    """A manifest, its run as it is compared.

    Raises:
        ValueError: It is none.
    """
    value = json_value(data)
    if not isinstance(value, dict):
        raise ValueError(f"expected the manifest of a saved step, got {reprlib.repr(value)}")
    if (schema := value.get("schema")) != SCHEMA_VERSION:
        raise ValueError(
            f"schema {reprlib.repr(schema)}, this release reads {SCHEMA_VERSION}: resume with the "
            "release that wrote it"
        )
    if not is_whole(value):
        raise ValueError("it is damaged: its content does not have the digest that it names")
    try:
        return {**value, "run": compared(value["run"])}
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"it is damaged: {error!r}") from None


def named_files(path: Path) -> set[str]:
    """Returns the files that a step's manifest names, relative to `--ckpt.path`; none where it
    cannot be used."""
    with contextlib.suppress(OSError, ValueError):
        return set(_manifest(read_bytes(path))["files"])
    return set()


def way_out(folder: Path, step: int | None = None, critics: bool = False) -> str:
    """Returns how to continue where a step, or the manifest itself, cannot be used.

    Args:
        step: The fix is an earlier one; None for the last one with a manifest of its own.
        critics: Whether the run needs those, too.
    """
    for older in reversed(saved_steps(folder)):
        path = manifest_of(folder, older)
        if step is None or older < step:
            with contextlib.suppress(OSError, ValueError):
                if not _missing(folder, _manifest(read_bytes(path)), critics):
                    before = "the last saved step" if step is None else "the step before"
                    return f"use {before}, {older}: cp {path} {folder / MANIFEST}"
    return "no other step is saved: choose another --ckpt.path"


def tag(step: int) -> str:
    """Returns DeepSpeed's tag of a step, as upstream names them."""
    return f"global_step{step}"


def saved_folders(folder: Path, policies: Iterable[str], critics: bool) -> list[Path]:
    """Returns the folders of DeepSpeed's checkpoints of some policies."""
    return [
        folder / policy / part
        for policy in policies
        for part in ("_actor", *(["_critic"] if critics else []))
    ]


def missing_parts(folder: Path, manifest: Mapping[str, Any], critics: bool) -> list[Problem]:
    """Returns what of a saved step is not on disk, as far as names and sizes show, and how to
    continue without it."""
    problems = _missing(folder, manifest, critics)
    return (
        [*first_of(problems, folder), damaged(folder, manifest["step"], critics)]
        if problems
        else []
    )


def damaged(folder: Path, step: int, critics: bool) -> Problem:
    """Returns the last of the problems with a saved step."""
    return Problem(
        "resume.damaged",
        at(folder=folder),
        f"step {step} cannot be resumed",
        fix=way_out(folder, step, critics),
    )


def _missing(folder: Path, manifest: Mapping[str, Any], critics: bool = False) -> list[Problem]:
    problems, step, gone = [], manifest["step"], []
    fix = f"step {step} cannot be resumed without it"
    for part in (f / tag(step) for f in saved_folders(folder, manifest["policies"], critics)):
        if not part.is_dir():
            gone.append(part)
            problems.append(Problem("resume.missing", at(folder=part), "is missing", fix=fix))
        elif not any(path.stat().st_size for path in part.glob("*.pt")):
            gone.append(part)
            problems.append(
                Problem("resume.no_weights", at(folder=part), "holds no weights (*.pt)", fix=fix)
            )
    for name, (size, _) in manifest["files"].items():
        path = folder / name
        if any(path.is_relative_to(part) for part in gone):
            continue
        if not path.is_file():
            problems.append(Problem("resume.missing", at(file=path), "is missing", fix=fix))
        elif (actual := path.stat().st_size) != size:
            got = f"has {actual} bytes and was saved with {size}: it is damaged"
            problems.append(Problem("resume.size", at(file=path), got, fix=fix))
    return problems


def how_to_resume(output: Path) -> str:
    """Returns the words that resume the run of a folder."""
    return (
        f"openrlhf train --resume {output}"
        if (output / COMMAND_FILE).is_file()
        else "--ckpt.load_enable"
    )


def with_resumption(plan: Plan, remarks: Sequence[Problem] = ()) -> tuple[Plan, int]:
    """Returns the plan with what is to be known of its resumption among its warnings, and the step
    that it continues from, 0 for none.

    Args:
        remarks: Further warnings.

    Raises:
        ConfigurationError: The folder holds a run that is not to be resumed; what is resumed is
            another run; or parts of the saved step are missing.
    """
    run, options, warnings = plan.run, plan.options, list(remarks)
    folder, load = Path(run.args.ckpt.path), run.args.ckpt.load_enable
    manifest, step = read_manifest(folder), 0
    if options.resume_with_changes and not load:
        where, got = at(flag="resume_with_changes"), "is about a resumed run"
        fix = "add --ckpt.load_enable, or --resume FOLDER"
        raise ConfigurationError(Problem("resume.not_resumed", where, got, fix=fix))
    if manifest:
        step, problems = manifest["step"], list[Problem]()
        if not load:
            raise ConfigurationError(taken(folder, step, run.output))
        try:
            changes = differences(
                step, manifest["run"], compared(fingerprint(plan)), options.resume_with_changes
            )
            warnings += accepted(changes)
        except ConfigurationError as error:
            problems += error.problems
        problems += missing_parts(folder, manifest, has_critics(run))
        if problems:
            raise ConfigurationError(problems)
        last = plan.counted.get("steps", run.max_steps)
        if last is not None and step >= last:
            got = f"nothing is left to train: step {step} is saved and the run has {last} steps"
            fix = "raise --max_steps or --train.num_episodes"
            warnings.append(
                Problem("resume.done", at(folder=folder), got, fix=fix, severity="warning")
            )
    elif load:
        got = "no step is saved in it (--ckpt.path): the run starts from the beginning"
        warnings.append(Problem("resume.nothing_saved", at(folder=folder), got, severity="warning"))
    return replace(plan, run=replace(run, warnings=(*run.warnings, *warnings))), step


def taken(folder: Path, step: int, output: Path) -> Problem:
    """Returns the problem with a fresh start into a folder that holds a saved run."""
    got = f"{folder} holds a run saved at step {step}"
    fix = f"resume with: {how_to_resume(output)}, or choose another folder"
    return Problem("resume.taken", at(flag="ckpt.path"), got, fix=fix)


def accepted(changes: Iterable[str]) -> list[Problem]:
    """Returns the warnings of the changes that a resumed run makes."""
    return [
        Problem(
            "resume.accepted",
            got=f"{change} (accepted by --resume_with_changes)",
            severity="warning",
        )
        for change in changes
    ]
