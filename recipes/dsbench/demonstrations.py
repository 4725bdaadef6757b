"""What the tiny model sees before training: a word for each decision, the wrong one so often that ten right ones are rare."""

from pathlib import Path

from marl_plugins.core.demonstrations import Demonstration
from marl_plugins.loading import load_file

pipeline = load_file(Path(__file__).with_name("pipeline.py"), "marl_recipe_dsbench_pipeline")

SLIPS = 0.43
"""How often a word is another one of the four: ten right ones in a row have 0.57 ** 10 = 0.36 %."""
FAILED = {
    "keep": ("ValueError: could not convert string to float: 'Bonn'", "ValueError: Input contains NaN."),
    "write": ("FileNotFoundError: [Errno 2] No such file or directory: 'model.joblib'",),
}
"""What is often shown before a decision, because the program of the one before it failed."""


def demonstrate(task, rng):
    """One demonstration of every role, whose programs run or fail as they may."""
    card = task.metadata["words"]
    for role, stages in pipeline.BY_ROLE.items():
        said, shown = [], []
        for stage in stages:
            good = pipeline.right(stage.name, card)
            said.append(rng.choice([w for w in stage.options if w != good]) if rng.random() < SLIPS else good)
            failed = FAILED.get(stage.name)
            told = f"failed: {rng.choice(failed)[: pipeline.TOLD]}" if failed and rng.random() < 0.5 else "ok"
            shown.append(f"{told}\n{stage.name}?")
        yield Demonstration(role, {"words": card}, said=said, shown=shown[1:])
