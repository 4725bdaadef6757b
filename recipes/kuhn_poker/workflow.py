"""One game: two seats, each in a conversation of its own, in which it remembers its card and its
first move."""

from . import game


async def run(task, roles, tools):
    earlier = task.metadata.get(
        "earlier"
    )  # the seat that an earlier version of the player has, in pool.yaml
    moves, last = "", {}
    while not game.ended(moves):
        seat = game.SEATS[moves]
        card = task.metadata["cards"][seat == "second"]
        other = {"p": "pass", "b": "bet"}.get(moves[-1:], "")
        role = getattr(roles, f"earlier_{seat}" if seat == earlier else seat)
        if seat in last:
            answer = await role(
                card=card, move=other, continues=last[seat], after=list(last.values())
            )
        else:
            answer = await role(card=card, move=other, after=list(last.values()))
        last[seat] = answer
        moves += game.move_of(answer.text)
    return moves
