"""Recipes of four roles behind a router, one for each way in which routers answer; what stands
behind them can be edited."""

import textwrap

from marl_plugins.builtin.rehearsal import rehearse_plan
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.parts import tools_of

RECIPE = """
name: triage
roles:
  router: {prompt: any.md}
  registry: {prompt: any.md}
  metrics: {prompt: any.md}
  resolver: {prompt: resolver.md}
workflow: workflow.py
tasks: tasks.py
grader: grader.py
model: tiny
flags:
  rollout.batch_size: 4
  rollout.max_new_tokens: 8
  train.batch_size: 4
  train.micro_batch_size: 4
  data.max_len: 256
"""
TASKS = """
from marl_plugins.core.trajectory import Task

def load(split):
    names = "abcd" if split == "train" else "ef"
    return [Task(n, f"Host {n} is down", "registry") for n in names]
"""
GRADER = (
    "def score_outcome(trajectory):\n    return float(trajectory.answer == trajectory.task.label)\n"
)
HEAD = """\
import asyncio, enum, json, random, re, time
from marl_plugins.core.failures import AgentFailure

TEAMS = {"registry": "registry", "databases": "registry", "metrics": "metrics", "other": "nobody"}
BY_NUMBER = {1: "registry", 2: "metrics", 3: "nobody"}

async def run(task, roles, tools):
    route = await roles.router(incident=task.prompt)
"""
TAIL = """\
    if team == "registry":
        finding = await roles.registry(incident=task.prompt, after=[route])
    elif team == "metrics":
        finding = await roles.metrics(incident=task.prompt, after=[route])
    else:
        raise AgentFailure("no_answer", "there is no such team")
    return await roles.resolver(incident=task.prompt, finding=finding)
"""
ROUTERS = {
    "JSON": """\
    try:
        team = json.loads(str(route))["team"]
    except (ValueError, KeyError, TypeError):
        raise AgentFailure("no_answer", "the route is no JSON") from None
""",
    "JSON, asked for politely": """\
    try:
        said = json.loads(route.text.strip())
    except ValueError:
        raise AgentFailure("no_answer", "the route is no JSON") from None
    team = said.get("team") if isinstance(said, dict) else None
""",
    "JSON, sure enough": """\
    try:
        said = json.loads(str(route))
        team = said["team"] if said["confidence"] > 0.5 else "nobody"
    except (ValueError, KeyError, TypeError):
        raise AgentFailure("no_answer", "the route is no JSON") from None
""",
    "tags": """\
    found = re.search(r"<team>(.*?)</team>", str(route))
    team = found[1].strip() if found else ""
""",
    "a function call": """\
    found = re.search(r"<tool_call>(.*)</tool_call>", str(route), re.DOTALL)
    try:
        call = json.loads(found[1])
        team = call["arguments"]["team"]
    except (ValueError, KeyError, TypeError):
        raise AgentFailure("no_answer", "the router called nothing") from None
""",
    "fenced JSON": """\
    found = re.search(r"```json\\n(.*?)\\n```", str(route), re.DOTALL)
    if found is None:
        raise AgentFailure("no_answer", "no block")
    team = json.loads(found[1]).get("team")
""",
    "a number": """\
    try:
        team = BY_NUMBER[int(str(route))]
    except (ValueError, KeyError):
        raise AgentFailure("no_answer", "no number of a team") from None
""",
    "a sentence": """\
    found = re.search(r"(?:pass|hand) it to the (\\w+) team", str(route).lower())
    if not found:
        raise AgentFailure("no_answer", "nobody was named")
    team = found[1]
""",
    "a word of a table": """\
    team = TEAMS.get(str(route).strip().lower())
    if team is None:
        raise AgentFailure("no_answer", "no such team")
""",
    "a line": """\
    said = dict(line.split(": ", 1) for line in str(route).splitlines() if ": " in line)
    team = said.get("team")
""",
    "a word that begins": """\
    word, _, why = str(route).partition(" because ")
    if not why:
        raise AgentFailure("no_answer", "no reason")
    team = word
""",
}

MORE_ROUTERS = {
    "a dataclass": """\
    import dataclasses
    @dataclasses.dataclass
    class Route:
        team: str
        urgency: int
    try:
        team = Route(**json.loads(str(route))).team
    except (ValueError, TypeError):
        raise AgentFailure("no_answer", "no route") from None
""",
    "the name of a member": """\
    class Team(enum.Enum):
        REG = "registry"
        MET = "metrics"
        NON = "nobody"
    try:
        team = Team[str(route).strip()].value
    except KeyError:
        raise AgentFailure("no_answer", "no such team") from None
""",
    "a call, whose arguments are a text": """\
    try:
        call = json.loads(str(route))
        if call["name"] != "route":
            raise AgentFailure("no_answer", "another call")
        team = json.loads(call["arguments"])["team"]
    except (ValueError, KeyError, TypeError):
        raise AgentFailure("no_answer", "no call") from None
""",
    "a call, as Python writes it": """\
    import ast
    try:
        call = ast.parse(str(route), mode="eval").body
        if call.func.id != "route_to":
            raise AgentFailure("no_answer", "another call")
        team = call.args[0].value
    except (SyntaxError, AttributeError, IndexError):
        raise AgentFailure("no_answer", "no call") from None
""",
    "XML": """\
    import xml.etree.ElementTree as tree
    try:
        root = tree.fromstring(str(route))
        team = root.find("team").text if root.tag == "route" else "nobody"
    except (tree.ParseError, AttributeError):
        raise AgentFailure("no_answer", "no XML") from None
""",
    "a key that is a constant": """\
    KEY = "team"
    try:
        team = json.loads(str(route))[KEY]
    except (ValueError, KeyError, TypeError):
        raise AgentFailure("no_answer", "the route is no JSON") from None
""",
    "a list in JSON": """\
    try:
        steps = json.loads(str(route))["steps"]
        team = steps[1]["agent"]
    except (ValueError, KeyError, TypeError, IndexError):
        raise AgentFailure("no_answer", "no steps") from None
""",
    "a list in lines": """\
    steps = re.findall(r"^\\d+\\. (\\w+)", str(route), re.M)
    if len(steps) < 2:
        raise AgentFailure("no_answer", "no list")
    team = steps[1]
""",
    "a word after a phrase": """\
    phrase, _, value = str(route).partition(":")
    if phrase.upper() != "TRANSFER TO":
        raise AgentFailure("no_answer", "no transfer")
    team = value.strip()
""",
    "a word and how sure it is": """\
    word, comma, sure = str(route).partition(",")
    try:
        team = word if float(sure) >= 0.8 else "nobody"
    except ValueError:
        raise AgentFailure("no_answer", "no number") from None
""",
    "percent": """\
    found = re.search(r"(\\d+(?:\\.\\d+)?)\\s*%", str(route))
    if not found:
        raise AgentFailure("no_answer", "no percent")
    team = "metrics" if float(found[1]) > 70 else "registry" if float(found[1]) > 30 else "nobody"
""",
    "a number in a table": """\
    sure = {name: float(value) for name, value in re.findall(r"(\\w+): (\\d+\\.\\d+)", str(route))}
    if not sure:
        raise AgentFailure("no_answer", "no table")
    team = max(sure, key=sure.get)
""",
    "enough words": """\
    words = str(route).split()
    if len(words) < 20:
        raise AgentFailure("no_answer", "too short a reason")
    team = words[-1]
""",
}
"""Like `ROUTERS`: others of their kinds."""


class Triage:
    """A recipe's folder, whose router answers in one of the ways."""

    def __init__(self, path, router, tail=TAIL, head=HEAD):
        self.path = path
        self.head = head + (ROUTERS | MORE_ROUTERS).get(router, router)
        files = {
            "recipe.yaml": RECIPE,
            "tasks.py": TASKS,
            "grader.py": GRADER,
            "any.md": "{incident}",
        }
        files |= {"resolver.md": "{incident}\n{finding}", "workflow.py": self.head + tail}
        for name, text in files.items():
            self.write(name, text)

    def write(self, name, text):
        (self.path / name).write_text(textwrap.dedent(text))

    def edit(self, old, new):
        """Replace a part of the workflow; returns the line on which it stands."""
        text = (self.path / "workflow.py").read_text()
        assert old in text
        (self.path / "workflow.py").write_text(text.replace(old, new))
        return text[: text.index(old)].count("\n") + 1

    def plan(self, *words):
        return build_plan(["--recipe", str(self.path), *words])

    def rehearsed(self):
        plan = self.plan()
        return rehearse_plan(plan, tools_of(plan.plugins, plan.run))
