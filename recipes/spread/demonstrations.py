"""What the tiny model sees before training: agents of whom half choose well, and the others
anybody."""

from marl_plugins import Demonstration

from .network import AGENTS, NAMES, ROUNDS, Network

SKILL = 0.5


def demonstrate(task, rng):
    network = Network(task.id)
    for number in range(ROUNDS):
        said = {}
        for role in AGENTS:
            met = network.meetings[number][role]
            said[role] = network.best(role, number) if rng.random() < SKILL else rng.choice(met)
            yield Demonstration(role, network.fields(role, number), [NAMES[said[role]][0]])
        network.speak(said)
