"""The plugin of stdin.yaml: the tool `visible` runs a program against the tests that agents may
see. Before the line `# tests` is the program, which may read standard input, after it are asserts
of what it has `printed`."""

from marl_plugins import Tool, ToolResult, hookimpl
from marl_plugins.sandbox import Checker, prepared

checker = Checker(seconds=5)


@hookimpl
def marl_tools(run):
    return [Tool("visible", against_tests, find=lambda text: [])]


async def against_tests(call):
    program, _, tests = call.text.rpartition("\n# tests\n")
    result = await checker.passed(prepared(program, tests), tests)
    output = "the tests passed" if result.passed else result.reason
    return ToolResult("visible", call.text, output, result.passed)
