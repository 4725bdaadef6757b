"""Finds the recipes, entry points and requirement files in a checkout or in an installed wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]


def data(name: str) -> Path:
    """Returns the folder `name` of the project: in the wheel it lies inside the package, in a
    checkout beside it."""
    inside = PACKAGE / "data" / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def recipes_root() -> Path:
    """Returns the folder of the shipped recipes."""
    return data("recipes")


def shipped_recipes() -> list[Path]:
    """Returns all recipes that are shipped; the YAML beside them that is none is a workflow, whose
    name begins with `graph`."""
    return sorted(
        path for path in recipes_root().glob("*/*.yaml") if not path.name.startswith("graph")
    )
