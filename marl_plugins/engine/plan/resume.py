"""Checks whether a saved step can be resumed: what differs between the run that was saved and the
run of now, and what is on disk.

    manifest + fingerprint of now (engine/plan/fingerprint.py) -> differences, each in plain words

A difference that makes resuming impossible (policies, their models, processes and optimisers) is
refused. Any other changes
what is learned: it is refused too, unless `--resume_with_changes` accepts it. What a manifest of an
earlier release does not hold is not compared.
"""

from __future__ import annotations

import contextlib
import json
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field, StrictBool, StrictInt, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import json_value, read_bytes
from marl_plugins.core.problems import Problem, Where, at, first_of
from marl_plugins.engine.manager import labels_of
from marl_plugins.engine.plan.fingerprint import digest, fingerprint, matches, values_of
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.resolve_plugins import has_critics

SCHEMA_VERSION = 3
"""2 and 3 differ in what the manifest says of its files and of itself: their sizes and digests, and
its own."""
READ_SCHEMAS = (1, 2, 3)
MANIFEST = "manifest.json"
COMMAND_FILE = Path("run") / "command.json"
"""In a run's folder: how it was started (engine/records/run_folder.py)."""

FIXED = ("*.optim", "ds.param_dtype")
"""Flags whose change makes the saved optimiser states unreadable."""


class _PolicyForm(TypedDict):
    model: str
    trainable: StrictBool


class _RunForm(TypedDict):
    """A fingerprint, as far as it is relied on when it is compared."""

    roles: dict[str, Any]
    policies: dict[str, _PolicyForm]
    plugins: dict[str, str]
    flags: dict[str, Any]
    policy_flags: NotRequired[dict[str, dict[str, Any]]]
    recipe: NotRequired[dict[str, Any]]
    files: NotRequired[dict[str, tuple[str, str]]]
    warm_start: NotRequired[dict[str, Any] | None]
    tools: NotRequired[dict[str, tuple[list[str], str]]]
    tasks: NotRequired[tuple[int, str]]


class _BestForm(TypedDict):
    """The form of what engine/records/best.py keeps."""

    key: str
    smoothed: float | None
    step: StrictInt
    value: float | None


class _ManifestForm(TypedDict):
    step: Annotated[StrictInt, Field(ge=1)]
    policies: dict[str, StrictInt]
    run: _RunForm
    state: dict[str, Any]
    changes: NotRequired[list[Any]]
    best: NotRequired[_BestForm]
    files: NotRequired[dict[str, tuple[StrictInt, str]]]


MANIFEST_FORM = TypeAdapter(_ManifestForm)


class ResumeComparison:
    """The differences between a saved step's fingerprint and the one of now, as problems:
    `resume.changed` or `resume.fixed`."""

    def __init__(self, step: int, saved: Mapping[str, Any], now: Mapping[str, Any]):
        self.step, self.saved, self.now = step, saved, now
        self.differences: list[Problem] = []
        self._roles_and_policies()
        self._flags()
        self._files()
        self._plugins()
        self._tools()
        self._tasks()

    def _changed(
        self, where: Where, before: Any, after: Any, fixed: bool = False, what: str = ""
    ) -> None:
        if before != after:
            changed = (
                f"was {_shown(before)} when step {self.step} was saved, and is {_shown(after)} now"
            )
            self._add(where, f"{what} {changed}".lstrip(), fixed)

    def _since(self, where: Where, what: str, fixed: bool = False) -> None:
        self._add(where, f"{what} since step {self.step} was saved", fixed)

    def _add(self, where: Where, got: str, fixed: bool) -> None:
        fix = (
            "a resumed run cannot change it: restore it"
            if fixed
            else "restore it, accept the change with --resume_with_changes"
        )
        fix = f"{fix}, or start a new run with another --ckpt.path"
        self.differences.append(
            Problem("resume.fixed", where, got, fix=fix)
            if fixed
            else Problem("resume.changed", where, got, fix=fix)
        )

    def _both(self, key: str) -> Iterator[tuple[str, Any, Any]]:
        """The entries of a part that both have."""
        saved, now = self.saved.get(key) or {}, self.now.get(key) or {}
        return ((name, saved[name], value) for name, value in now.items() if name in saved)

    def _roles_and_policies(self) -> None:
        before, after = self.saved["roles"], self.now["roles"]
        mappings = self.saved.get("mapping", {}), self.now["mapping"]
        if (
            before != after
            and all(isinstance(m, str) for m in mappings)
            and mappings[0] != mappings[1]
        ):
            self._changed(at(flag="mapping"), mappings[0], mappings[1], fixed=True)
            return
        for role in dict.fromkeys([*before, *after]):
            if role not in after or role not in before:
                self._since(
                    at(role=role), f"has been {'added' if role in after else 'removed'}", fixed=True
                )
            else:
                self._changed(
                    at(flag="mapping", role=role),
                    before[role],
                    after[role],
                    fixed=True,
                    what="its policy",
                )
        before, after = self.saved["policies"], self.now["policies"]
        for policy in dict.fromkeys([*before, *after]):
            if policy in before and policy in after:
                self._policy(policy, before[policy], after[policy])
            elif self.saved["roles"] == self.now["roles"]:
                self._since(
                    at(policy=policy),
                    f"has been {'added' if policy in after else 'removed'}",
                    fixed=True,
                )

    def _policy(self, name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        where, contents = at(policy=name), (before.get("content"), after.get("content"))
        if None in contents:  # a hub's name, or saved by an earlier release
            if Path(before["model"]).resolve() != Path(after["model"]).resolve():
                self._changed(where, before["model"], after["model"], fixed=True, what="its model")
        elif contents[0] != contents[1]:
            self._since(where, f"its model ({after['model']}) has changed", fixed=True)
        words = {True: "trained", False: "frozen"}
        self._changed(where, words[before["trainable"]], words[after["trainable"]], fixed=True)
        self._changed(where, before.get("follows"), after.get("follows"), what="what it follows")
        sizes = {
            "ranks": (
                "the number of training processes",
                ("actor.num_nodes", "actor.num_gpus_per_node"),
            ),
            "critic": (
                "the number of its critic's processes",
                ("critic.num_nodes", "critic.num_gpus_per_node"),
            ),
            "zero_stage": ("", ("ds.zero_stage",)),
        }
        for key, (what, flags) in sizes.items():
            of_it = at(policy=name, flag=flags)
            self._changed(of_it, before.get(key, 0), after.get(key, 0), fixed=True, what=what)

    def _flags(self) -> None:
        self._changed(
            at(name="the estimator"),
            self.saved.get("estimator", self.now["estimator"]),
            self.now["estimator"],
        )
        shared = {flag: (before, after) for flag, before, after in self._both("flags")}
        for flag, (before, after) in shared.items():
            self._changed(at(flag=flag), before, after, matches(flag, FIXED))
        for policy, mine, now in self._both("policy_flags"):
            for flag in dict.fromkeys([*mine, *now]):
                before, after = {**self.saved["flags"], **mine}, {**self.now["flags"], **now}
                if (
                    flag in before
                    and flag in after
                    and (before[flag], after[flag]) != shared.get(flag)
                ):
                    where = at(flag=f"policy.{policy}.{flag}")
                    self._changed(where, before[flag], after[flag], matches(flag, FIXED))
        for key, before, after in self._both("recipe"):
            self._changed(at(key=key), before, after)
        if "warm_start" in self.saved:
            before, after = (dict(values_of(f["warm_start"] or {})) for f in (self.saved, self.now))
            for key in dict.fromkeys([*before, *after]):
                self._changed(at(key=f"warm_start.{key}"), before.get(key), after.get(key))

    def _files(self) -> None:
        for what, (_, before), (name, after) in self._both("files"):
            if before != after:
                self._since(at(name=what, file=name), "has changed")

    def _plugins(self) -> None:
        before, after = self.saved["plugins"], self.now["plugins"]
        for name in dict.fromkeys([*before, *after]):
            if name not in after:
                self._since(at(plugin=name), "has been removed (--plugin)")
            elif name not in before:
                self._since(at(plugin=name), "has been added (--plugin)")
            elif name.endswith(".py") and before[name] != after[name]:
                self._since(at(plugin=name), "has changed")
            else:
                self._changed(at(plugin=name), before[name], after[name], what="its version")

    def _tools(self) -> None:
        for tool, (before, was), (after, now) in self._both("tools"):
            if was != now:
                added, removed = (
                    sorted({*a} - {*b}) for a, b in ((after, before), (before, after))
                )
                parts = [
                    f"{what} {', '.join(names)}"
                    for what, names in (("added", added), ("removed", removed))
                    if names
                ]
                self._since(
                    at(tool=tool),
                    "what it offers has changed "
                    f"({'; '.join(parts) or 'descriptions or arguments'})",
                )

    def _tasks(self) -> None:
        if "tasks" not in self.now or "tasks" not in self.saved:
            return
        (before, was), (after, now) = self.saved["tasks"], self.now["tasks"]
        self._changed(at(name="number of training tasks"), before, after)
        if before == after and was != now:
            self._since(at(name="training tasks"), "their ids, prompts or order have changed")
        elif was == now and self.saved.get("labels", self.now["labels"]) != self.now["labels"]:
            self._since(at(name="labels of training tasks"), "they, or the metadata, have changed")


def _shown(value: Any) -> str:
    return "not set" if value is None else value if isinstance(value, str) else json.dumps(value)


def differences(
    step: int, saved: Mapping[str, Any], now: Mapping[str, Any], with_changes: bool
) -> list[str]:
    """Returns the differences that `--resume_with_changes` has accepted, each as a sentence.

    Raises:
        ConfigurationError: There are others.
    """
    changes = ResumeComparison(step, saved, now).differences
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
    """A manifest of any schema that this release reads.

    Raises:
        ValueError: It is none.
    """
    value = json_value(data)
    if not isinstance(value, dict):
        raise ValueError(f"expected the manifest of a saved step, got {reprlib.repr(value)}")
    if (schema := value.get("schema")) not in READ_SCHEMAS or isinstance(schema, bool):
        raise ValueError(
            f"schema {reprlib.repr(schema)}, this release reads "
            f"{', '.join(map(str, READ_SCHEMAS))}: resume with the release that "
            "wrote it"
        )
    if schema == SCHEMA_VERSION and not is_whole(value):
        raise ValueError("it is damaged: its content does not have the digest that it names")
    try:
        manifest: dict[str, Any] = (
            value if schema > 1 else {**value, "run": _from_schema_1(value["run"])}
        )
        MANIFEST_FORM.validate_python(manifest)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"it is damaged: {error!r}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(
            f"it is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from None
    return manifest


def named_files(path: Path) -> set[str]:
    """Returns the files that a step's manifest names, relative to `--ckpt.path`; none where it
    cannot be used."""
    with contextlib.suppress(OSError, ValueError):
        return set(_manifest(read_bytes(path)).get("files", {}))
    return set()


def way_out(folder: Path, step: int | None = None) -> str:
    """Returns how to continue where a step, or the manifest itself, cannot be used.

    Args:
        step: The fix is an earlier one; None for the last one with a manifest of its own.
    """
    for older in reversed(saved_steps(folder)):
        path = manifest_of(folder, older)
        if step is None or older < step:
            with contextlib.suppress(OSError, ValueError):
                if not _missing(folder, _manifest(read_bytes(path))):
                    before = "the last saved step" if step is None else "the step before"
                    return f"use {before}, {older}: cp {path} {folder / MANIFEST}"
    return "no other step is saved: choose another --ckpt.path"


def _from_schema_1(run: Mapping[str, Any]) -> dict[str, Any]:
    """A fingerprint of the first schema as one of the second, which has less to compare."""
    converted = dict(run)
    converted["flags"] = {name: converted.pop(name) for name in [*converted] if "." in name} | {
        "train.seed": converted.pop("seed")
    }
    converted["policy_flags"] = {
        name: {"train.max_epochs": policy["epochs"]}
        for name, policy in converted["policies"].items()
    }
    converted["plugins"] = {
        labels_of(converted["plugins"])[name]: version
        for name, version in converted["plugins"].items()
    }
    return converted


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


def missing_parts(
    folder: Path, manifest: Mapping[str, Any], critics: bool = False
) -> list[Problem]:
    """Returns what of a saved step is not on disk, as far as names and sizes show, and how to
    continue without it."""
    problems = _missing(folder, manifest, critics)
    return [*first_of(problems, folder), damaged(folder, manifest["step"])] if problems else []


def damaged(folder: Path, step: int) -> Problem:
    """Returns the last of the problems with a saved step."""
    return Problem(
        "resume.damaged",
        at(folder=folder),
        f"step {step} cannot be resumed",
        fix=way_out(folder, step),
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
    for name, (size, _) in manifest.get(
        "files", {}
    ).items():  # manifests of earlier releases list none
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
                step, manifest["run"], fingerprint(plan), options.resume_with_changes
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
    got, fix = (
        f"{folder} holds a run saved at step {step}",
        f"resume with: {how_to_resume(output)}, or choose another folder",
    )
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
