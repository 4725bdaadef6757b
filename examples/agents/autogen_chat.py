"""A solver and a checker in turns, in AutoGen."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

ABOUT = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "family": "unknown",
    "structured_output": False,
}


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def agent(name, text, **more):
    return AssistantAgent(
        name, OpenAIChatCompletionClient(model=name, model_info=ABOUT), system_message=text, **more
    )


async def main(prompt):
    solver = agent("solver", "Answer with the number alone.", tools=[multiply])
    team = RoundRobinGroupChat(
        [solver, agent("checker", "Say the right number alone.")],
        termination_condition=MaxMessageTermination(5),
    )
    return (await team.run(task=prompt)).messages[-1].to_text()
