"""A solver with a tool and a checker as the nodes of a graph in LangGraph."""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


checker = ChatOpenAI(model="checker")


def check(state: MessagesState):
    question, answer = state["messages"][0].text, state["messages"][-1].text
    verdict = checker.invoke(f"{question}\nAnswer: {answer}\nSay the right number alone.")
    return {"messages": [verdict]}


graph = StateGraph(MessagesState)
graph.add_node(
    "solve", create_agent(ChatOpenAI(model="solver"), [multiply], system_prompt="Use the tool.")
)
graph.add_node("check", check)
graph.add_edge(START, "solve")
graph.add_edge("solve", "check")
graph.add_edge("check", END)
team = graph.compile()


def main(prompt):
    return team.invoke({"messages": [("user", prompt)]})["messages"][-1].text
