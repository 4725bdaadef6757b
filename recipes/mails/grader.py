"""Each role answers for its own part: the reader for the fields, the router for the team.

`right` (`eval/part/right`) is what counts: a mail whose fields and team are right.
"""


def parts(trajectory):
    label = trajectory.task.label
    fields, *team = trajectory.actions
    read = fields.text.strip() == f"{label['order']} {label['item']} {label['matter']}"
    sent = bool(team) and team[0].text.strip() == label["team"]
    trajectory.outcome_parts = {"right": float(read and sent)}
    return read, sent


async def score_outcome(trajectory):
    read, sent = parts(trajectory)
    return {"reader": float(read), "router": float(sent)}
