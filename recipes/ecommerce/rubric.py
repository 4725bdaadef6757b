"""How the coach judges the steps: rules that need no label, and for the composer's last answer one
that does.

What a question is about is read off its words and the task's id, as the person's script has them.
"""

import re

from marl_plugins import Criterion

from . import grader, questions, workflow

PLAIN = re.compile(r"\d+(?:\.\d+)?")
GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d+(?:\.\d+)?")


def asked(seen):
    """The kind of the question that a role was asked last."""
    lines = [line for _, text in seen.messages[-1:] for line in text.splitlines()]
    return next(
        (
            kind
            for line in lines
            if (kind := questions.kind_of(line.removeprefix(f"{HEAD} ").strip()))
        ),
        None,
    )


HEAD = "Question:"


def names_the_right_specialist(action, seen):
    kind = asked(seen)
    return (
        kind is not None
        and workflow.named(action, [n for own in questions.SPECIALISTS.values() for n in own])
        == kind.specialist
    )


def names_one_specialist(action, seen):
    words = re.findall(r"\w+", action.text.lower())
    return (
        len({word for word in words if any(word in own for own in questions.SPECIALISTS.values())})
        == 1
    )


def results(action):
    """What the tools answered in the call of the role up to here."""
    found = list(action.tool_results)
    while action.before is not None and action.before.call == action.call:
        action = action.before
        found = [*action.tool_results, *found]
    return found


def its_calls_run(action, seen):
    own = action.tool_results or results(action)[-1:]
    return bool(own) and all(result.ok for result in own)


def touches_what_it_has_to(action, seen):
    """The lookup of the question's kind, or a query of the tables of its query; with the month,
    product, order in question."""
    kind, calls = asked(seen), [result.call for result in results(action)]
    if kind is None or not calls:
        return False
    _, seed, draw = questions.identified(seen.task_id)
    context = questions.context_of(draw, seed)
    wanted = {str(context[name]) for name in kind.parameters}
    tables = set(re.findall(r"(?:FROM|JOIN) (\w+)", kind.sql)) & {
        "sales",
        "orders",
        "order_lines",
        "products",
        "refunds",
        "campaigns",
    }
    for call in calls:
        words = set(re.findall(r"[\w-]+", call.lower()))
        months = {str(int(word)) for word in words if word.isdecimal()} | {
            part.lstrip("0") for w in words for part in w.split("-")
        }
        if wanted <= words | months and (
            kind.name in words or tables <= words or kind.form in ("cause", "change", "order")
        ):
            return True
    return False


def backed(text, sources):
    """Whether every figure of a text stands in another one, or is what one there is rounded to."""
    known = [
        float(number.replace(",", ""))
        for pattern in (PLAIN, GROUPED)
        for number in pattern.findall(sources)
    ]
    said = [number.replace(",", "") for number in GROUPED.findall(text)]
    return all(
        any(round(one, len(number.partition(".")[2])) == float(number) for one in known)
        for number in said
    )


def says_only_what_tools_said(action, seen):
    """Every figure of an answer was in the question or in what a tool answered; a call claims
    nothing, and an order decides."""
    kind = asked(seen)
    if action.tool_results or (kind is not None and kind.form == "order"):
        return True
    return backed(
        action.text,
        "\n".join(
            [*(text for _, text in seen.messages), *(result.output for result in results(action))]
        ),
    )


def has_a_line_for_each_question(action, seen):
    count = len(re.findall(r"^\d+\. ", seen.messages[-1][1], re.MULTILINE))
    return set(grader.lines(action.text)) == set(range(1, count + 1))


def says_only_what_was_found(action, seen):
    """Every figure stands in what the specialists found."""
    said = grader.lines(action.text).values()
    return bool(said) and backed("\n".join(said), seen.messages[-1][1])


def is_right(action, seen):
    said = grader.lines(action.text)
    return sum(grader.score(label, said.get(n, "")) for n, label in enumerate(seen.label, 1)) / len(
        seen.label
    )


def rubric_of(assistant):
    specialist = [
        Criterion("its calls run", 3, its_calls_run),
        Criterion("touches what it has to", 5, touches_what_it_has_to),
        Criterion("says only what tools said", 2, says_only_what_tools_said),
    ]
    return {
        "router": [
            Criterion("names one specialist", 2, names_one_specialist),
            Criterion("names the right one", 8, names_the_right_specialist),
        ],
        **dict.fromkeys(questions.SPECIALISTS[assistant], specialist),
        "composer": [
            Criterion("has a line for each question", 2, has_a_line_for_each_question),
            Criterion("says only what was found", 3, says_only_what_was_found),
            Criterion("is right", 5, is_right, needs_label=True),
        ],
    }
