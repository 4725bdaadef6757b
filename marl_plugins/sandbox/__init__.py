"""The sandbox runs programs of agents where they can do no harm: one interface (program.py) for all
that runs them.

    async with open_sandbox(SandboxConfig()) as sandbox:
        completed = await sandbox.run(Program("print(6 * 7)"))
        assert (completed.status, completed.stdout) == ("finished", "42\\n")

Whatever a program does is an answer with a status. Everything else is an `InfrastructureFailure`.
How well programs are isolated depends on the machine (levels.py), or on the service that runs them
(fusion.py), and `sandbox.isolation` says it.

A grader that runs programs uses `Checker` (checker.py): it runs a program and its checks apart, so
that a program cannot report its own success. Tests of public data sets become checks by
`asserts_of`
and `prepared` (layouts.py).
"""

from marl_plugins.sandbox.checker import Checker, CheckResult
from marl_plugins.sandbox.layouts import asserts_of, prepared
from marl_plugins.sandbox.opening import OnDemandSandbox, open_sandbox
from marl_plugins.sandbox.program import (
    Language,
    Limits,
    Program,
    ProgramResult,
    Sandbox,
    Status,
)

__all__ = [
    "CheckResult",
    "Checker",
    "Language",
    "Limits",
    "OnDemandSandbox",
    "Program",
    "ProgramResult",
    "Sandbox",
    "Status",
    "asserts_of",
    "open_sandbox",
    "prepared",
]
