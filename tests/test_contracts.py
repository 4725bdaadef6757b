"""The contract tests for plugin authors: what is shipped keeps them, and a plugin that breaks one
is told which."""

import textwrap
from typing import ClassVar
from unittest import SkipTest

import pytest
from planned_once import PlannedOnce

from marl_plugins.contracts.tools import ToolContract
from marl_plugins.core.failures import ConfigurationError

GROUPS = [
    "--rollout.n_samples_per_prompt",
    "4",
    "--rollout.batch_size",
    "32",
    "--groups.by",
    "task+role+turn",
]


class TestCoach(PlannedOnce):
    plugin = "marl_plugins.coach"
    recipe = "mathchat/tiny.yaml"


class TestRewardBackprop(PlannedOnce):
    plugin = "marl_plugins.reward_backprop"


class TestFilter(PlannedOnce):
    plugin = "marl_plugins.filter_agents_data"


class TestReinforce(PlannedOnce):
    plugin = "marl_plugins.builtin.reinforce_pp"
    flags = ("--reinforce_pp.normalise", "role")


class TestFlashReinforce(PlannedOnce):
    plugin = "marl_plugins.builtin.reinforce_pp"
    flags = ("--algo.advantage.estimator", "flash_reinforce")


class TestGroupNorm(PlannedOnce):
    plugin = "marl_plugins.builtin.groups"
    flags = ("--algo.advantage.estimator", "group_norm", *GROUPS)


class TestRloo(PlannedOnce):
    plugin = "marl_plugins.builtin.groups"
    flags = ("--algo.advantage.estimator", "rloo", *GROUPS)


class TestGae(PlannedOnce):
    plugin = "marl_plugins.builtin.gae"
    flags = ("--algo.advantage.estimator", "gae")


class TestVotersCredit(PlannedOnce):
    """It says that it needs one trajectory at a time."""

    plugin = "recipes/vote/credit.py"
    recipe = "vote/tiny.yaml"


class TestRecipesPlugin(PlannedOnce):
    plugin = "marl_plugins.builtin.recipe"


class TestPythonTool(PlannedOnce):
    """It starts processes."""

    plugin = "marl_plugins.builtin.tools.python"
    calls: ClassVar = {"python": ["print(1 + 1)", "import math\nprint(math.pi)"]}
    bad_calls: ClassVar = {"python": ["1 / 0", "print("]}
    answers: ClassVar = {"python": ["So:\n```python\nprint(1 + 1)\n```\n"]}
    deterministic = True


BROKEN = {
    "scores_lie_between_0_and_1": """
        @hookimpl
        def marl_score_outcome(trajectory):
            return 7.0
    """,
    "it_starts_and_stops": """
        class Log:
            file = None

        @hookimpl
        def marl_stop(run):
            run.state(Log).file.close()
    """,
    "importing_it_is_light": "import torch",
    "a_batch_is_of_the_runs_tasks_and_the_same_again": """
        from itertools import count

        turns = count()

        @hookimpl
        def marl_batch(tasks, all_tasks):
            first = next(turns)
            return all_tasks[first : first + len(tasks)]
    """,
    "exchange_keeps_what_was_sampled": """
        @hookimpl
        def marl_exchange(trajectories):
            return trajectories[1:]
    """,
    "credit_keeps_what_was_sampled": """
        @hookimpl
        def marl_credit(trajectories):
            for t in trajectories:
                t.actions[0].score = 1.0
            return trajectories
    """,
    "credit_does_not_depend_on_the_order_of_arrival": """
        @hookimpl
        def marl_credit(trajectories):
            for n, t in enumerate(trajectories):
                t.actions[-1].reward = 0.1 * n
            return trajectories
    """,
    "select_chooses_among_the_rows": """
        @hookimpl
        def marl_select(rows):
            return rows[1:]
    """,
    "advantages_do_not_depend_on_the_order_of_rows": """
        from marl_plugins.core.estimators import Estimator

        class Running(Estimator):
            def shape(self, rows, rewards):
                return rewards - rewards.cummax(0).values

        @hookimpl
        def marl_estimator(run):
            return Running(scope="batch")
    """,
    "advantages_do_not_depend_on_batches": """
        from marl_plugins.core.estimators import Estimator

        class PerBatch(Estimator):
            def apply(self, rows, advantages, statistics):
                return advantages - advantages.mean()

        @hookimpl
        def marl_estimator(run):
            return PerBatch(scope="batch")
    """,
    "what_is_affine_is_made_of_a_mean_and_a_deviation": """
        from marl_plugins.core.estimators import WhitenedAdvantages

        class Clipped(WhitenedAdvantages):
            def apply(self, rows, advantages, statistics):
                return super().apply(rows, advantages, statistics).clamp(-0.1, 0.1)

        @hookimpl
        def marl_estimator(run):
            return Clipped()
    """,
    "advantages_are_finite_where_all_rewards_are_the_same": """
        from marl_plugins.core.estimators import Estimator

        class Divides(Estimator):
            def shape(self, rows, rewards):
                return (rewards - rewards.mean()) / (rewards.max() - rewards.min())

        @hookimpl
        def marl_estimator(run):
            return Divides(scope="batch")
    """,
    "an_advantage_reaches_no_further_than_its_scope": """
        from marl_plugins.core.estimators import Estimator

        class Says(Estimator):
            def shape(self, rows, rewards):
                return rewards - rewards.mean()

        @hookimpl
        def marl_estimator(run):
            return Says(scope="action")
    """,
    "metrics_are_numbers": """
        @hookimpl
        def marl_log(metrics):
            metrics["mine"] = "many"
    """,
    "state_comes_back_from_json": """
        class Seen(list):
            pass

        @hookimpl
        def marl_credit(run, trajectories):
            run.state(Seen).append(len(trajectories))
            return trajectories

        @hookimpl
        def marl_state(run):
            return {"seen": run.state(Seen)}

        @hookimpl
        def marl_restore(run, state):
            run.state(Seen)
    """,
}


SCORER = """
import asyncio
from marl_plugins import hookimpl

class Client:
    lock = None

@hookimpl
async def marl_start(run):
    run.state(Client).lock = asyncio.Lock()
    await run.state(Client).lock.acquire()

@hookimpl
def marl_score_action(run, action):
    async def score():
        waiting = asyncio.ensure_future(run.state(Client).lock.acquire())
        await asyncio.sleep(0)  # the lock belongs to this loop now, and to no other
        run.state(Client).lock.release()
        await waiting
        return 0.5
    return score()
"""


def test_a_scorer_is_started_and_asked_in_one_loop(tmp_path):
    (tmp_path / "scorer.py").write_text(SCORER)
    type(
        "Kit", (PlannedOnce,), {"plugin": str(tmp_path / "scorer.py")}
    )().test_scores_lie_between_0_and_1()


@pytest.mark.parametrize("metric", ['"mine"] = float("nan")', "3] = 1.0"])
def test_metrics_that_no_tracker_takes(metric, tmp_path):
    file, log = tmp_path / "metrics.py", "@hookimpl\ndef marl_log(metrics):\n    metrics["
    file.write_text(f"from marl_plugins import hookimpl\n{log}{metric}\n")
    with pytest.raises(AssertionError, match="no tracker"):
        type("Kit", (PlannedOnce,), {"plugin": str(file)})().test_metrics_are_numbers()


def tried(kit, contract):
    """Runs a contract where the plugin is accepted."""
    kit.test_it_is_active_in_a_run()
    getattr(kit, f"test_{contract}")()


@pytest.mark.parametrize("contract", BROKEN)
def test_a_plugin_that_breaks_a_contract_is_told(contract, tmp_path):
    body = textwrap.dedent(BROKEN[contract]).strip()
    if "hookimpl" not in body:
        body += "\n\n@hookimpl\ndef marl_log(step): pass"
    file = tmp_path / f"{contract}.py"
    file.write_text(f"from marl_plugins import hookimpl\n{body}\n")
    kit = type("Kit", (PlannedOnce,), {"plugin": str(file)})()
    kit.test_it_is_active_in_a_run()
    with pytest.raises((AssertionError, ValueError)):
        getattr(kit, f"test_{contract}")()


LIARS = {
    "a mean over the step": """
        @hookimpl
        def marl_credit(trajectories):
            actions = [a for t in trajectories for a in t.actions if a.reward is not None]
            mean = sum(a.reward for a in actions) / max(len(actions), 1)
            for action in actions:
                action.add_reward("baseline", -mean)
            return trajectories
    """,
    "a running number": """
        class Steps:
            number = 0

        @hookimpl
        async def marl_credit(run, trajectories):
            run.state(Steps).number += 1
            return trajectories

        @hookimpl
        def marl_state(run):
            return run.state(Steps).number

        @hookimpl
        def marl_restore(run, state):
            run.state(Steps).number = state
    """,
}


@pytest.mark.parametrize("liar", LIARS)
def test_credit_that_needs_the_step_and_says_otherwise_is_found(liar, tmp_path):
    file = tmp_path / "liar.py"
    file.write_text(f"from marl_plugins import hookimpl\n{textwrap.dedent(LIARS[liar])}\n")
    kit = type("Kit", (PlannedOnce,), {"plugin": str(file), "recipe": "tool_user/tiny.yaml"})()
    with pytest.raises(AssertionError, match=r"write marl_credit_step|state depends"):
        kit.test_marl_credit_works_on_one_trajectory_at_a_time()


BASELINE = """
from marl_plugins import hookimpl
from marl_plugins.core.estimators import Estimator

class Baseline:
    value = 0.0

class Running(Estimator):
    \"\"\"Rewards above their running mean, which a resumption has to keep.\"\"\"

    def __init__(self, baseline):
        super().__init__(scope="batch")
        object.__setattr__(self, "baseline", baseline)

    def shape(self, rows, rewards):
        centred = rewards - self.baseline.value
        self.baseline.value = 0.5 * self.baseline.value + 0.5 * float(rewards.mean())
        return centred

    def metrics(self, rows):
        return {"baseline": self.baseline.value}

@hookimpl
def marl_estimator(run):
    return Running(run.state(Baseline))

@hookimpl
def marl_state(run):
    return {"value": run.state(Baseline).value}

@hookimpl
def marl_restore(run, state):
    run.state(Baseline).value = state["value"]
"""


UNSAVED = """
from marl_plugins import hookimpl

class Seen:
    count = 0

@hookimpl
def marl_credit_step(run, trajectories):
    seen = run.state(Seen)
    for t in sorted(trajectories, key=lambda t: (t.task.id, t.sample)):
        for a in t.actions:
            if a.reward is not None:
                seen.count += 1
                a.add_reward("count", seen.count * 0.25)
    return trajectories
"""
SAVED = """
@hookimpl
def marl_state(run): return run.state(Seen).count

@hookimpl
def marl_restore(run, state): run.state(Seen).count = state
"""


def test_a_state_that_is_not_saved_is_told_as_that(tmp_path):
    """And not as a matter of the order, on which this credit does not depend."""
    (tmp_path / "unsaved.py").write_text(UNSAVED)
    (tmp_path / "saved.py").write_text(UNSAVED + SAVED)
    kits = [
        type("Kit", (PlannedOnce,), {"plugin": str(tmp_path / f"{name}.py")})()
        for name in ("unsaved", "saved")
    ]
    with pytest.raises(AssertionError, match="marl_state"):
        kits[0].test_credit_does_not_depend_on_the_order_of_arrival()
    kits[1].test_credit_does_not_depend_on_the_order_of_arrival()


def test_a_normaliser_that_divides_by_no_deviation_is_told(tmp_path):
    """0.7 alone does not tell: float32 does not hold it, and the deviation of 35 of them is not
    0."""
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom marl_plugins import hookimpl\nfrom marl_plugins.core.estimators import "
        "Estimator\n\n"
        "class Mine(Estimator):\n    scope = 'batch'\n    def shape(self, rows, rewards):\n        "
        "out = rewards.clone()\n"
        "        keys = [row.action.role for row in rows]\n        for one in set(keys):\n"
        "            mine = torch.tensor([key == one for key in keys])\n            r = "
        "rewards[mine]\n"
        "            out[mine] = (r - r.mean()) / r.std()\n        return out\n\n"
        "@hookimpl\ndef marl_estimator(run): return Mine()\n"
    )
    kit = type("Kit", (PlannedOnce,), {"plugin": str(tmp_path / "mine.py")})()
    with pytest.raises(AssertionError, match=r"all rewards are 0\.0"):
        kit.test_advantages_are_finite_where_all_rewards_are_the_same()


@pytest.mark.parametrize(
    ("old", "new", "contract", "says"),
    [
        (
            "    run.state(Baseline).value = state",
            "    state",
            "state_comes_back_from_json",
            "gives another state",
        ),
        (
            '{"value": run.state(Baseline).value}',
            "{}",
            "state_comes_back_from_json",
            "other advantages",
        ),
        (
            '"baseline": self.baseline.value',
            '"baseline": [1]',
            "metrics_are_numbers",
            "no tracker takes",
        ),
    ],
)
def test_an_estimator_with_a_state_is_tried_over_a_step(old, new, contract, says, tmp_path):
    def kit(name, text):
        (tmp_path / name).write_text(text)
        return type("Kit", (PlannedOnce,), {"plugin": str(tmp_path / name)})()

    assert old in BASELINE
    getattr(kit("right.py", BASELINE), f"test_{contract}")()
    broken = BASELINE.replace(old, new).replace('state["value"]', 'state.get("value", 0.0)')
    with pytest.raises(AssertionError, match=says):
        getattr(kit("wrong.py", broken), f"test_{contract}")()


# Tools

CALC = """
from marl_plugins import hookimpl
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.trajectory import ToolResult
from marl_plugins.core.tools import Tool
import asyncio, itertools, re, urllib.request

def evaluated(text):
    numbers = re.fullmatch(r"(\\d+)\\+(\\d+)", text)
    return str(int(numbers[1]) + int(numbers[2])) if numbers else None

async def added(call):
    await asyncio.sleep(0)
    value = evaluated(call.text)
    return ToolResult("calc", call.text, value or "not a sum", ok=value is not None)

def find(text):
    return re.findall(r"<calc>(.*?)</calc>", text)

calculate = added

{changed}

@hookimpl
def marl_tools():
    return [Tool("calc", calculate, find)]
"""
GOOD = {
    "calls": {"calc": ["1+1", "20+3"]},
    "bad_calls": {"calc": ["1/0"]},
    "answers": {"calc": ["It is <calc>1+1</calc>, or <calc>2+2</calc>."]},
    "deterministic": True,
}
BROKEN_TOOLS = {
    "find finds nothing": (
        "find_gives_a_list_of_calls",
        "finds no call in 'It is <calc>",
        "def find(text): return []",
    ),
    "find has a memory": (
        "find_gives_a_list_of_calls",
        "gives another list the second time",
        "count = itertools.count()\ndef find(text): return [str(next(count))] if text else []",
    ),
    "run is a plain function": (
        "a_tool_answers_its_calls",
        "async def",
        "def calculate(call): return ToolResult('calc', call.text, '2', True)",
    ),
    "an example fails": (
        "a_tool_answers_its_calls",
        "ok=False to the example call '1.1'",
        "async def calculate(call): return ToolResult('calc', call.text, '', False)",
    ),
    "a bad call raises": (
        "a_bad_call_is_an_answer",
        "called with '1/0', raised ZeroDivisionError",
        "async def calculate(call): return ToolResult('calc', call.text, str(eval(call.text)), "
        "True)",
    ),
    "a bad call is ok": (
        "a_bad_call_is_an_answer",
        "answered ok=True to the bad call '1/0'",
        "async def calculate(call): return ToolResult('calc', call.text, '', True)",
    ),
    "an outage blames the agents": (
        "an_outage_is_an_infrastructure_failure",
        "while network and processes were unavailable",
        "def ask():\n"
        "    try: urllib.request.urlopen('http://127.0.0.1:1')\n"
        "    except OSError: return False\n"
        "async def calculate(call): return ToolResult('calc', call.text, '2', ok=bool(ask()))",
    ),
    "the last call is answered": (
        "concurrent_calls_do_not_mix_answers",
        "gave the result of the call",
        "last = []\n"
        "async def calculate(call):\n"
        "    last.append(call.text)\n"
        "    await asyncio.sleep(0)\n"
        "    return ToolResult('calc', last[-1], 'x', ok=False)",
    ),
    "the event loop is blocked": (
        "a_tool_lets_others_work",
        "blocked the event loop for 0",
        "import time\ndef sleep(text):\n    time.sleep(0.4)\n    return text\n"
        "async def calculate(call): return ToolResult('calc', call.text, sleep('2'), ok=True)",
    ),
    "answers depend on the role": (
        "answers_depend_on_the_call_alone",
        "answered .'role', True, .*and then .''",
        "async def calculate(call): return ToolResult('calc', call.text, call.role, ok=True)",
    ),
}
"""The contract that each breaks, what is said, and the change to CALC."""


def calc_kit(tmp_path, changed="", **given):
    file = tmp_path / "calc.py"
    file.write_text(CALC.replace("{changed}", changed))
    return type("Kit", (PlannedOnce,), {"plugin": str(file), **GOOD, **given})()


def contracts_of_tools():
    return [name for name in vars(ToolContract) if name.startswith("test_")]


def test_a_good_tool_keeps_every_contract(tmp_path):
    for name in contracts_of_tools():
        getattr(calc_kit(tmp_path), name)()


@pytest.mark.parametrize("what", BROKEN_TOOLS)
def test_a_tool_that_breaks_a_contract_is_told(what, tmp_path):
    contract, message, changed = BROKEN_TOOLS[what]
    kit = calc_kit(tmp_path, changed)
    with pytest.raises((AssertionError, ConfigurationError), match=message):
        tried(kit, contract)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"calls": {}},
            r"in Kit: tool 'calc' has no example call; add calls = {'calc': \['\.\.\.'\]}",
        ),
        (
            {"bad_calls": {"clac": ["1/0"]}},
            r"bad_calls names the tool 'clac'; the plugin brings \['calc'\]",
        ),
    ],
)
def test_a_tool_without_examples_is_not_passed_over(given, message, tmp_path):
    with pytest.raises(AssertionError, match=message):
        calc_kit(tmp_path, **given).test_every_tool_has_examples()


DOWN = "async def calculate(call): raise InfrastructureFailure('calc', 'connection refused')"


def test_a_tool_that_is_down_here_is_skipped_and_not_passed(tmp_path):
    """Only that it says so is tested."""
    kit = calc_kit(tmp_path, DOWN)
    kit.test_an_outage_is_an_infrastructure_failure()
    for name in (
        "a_tool_answers_its_calls",
        "a_bad_call_is_an_answer",
        "concurrent_calls_do_not_mix_answers",
    ):
        with pytest.raises(
            SkipTest, match="unavailable here, so this is not tested: connection refused"
        ):
            getattr(kit, f"test_{name}")()
