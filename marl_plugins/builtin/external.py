"""External policies: roles that somebody else's model plays, behind an OpenAI-compatible endpoint.
Built in.

    policies: {critic: {endpoint: http://127.0.0.1:8000/v1, model: qwen3-32b, key: CRITIC_KEY}}

What the coach has holds here too (asking/): limits, a budget, a cache, repeats. An endpoint that is
down loses the trajectories that ask it, each with its reason in the ledger.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from marl_plugins import hookimpl
from marl_plugins.asking.askers import PolicyAskers
from marl_plugins.asking.flags import (
    add_endpoint_flags,
    address_problems,
    key_problems,
    price_problems,
)
from marl_plugins.asking.request import JudgeRequest
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.options import above
from marl_plugins.core.policy import ServedModel
from marl_plugins.core.problems import Problem, at

if TYPE_CHECKING:
    from marl_plugins.asking.asker import Asker
    from marl_plugins.asking.cache import KeptAnswers
    from marl_plugins.core.run import Run

PREFIX = "external"
TRIAL = JudgeRequest(lambda nonce, form: "Say hello.", lambda *said: {}, lambda *said: "", {})
"""Whatever is answered will do."""


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("external policies, each (built in)")
    add_endpoint_flags(group, PREFIX, "answers")
    group.add_argument(
        "--external.deadline",
        type=above(0),
        default=300.0,
        metavar="SECONDS",
        help="for one answer, queueing and repeats included",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    served = served_in(run)
    if not served:
        return []
    problems = price_problems(PREFIX, run.args.external)
    for name, model in served.items():
        key = f"policies.{name}"
        if not model.name:
            got, fix = "this key is missing", "give the name that the endpoint knows it by"
            problems.append(Problem("external.model", at(key=f"{key}.model"), got, fix=fix))
        problems += address_problems(model.address, at(key=f"{key}.endpoint"))
        problems += key_problems(model.key_env, f"{key}.key")
    return problems


@hookimpl
async def marl_start(run: Run, purpose: str) -> None:
    """Opens what is kept, and asks each endpoint once, for an evaluation too.

    Raises:
        ConfigurationError: A file cannot be used, or an endpoint does not answer; of all at once.
    """
    from marl_plugins.asking.cache import KeptAnswers

    problems: list[Problem] = []
    file = Path(run.args.external.cache) if run.args.external.cache else None
    kept = KeptAnswers(PREFIX, file, [file] if file else [])
    for name, model in served_in(run).items():
        try:
            asker = run.state(PolicyAskers)[name] = asker_of(run, name, model, kept)
            if purpose == "train":
                account = run.output / f"external_spent_{name}.json"
                asker.open(account, run.args.ckpt.load_enable)
            else:
                kept.open()
            await asker.probe(TRIAL)
        except ConfigurationError as error:
            problems += [problem.within(key=f"policies.{name}") for problem in error.problems]
    if problems:
        raise ConfigurationError(problems)


@hookimpl
async def marl_stop(run: Run) -> None:
    for asker in run.state(PolicyAskers).values():
        await asker.close()


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    for policy, asker in run.state(PolicyAskers).items():
        metrics |= {f"policy/{policy}/external/{n}": v for n, v in asker.metrics().items()}


def served_in(run: Run) -> dict[str, ServedModel]:
    """Returns the models that somebody else serves, by policy."""
    return {policy.name: policy.served for policy in run.policies if policy.served}


def asker_of(run: Run, policy: str, model: ServedModel, kept: KeptAnswers) -> Asker:
    """Returns what asks the model of a policy; nothing is opened."""
    from marl_plugins.asking.asker import endpoint_asker
    from marl_plugins.asking.endpoint import CoachEndpoint
    from marl_plugins.asking.limits import SpendingBudget

    args, key = run.args.external, f"policies.{policy}"
    limits = ("timeout", "deadline", "retries", "concurrency", "per_minute")
    endpoint = CoachEndpoint(
        PREFIX,
        model.address,
        model.name,
        model.key_env,
        form="text",
        body=json.loads(args.body or "{}"),
        keys={"base_url": f"{key}.endpoint", "model": f"{key}.model"},
        **{name: getattr(args, name) for name in limits},
    )
    price = (args.price_in, args.price_out)
    budget = SpendingBudget(PREFIX, args.budget_tokens, args.budget, price)
    return endpoint_asker(endpoint, budget, kept, speaks=True)
