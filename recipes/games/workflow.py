"""One game: who is to move sees the position and says a move. Whoever says none that is legal has
lost."""

from . import leduc_tasks, spiel, tasks

MOST = 200
"""Moves, after which a game is a draw."""


async def run(task, roles, tools):
    table, said = spiel.Table(task.metadata["game"], task.metadata["seed"]), []
    while table.seat and len(said) < MOST:
        answer = await getattr(roles, table.seat)(**table.fields(), after=said[-1:])
        said.append(answer)
        action = spiel.move_of(answer.text, table.state)
        if action is None:
            break
        table.move(action)
    return " ".join(map(str, table.state.history()))


def variants():
    """Moves for the rehearsal, which knows no game: the first legal ones of both players."""
    found = {}
    for game in (tasks.GAME, leduc_tasks.GAME):
        table, says = spiel.Table(game, 0), {}
        while table.seat and table.seat not in says:
            says[table.seat], action = next(iter(spiel.moves_of(table.state).items()))
            table.move(action)
        found[game] = says
    return found
