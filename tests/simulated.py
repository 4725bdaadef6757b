"""Stand-ins for tests of the core: a simulated engine, a chat format of characters, finished
trajectories."""

import asyncio
import hashlib
import random

from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory


class CharacterChat:
    """A stand-in for a tokenizer and its chat template: one token per character, `^` ends a
    message."""

    def opening(self, messages):
        return self.encode("".join(f"{m['role'][0]}:{m['content']}^" for m in messages) + "a:")

    def continuation(self, sampled, following):
        end = "" if sampled and sampled[-1] == ord("^") else "^"
        return self.encode(
            end + "".join(f"{m['role'][0]}:{m['content']}^" for m in following) + "a:"
        )

    ends = frozenset({ord("^")})

    def keeps(self, conversation, following):
        return True

    def said(self, ids):
        return self.text(ids)

    said_again = said

    def thought(self, ids):
        return 0

    defused = thought

    def text(self, ids):
        return "".join(chr(i) for i in ids).rstrip("^")

    @staticmethod
    def encode(text):
        return tuple(ord(c) for c in text)


def simulated_engine(delays=False, policy_version=0):
    """A simulated engine: text from the seed and the context alone; arrival order shuffled when
    `delays` is set."""
    noise = random.Random()

    async def generate(call):
        if delays:
            await asyncio.sleep(noise.random() * 0.01)
        digest = hashlib.sha256(f"{call.seed}/{call.context_ids}".encode()).hexdigest()
        ids = (*CharacterChat.encode(digest[: min(6, call.max_tokens)]), ord("^"))
        return Generation(ids, tuple(-0.5 for _ in ids), "stop", call.policy, policy_version)

    return generate


TIMED = ("seconds", "start", "times")
"""Keys of records whose values are measured, and differ between runs that are otherwise the same."""


def without_seconds(record):
    """A record without what measures time."""
    if isinstance(record, list):
        return [without_seconds(item) for item in record]
    if isinstance(record, dict):
        return {key: without_seconds(value) for key, value in record.items() if key not in TIMED}
    return record


def without_logprobs(trajectories):
    """Records without seconds, with the engine's log-probs taken out; and these."""
    records, logprobs = without_seconds(trajectories), []
    for record in records:
        for action in record["actions"]:
            logprobs += action.pop("logprobs")
    return records, logprobs


class DraftAction(Action):
    """An action that a test may still change as it likes."""

    __setattr__ = object.__setattr__


def make_trajectory(edges, policies=None, rewards=None, task="t", sample=0, roles=None):
    """A finished trajectory: `edges` maps each action's path to the paths it saw, in order."""
    trajectory = Trajectory(Task(task, "prompt", "label"), sample, step=1)
    for number, (path, parents) in enumerate(edges.items()):
        policy = (policies or {}).get(path, "p")
        trajectory.actions.append(
            DraftAction(
                path=path,
                role=(roles or {}).get(path, path),
                policy=policy,
                turn=0,
                shown_ids=(1, 2, 3),
                generation=Generation((4, 5 + number), (-0.1, -0.2), "stop", policy, 0),
                text="x",
                parents=tuple(parents),
                reward=(rewards or {}).get(path, 1.0),
            )
        )
    return trajectory


def conversations(seed, turns, restarts=0.1):
    """A trajectory of random conversation trees; some turns begin anew."""
    draw = random.Random(seed)
    trajectory = Trajectory(Task("t", "p"), seed, step=1)

    def ids(least):
        return tuple(draw.randrange(1000) for _ in range(draw.randint(least, 5)))

    for number in range(turns):
        before = draw.choice([None, *trajectory.actions]) if draw.random() < 0.9 else None
        sampled = ids(1)
        action = DraftAction(
            f"a.{number}",
            "a",
            "p",
            before.turn + 1 if before else 0,
            ids(1),
            Generation(sampled, tuple(-draw.random() for _ in sampled), "stop", "p", 0),
            "",
            before=before,
            extends=before is None or draw.random() >= restarts,
        )
        trajectory.actions.append(action)
    return trajectory


def credit(plugin, trajectories, run):
    """A step's credit by a plugin, as a run calls its hooks."""
    plugin.marl_credit(trajectories, run)
    return plugin.marl_credit_step(trajectories, run)


def content(trajectory):
    """Everything that a trajectory says, to be compared: its actions by their paths where they name
    each other."""
    actions = [
        {**vars(action), "before": action.before and action.before.path}
        for action in trajectory.actions
    ]
    return {
        **vars(trajectory),
        "actions": actions,
        "rollout": None,
        "sampled": None,
    }  # these two are not recorded
