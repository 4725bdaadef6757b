"""A solver with a tool, and a checker that it may ask, in OpenAI's Agents SDK."""

from agents import Agent, Runner, function_tool


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


checker = Agent(name="checker", model="checker", instructions="Say whether the product is right.")
ask = checker.as_tool("check", "Ask the checker whether a product is right.")
solver = Agent(
    name="solver",
    model="solver",
    instructions="Answer with the number alone.",
    tools=[multiply, ask],
)


async def main(prompt):
    solution = (await Runner.run(solver, prompt)).final_output
    verdict = (await Runner.run(checker, f"{prompt} Answer: {solution}")).final_output
    return (
        solution
        if "no" not in verdict.lower()
        else (await Runner.run(solver, f"{prompt} {verdict}")).final_output
    )
