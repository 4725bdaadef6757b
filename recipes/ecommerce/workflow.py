"""A conversation with a person: for each question the router names a specialist, who queries the
store; the composer says it all.

Router and specialists remember what they were asked before. A specialist may hand a question on,
once, to another one. Who sent a question to a specialist is among what its answer depends on, so
that credit along the graph reaches the router.
"""

import re
import zlib

from . import questions

LOOKUPS = "; ".join(
    f"{name} {' '.join(questions.KINDS[name].parameters).upper()}" for name in questions.LOOKUPS
)
HAND_ON = re.compile(r"^HAND ON: (\w+)", re.MULTILINE)


async def run(task, roles, tools):
    names = next(own for own in questions.SPECIALISTS.values() if hasattr(roles, own[0]))
    router, last, told, found = None, {}, {}, []

    async def specialist(name, question, sender):
        since = found[told.get(name, 0) :]
        told[name] = len(found) + 1
        texts = [text for pair in since for text in pair[:2]]
        ask, seen = getattr(roles, name), [action for _, _, action in since]
        fields = {
            "question": question,
            "before": texts or "nothing",
            "lookups": LOOKUPS,
            "after": [*seen, sender],
        }
        last[name] = await (ask(continues=last[name], **fields) if name in last else ask(**fields))
        return last[name]

    for turn, question in enumerate(task.metadata.get("questions", [task.prompt])):
        router = await (
            roles.router(question=question, continues=router)
            if router
            else roles.router(question=question)
        )
        action = await specialist(
            named(router, names) or names[(zlib.crc32(task.id.encode()) + turn) % len(names)],
            question,
            router,
        )
        if (other := HAND_ON.search(str(action))) and other[1] in names and other[1] != action.role:
            action = await specialist(other[1], f"{question}\nA colleague says: {action}", action)
        found.append((f"{turn + 1}. {question}", action.tool_output or str(action), action))
    texts = [text for pair in found for text in pair[:2]]
    return await roles.composer(findings=texts, after=[action for _, _, action in found])


def named(action, names):
    """The last specialist whom a text names, if it names one."""
    words = [word for word in re.findall(r"\w+", str(action).lower()) if word in names]
    return words[-1] if words else None
