"""Two depots report on their months. Which one had the busiest month? Made from numbers, no file is
needed."""

import random

from marl_plugins import Task

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
LINES = (
    "In {month} the depot handled {n} parcels.",
    "{n} parcels went through the depot in {month}.",
    "The count for {month} was {n} parcels.",
)
TOWNS = ("Alby", "Brek", "Corno", "Dunmar", "Elst", "Farrow", "Gand", "Holm", "Ister", "Jarne")
YEARS = {"train": range(1900, 2000), "eval": range(2000, 2020)}
QUESTION = (
    "The two depots of {town}, north and south, have each reported on the twelve months of {year}. "
    "Which depot had the busiest "
    "single month?"
)


def report(rng, numbers):
    lines = [
        rng.choice(LINES).format(month=month, n=n) for month, n in zip(MONTHS, numbers, strict=True)
    ]
    rng.shuffle(lines)
    return lines


def load(split):
    """A town and a year per task: 1,000 to train on, 200 that are held out."""
    rng, tasks = random.Random(f"debate-{split}"), []
    for year in YEARS[split]:
        for town in TOWNS:
            north, south = ([rng.randint(300, 999) for _ in MONTHS] for _ in range(2))
            while max(north) == max(south):
                south = [rng.randint(300, 999) for _ in MONTHS]
            reports = {"north": report(rng, north), "south": report(rng, south)}
            label = "north" if max(north) > max(south) else "south"
            tasks.append(
                Task(
                    f"{town}-{year}",
                    QUESTION.format(town=town, year=year),
                    label,
                    {"reports": reports},
                )
            )
    return tasks
