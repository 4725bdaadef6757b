"""Word limits by role, in a section of the recipe: what an answer has over its role's limit lowers
its reward.

    plugins: [word_limits.py]
    word_limits:
      weight: 0.2
      roles: {solver: {words: 60}, judge: {words: 10, weight: 0.5}}

reward = score - weight max(0, n - words) / words, for an answer of n words
"""

import pydantic

from marl_plugins import Model, Problem, Section, at, hookimpl, meant


class Limit(Model):
    words: int = pydantic.Field(ge=1)
    weight: float | None = pydantic.Field(None, ge=0)


class WordLimits(Section):
    weight: float = pydantic.Field(0.1, ge=0)
    roles: dict[str, Limit] = pydantic.Field({}, examples=["{solver: {words: 60}}"])


@hookimpl
def marl_sections():
    return {"word_limits": WordLimits}


@hookimpl
def marl_configure(run):
    known = run.recipe.roles
    wrong = [name for name in run.section(WordLimits).roles if name not in known]
    return [
        Problem(
            "word_limits.role",
            at(key=f"word_limits.roles.{n}"),
            "no such role",
            fix=meant(n, known),
        )
        for n in wrong
    ]


@hookimpl
def marl_credit(trajectories, run):
    section = run.section(WordLimits)
    for action in (
        a
        for t in trajectories
        for a in t.actions
        if a.reward is not None and a.role in section.roles
    ):
        limit = section.roles[action.role]
        weight = section.weight if limit.weight is None else limit.weight
        action.add_reward(
            "length", -weight * max(0, len(action.text.split()) - limit.words) / limit.words
        )
    return trajectories
