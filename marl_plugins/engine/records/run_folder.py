"""The run folder (`--ckpt.output_dir`) keeps what a run was started from, so that
`openrlhf train --resume FOLDER` needs no more.

    run/command.json     one entry per start: the words typed, how to repeat them, versions, the
                         machine
    run/recipe-DIGEST/   copy of the recipe's folder as a start found it; what is too large is a
                         link, listed in the entry
    run/plugins/         copies of the plugins that are files, NAME-DIGEST/NAME.py; what lies beside
                         each are links

A start adds an entry, and a copy where there is none with this content; the last entry is the one
that is repeated, once the copies have been found to be what it says. Secrets are never written.
Nothing here imports torch: a package's version is asked of its metadata.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NotRequired

import yaml
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import json_value, read_bytes, replace_text
from marl_plugins.core.options import recipe_file
from marl_plugins.core.problems import Problem, at, first_of
from marl_plugins.core.recipe.schema import find_recipe
from marl_plugins.core.recipe.sources import with_paths
from marl_plugins.core.redaction import holds_secret, shown_flag
from marl_plugins.core.version import __version__
from marl_plugins.engine.hosts import upstream_cli
from marl_plugins.engine.plan.fingerprint import digest, file_digest
from marl_plugins.engine.plan.flags import (
    COMMAND_LINE,
    UPSTREAM_FILES,
    GivenFlag,
    actions_of,
    split_flags,
)
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.resume import COMMAND_FILE, is_whole, sealed
from marl_plugins.engine.plan.workflow_file import workflow_files

HERE = "{run}"
"""Stands for the run's folder in recorded words, so that the folder may be moved."""
PACKAGES = ("torch", "vllm", "deepspeed", "ray", "transformers")
LARGEST_ENTRY_BYTES, LARGEST_COPY_BYTES, LEAST_BYTES = 10 * 2**20, 100 * 2**20, 4096
"""Bytes: of one entry of the recipe's folder that is copied, of all of them, and what a file counts
at least."""
NOT_REPEATED = ("dry-run", "debug", "json", "resume", "resume_with_changes")
SETTLED = ("ckpt.load_enable", "ckpt.path", "ckpt.output_dir", "logger.tensorboard_dir")
"""Flags that are repeated as the run resolved them, not as they were typed."""


class _EntryForm(TypedDict):
    repeat: list[Annotated[list[str], Field(min_length=1)]]
    secrets: list[str]
    files: NotRequired[dict[str, str]]


ENTRIES_FORM = TypeAdapter(Annotated[list[_EntryForm], Field(min_length=1)])


def record_start(plan: Plan, words: Sequence[str], done: int, day: date | None = None) -> None:
    """Adds this start to the run's folder, with copies of the recipe and the plugins unless they
    are there.

    Args:
        words: As typed after `openrlhf train`.
        done: The step that is continued from; 0 for none.
        day: What chat templates that ask for today's date are told; default: today.

    Raises:
        ConfigurationError: The folder cannot be written.
    """
    run, path = plan.run, plan.run.output.absolute() / COMMAND_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        entries = read_entries(path) if path.exists() else []
        copies = FolderCopies(plan, path.parent, entries[-1].get("files", {}) if entries else {})
        flags = split_flags(replayed(words)[0])
        entry = sealed(
            {
                "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "day": (day or date.today()).isoformat(),
                "resumed_after": done or None,
                "directory": str(Path.cwd()),
                "words": [w for f in split_flags(words) for w in _masked(f).argv],
                "repeat": _repeatable(plan, flags, copies),
                "secrets": [f.name for f in flags if holds_secret(f.name, f.words)],
                "linked": copies.linked,
                "files": copies.files,
                "versions": _versions(),
                "plugins": plan.plugins.versions(),
                "commit": _commit(run.folder),
                "host": _host(),
            }
        )
        replace_text(path, json.dumps([*entries, entry], indent=2) + "\n")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            Problem(
                "run_folder.unwritable",
                at(flag="ckpt.output_dir"),
                f"{run.output}: how the run was started cannot be kept: {error}",
            )
        ) from error


def first_day(folder: Path) -> date:
    """Returns the day on which a folder's run began; today where it does not say.

    Raises:
        ConfigurationError: How the run was started cannot be read.
    """
    path = folder / COMMAND_FILE
    entry = read_entries(path)[0] if path.is_file() else {}
    return date.fromisoformat(entry.get("day") or date.today().isoformat())


def replayed(words: Sequence[str]) -> tuple[list[str], list[Problem]]:
    """Returns the words that `--resume FOLDER` stands for, with those that follow it, and remarks;
    other words are returned as they are.

    Raises:
        ConfigurationError: The folder holds no run, or the recipe or one of its plugins is given
            too.
    """
    flags = split_flags(words)
    chosen = [flag for flag in flags if flag.name == "resume"]
    if not chosen:
        return list(words), []
    if len(chosen) > 1 or len(chosen[0].words) != 1:
        raise ConfigurationError(
            Problem(
                "resume.folder",
                got="--resume takes one run's folder and is given once: --resume FOLDER",
                flags=("resume",),
            )
        )
    folder = Path(chosen[0].words[0])
    if any(flag.name == "recipe" for flag in flags):
        raise ConfigurationError(
            Problem(
                "resume.recipe",
                got=(
                    f"--resume {folder} repeats the run with the recipe that it recorded: remove "
                    "--recipe, or start a "
                    "new run without --resume"
                ),
                flags=("resume", "recipe"),
            )
        )
    entry = _last_entry(folder)
    repeated = _repeated(entry, folder)
    more = [f for f in flags if f.name != "resume"]
    recorded = {Path(word).name for f in repeated if f.name == "plugin" for word in f.words}
    twice = [
        word for f in more if f.name == "plugin" for word in f.words if Path(word).name in recorded
    ]
    if twice:
        raise ConfigurationError(
            Problem(
                "resume.plugin",
                got=f"--resume {folder} repeats the run with the plugins that it recorded: remove "
                f"--plugin {twice[0]}",
                fix="a changed plugin is taken by the run's own command with --ckpt.load_enable "
                "--resume_with_changes",
                flags=("resume", "plugin"),
            )
        )
    names = {f.name for f in more}
    loading = (
        [] if "ckpt.load_enable" in names else [GivenFlag("ckpt.load_enable", (), COMMAND_LINE)]
    )
    remarks = [
        Problem(
            "resume.secret",
            where=at(flag=name),
            got=(
                "was given when the run was started and is never written down: give it again if it "
                "is needed"
            ),
            severity="warning",
        )
        for name in entry["secrets"]
        if name not in names
    ]
    return [word for flag in (*repeated, *loading, *more, *chosen) for word in flag.argv], remarks


def started_with(folder: Path) -> list[str]:
    """Returns the words with which a run was started, its own copy of the recipe among them,
    without those that continue it.

    Raises:
        ConfigurationError: The folder holds no run, or the copy has changed.
    """
    flags = _repeated(_last_entry(folder), folder)
    return [word for flag in flags if flag.name != "ckpt.load_enable" for word in flag.argv]


def _repeated(entry: Any, folder: Path) -> list[GivenFlag]:
    place = os.path.abspath(folder)
    return [
        GivenFlag(name, tuple(_located(word, place) for word in values), COMMAND_LINE)
        for name, *values in entry["repeat"]
    ]


def _last_entry(folder: Path) -> Any:
    path = folder / COMMAND_FILE
    if not path.is_file():
        raise ConfigurationError(
            Problem(
                "resume.folder",
                at(flag="resume"),
                f"{folder}: not the folder of a run (it has no {COMMAND_FILE})",
                fix=(
                    "expected the --ckpt.output_dir of a run. Any saved run continues by its own "
                    "command with "
                    "--ckpt.load_enable"
                ),
            )
        )
    entry = read_entries(path)[-1]
    if "digest" in entry and not is_whole(entry):
        raise ConfigurationError(
            Problem(
                "run_folder.damaged",
                where=at(file=path),
                got="is damaged: its last entry does not have the digest that it names",
                fix="restore it, or resume with the run's own command and --ckpt.load_enable",
            )
        )
    changed = [
        Problem(
            "run_folder.changed",
            got=(
                f"{folder / name} is not as it was when the run was started (changed, cut or "
                "removed): restore "
                "it, or resume with the run's own command and --ckpt.load_enable"
            ),
        )
        for name, content in entry.get("files", {}).items()
        if file_digest(folder / name) != content
    ]
    if changed:
        raise ConfigurationError(first_of(changed, str(folder)))
    return entry


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Reads how a run was started, each time.

    Raises:
        ConfigurationError: The file cannot be read or has another form.
    """
    try:
        entries: list[dict[str, Any]] = json_value(read_bytes(path))
        ENTRIES_FORM.validate_python(entries)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            Problem("run_folder.form", where=at(file=path), got=f"cannot be read: {error}")
        ) from None
    return entries


def _located(word: str, folder: str) -> str:
    return folder + word.removeprefix(HERE) if word == HERE or word.startswith(f"{HERE}/") else word


def _masked(flag: GivenFlag) -> GivenFlag:
    return GivenFlag(
        flag.name, tuple(shown_flag(flag.name, word) for word in flag.words), flag.where
    )


class FolderCopies:
    """Copies of a run's recipe and plugins.

    Args:
        folder: `run/` in the run's folder; what lies in it already is used as it is.
        known: Digests of the copies that the last start recorded, by their names in the run's
            folder.
    """

    def __init__(self, plan: Plan, folder: Path, known: Mapping[str, str]):
        self.plan, self.folder, self.output = plan, folder, folder.parent
        self.known = known
        self.files: dict[str, str] = {}
        run = plan.run
        self.skipped = [folder.resolve(), self.output.resolve(), Path(run.args.ckpt.path).resolve()]
        self.left = LARGEST_COPY_BYTES
        self.linked: dict[str, str] = {}
        self.recipe = (
            self._recipe(find_recipe(plan.options.recipe)) if plan.options.recipe else None
        )

    def place(self, path: Path) -> str:
        """Returns a file's or folder's absolute name, relative to the run's folder where it lies in
        it."""
        path = Path(os.path.abspath(path))
        return (
            f"{HERE}/{path.relative_to(self.output)}"
            if path.is_relative_to(self.output)
            else str(path)
        )

    def _recipe(self, path: Path) -> Path:
        """The recipe's file in the copy of its folder, and of everything else that it names by a
        relative path."""
        path = Path(os.path.abspath(path))
        if path.is_relative_to(self.folder):
            self._keep(path.relative_to(self.folder).parts[0])
            return path
        files = [
            *_chain(path),
            *(Path(os.path.abspath(path.parent / name)) for name in _named(self.plan, path.parent)),
        ]
        root = Path(os.path.commonpath([path.parent, *(file.parent for file in files)]))
        fresh = self.folder / "recipe.new"
        shutil.rmtree(fresh, ignore_errors=True)
        for file in files:
            _copy_file(file, fresh / file.relative_to(root))
        linked = self._rest(path.parent, fresh / path.parent.relative_to(root))
        copy = self.folder / f"recipe-{tree_digest(fresh)}"
        self._note(fresh, copy)
        _settle(fresh, copy)
        self.linked = {
            str((copy / link.relative_to(fresh)).relative_to(self.output)): of
            for link, of in linked.items()
        }
        return copy / path.relative_to(root)

    def plugin(self, name: str) -> str:
        """Returns the name of a plugin in a repeated command: of the copy, where it is a file; what
        lies beside it is linked."""
        if not name.endswith(".py"):
            return name
        path = Path(os.path.abspath(name))
        if path.is_relative_to(self.folder):
            self._keep(str(path.parent.relative_to(self.folder)))
            return self.place(path)
        target = self.folder / "plugins" / f"{path.stem}-{file_digest(path)}"
        fresh = target.with_name(f"{path.stem}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        _copy_file(path, fresh / path.name)
        self._note(fresh, target)
        for other in sorted(path.parent.iterdir()):
            if other != path and not _ignored(other) and not self._holds_output(other):
                (fresh / other.name).symlink_to(other)
        _settle(fresh, target)
        return self.place(target / path.name)

    def _note(self, fresh: Path, copy: Path) -> None:
        """Keeps the digests of a new copy's files."""
        for file in _files(fresh):
            if not file.is_symlink():
                self.files[str((copy / file.relative_to(fresh)).relative_to(self.output))] = (
                    file_digest(file)
                )

    def _keep(self, copy: str) -> None:
        """Keeps the digests of a copy that is used again."""
        root = f"{self.folder.name}/{copy}/"
        self.files |= {
            name: content for name, content in self.known.items() if name.startswith(root)
        }

    def _rest(self, source: Path, target: Path) -> dict[Path, str]:
        """Copy what else lies in the recipe's folder, because its modules may read any of it; the
        links that stand for the rest."""
        target.mkdir(parents=True, exist_ok=True)
        linked: dict[Path, str] = {}
        for entry in sorted(source.iterdir()):
            copy = target / entry.name
            if _ignored(entry) or self._holds_output(entry) or (entry.is_file() and copy.exists()):
                continue
            size = _size(entry, min(LARGEST_ENTRY_BYTES, self.left))
            if size is not None:
                self.left -= size
                if entry.is_dir():
                    shutil.copytree(entry, copy, ignore=_not_copied, dirs_exist_ok=True)
                else:
                    _copy_file(entry, copy)
            elif copy.exists():  # a large folder with files that the recipe names
                linked |= self._rest(entry, copy)
            else:
                copy.symlink_to(entry)
                linked[copy] = str(entry)
        return linked

    def _holds_output(self, entry: Path) -> bool:
        """Returns whether the run writes into a folder; it is no part of what the run was started
        from."""
        return any(written.is_relative_to(entry.resolve()) for written in self.skipped)


def _ignored(entry: Path) -> bool:
    """Returns whether an entry is hidden, a cache, or nothing that can be copied."""
    return (
        entry.name.startswith(".")
        or entry.name == "__pycache__"
        or not (entry.is_file() or entry.is_dir())
    )


def _not_copied(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if _ignored(Path(folder, name))]


def _size(path: Path, most: int) -> int | None:
    """Bytes of a file or folder; None above `most`, where some are unreadable, and where links to
    folders may lead back to it."""
    total = 0
    for file in [path] if path.is_file() else path.rglob("*"):
        total += max(LEAST_BYTES, file.stat().st_size if file.is_file() else 0)
        if total > most or not os.access(file, os.R_OK) or (file.is_symlink() and file.is_dir()):
            return None
    return total


def tree_digest(folder: Path) -> str:
    """Returns a short digest of a folder's files and links."""
    files = _files(folder)
    return digest(
        [
            [str(f.relative_to(folder)), os.readlink(f) if f.is_symlink() else file_digest(f)]
            for f in files
        ]
    )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def _settle(fresh: Path, copy: Path) -> None:
    """Moves a complete copy to its place, unless it is there and whole."""
    if tree_digest(copy) == tree_digest(fresh):
        shutil.rmtree(fresh)
    else:
        shutil.rmtree(copy, ignore_errors=True)
        fresh.rename(copy)


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


def _chain(path: Path) -> list[Path]:
    """A recipe's file and those that it extends."""
    base = yaml.safe_load(path.read_text(encoding="utf-8-sig")).get("extends")
    return [path, *(_chain(path.parent / str(base)) if base else [])]


def _named(plan: Plan, folder: Path) -> Iterator[str]:
    """The files that a recipe names relative to its folder."""
    recipe = plan.run.recipe
    files: list[str | None] = [recipe.workflow, recipe.grader, recipe.tasks]
    files += workflow_files(plan.plugins, plan.run)
    files += [file for section in plan.run.sections.values() for file in section.files().values()]
    files += [
        file
        for role in recipe.roles.values()
        for file in (role.prompt, role.system, role.examples, role.followup)
    ]
    files += [name for name in recipe.plugins if name.endswith(".py")]

    def note(path: str) -> str:
        files.append(path)
        return path

    for value in recipe.flags.values():
        with_paths(str(value), note)
    for file in dict.fromkeys(files):
        if file and not Path(file).is_absolute() and (folder / file).is_file():
            yield file


def _repeatable(plan: Plan, flags: Iterable[GivenFlag], copies: FolderCopies) -> list[list[str]]:
    """The flags as lists of name and values that do not depend on the working folder."""
    run, parser = plan.run, upstream_cli.build_parser(upstream_cli.upstream_root())
    plan.plugins.options(parser)
    actions, repeated = actions_of(parser), []
    for flag in flags:
        values = list(flag.words)
        upstream_name = (
            flag.name.split(".", 2)[-1] if flag.name.startswith("policy.") else flag.name
        )
        if flag.name in (*NOT_REPEATED, *SETTLED) or holds_secret(flag.name, flag.words):
            continue
        if flag.name == "recipe":
            values = [copies.place(copies.recipe)] if copies.recipe else values
        elif flag.name == "plugin":
            values = [copies.plugin(value) for value in values]
        else:
            action = actions.get(upstream_name)
            always = action is not None and action.type is recipe_file
            local = upstream_name in UPSTREAM_FILES or upstream_name.endswith(".model_name_or_path")

            def placed(value: str, always: bool = always, local: bool = local) -> str:
                relative = value.startswith(("./", "../")) or (local and Path(value).exists())
                return copies.place(Path(value)) if always or relative else value

            several = upstream_name in UPSTREAM_FILES
            values = [with_paths(v, placed) if several else placed(v) for v in values]
        repeated.append([flag.name, *values])
    repeated += [["ckpt.output_dir", HERE], ["ckpt.path", copies.place(Path(run.args.ckpt.path))]]
    if run.args.logger.tensorboard_dir:
        repeated.append(
            ["logger.tensorboard_dir", copies.place(Path(run.args.logger.tensorboard_dir))]
        )
    for name in (
        policy.name for policy in run.policies if not policy.follows
    ):  # a recipe's model may lie anywhere
        args = run.policy_args[name]
        models = {"actor": args.actor.model_name_or_path, "critic": args.critic.model_name_or_path}
        if models["critic"] == models["actor"]:
            del models["critic"]
        for part, model in models.items():
            if model and Path(model).is_dir():
                repeated.append(
                    [f"policy.{name}.{part}.model_name_or_path", copies.place(Path(model))]
                )
    return repeated


def _versions() -> dict[str, str | None]:
    return {
        "python": platform.python_version(),
        "openrlhf-marl": __version__,
        "openrlhf": upstream_cli.upstream_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    """The version of an installed package.

    Which distribution has a package can be asked (`metadata.packages_distributions`), which reads
    the lists of all files that are
    installed: half a second.
    """
    for distribution in (
        package,
        f"{package}-cpu",
    ):  # vLLM for CPU is a distribution of another name
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return None


def _commit(folder: Path) -> str | None:
    """The git commit of a folder, with `-dirty` where its repository has changes; None without git
    or a repository."""
    words = [
        "git",
        "-C",
        str(folder),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _host() -> dict[str, Any]:
    return {
        "name": platform.node(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": len(list(Path("/dev").glob("nvidia[0-9]*"))),
    }
