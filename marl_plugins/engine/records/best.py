"""The best step of all policies together, by a smoothed metric of the evaluations
(`--ckpt.best_metric_key`).

One evaluation of few tasks is noisy, and the best of many noisy numbers is the luckiest. So steps
are compared by an exponential moving average over the evaluations, that before the first step
included: s <- s + (x - s) / 3, beginning with the first one (MAPPA's figures use this factor). A
step is the best if its average is above that of every step before it; the start, which no
checkpoint holds, is none.

    <output>/best/<policy>/    the weights of that step in Hugging Face format, and best.json with
                               step, metric and value

The folder is replaced as a whole, before the step's manifest is in place: a run that is killed in
between does the step again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite, nan
from pathlib import Path
from typing import Any

from marl_plugins.core.files import replace_text

WEIGHT = 1 / 3
"""Of the newest evaluation in the average."""


class Best:
    """The average so far, and the step at which it was highest.

    Args:
        key: The metric, the higher the better; empty: no step is kept apart.
    """

    def __init__(self, key: str):
        self.key = key
        self.smoothed: float | None = None
        self.step = 0
        self.value: float | None = None

    def see(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Takes an evaluation into account, and returns whether its step is the best so far.

        One without the metric, or where it is no number, changes nothing.
        """
        x = metrics.get(self.key, nan)
        if not isfinite(x):
            return False
        self.smoothed = x if self.smoothed is None else self.smoothed + WEIGHT * (x - self.smoothed)
        if step == 0 or (self.value is not None and self.smoothed <= self.value):
            return False
        self.step, self.value = step, self.smoothed
        return True

    def after(
        self, step: int, metrics: Mapping[str, float], say: Callable[[str], None]
    ) -> dict[str, float]:
        """Does what `see` does, for the loop, and returns what the records get in addition to an
        evaluation's metrics."""
        if self.key and not isfinite(metrics.get(self.key, nan)):
            say(
                f"--ckpt.best_metric_key {self.key}: the evaluation after step {step} has no such "
                "number"
            )
        self.see(step, metrics)
        return self.metrics()

    def metrics(self) -> dict[str, float]:
        """Returns metrics for the records: the average, and the best step so far."""
        metrics = {} if self.smoothed is None else {"best/smoothed": self.smoothed}
        return metrics | ({"best/step": float(self.step)} if self.step else {})

    def state(self) -> dict[str, Any]:
        """Returns the state for the manifest of a saved step."""
        return dict(vars(self))

    def restore(self, state: Mapping[str, Any], saved: list[int]) -> None:
        """Continues from a saved step's state; of another metric nothing is known, and a step that
        is no longer kept is none.

        Args:
            saved: The steps that are kept.
        """
        if state.get("key") == self.key:
            self.smoothed = state["smoothed"]
            if state["step"] in saved:
                self.step, self.value = state["step"], state["value"]


def put_back(output: Path) -> None:
    """Puts the best step before back in its place, where a run was killed while it replaced it."""
    place, old = output / "best", output / "best.old"
    if old.exists() and not place.exists():
        old.rename(place)


@contextmanager
def kept_apart(output: Path, best: Best) -> Iterator[Path]:
    """Provides a folder for the weights of a new best step, which takes the place of the one before
    once they are all in it."""
    put_back(output)
    fresh, place, old = output / "best.new", output / "best", output / "best.old"
    for left in (fresh, old):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    fresh.mkdir()
    yield fresh
    entry = {"step": best.step, "metric": best.key, "smoothed": best.value}
    replace_text(fresh / "best.json", json.dumps(entry) + "\n")
    if place.exists():
        place.rename(old)
    fresh.rename(place)
    shutil.rmtree(old, ignore_errors=True)
