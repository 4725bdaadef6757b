"""Random graphs with loops, maps, joins, sub-graphs, retries and failures, and runs of them on an
engine that says digits."""

import asyncio
import hashlib
import random

import yaml
from simulated import CharacterChat

from marl_plugins.builtin.graph.checks import RecipeParts
from marl_plugins.builtin.graph.compiler import Compiler
from marl_plugins.builtin.graph.files import Files
from marl_plugins.builtin.graph.workflow import GraphWorkflow
from marl_plugins.core.recipe.prompts import prompt_renderer
from marl_plugins.core.roles import RoleSpec, Sampling
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Generation, Task, ToolResult
from marl_plugins.core.workflow import run_workflow

ROLES = {"a": ["q"], "b": ["q"], "chooser": ["q", "options"]}


def compiled(folder, graph, roles=None, tools=None, **cases):
    """A graph's workflow, and its problems; `roles` gives each role's fields."""
    (folder / "graph.yaml").write_text(
        graph if isinstance(graph, str) else yaml.safe_dump(graph, sort_keys=False)
    )
    known = RecipeParts(roles or ROLES, TOOLS if tools is None else tools, **cases)
    files = Files(folder)
    compiler = Compiler(known, files)
    found = compiler.compile("graph.yaml")
    return found and GraphWorkflow(found, files.names), compiler.problems


class Writer:
    """Writes one random graph.

    Args:
        rounds: Whether it may have what makes it go in whole rounds: stop, choose, cooldowns, the
            number of nodes that have run.
        budget: Whether it may have a budget.
        once: Whether nodes may have `once`.
    """

    def __init__(self, seed, rounds=False, budget=False, once=False):
        self.draw = random.Random(seed)
        self.rounds = rounds
        self.budget = budget
        self.once = once
        self.count = 0
        self.graphs = {}
        self.kinds = {}

    def graph(self, visible=(), depth=0, loop=False, item=False):
        draw, mine, nodes = self.draw, [], {}
        in_rounds = self.rounds and draw.random() < 0.6
        budget = {"calls": draw.randint(1, 6)} if self.budget and draw.random() < 0.5 else {}
        for _ in range(draw.randint(2, 5 if depth == 0 else 3)):
            self.count += 1
            name = f"n{self.count}"
            nodes[name] = self.node(
                name, [*visible, *mine], depth, loop, item, in_rounds, budget, mine
            )
            mine.append(name)
        for name in mine if self.once else ():
            if draw.random() < 0.35:
                others = [*visible, *(other for other in mine if other != name)]
                nodes[name]["once"] = self.trigger(others, budget)
        written = {
            "nodes": dict(sorted(nodes.items(), key=lambda pair: draw.random())),
            "give": self.value(mine, soft=True),
        }
        if budget:
            written["budget"] = budget
        if in_rounds and draw.random() < 0.3:
            written["stop"] = draw.choice(
                [f"done >= {draw.randint(2, 4)}", f"ran({draw.choice(mine)})"]
            )
        if in_rounds and draw.random() < 0.3:
            written["choose"] = {"role": "chooser", "with": {"q": repr(f"choose {self.count}")}}
        return written

    def trigger(self, names, budget):
        """A condition that may become true, or has been, of any nodes of the graph."""
        draw = self.draw
        choices = [
            f"done {draw.choice(['>=', '>=', '=='])} {draw.randint(0, 4)}",
            f"({self.value(names)}) > {draw.randint(1, 6)}",
            f"ran({draw.choice(names)}) or done >= {draw.randint(2, 5)}" if names else "done > 1",
            f"not ran({draw.choice(names)}) and done > 0" if names else "done > 9",
        ]
        return draw.choice([*choices, *(["left.calls <= 2"] if budget else [])])

    def number(self, name):
        return {"map": f"sum({name})", "tool": f"len({name}.output)"}.get(
            self.kinds.get(name), name
        )

    def value(self, names, soft=False):
        """An expression that is a number, of some names."""
        draw = self.draw
        if not names or draw.random() < 0.1:
            return str(draw.randint(0, 9))
        a, b = self.number(draw.choice(names)), self.number(draw.choice(names))
        if not (a.isidentifier() and b.isidentifier()):
            return draw.choice([a, f"{a} + {b}", f"{a} if {b} > 4 else 3"])
        choices = [
            a,
            f"{a} + {b}",
            f"first({a}, {b}, 0)",
            f"(1 if ran({a}) else 2)",
            f"{a} if {b} > 4 else 3",
            f"{a} or {b}",
        ]
        return draw.choice(choices[2:4] if soft and draw.random() < 0.5 else choices)

    def node(self, name, names, depth, loop, item, in_rounds, budget, mine):
        draw, node = self.draw, {}
        kind = draw.choices(
            ["role", "let", "tool", "map", "loop", "graph", "fail"], [10, 2, 1, 2, 2, 1, 0.4]
        )[0]
        if depth == 2 and kind in ("map", "loop", "graph"):
            kind = "role"
        self.kinds[name] = kind
        told = [f"'{name}'", *(["round"] if loop else []), *(["index"] if item else [])]
        match kind:
            case "role":
                shown = [self.value(names) for _ in range(draw.randint(0, 2))] if names else []
                node = {"role": draw.choice("ab"), "with": {"q": f"[{', '.join([*told, *shown])}]"}}
                node["read"] = {"as": "number", "default": "0"}
                if draw.random() < 0.2:
                    node["retry"] = {"most": 2, "while": f"{name} < 5"}
                    if in_rounds and draw.random() < 0.5:
                        node["retry"]["cooldown"] = draw.randint(1, 3)
                if budget and draw.random() < 0.7:
                    node["cost"] = {"calls": 1}
            case "let":
                node = {"let": self.value(names)}
            case "tool":
                node = {"tool": "echo", "call": f"str({self.value(names)})"}
            case "map":
                over = f"[0, 1, 2][:({self.value(names)}) % 4]"
                called = f"item{self.count}"
                body = self.graph([*names, called], depth + 1, loop, True)
                node = {"map": {"over": over, "as": called, "most": 3, **body}}
            case "loop":
                carried = f"v{self.count}"
                body = self.graph([*names, carried], depth + 1, True, item)
                inner = list(body["nodes"])
                node = {
                    "loop": {
                        "most": draw.randint(1, 3),
                        "start": {carried: self.value(names)},
                        **body,
                    }
                }
                if draw.random() < 0.7:
                    node["loop"]["until"] = f"({self.value([*inner, carried])}) > 5"
                if draw.random() < 0.7:
                    node["loop"]["next"] = {carried: self.value([*inner, carried])}
            case "graph":
                body = self.graph(["x"], depth + 1, False, False)
                self.graphs[name] = body
                node = {"graph": name, "with": {"x": self.value(names)}}
            case "fail":
                node = {"fail": "'gave up'", "when": f"({self.value(names)}) > 7"}
        if "when" not in node and names and draw.random() < 0.3:
            node["when"] = f"({self.value(names)}) > {draw.randint(1, 6)}"
            if in_rounds and draw.random() < 0.2:
                node["when"] += f" and done < {draw.randint(1, 5)}"
        if "when" in node and kind not in ("fail", "map", "tool") and draw.random() < 0.3:
            node["otherwise"] = self.value(names)
        if mine and draw.random() < 0.1:
            node["after"] = [draw.choice(mine)]
        return node

    def written(self):
        """The graph as a file has it."""
        graph = self.graph()
        return {**graph, "graphs": self.graphs} if self.graphs else graph


async def _echo(call):
    return ToolResult("echo", call.text, call.text[::-1], ok=len(call.text) < 2)


TOOLS = {"echo": Tool("echo", _echo, lambda text: [])}


def engine(changed=None, latency=None):
    """Digits, from the seed alone; `changed` is the path of an action that says another one, with
    what it says."""

    async def generate(call):
        if latency is not None:
            await asyncio.sleep(latency.random() * 0.002)
        said = hashlib.sha256(f"{call.seed}".encode()).digest()[0] % 10
        if changed and call.path == changed[0]:
            said = changed[1]
        ids = (*CharacterChat.encode(str(said)), ord("^"))
        return Generation(ids, tuple(-0.5 for _ in ids), "stop", call.policy, 0)

    return generate


def roles(names=ROLES):
    return {
        role: RoleSpec(
            role,
            role,
            prompt_renderer(" ".join(f"{{{field}}}" for field in fields), None),
            CharacterChat(),
            Sampling(1.0, 1.0, 8, 100_000),
        )
        for role, fields in names.items()
    }


def slow_tools(latency):
    async def echo(call):
        await asyncio.sleep(latency.random() * 0.002)
        return await _echo(call)

    return {"echo": Tool("echo", echo, lambda text: [])}


async def played(workflow, generate, tools=TOOLS, specs=None, task="t", step=1):
    """One trajectory."""
    return await run_workflow(
        workflow,
        Task(task, "what?", "l"),
        0,
        step=step,
        run_seed=7,
        roles=specs or roles(),
        tools=tools,
        generate=generate,
    )


def content(trajectory):
    """What must not depend on timing."""
    actions = [(a.path, a.role, a.parents, a.text, a.shown, a.notes) for a in trajectory.actions]
    return (
        actions,
        trajectory.answer,
        trajectory.returned,
        trajectory.agent_failure,
        trajectory.detail,
    )


def lost_descendants(before, after, path):
    """Actions that are in one of two trajectories alone, and are no recorded descendants of the one
    at a path.

    The trajectories differ in what that action says.
    """
    paths = [{action.path for action in trajectory.actions} for trajectory in (before, after)]
    return [
        only
        for mine, others, trajectory in ((*paths, before), (*paths[::-1], after))
        for only in sorted(mine - others - trajectory.descendants(path))
    ]
