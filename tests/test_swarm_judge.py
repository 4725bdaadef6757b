"""The judge of a swarm: what it asks and notes over HTTP, and how it compares peers."""

import json
import random
import socket
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from itertools import combinations
from statistics import fmean, pstdev

import pytest
from simulated import without_seconds
from test_exchange import recorded
from test_swarm import fit, peer, population

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.swarm import judge
from marl_plugins.swarm.command import main
from marl_plugins.swarm.judge import Judge, compared, curves
from marl_plugins.swarm.peers import Swarm
from marl_plugins.swarm.record import read_lines

HELD_OUT = {task.id: task for task in load_file(recipes_root() / "swarm" / "tasks.py").load("eval")}


@pytest.fixture
def address(tmp_path):
    """The address of a judge of recipes/swarm, which notes in judged.jsonl."""
    with Judge("swarm/tiny.yaml", tmp_path / "judged.jsonl", ("127.0.0.1", 0)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def post(address, content):
    """Status and content of the judge's answer."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    try:
        with urllib.request.urlopen(address, body, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_round_has_one_random_question_and_one_answer(address, tmp_path):
    rounds = [
        {"peer": who, "group": "swarm", "round": n} for who in ("ada", "ben") for n in range(8)
    ]
    asked = [post(address, of) for of in rounds]
    assert asked == [post(address, of) for of in rounds]
    questions = [question["task"] for _, question in asked]
    assert len(set(questions)) > 12 and all(
        HELD_OUT[q["task"]].prompt == q["prompt"] for _, q in asked
    )
    for n, (of, task) in enumerate(zip(rounds, questions, strict=True)):
        said = HELD_OUT[task].label if n % 2 else "no idea"
        assert post(address, {**of, "answer": said, "score": 1.0}) == (200, {"score": n % 2})
        assert post(address, {**of, "answer": HELD_OUT[task].label}) == (409, {})
    noted = [json.loads(line) for line in (tmp_path / "judged.jsonl").read_text().splitlines()]
    assert [(line["peer"], line["round"], line["task"], line["score"]) for line in noted] == [
        (of["peer"], of["round"], task, n % 2)
        for n, (of, task) in enumerate(zip(rounds, questions, strict=True))
    ]
    with (
        Judge("swarm/tiny.yaml", tmp_path / "judged.jsonl", ("127.0.0.1", 0)) as again,
        pytest.raises(FileExistsError),
    ):
        again.reply(judge.JudgedRound(**rounds[0], answer="1"))


def test_an_answer_to_another_judges_question_is_not_graded(tmp_path):
    """The judge was restarted between question and answer."""
    of = {"peer": "ada", "group": "swarm", "round": 1}
    with Judge("swarm/tiny.yaml", tmp_path / "judged.jsonl", ("127.0.0.1", 0)) as before:
        before.reply(judge.JudgedRound(**of))
    with Judge("swarm/tiny.yaml", tmp_path / "judged.jsonl", ("127.0.0.1", 0)) as again:
        with pytest.raises(FileExistsError):
            again.reply(judge.JudgedRound(**of, answer="1"))
        question = again.reply(judge.JudgedRound(**of))
        right = HELD_OUT[question["task"]].label
        assert again.reply(judge.JudgedRound(**of, answer=right)) == {"score": 1.0}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1]",
        {"peer": "", "group": "swarm", "round": 1},
        {"peer": "a", "group": "swarm", "round": -1},
        {"peer": "a", "group": "other", "round": 1},
    ],
)
def test_what_is_no_request_is_refused(address, content):
    assert post(address, content) == (400, {})
    assert post(address, {"peer": "a", "group": "alone", "round": 1})[0] == 200


def test_a_run_is_judged_once_a_step_and_stays_the_same(address, tmp_path):
    runs = {}
    for word, url in (("judged", address), ("not", None), ("gone", "http://127.0.0.1:1")):
        runs[word] = fit(peer(tmp_path / word, tmp_path / f"{word}-store", seed=8, judge=url))
    for name in ("trajectories.jsonl", "ledger.jsonl"):
        lines = [without_seconds(recorded(run, name)) for run in runs.values()]
        assert lines[0] == lines[1] == lines[2]
    noted = read_lines(tmp_path / "judged.jsonl", judge.JudgedRound)
    me = f"alice-{runs['judged'].run.state(Swarm).run}"
    assert [(n.peer, n.group, n.round) for n in noted] == [(me, "alone", n) for n in (1, 2, 3)]
    numbers = {word: recorded(run, "metrics.jsonl")[-1] for word, run in runs.items()}
    assert (numbers["judged"]["swarm/judged"], numbers["judged"]["swarm/unjudged"]) == (0.0, 0.0)
    assert numbers["gone"]["swarm/unjudged"] == 1.0 and "swarm/unjudged" not in numbers["not"]


def test_a_server_that_speaks_another_protocol_costs_a_number(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet():
            with suppress(OSError):
                while True:
                    caller, _ = listening.accept()
                    with caller:
                        caller.recv(1 << 16)
                        caller.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        threading.Thread(target=greet, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        run = fit(peer(tmp_path, tmp_path / "store", steps=1, judge=url))
    assert recorded(run, "metrics.jsonl")[0]["swarm/unjudged"] == 1.0


def test_every_member_of_a_population_is_judged_for_itself(address, tmp_path):
    run = population(tmp_path / "a", tmp_path / "store", external=2, frozen="s", judge=address)
    noted = read_lines(tmp_path / "judged.jsonl", judge.JudgedRound)
    me = run.run.state(Swarm).run
    assert sorted((n.round, n.peer, n.group) for n in noted) == [
        (n, f"alice.{name}-{me}", "swarm") for n in (1, 2, 3) for name in "pq"
    ]
    assert {line["swarm/unjudged"] for line in recorded(run, "metrics.jsonl")} == {0.0}


def drawn(draw, rates, rounds):
    """Curves of peers that are right at these rates: (group, rate) each."""
    return {
        (group, f"p{n}"): [fmean(scores[: k + 1]) for k in range(rounds)]
        for n, (group, rate) in enumerate(rates)
        for scores in [[float(draw.random() < rate) for _ in range(rounds)]]
    }


def reference(by_peer, places):
    """Adjusted p by all deals, written from the page alone."""
    who = list(by_peer)

    def gap(inside, k):
        sides = ([], [])
        for each in who:
            if len(by_peer[each]) >= k:
                sides[each in inside].append(by_peer[each][k - 1])
        everyone = sides[0] + sides[1]
        if not sides[0] or not sides[1] or pstdev(everyone) == 0:
            return 0.0
        return abs(fmean(sides[0]) - fmean(sides[1])) / pstdev(everyone)

    own = {each for each in who if each[0] == "swarm"}
    largest = [max(gap(set(inside), k) for k in places) for inside in combinations(who, len(own))]
    return [fmean(each >= gap(own, k) - 1e-9 for each in largest) for k in places]


@pytest.mark.parametrize("seed", range(2))
def test_adjusted_p_is_that_of_all_deals(seed):
    draw = random.Random(seed)
    by_peer = drawn(draw, [("swarm", 0.6)] * 4 + [("alone", 0.3)] * 4, 14)
    for who in draw.sample(list(by_peer), 3):  # who came late
        del by_peer[who][draw.randrange(3, 12) :]
    rows = compared(by_peer)
    expected = reference(by_peer, [int(k) for k in rows["rounds"]])
    assert rows["adjusted p"] == pytest.approx(expected, abs=0.015)  # 20,000 random deals
    for group in ("swarm", "alone"):
        there = [
            [
                curve[int(k) - 1]
                for (g, _), curve in by_peer.items()
                if g == group and len(curve) >= k
            ]
            for k in rows["rounds"]
        ]
        assert rows[group] == pytest.approx([fmean(values) for values in there])


def test_alike_groups_are_rarely_found_different_and_others_are(monkeypatch):
    monkeypatch.setattr(judge, "DEALS", 400)
    draw = random.Random(1)
    alike = [compared(drawn(draw, [("swarm", 0.3), ("alone", 0.3)] * 6, 60)) for _ in range(120)]
    assert sum(min(rows["adjusted p"]) < 0.05 for rows in alike) <= 12  # of 6 expected
    apart = compared(drawn(draw, [("swarm", 0.6), ("alone", 0.3)] * 6, 60))
    assert apart["adjusted p"][-1] < 0.01
    assert compared(drawn(draw, [("swarm", 1.0)] * 5 + [("alone", 0.0)], 9)) == {}


def test_curves_are_of_a_peers_own_rounds_and_are_printed(tmp_path, capsys):
    file = tmp_path / "judged.jsonl"
    lines = [
        {"peer": who, "group": group, "round": n, "task": "t", "score": score}
        for who, group, start in (("a", "swarm", 90), ("b", "swarm", 1), ("c", "alone", 7))
        for n, score in zip((start + 4, start, start + 2), (1.0, 0.0, 1.0), strict=True)
    ] + [{"peer": "d", "group": "alone", "round": 1, "task": "t", "score": 0.0}]
    file.write_text("\n".join(map(json.dumps, lines)))
    found = curves(read_lines(file, judge.JudgedRound))
    assert found["swarm", "a"] == found["alone", "c"] == pytest.approx([0.0, 0.5, 2 / 3])
    assert main(["judge", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "a (swarm)" in printed and "adjusted p" in printed
    file.write_text(json.dumps(lines[0]) + "\n{}\n")
    with pytest.raises(ConfigurationError):
        main(["judge", str(file)])
