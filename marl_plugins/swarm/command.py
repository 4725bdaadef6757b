"""`openrlhf swarm`: what is in a store of peers' records, answers of people and other services that
are added to it, and a judge of its peers."""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pydantic
from rich.console import Console
from rich.table import Table

from marl_plugins import ConfigurationError, Parser, Problem, RefusedRecord, at, inert
from marl_plugins.swarm.record import key_of, packed, read_lines, unpacked
from marl_plugins.swarm.store import RecordName, RecordStore, wrong_peer


class GivenAnswer(pydantic.BaseModel, extra="forbid", strict=True):
    """The words of one role."""

    role: str
    text: str


class GivenAnswers(pydantic.BaseModel, extra="forbid", strict=True):
    """A line of the file of `swarm add`: the answers to one task, in the order in which each role
    is asked."""

    task: str
    prompt: str
    answers: list[GivenAnswer] = pydantic.Field(min_length=1)


def main(words: Sequence[str]) -> int:
    parser = Parser(prog="openrlhf swarm", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True, parser_class=Parser)
    show = actions.add_parser("show", help="peers and rounds, and which records are damaged")
    show.add_argument("address", help="the store, as of --swarm.store")
    add = actions.add_parser(
        "add", help="add answers of people, or of any service, for the runs that use the store"
    )
    add.add_argument(
        "file",
        type=Path,
        help='JSON Lines: {"task": ID, "prompt": TEXT, "answers": [{"role": NAME, "text": TEXT}, '
        "...]}",
    )
    add.add_argument("address", help="the store, as of --swarm.store")
    add.add_argument("--peer", default="people", help="who has answered (default: %(default)s)")
    judge = actions.add_parser("judge", help="ask all peers alike, and compare them")
    judge.add_argument("file", type=Path, help="what has been judged; JSON Lines")
    judge.add_argument(
        "--recipe", help="serve its held-out questions; default: print what the file says"
    )
    judge.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    judge.add_argument("--port", type=int, default=8700, help="default: %(default)s")
    options = parser.parse_args(words)
    try:
        return {"show": _show, "add": _add, "judge": _judge}[options.action](options)
    except (OSError, ImportError) as error:
        name = str(getattr(options, "address", "") or options.file)
        raise ConfigurationError(Problem("swarm.unreachable", at(name=name), str(error))) from None


def _store(address: str) -> RecordStore:
    try:
        return RecordStore(address)
    except ValueError as error:
        raise ConfigurationError(Problem("swarm.store", at(name=address), str(error))) from None


def _show(options: Any) -> int:
    """Print the peers of a store, as JSON."""
    store = _store(options.address)
    peers: dict[str, dict[str, Any]] = defaultdict(
        lambda: {"rounds": [], "records": 0, "trajectories": 0, "refused": []}
    )
    for name in store.names():
        try:
            trajectories, refused = len(unpacked(store.get(name)).group), []
        except FileNotFoundError:  # its peer has removed it meanwhile
            continue
        except (RefusedRecord, ValueError) as error:
            trajectories, refused = 0, [f"{name.path}: {error}"]
        peer = peers[f"{name.peer}-{name.run}"]
        peer["records"] += 1
        peer["trajectories"] += trajectories
        peer["refused"] += refused
        if name.round is not None:
            peer["rounds"].append(name.round)
    by_name = {
        who: {
            **peer,
            "rounds": [min(peer["rounds"]), max(peer["rounds"])] if peer["rounds"] else None,
        }
        for who, peer in sorted(peers.items())
    }
    print(json.dumps(by_name, indent=2))
    return 0


def _add(options: Any) -> int:
    """Write the answers of a file into the store, a record for each task."""
    if wrong := wrong_peer(options.peer, "peer"):
        raise ConfigurationError(wrong)
    groups: dict[str, list[dict[str, object]]] = {}
    for entry in read_lines(options.file, GivenAnswers):
        group = groups.setdefault(entry.task, [])
        group.append(_words(entry, len(group)))
    if not groups:
        raise ConfigurationError(
            Problem("swarm.answers", at(file=options.file), "it holds no answers")
        )
    store, run = _store(options.address), secrets.token_hex(4)
    for task, group in groups.items():
        store.put(RecordName(None, options.peer, run, key_of(task)), packed(group))
    print(
        f"added {sum(map(len, groups.values()))} trajectories of {len(groups)} tasks as "
        f"{options.peer}-{run}"
    )
    return 0


def _judge(options: Any) -> int:
    """Ask peers until it is interrupted, or print how they were judged."""
    from marl_plugins.swarm.judge import Judge, JudgedRound, compared, curves

    if options.recipe:
        with Judge(options.recipe, options.file, (options.host, options.port)) as judge:
            print(f"http://{options.host}:{judge.server_port}", flush=True)
            with suppress(KeyboardInterrupt):
                judge.serve_forever()
        return 0
    by_peer = curves(read_lines(options.file, JudgedRound))
    rows = compared(by_peer)
    rounds = rows.pop("rounds", [max(map(len, by_peer.values()), default=0)])
    table = Table("rounds", *map(str, rounds), box=None)
    for (group, peer), curve in by_peer.items():
        there = [f"{curve[k - 1]:.3f}" for k in rounds if k <= len(curve)]
        table.add_row(f"{inert(peer)} ({group})", *there)
    for name, values in rows.items():
        table.add_row(name, *(f"{value:.3f}" for value in values))
    Console().print(table)
    return 0


def _words(entry: GivenAnswers, sample: int) -> dict[str, object]:
    """Returns answers as the words of a trajectory that were shown to nobody: each role says them
    in their order."""
    answers = [
        {"role": a.role, "shown": "", "text": a.text, "end": "eos", "logprob": 0.0}
        for a in entry.answers
    ]
    task = {"schema": 1, "task": entry.task, "prompt": entry.prompt, "sample": sample}
    return {**task, "tokenizers": {}, "answers": answers}
