"""What a graph in YAML costs beside the same workflow in Python: CPU time for each action, on an
engine that answers at once.

python -m benchmarks.graphs
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plain_chat import PlainChat
from marl_plugins.builtin.graph.checks import RecipeParts
from marl_plugins.builtin.graph.compiler import Compiler
from marl_plugins.builtin.graph.files import Files
from marl_plugins.builtin.graph.reading import ReadForm
from marl_plugins.builtin.graph.workflow import GraphWorkflow
from marl_plugins.core.recipe.prompts import prompt_renderer
from marl_plugins.core.roles import Call, RoleSpec, Sampling
from marl_plugins.core.tools import Tool, ToolCall
from marl_plugins.core.trajectory import Generation, Task, ToolResult, Trajectory
from marl_plugins.core.workflow import Workflow, run_workflow

MATHCHAT = """
    nodes:
      solution: {role: solver, with: {problem: task.prompt}}
      code: {role: coder, with: {problem: task.prompt, solution: solution}}
      verdict: {role: verifier, with: {problem: task.prompt, solution: solution, computed: code.output or code.text}, after: [code]}
    give: verdict
"""  # noqa: E501
SEARCH = """
    nodes:
      ask: {role: planner, with: {question: task.prompt}, read: {as: json.queries, keys: {queries: list}, most: 3, default: []}}
      found:
        map: {over: "ask or [task.prompt]", as: query, most: 3, nodes: {hit: {tool: search, call: query}}, give: hit.output}
      answer: {role: answerer, with: {question: task.prompt, evidence: join(found)}, read: tag.answer}
    give: answer
"""  # noqa: E501
REFLECT = """
    nodes:
      rounds:
        loop:
          most: 3
          start: {advice: "''", program: "''"}
          nodes:
            plan: {role: planner, with: {problem: task.prompt, advice: advice, program: program}}
            code: {role: coder, with: {problem: task.prompt, plan: plan}, read: code.python}
            tests: {tool: search, call: code}
            reflect:
              role: reflector
              with: {problem: task.prompt, program: code, result: tests.output}
              when: not tests.ok and round < 2
          until: tests.ok
          next: {advice: "first(reflect, advice)", program: code}
          give: code
    give: rounds
"""


async def mathchat(task: Task, roles: Any, tools: Any) -> Any:
    solution = await roles.solver(problem=task.prompt)
    code = await roles.coder(problem=task.prompt, solution=solution)
    computed = code.tool_output or str(code)
    return await roles.verifier(
        problem=task.prompt, solution=solution, computed=computed, after=[code]
    )


async def search(task: Task, roles: Any, tools: Any) -> Any:
    ask = await roles.planner(question=task.prompt)
    queries, _ = ReadForm("json", "queries", {"queries": "list"}).read(ask.text, {})
    queries = queries if isinstance(queries, list) else []
    hits = await asyncio.gather(*(tools.search(query) for query in queries[:3] or [task.prompt]))
    return await roles.answerer(
        question=task.prompt, evidence="\n".join(hit.output for hit in hits), after=[ask]
    )


async def reflect(task: Task, roles: Any, tools: Any) -> Any:
    advice, program, read = "", "", ReadForm("code", "python")
    last: list[Any] = []
    for turn in range(3):
        plan = await roles.planner(problem=task.prompt, advice=advice, program=program, after=last)
        code = await roles.coder(problem=task.prompt, plan=plan)
        program, _ = read.read(code.text, {})
        tests = await tools.search(program)
        if tests.ok:
            break
        if turn < 2:
            advice = await roles.reflector(
                problem=task.prompt, program=program, result=tests.output, after=[code]
            )
            last = [advice, code]
    return code


CASES: dict[str, tuple[str, Workflow, dict[str, str]]] = {
    "mathchat": (
        MATHCHAT,
        mathchat,
        {"solver": "problem", "coder": "problem solution", "verifier": "problem solution computed"},
    ),
    "search (A)": (SEARCH, search, {"planner": "question", "answerer": "question evidence"}),
    "reflection (D)": (
        REFLECT,
        reflect,
        {
            "planner": "problem advice program",
            "coder": "problem plan",
            "reflector": "problem program result",
        },
    ),
}
SAID = {
    "planner": '{"queries": ["one", "two"]}',
    "answerer": "<answer>Paris</answer>",
    "coder": "```python\nprint(1)\n```",
}
TRAJECTORIES, REPEATS = 200, 15


class Chat(PlainChat):
    """Texts without tokens."""

    tools = ()

    def opening(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        return tuple(len(message["content"]) for message in messages)

    def text(self, ids: Sequence[int]) -> str:
        return self.texts[ids[0]]

    def __init__(self) -> None:
        self.texts = [*SAID.values(), "a word"]


async def found(call: ToolCall) -> ToolResult:
    return ToolResult("search", call.text, f"about {call.text}", ok=False)


async def generate(call: Call) -> Generation:
    number = list(SAID).index(call.role) if call.role in SAID else len(SAID)
    return Generation((number,), (0.0,), "stop", call.policy, 0)


def workflow_of(text: str, fields: Mapping[str, str]) -> GraphWorkflow:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "graph.yaml").write_text(textwrap.dedent(text))
        files = Files(Path(folder))
        compiler = Compiler(RecipeParts(fields, TOOLS), files)
        graph = compiler.compile("graph.yaml")
        assert graph is not None, compiler.problems
        return GraphWorkflow(graph, files.names)


TOOLS = {"search": Tool("search", found, lambda text: [])}


def microseconds(
    workflow: Workflow, fields: Mapping[str, str]
) -> tuple[float, tuple[list[Any], list[Any]]]:
    """CPU time for each action, the least of several measurements, and the trajectories'
    actions."""
    chat: Any = Chat()
    sampling = Sampling(1, 1, 8, 10**6)
    specs = {
        role: RoleSpec(
            role,
            role,
            prompt_renderer(" ".join(f"{{{f}}}" for f in names.split()), None),
            chat,
            sampling,
        )
        for role, names in fields.items()
    }

    async def many() -> list[Trajectory]:
        return [
            await run_workflow(
                workflow,
                Task(str(n), "what?", ""),
                0,
                step=0,
                run_seed=0,
                roles=specs,
                tools=TOOLS,
                generate=generate,
            )
            for n in range(TRAJECTORIES)
        ]

    began = time.process_time()
    trajectories = asyncio.run(many())
    seconds = time.process_time() - began
    actions = [[(a.path, sorted(a.parents), a.text) for a in t.actions] for t in trajectories]
    return seconds / sum(map(len, actions)) * 1e6, (actions, [t.answer for t in trajectories])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.graphs", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=REPEATS,
        help="measurements of each, of which the least counts",
    )
    parser.add_argument("--json", action="store_true", help="the numbers as a last line")
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    for name, (text, python, fields) in CASES.items():
        graph = workflow_of(text, fields)
        pairs = [
            (microseconds(graph, fields), microseconds(python, fields))
            for _ in range(options.repeats)
        ]
        assert all(one[1] == other[1] for one, other in pairs), "the trajectories differ"
        yaml, plain = (min(pair[k][0] for pair in pairs) for k in (0, 1))
        results[name] = {"yaml": yaml, "python": plain}
        print(
            f"{name:16} YAML {yaml:6.1f} us, Python {plain:6.1f} us, more {yaml - plain:6.1f} us "
            "an action"
        )
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
