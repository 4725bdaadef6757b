"""Shipped recipes: their plans, and whole trajectories through a simulated engine."""

import asyncio

import pytest
from simulated import CharacterChat

from marl_plugins.core.credit import rewards_from_scores
from marl_plugins.core.recipe.prompts import followup_renderer, prompt_renderer
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.scoring import score_outcome
from marl_plugins.core.trajectory import Generation
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.workflow_file import workflow_of


def planned(file, *words, folder=None):
    """The plan; on any machine for the devices that the file is for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_PLUGINS_DEVICE", "cpu" if "tiny" in file else "cuda")
        return build_plan(["--recipe", str((folder or recipes_root()) / file), *words])


def played(plan, task, says, step=1):
    """A scored and credited trajectory in which `says(role, prompt)` answers, prompts being
    everything shown so far."""
    run, chat = plan.run, CharacterChat()
    found = plan.plugins.hook.marl_tools(run=run)
    tools = {tool.name: tool for answer in found for tool in answer or ()}

    async def generate(call):
        ids = (*chat.encode(says(call.role, chat.text(call.context_ids))), ord("^"))
        return Generation(ids, tuple(-0.5 for _ in ids), "stop", call.policy, 0)

    def role(name, config):
        return RoleSpec(
            name,
            name,
            prompt_renderer(run.prompt(name), run.system(name)),
            chat,
            Sampling(1.0, 1.0, None, 9000),
            tuple(tools[tool] for tool in config.tools),
            config.max_turns,
            render_next=followup_renderer(run.followup(name)) if run.followup(name) else None,
        )

    async def play():
        roles = {name: role(name, config) for name, config in run.recipe.roles.items()}
        trajectory = await run_workflow(
            workflow_of(plan.plugins, run),
            task,
            0,
            step=step,
            run_seed=0,
            roles=roles,
            tools=tools,
            generate=generate,
            seconds=60,
        )
        score = plan.plugins.hook.marl_score_outcome
        await score_outcome(trajectory, lambda t: score(run=run, trajectory=t), 60, roles)
        rewards_from_scores([trajectory])
        await plan.plugins.chain("marl_credit", [trajectory], run=run)
        return trajectory

    return asyncio.run(play())
