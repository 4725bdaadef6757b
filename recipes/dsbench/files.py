"""What the recipe's graders and coaches read of a trajectory's workspace: its folder, and who wrote what."""


def workspace_of(owner):
    """The workspace's folder, of a trajectory or of what a coach sees; None where there is none, as in a rehearsal."""
    return getattr(owner, "workspace", None)


def writers(owner):
    """By the path of each file in the workspace, the path of the action that wrote it last; empty for what the task brought."""
    return {entry.path: entry.writer for entry in getattr(owner, "files", ())}
