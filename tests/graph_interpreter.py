"""A second interpreter of graphs, written from docs/graphs.md alone, for graphs of
`random_graphs.Writer`: no compiler, no executor, no tasks; Python's own `eval` reads expressions.

Its agents say what `said` makes of their role and prompt.
"""

import hashlib
import json
import re

NOTHING = object()
"""What a node that did not run has come to."""
NAMES = re.compile(r"\b(?:[nv]\d+|item\d+|x)\b")
SOFT = re.compile(r"(?:first|ran)\([^()]*\)|'[^']*'")
FUNCTIONS = {
    "__builtins__": {"sum": sum, "len": len, "str": str},
    "first": lambda *given: next((one for one in given if one is not NOTHING), None),
    "ran": lambda one: one is not NOTHING,
}


class Failed(Exception):
    """The agents have failed."""


def said(role, prompt):
    return str(hashlib.sha256(f"{role}/{prompt}".encode()).digest()[0] % 10)


def shown(value):
    if not isinstance(value, list):
        return value
    if not any(isinstance(item, str) for item in value):
        return json.dumps(value)
    return "\n\n".join(str(shown(item)) for item in value)


def names(value, hard=True):
    """All names in the expressions of a part of a graph, those of `first` and `ran` only if asked
    for."""
    if isinstance(value, dict | list):
        return (
            set().union(*(names(v, hard) for v in dict(enumerate(value)).values() if v))
            if (isinstance(value, list))
            else set().union(*(names(part, hard) for part in value.values()))
        )
    text = SOFT.sub("", value) if hard and isinstance(value, str) else str(value)
    return set(NAMES.findall(re.sub(r"'[^']*'", "", text)))


class Interpreter:
    """Runs graphs; `calls` are those that it has made."""

    def __init__(self, graphs):
        self.graphs, self.calls = graphs, []

    def value(self, text, scope):
        if any(scope.get(name, NOTHING) is NOTHING for name in names(text)):
            return NOTHING
        absent = dict.fromkeys(names(text, hard=False), NOTHING)
        return eval(str(text).replace(".output", ""), FUNCTIONS, {**absent, **scope})

    def ask(self, role, prompt, address, within):
        self.calls.append((address, within, role, prompt, said(role, prompt)))
        return said(role, prompt)

    def run(self, graph, outer, at="", within=()):
        """What the graph gives, and its results."""
        nodes, left, scope = graph["nodes"], dict(graph.get("budget", {})), dict(outer)
        place = {name: number for number, name in enumerate(nodes)}
        edges = {
            name: (names({k: v for k, v in node.items() if k != "once"}, hard=False) - {name})
            & nodes.keys()
            for name, node in nodes.items()
        }
        new, held, can, waiting, cooling, tries, last, failed = (
            set(nodes),
            set(),
            [],
            [],
            {},
            {},
            {},
            {},
        )
        done = 0

        def holds(text):
            value = self.value(text, {**scope, "done": done, "left": Left(left)})
            return value is not NOTHING and bool(value)

        def settle(name, value, ran):
            nonlocal done
            scope[name], done = value, done + ran
            again(sorted(waiting, key=place.get))

        def again(asked):
            for name in asked:
                if holds(nodes[name]["once"]):
                    waiting.remove(name)
                    held.add(name)
                    new.add(name)

        def instead(name):
            return (
                self.value(nodes[name].get("otherwise", "x"), {"x": NOTHING, **scope})
                if ("otherwise" in nodes[name])
                else NOTHING
            )

        def skipped(node, name):
            hard = names({k: v for k, v in node.items() if k not in ("once", "otherwise")})
            return any(scope.get(one) is NOTHING for one in hard - {name}) or (
                "when" in node and not holds(node["when"])
            )

        def covered(name):
            return all(left[what] >= cost for what, cost in nodes[name].get("cost", {}).items())

        def pay(name):
            for what, cost in nodes[name].get("cost", {}).items():
                left[what] -= cost

        while True:
            while ready := sorted((n for n in new if edges[n] <= scope.keys()), key=place.get):
                name = ready[0]
                node = nodes[name]
                new.remove(name)
                if name not in held and skipped(node, name):
                    settle(name, instead(name), False)
                elif name not in held and "once" in node:
                    waiting.append(name)
                    again([name])
                elif "let" in node:
                    settle(name, self.value(node["let"], scope), True)
                else:
                    can.append(name)
            can += [name for name, until in cooling.items() if until <= done]
            can.sort(key=place.get)
            cooling = {name: until for name, until in cooling.items() if name not in can}
            if "stop" in graph and tries and holds(graph["stop"]):
                scope |= {name: last[name] for name in (*can, *cooling) if name in last}
                break
            for name in list(can):
                if not covered(name):
                    can.remove(name)
                    settle(name, last[name] if name in last else instead(name), name in last)
                elif "choose" not in graph:
                    pay(name)
            kept = []
            if "choose" in graph and can:
                chosen = can[0]
                if len(can) > 1:
                    choice = graph["choose"]
                    prompt = f"{self.value(choice['with']['q'], scope)} {', '.join(can)}"
                    answer = self.ask(choice["role"], prompt, f"{at}choose", within)
                    chosen = answer if answer in can else chosen
                kept, can = [name for name in can if name != chosen], [chosen]
                pay(chosen)
            if not can:
                if any(edges[name] <= scope.keys() for name in new):
                    continue
                if cooling:
                    cooling = dict.fromkeys(cooling, 0)
                elif waiting:
                    over = sorted(waiting, key=place.get)
                    waiting.clear()
                    for name in over:
                        settle(name, instead(name), False)
                else:
                    break
                continue
            results, can = (
                {name: self.tried(nodes[name], name, scope, at, within) for name in can},
                kept,
            )
            for name, value in results.items():
                if isinstance(value, Failed):
                    failed[name] = value
                    continue
                tries[name], retry = tries.get(name, 0) + 1, nodes[name].get("retry")
                if retry and tries[name] < retry["most"]:
                    last[name] = value
                    if self.value(retry["while"], {**scope, name: value}) and covered(name):
                        if retry.get("cooldown"):
                            cooling[name] = done + retry["cooldown"]
                        else:
                            can.append(name)
                        continue
                settle(name, value, True)
        if failed:
            raise failed[min(failed, key=place.get)]
        scope = {**dict.fromkeys(nodes, NOTHING), **scope}
        return self.value(graph["give"], scope), scope

    def tried(self, node, name, scope, at, within):
        try:
            return self.performed(node, name, scope, at, within)
        except Failed as failure:
            return failure

    def performed(self, node, name, scope, at, within):
        """What a node comes to that runs."""
        inside = f"{at}{name}."
        if "role" in node:
            prompt = shown(self.value(node["with"]["q"], scope))
            return int(self.ask(node["role"], prompt, f"{at}{name}", within))
        if "tool" in node:
            return self.value(node["call"], scope)[::-1]
        if "fail" in node:
            raise Failed
        if "graph" in node:
            inputs = {"x": self.value(node["with"]["x"], scope)}
            return self.run(self.graphs[node["graph"]], inputs, inside, within)[0]
        if "map" in node:
            body, given = node["map"], []
            for index, item in enumerate(self.value(body["over"], scope)[: body["most"]]):
                seen = {**scope, body["as"]: item, "index": index}
                around = (*within, (f"{at}{name}", "index", index))
                given.append(self.tried_graph(body, seen, inside, around))
            for value in given:
                if isinstance(value, Failed):
                    raise value
            return [value for value in given if value is not NOTHING]
        body = node["loop"]
        carried = {key: self.value(text, scope) for key, text in body.get("start", {}).items()}
        for turn in range(body["most"]):
            around = (*within, (f"{at}{name}", "round", turn))
            value, inner = self.run(body, {**scope, **carried, "round": turn}, inside, around)
            over = self.value(body["until"], inner) if "until" in body else False
            if over is not NOTHING and over:
                break
            carried |= {key: self.value(text, inner) for key, text in body.get("next", {}).items()}
        return value

    def tried_graph(self, *arguments):
        try:
            return self.run(*arguments)[0]
        except Failed as failure:
            return failure


class Left:
    """What is left of each resource."""

    def __init__(self, left):
        vars(self).update(left)
