"""One game: two seats, each in a conversation of its own, in which it remembers its card and its first move."""

from pathlib import Path

from marl_plugins.loading import load_file

game = load_file(Path(__file__).with_name("game.py"), "marl_recipe_kuhn_poker_game")


async def run(task, roles, tools):
    moves, last = "", {}
    while not game.ended(moves):
        seat = game.SEATS[moves]
        card = task.metadata["cards"][seat == "second"]
        other = {"p": "pass", "b": "bet"}.get(moves[-1:], "")
        if seat in last:
            answer = await getattr(roles, seat)(card=card, move=other, continues=last[seat], after=list(last.values()))
        else:
            answer = await getattr(roles, seat)(card=card, move=other, after=list(last.values()))
        last[seat] = answer
        moves += game.move_of(answer.text)
    return moves
