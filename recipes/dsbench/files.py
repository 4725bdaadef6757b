"""What the recipe's graders and coaches read of a trajectory's workspace."""


def written(owner):
    """Paths of the files that an action wrote, of a trajectory or of what a coach sees: not those
    that came with the task."""
    return {file.path for file in owner.files if file.writer}
