"""A judge who asks all peers alike, whatever they train with: do those who share do better?

    openrlhf swarm judge FILE --recipe R       answers, and appends what it has judged to FILE
    openrlhf swarm judge FILE                  what FILE says

SAPO's protocol (section 6), over HTTP in JSON:

    POST {"peer": NAME, "group": "swarm" or "alone", "round": N}    -> {"task": ID, "prompt": TEXT}
    POST the same with "answer": TEXT                               -> {"score": 0 to 1}

The question is one of the recipe's held-out ones, drawn by the judge; a peer's round has the same
one however often it asks, and one answer, whose score by the recipe's grader is a pass@1. A run
that is given `--swarm.judge` asks once a step, every member of a population for itself.

Rounds are counted by each peer's own, because peers come and go: a curve is the mean score of a
peer's first k judged rounds. The groups' gap at several k is compared with the gaps in random deals
of the same peers to two groups of these sizes (Westfall and Young 1993, single-step maxT): the
adjusted p at k is the share of deals whose largest standardised gap, at any k, is at least that of
the groups at k. No scores are taken to be normal, or rounds to be independent.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic

from marl_plugins import Exchange, Run, Task, json_value
from marl_plugins.contracts.graders import RecipeGrader
from marl_plugins.swarm.peers import Swarm, peer_of
from marl_plugins.swarm.record import read_lines

MOST_BYTES = 4 << 20
"""Of a request, and of an answer to one."""
WAITING_SECONDS = 30.0
PLACES, DEALS = 10, 20_000


class JudgedRound(pydantic.BaseModel, extra="forbid", strict=True):
    """A round of a peer: as it asks for its question, as it answers, and as it is noted.

    Args:
        answer: None: the question is asked for.
        task, score: Of the judge; what a peer says of them has no effect.
    """

    peer: str = pydantic.Field(min_length=1, max_length=200)
    group: Literal["swarm", "alone"]
    round: int = pydantic.Field(ge=0)
    answer: str | None = None
    task: str = ""
    score: float = pydantic.Field(0.0, ge=0.0, le=1.0)


class Judge(ThreadingHTTPServer):
    """Draws questions and grades answers.

    Args:
        file: Of what it has judged; JSON Lines.
        address: Host and port; 0 is any that is free.
    """

    def __init__(self, recipe: str, file: Path, address: tuple[str, int]):
        self._grader, self._file = RecipeGrader(recipe), file
        self._tasks = self._grader.plan.tasks("eval")
        self._asked: dict[tuple[str, int], Task] = {}
        self._free = threading.Lock()
        lines = read_lines(file, JudgedRound) if file.exists() else []
        self._judged = {(line.peer, line.round) for line in lines}
        super().__init__(address, JudgeHandler)

    def reply(self, asked: JudgedRound) -> dict[str, object]:
        """Returns the question of a peer's round; where it is answered, the score, which is noted.

        Raises:
            FileExistsError: This round has been judged, or this judge has not asked.
        """
        key = asked.peer, asked.round
        if asked.answer is None:
            task = self._asked.setdefault(key, random.choice(self._tasks))
            return {"task": task.id, "prompt": task.prompt}
        with self._free:
            if key in self._judged or key not in self._asked:
                raise FileExistsError
            task = self._asked[key]
            score = self._grader.outcome(task, asked.answer)
            noted = asked.model_copy(update={"task": task.id, "score": score})
            with self._file.open("a") as lines:
                lines.write(noted.model_dump_json() + "\n")
            self._judged.add(key)
        return {"score": score}


class JudgeHandler(BaseHTTPRequestHandler):
    """Answers one peer."""

    server: Judge
    timeout = WAITING_SECONDS

    def do_POST(self) -> None:
        status, content = 200, dict[str, object]()
        try:
            length = int(self.headers["Content-Length"] or 0)
            body = self.rfile.read(length) if 0 <= length <= MOST_BYTES else b""
            content = self.server.reply(JudgedRound.model_validate_json(body))
        except ValueError:
            status = 400
        except FileExistsError:
            status = 409
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())


async def judged(run: Run, exchange: Exchange, learner: str) -> float | None:
    """Lets a run's judge ask a learner once; returns the score, or None where the judge does not
    answer, or has judged this step."""
    options = run.args.swarm
    of = {
        "peer": f"{peer_of(options.peer, learner)}-{run.state(Swarm).run}",
        "group": "swarm" if options.external else "alone",
        "round": exchange.step,
    }
    try:
        question = await asyncio.to_thread(_told, options.judge, of)
        task = Task(question["task"], question["prompt"])
        trajectory = await exchange.ask(task, learner or None)
        if trajectory.infrastructure_failure:
            return None
        answer = {**of, "answer": trajectory.answer or ""}
        return float((await asyncio.to_thread(_told, options.judge, answer))["score"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None


def _told(url: str, asked: Mapping[str, object]) -> Any:
    request = urllib.request.Request(url, json.dumps(asked).encode())
    with urllib.request.urlopen(request, timeout=WAITING_SECONDS) as answer:
        return json_value(answer.read(MOST_BYTES))


def curves(lines: Sequence[JudgedRound]) -> dict[tuple[str, str], list[float]]:
    """Returns the mean score of each peer's first k judged rounds, for k from 1, by group and
    peer."""
    scores: dict[tuple[str, str], list[float]] = {}
    for line in sorted(lines, key=lambda each: each.round):
        scores.setdefault((line.group, line.peer), []).append(line.score)
    return {
        who: [total / k for k, total in enumerate(accumulate(values), start=1)]
        for who, values in sorted(scores.items())
    }


def compared(curves: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, list[Any]]:
    """Returns up to `PLACES` numbers of rounds that two peers of each group have played, the
    groups' means there, and the adjusted p of their difference; nothing where a group has one
    peer."""
    groups = np.array([group == "swarm" for group, _ in curves], dtype=int)
    lengths = np.array([len(curve) for curve in curves.values()])
    if not 2 <= groups.sum() <= len(groups) - 2:
        return {}
    last = min(sorted(lengths[groups == group])[-2] for group in (0, 1))
    rounds = sorted({-(-last * n // PLACES) for n in range(1, PLACES + 1)})
    there = lengths[:, None] >= rounds
    values = there * [[curve[min(k, len(curve)) - 1] for k in rounds] for curve in curves.values()]
    counts = there.sum(axis=0)
    spread = np.sqrt((there * (values - values.sum(axis=0) / counts) ** 2).sum(axis=0) / counts)
    spread[spread < 1e-9] = np.inf

    def means(dealt: Any) -> Any:
        return dealt @ values / np.maximum(dealt @ there, 1)

    def gaps(dealt: Any) -> Any:
        both = (dealt @ there > 0) & ((1 - dealt) @ there > 0)
        return both * np.abs(means(dealt) - means(1 - dealt)) / spread

    deals = np.random.default_rng(0).permuted([groups] * DEALS, axis=1)
    largest = gaps(np.vstack([groups, deals])).max(axis=1)
    return {
        "rounds": rounds,
        "swarm": means(groups).tolist(),
        "alone": means(1 - groups).tolist(),
        "adjusted p": [float(np.mean(largest >= gap - 1e-9)) for gap in gaps(groups)],
    }
