"""Episodes of verifiers: its environment asks the run's endpoint, where a model is a role."""

import itertools
import json
import os
import sys
from typing import Any

import verifiers.v1.tasksets  # noqa: F401  an episode imports most of it: here once for all
from playing import SETTINGS, EnvironmentFault, Purse, Settings
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

KEY = "MARL_ENDPOINT_KEY"
"""Variable of the endpoint's key."""


def environment(settings: Settings, base_url: str) -> Any:
    """Returns the environment, each of whose roles asks the endpoint; what the recipe's `options`
    say of a role, or of the environment, counts."""
    options = dict(settings["options"])
    client = {"type": "eval", "base_url": base_url, "api_key_var": KEY}
    for role in settings["players"]:
        agent = {"model": role, "client": client, "harness": {"id": "plain_harness"}}
        agent |= {"runtime": {"type": "subprocess"}, "max_turns": settings["turns"]}
        options[role] = agent | options.get(role, {})
    options["taskset"] = {"id": settings["name"]} | options.get("taskset", {})
    return load_environment(resolve_env_config(options))


async def main(item: Any, endpoint: Any) -> str:
    sys.path.append(os.getcwd())  # the recipe's folder, where the environment's module may lie
    settings = json.loads(os.environ[SETTINGS])
    os.environ[KEY] = endpoint.api_key
    env = environment(settings, endpoint.base_url)
    place = item.metadata["place"]
    task = next(itertools.islice(env.taskset, place, None), None)
    if task is None:
        what = f"{settings['name']} has no task {place}; env.episodes and env.eval_episodes"
        raise EnvironmentFault(f"{what} want more than there are")
    client = EvalClientConfig(base_url=endpoint.base_url, api_key_var=KEY)
    async with env.serving():
        episode = await env.run_episode(task, ModelContext(settings["players"][0], client))
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors:
        raise EnvironmentFault(f"{settings['name']}: {errors[-1]}")
    purse = Purse(settings)
    for trace in episode.traces:
        purse.pay(trace.agent.name or settings["players"][0], trace.reward)
    for role in purse.paid:
        purse.check(role)
    return json.dumps(
        {
            "rewards": {role: purse.paid.get(role) for role in settings["players"]},
            "turns": sum(trace.num_turns for trace in episode.traces),
            "ended": not any(trace.stop_condition == "max_turns" for trace in episode.traces),
        }
    )
