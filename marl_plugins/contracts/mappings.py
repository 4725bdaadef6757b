"""One trajectory of a recipe for each mapping of its roles to policies, sampled from the tiny
model.

Chat template, contexts, limits and grader are those of a run; there are no engines, and tools are
silent.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from marl_plugins.contracts.graders import answer_nothing, graded_apart, write_outcome
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import users_line
from marl_plugins.core.roles import Call
from marl_plugins.core.trajectory import EVALUATION, Generation
from marl_plugins.core.workflow import run_workflow
from marl_plugins.engine.plan.resolve_plugins import tools_of
from marl_plugins.engine.plan.scripted_roles import tagged_calls
from marl_plugins.engine.plan.user_code_thread import Capture

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from marl_plugins.engine.plan.plan import Plan

MOST_NEW_TOKENS = 16
MOST_POSITIONS = 8192
MAPPING_SECONDS = 60.0


class MappingOutcome(NamedTuple):
    """The outcome of one trajectory.

    Args:
        failure: Why it has not come to its end; an untrained model fails the agents' way now and
            then.
        fine: Whether at least one action was sampled, and no part but the agents failed.
    """

    mapping: str
    policies: list[str]
    actions: int
    outcome: float | None
    failure: str
    fine: bool


def check_mappings(plan: Plan) -> list[MappingOutcome]:
    """Samples a trajectory of the first task with the recipe's mapping, with a policy for each
    role, and with one for all; where roles state examples, also one in which they say these.

    Raises:
        ConfigurationError: A chat template refuses what a role shows, or the recipe's code never
            ends.
    """
    recipe, outcomes = plan.run.recipe, dict[object, MappingOutcome]()
    tasks = [*plan.tasks("train")[:1], *plan.tasks("eval")[:1]]
    if not tasks:
        return []
    positions = min(max(int(plan.run.args.data.max_len), 512), MOST_POSITIONS)
    folder, model = _tiny(positions)
    plain = {
        name: role.model_copy(update={"calls": None, "reasoning": None, "template": {}})
        for name, role in recipe.roles.items()
    }
    calling = {name for name, role in recipe.roles.items() if role.calls and not role.tools}
    examples = {name: role.example[0] for name, role in recipe.roles.items() if role.example}
    for name, mapping, shown in (
        ("the recipe's", recipe.mapping, {}),
        ("separate", "separate", {}),
        ("shared", "shared", {}),
        *([("the recipe's, with its examples", recipe.mapping, examples)] if examples else []),
    ):
        other = recipe.model_copy(update={"mapping": mapping, "roles": plain})
        players = tuple(other.policies_of(role) for role in other.mapped_roles), bool(shown)
        if players not in outcomes:
            run = replace(plan.run, recipe=other)
            try:
                sample = partial(
                    _sampled,
                    replace(plan, run=run),
                    name,
                    folder,
                    positions,
                    model,
                    calling,
                    shown,
                )
                outcomes[players] = graded_apart(plan, sample, 2 * MAPPING_SECONDS)
            except ConfigurationError:
                raise
            except Exception as error:  # of the recipe's own code: the finding
                failure = f"{users_line(error, ()) or type(error).__name__}: {error!r}"
                outcomes[players] = MappingOutcome(
                    name, sorted({p for each in players[0] for p in each}), 0, None, failure, False
                )
    return list(outcomes.values())


def _tiny(positions: int) -> tuple[str, PreTrainedModel]:
    """The folder of a tiny model, and the model, without what its libraries say when they are
    imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        from marl_plugins.engine.runtime.tiny_model import resolve

        logging.disable_progress_bar()
        folder = resolve(f"tiny:positions={positions},tools=1")
        return folder, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


async def _sampled(
    plan: Plan,
    mapping: str,
    folder: str,
    positions: int,
    model: PreTrainedModel,
    calling: Collection[str],
    examples: Mapping[str, str],
    caught: Capture,
) -> MappingOutcome:
    """Samples one trajectory.

    Args:
        calling: Roles that call tools which a program sends.
        examples: What roles say in place of the model, by role.
    """
    import torch
    from transformers import AutoTokenizer

    from marl_plugins.engine.runtime.roles import make_cast

    run, tokenizer = plan.run, AutoTokenizer.from_pretrained(folder)

    async def generate(call: Call) -> Generation:
        caught.goes_on()
        torch.manual_seed(call.seed)
        context = torch.tensor([call.context_ids])
        if call.role in examples:
            ids = tokenizer.encode(examples[call.role], add_special_tokens=False)[: call.max_tokens]
            return Generation(tuple(ids), (0.0,) * len(ids), "stop", call.policy, 0)
        most = min(call.max_tokens, MOST_NEW_TOKENS)
        ids = model.generate(context, do_sample=True, max_new_tokens=most, pad_token_id=0)[
            0, len(call.context_ids) :
        ].tolist()
        return Generation(
            tuple(ids), (0.0,) * len(ids), "length" if len(ids) == most else "stop", call.policy, 0
        )

    tools = {
        name: replace(tool, run=answer_nothing, open=None, in_workspace=False, workspaces=None)
        for name, tool in tools_of(plan.plugins, run).items()
    }
    args = copy.deepcopy(run.args)
    args.data.max_len = positions
    policies = list(
        dict.fromkeys(
            name for role in run.recipe.mapped_roles for name in run.recipe.policies_of(role)
        )
    )
    chats = {
        policy: ChatFormat(AutoTokenizer.from_pretrained(folder), policy) for policy in policies
    }
    cast = make_cast(run, dict.fromkeys(policies, args), chats, tools)
    task = [*plan.tasks("train")[:1], *plan.tasks("eval")[:1]][0]
    roles = {
        name: replace(role, finder=lambda tools: tagged_calls) if name in calling else role
        for name, role in cast(task, EVALUATION, 0).items()
    }
    workflow = plan.plugins.call_while_planning("marl_workflow", run=run)
    trajectory = await run_workflow(
        workflow,
        task,
        0,
        step=0,
        run_seed=0,
        roles=roles,
        tools=tools,
        generate=generate,
        seconds=MAPPING_SECONDS,
    )
    await write_outcome(plan, trajectory, MAPPING_SECONDS)
    failure = trajectory.infrastructure_failure or trajectory.agent_failure or ""
    detail = f"{failure}: {trajectory.detail}" if failure else ""
    fine = bool(trajectory.actions) and not trajectory.infrastructure_failure
    return MappingOutcome(
        mapping, policies, len(trajectory.actions), trajectory.outcome, detail, fine
    )
