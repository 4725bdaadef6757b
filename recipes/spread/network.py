"""A network of people who hear a rumour and its correction, and what agents of both sides do in it.

Hubs are few: whoever joins the network ties to two people, more likely to those who have many ties
already (Barabasi and Albert, 1999). At the start three people hold the rumour and nobody the
correction. In a round every agent speaks to one of four people whom it meets; whoever is spoken to
believes the side that speaks to him or her more often. Then all believe what most of their contacts
and they themselves do; a tie changes nothing.
"""

import random
from functools import cache

from marl_plugins.grading import word

NAMES = (
    *("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gina", "Hugo"),
    *("Ines", "Jack", "Kim", "Lena", "Max", "Nora", "Omar", "Pia"),
)
"""Everybody's name; a tiny model says the first letter."""
SIDES = {"correct": 1, "rumour": -1}
AGENTS = tuple(f"{side}{number}" for side in SIDES for number in range(1, 5))
"""The roles: four of each side."""
ROUNDS, MET, TIES, HEARD = 3, 4, 2, 3
NOBODY = "-"


def side_of(role):
    """1 of those who correct, -1 of those who spread the rumour."""
    return SIDES[role.rstrip("1234")]


class Network:
    """The people of a task while agents speak to them.

    Args:
        name: The task's: it decides who knows whom, who holds the rumour, and who meets whom.
    """

    def __init__(self, name):
        self.contacts, self.beliefs, self.meetings = drawn(name)

    def fields(self, role, number):
        """What an agent is shown in a round."""
        met, side = self.meetings[number][role], side_of(role)
        states = {side: "holds yours", -side: "holds the other side's", 0: "is undecided"}
        return {
            "people": "\n".join(
                f"{NAMES[p]} has {len(self.contacts[p])} contacts and {states[self.beliefs[p]]}"
                for p in met
            ),
            "letters": " ".join(f"{self.worth(p, side)}{NAMES[p][0]}" for p in met),
        }

    def worth(self, person, side):
        """What a simple rule, and the prompt of a tiny model, make of a person: the number of his
        or her contacts, at most 9; 0 of those who hold the side already."""
        return 0 if self.beliefs[person] == side else min(len(self.contacts[person]), 9)

    def best(self, role, number):
        """Whom the rule speaks to."""
        side = side_of(role)
        return max(self.meetings[number][role], key=lambda person: self.worth(person, side))

    def speak(self, addressed):
        """One round.

        Args:
            addressed: By role, the person whom it speaks to, or None.
        """
        voices = [0] * len(NAMES)
        for role, person in addressed.items():
            if person is not None:
                voices[person] += side_of(role)
        self.beliefs = [
            sign(voice) or belief for voice, belief in zip(voices, self.beliefs, strict=True)
        ]
        heard = [
            belief + sum(self.beliefs[other] for other in contacts)
            for belief, contacts in zip(self.beliefs, self.contacts, strict=True)
        ]
        self.beliefs = [
            sign(total) or belief for total, belief in zip(heard, self.beliefs, strict=True)
        ]

    def corrected(self):
        """The share of the people who hold the correction; the undecided count half."""
        return sum(0.5 + belief / 2 for belief in self.beliefs) / len(NAMES)


@cache  # a task is played, graded and credited again and again
def drawn(name):
    """The contacts of each person, what each believes at the start, and by round and role who is
    met."""
    rng = random.Random(f"spread {name}")
    contacts = [{1}, {0}, *(set() for _ in NAMES[2:])]
    ends = [0, 1]
    for person in range(2, len(NAMES)):
        while len(contacts[person]) < TIES:
            contacts[person].add(rng.choice(ends))
        for other in contacts[person]:
            contacts[other].add(person)
            ends += [person, other]
    beliefs = [0] * len(NAMES)
    for person in rng.sample(range(len(NAMES)), HEARD):
        beliefs[person] = -1
    meetings = [
        {role: rng.sample(range(len(NAMES)), MET) for role in AGENTS} for _ in range(ROUNDS)
    ]
    return contacts, beliefs, meetings


def sign(number):
    return (number > 0) - (number < 0)


def person_of(text, met):
    """The one of some people whose name, or its first letter, stands alone on the last line; None
    where it is nobody of them."""
    names = {NAMES[p].lower(): p for p in met} | {NAMES[p][0].lower(): p for p in met}
    return names.get(word(text, names).lower())


def written(rounds):
    """The rounds as a text: a letter for everybody spoken to, in the order of `AGENTS`."""
    return " ".join(
        "".join(NOBODY if said[role] is None else NAMES[said[role]][0] for role in AGENTS)
        for said in rounds
    )


def replayed(name, text):
    """What a text says has come of the network, and what each agent alone has added in each round.

    That is the difference to the same rounds without its words; it is not below 0, because another
    voice for a side never loses it anybody.

    Returns:
        The final share of the people who hold the correction, and by (role, round) what it added.
    """
    initials = {each[0]: place for place, each in enumerate(NAMES)}
    rounds = [
        {role: initials.get(letter) for role, letter in zip(AGENTS, letters, strict=True)}
        for letters in text.split()
    ]
    final = share(name, rounds)
    added = {}
    for number, said in enumerate(rounds):
        for role in AGENTS:
            silent = [*rounds[:number], said | {role: None}, *rounds[number + 1 :]]
            added[role, number] = side_of(role) * (final - share(name, silent))
    return final, added


def share(name, rounds):
    """The final share of the people who hold the correction, by what was said in each round."""
    network = Network(name)
    for said in rounds:
        network.speak(said)
    return network.corrected()
