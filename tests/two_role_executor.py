"""An executor of ours for upstream's `--train.agent_func_path`: two roles answer a prompt, each
action is a sample.

It needs a tree with the patches 0002 (a list of samples) and 0003 (`context`);
`tests/patched_tree.py` runs it.
"""

from openrlhf.utils.agent import AgentExecutorBase
from simulated import CharacterChat

from marl_plugins.core.trajectory import Generation, Task
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow


async def planner_then_solver(task, roles, tools):
    plan = await roles.planner(problem=task.prompt)
    return await roles.solver(problem=task.prompt, plan=plan)


class AgentExecutor(AgentExecutorBase):
    def __init__(self):
        self.contexts = []

    async def execute(
        self,
        prompt,
        label,
        sampling_params,
        max_length,
        hf_tokenizer,
        llm_engine,
        images=None,
        context=None,
    ):
        self.contexts.append({"prompt": prompt, **context})
        if f"fails {context['sample_index']}" in prompt:
            raise RuntimeError("the sandbox is gone")

        async def generate(call):
            output = (await llm_engine.generate(list(call.context_ids), sampling_params)).outputs[0]
            return Generation(
                tuple(output.token_ids),
                tuple(output.logprobs),
                output.finish_reason,
                call.policy,
                0,
            )

        def render(fields):
            return [{"role": "user", "content": " | ".join(fields.values())}]

        roles = {
            name: RoleSpec(name, "p", render, CharacterChat(), Sampling(1.0, 1.0, 8, max_length))
            for name in ("planner", "solver")
        }
        trajectory = await run_workflow(
            planner_then_solver,
            Task(prompt, prompt, label),
            context["sample_index"],
            step=context["global_step"],
            run_seed=0,
            roles=roles,
            tools={},
            generate=generate,
        )
        return [
            {
                "prompt": prompt,
                "label": label,
                "observation_tokens": [*action.context_ids, *action.generation.ids],
                "action_ranges": [
                    (len(action.context_ids), len(action.context_ids) + len(action.generation.ids))
                ],
                "rollout_log_probs": [0.0] * len(action.context_ids)
                + list(action.generation.logprobs),
                "truncated": action.generation.finish == "length",
                "reward": float(action.role == "solver"),
                "scores": float(action.role == "solver"),
                "extra_logs": {},
            }
            for action in trajectory.actions
        ]
