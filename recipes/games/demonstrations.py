"""What the tiny models see before training: games of players to whom all legal moves are alike."""

from marl_plugins import Demonstration

from . import spiel


def demonstrate(task, rng):
    table = spiel.Table(task.metadata["game"], rng.getrandbits(32))
    while table.seat:
        fields, actions = table.fields(), table.state.legal_actions()
        place = rng.randrange(len(actions))
        yield Demonstration(table.seat, fields, [fields["letters"][place]])
        table.move(actions[place])
