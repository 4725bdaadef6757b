"""What the tiny models see before training: the right word, call and figures, now and then with a
slip."""

from marl_plugins import Demonstration

from . import questions

SLIPS = {"router": 0.2, "call": 0.2, "composer": 0.15}
"""How often each of them slips: per question."""


def slip(text, rng):
    """The text with one of its last characters changed to another of the same kind."""
    places = [n for n, c in enumerate(text) if c.isdigit()] or [
        n for n, c in enumerate(text) if c.isalpha()
    ]
    place = rng.choice(places)
    alphabet = "0123456789" if text[place].isdigit() else "abcdefghijklmnopqrstuvwxyz"
    return text[:place] + rng.choice([c for c in alphabet if c != text[place]]) + text[place + 1 :]


def demonstrate(task, rng):
    """One conversation; each works with what it is given, and remembers what it was asked
    before."""

    def written(text, by):
        return slip(text, rng) if rng.random() < SLIPS[by] else text

    assistant, seed, draw = questions.identified(task.id)
    context = questions.context_of(draw, seed)
    words, calls, findings, lines = [], {}, [], []
    for number, (question, label) in enumerate(
        zip(task.metadata["questions"], task.label, strict=True), 1
    ):
        kind = questions.KINDS[label["kind"]]
        others = [name for name in questions.SPECIALISTS[assistant] if name != kind.specialist]
        words.append(
            (question, rng.choice(others) if rng.random() < SLIPS["router"] else kind.specialist)
        )
        arguments = [str(context[key]) for key in kind.parameters]
        call = f"<lookup>{' '.join([kind.name, *arguments])}</lookup>"
        calls.setdefault(kind.specialist, []).append((question, written(call, "call")))
        shown = questions.shown(label["value"])
        findings += [f"{number}. {question}", shown]
        lines.append(f"{number}: {written(shown, 'composer')}")
    yield conversation("router", words)
    for name, said in calls.items():
        yield conversation(name, said, before="nothing")
    yield Demonstration("composer", {"findings": "\n\n".join(findings)}, said=["\n".join(lines)])


def conversation(role, turns, **fields):
    """What a role is asked and says in turn."""
    asked, said = zip(*turns, strict=True)
    return Demonstration(role, {"question": asked[0], **fields}, said=said, shown=asked[1:])
