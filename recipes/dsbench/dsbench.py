"""The plugin of the recipe: where the tasks lie, and the tool `word`, which turns a word into the
program of a decision.

--dsbench.data FOLDER                      the benchmark's data, in its own layout (layout.py)
--dsbench.data generated:SEED              generated tasks in the same layout (tables.py), made once
                                           and kept
--dsbench.train FILE --dsbench.eval FILE   which tasks belong to which split, such as MAPPA's files
"""

import hashlib
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from marl_plugins import ConfigurationError, Tool, ToolResult, hookimpl, recipe_file

from . import layout, pipeline

HERE = Path(__file__).resolve().parent
NEEDED = ("pandas", "scikit-learn", "scipy")
GENERATED = "generated:"
GENERATE = (
    "import sys; from pathlib import Path; from marl_plugins import load_file; "
    "load_file(Path(sys.argv[1])).generate(Path(sys.argv[2]), int(sys.argv[3]))"
)


@hookimpl
def marl_options(parser):
    group = parser.add_argument_group("tasks of the recipe dsbench")
    group.add_argument(
        "--dsbench.data",
        default=GENERATED + "0",
        metavar="FOLDER",
        help="DSBench's data, or generated:SEED (default: generated:0)",
    )
    for split in ("train", "eval"):
        group.add_argument(
            f"--dsbench.{split}",
            type=recipe_file,
            metavar="FILE",
            help=f"JSON that names the tasks of {split}; default: the table",
        )


@hookimpl
def marl_tasks(run, split):
    file = getattr(run.args.dsbench, split)
    return layout.load(root(run.args.dsbench.data), split, Path(file) if file else None)


@hookimpl
def marl_tools(run):
    """The word's program runs as those of the tool `python` do, with the same limits, in the
    trajectory's workspace."""
    from marl_plugins import python_tool_of

    python, known = python_tool_of(run, "agents"), {}

    async def word(call):
        if not known:
            known.update(layout.cards(root(run.args.dsbench.data)))
        stages, card = pipeline.BY_ROLE[call.role], known[call.task]
        program = pipeline.expand(stages[call.turn], call.text.strip(), card.id, card.targets)
        result = await python.run(replace(call, text=program))
        return replace(result, tool="word", call=call.text, output=shown(stages, call.turn, result))

    seconds = python.seconds_per_trajectory
    return [
        Tool("word", word, lambda text: [text], seconds_per_trajectory=seconds, in_workspace=True)
    ]


def shown(stages, turn, result: ToolResult):
    """What an agent is told of its program: whether it ran (a tiny model makes nothing of a trace),
    and which decision is next."""
    told = "ok" if result.ok else "failed"
    return told if turn + 1 == len(stages) else f"{told}\n{stages[turn + 1].name}?"


def root(data):
    """The folder of the data, where generated tasks are made first if they are not there yet.

    Raises:
        ConfigurationError: They cannot be made.
    """
    if not data.startswith(GENERATED):
        return Path(data).absolute()
    seed = data.removeprefix(GENERATED)
    if not seed.isdigit():
        raise ConfigurationError(
            f"--dsbench.data {data}: expected {GENERATED}SEED with a whole number, or a folder"
        )
    try:
        versions = [f"{name} {metadata.version(name)}" for name in NEEDED]
    except metadata.PackageNotFoundError as error:
        raise ConfigurationError(
            f"recipe dsbench: {error.name} is not installed; pip install 'openrlhf-marl[tables]'"
        ) from None
    from marl_plugins import made_once

    sources = [
        (HERE / name).read_bytes()
        for name in ("tables.py", "pipeline.py", "layout.py", "scorer.py")
    ]
    key = hashlib.blake2b(
        b"\0".join([*sources, *map(str.encode, versions)]), digest_size=8
    ).hexdigest()
    return Path(made_once(f"dsbench-{seed}-{key}", lambda folder: make(folder, seed)))


def make(folder, seed):
    """Generate the tasks in a process of its own: this one imports neither pandas nor scikit-learn
    for it."""
    command = [sys.executable, "-P", "-c", GENERATE, str(HERE / "tables.py"), str(folder), seed]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise ConfigurationError(
            f"recipe dsbench: its tasks could not be generated: {made.stderr.strip()[-500:]}"
        )
