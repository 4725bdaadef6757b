"""Checks that the table of refusals does not reach, each called with one bad input: the code and the
places of what it returns.

`openrlhf docs problems` prints the sentence of every code.
"""

import asyncio
import copy
import errno
import fcntl
import os
import shutil
import sqlite3
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from refusals import brief, briefs, found_by, refused

from marl_plugins import reward_backprop
from marl_plugins.asking.askers import Askers
from marl_plugins.asking.policy import PolicyTransport
from marl_plugins.builtin import reinforce_pp
from marl_plugins.builtin.recipe import _hub_tasks
from marl_plugins.builtin.tools.mcp import checks as mcp
from marl_plugins.builtin.tools.mcp import servers
from marl_plugins.builtin.tools.mcp.section import MCPServerConfig
from marl_plugins.builtin.tools.sql.databases import database_problems
from marl_plugins.cli import dispatch
from marl_plugins.coach import flags as coach
from marl_plugins.commands.imports import items, roles, tasks
from marl_plugins.commands.imports import policies as imported_policies
from marl_plugins.commands.imports.report import Report
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.estimators import Estimator, check_estimator
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.loading import load
from marl_plugins.core.recipe import recipe_yaml
from marl_plugins.core.recipe.addresses import wrong_address, wrong_variables
from marl_plugins.core.recipe.recipe_yaml import Origins
from marl_plugins.core.run import use_tool
from marl_plugins.core.section import Section
from marl_plugins.core.tools import Function, Tool
from marl_plugins.engine.hosts import prebuild, seams, trees, upstream_cli
from marl_plugins.engine.plan import calls, files, resolve_plugins, sections
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.checks import policies
from marl_plugins.engine.processes import cluster
from marl_plugins.engine.records import run_folder, tables, trace
from marl_plugins.engine.records.write import _locked, cut_back
from marl_plugins.engine.runtime.checkpoints import Checkpoints
from marl_plugins.engine.runtime.session import Session
from marl_plugins.process_groups import checks as seats
from marl_plugins.process_groups.seats import Seating
from marl_plugins.reward_backprop import BackpropState
from marl_plugins.sandbox import checks as sandbox_checks
from marl_plugins.sandbox.section import SandboxConfig
from marl_plugins.streaming import checks as streaming


@pytest.fixture(scope="module")
def run():
    """A run that has nothing wrong."""
    return build_plan(["--recipe", "vote/tiny.yaml"]).run


def space(root=None, **values):
    """Nested attributes, as in `space(a__b=1).a.b`, of a copy of `root`."""
    root = copy.deepcopy(root) or SimpleNamespace()
    for name, value in values.items():
        *parts, last = name.split("__")
        below = root
        for part in parts:
            below = below.__dict__.setdefault(part, SimpleNamespace())
        setattr(below, last, value)
    return root


# --- addresses and variables


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (wrong_variables("a $ alone"), "variable.name"),
        (wrong_variables("$NOBODY_HAS_SET_THIS"), "variable.unset"),
        (wrong_address("ftp://host", "http://host"), "address.form"),
        (wrong_address("http://host:port", "http://host"), "address.form"),
        (wrong_address("http://me:secret@host", "http://host"), "address.secret"),
        (wrong_address("http://host/?api_key=secret", "http://host"), "address.secret"),
    ],
)
def test_addresses(found, code):
    assert briefs(found) == [(code,)]


# --- estimators


class Mine(Estimator):
    def estimate(self, rows, rewards):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("fields", "run", "code"),
    [
        ({"gamma": 2}, {}, "estimator.gamma"),
        ({"needs_critic": True}, {}, "estimator.critic"),
        ({"scope": "group"}, {}, "estimator.no_group"),
        ({"scope": "action", "group_by": "task"}, {}, "estimator.scope"),
        ({"scope": "group", "group_by": "task"}, {"samples": 1}, "estimator.samples"),
        ({"scope": "group", "group_by": "task"}, {"turns": 2}, "estimator.turns"),
    ],
)
def test_estimators(fields, run, code):
    found = check_estimator(Mine(**fields), **{"samples": 2, "roles": 1, **run})
    assert briefs(found) == [(code, "Mine")]


# --- policies


def policy(name, trainable=True, follows=""):
    return SimpleNamespace(name=name, trainable=trainable, follows=follows)


def run_of(roles=()):
    mapping = dict(roles)
    recipe = SimpleNamespace(
        mapped_roles=[*mapping], policies_of=lambda role: (mapping[role],), policies={}
    )
    return SimpleNamespace(recipe=recipe, device="cpu")


@pytest.mark.parametrize(
    ("run", "of_run", "expected"),
    [
        (run_of(), [policy("a"), policy("a")], ("policies.twice",)),
        (run_of({"r": "b"}), [policy("a")], ("roles.no_policy",)),
    ],
)
def test_policies(run, of_run, expected):
    assert briefs(policies.check_policies(run, of_run, {}, Origins())) == [expected]


@pytest.mark.parametrize(
    ("follower", "code", "key"),
    [
        (policy("b", False, "b"), "policies.itself", "follows"),
        (policy("b", False, "c"), "policies.unknown", "follows"),
        (policy("b", True, "a"), "policies.trained_follower", "trainable"),
    ],
)
def test_followers(follower, code, key):
    found = policies.check_followers(run_of(), [policy("a"), follower], Origins())
    assert briefs(found) == [(code, f"policies.b.{key}")]


# --- gradients that are taken early


@pytest.mark.parametrize(
    ("changed", "estimator", "code", "flag"),
    [
        ({"train__max_epochs": 2}, "reinforce", "streaming.epochs", "train.max_epochs"),
        ({"ds__param_dtype": "fp16"}, "reinforce", "streaming.dtype", "ds.param_dtype"),
        (
            dict.fromkeys(
                [f"actor__gradient_checkpointing_{name}" for name in ("enable", "reentrant")], True
            ),
            "reinforce",
            "streaming.checkpointing",
            "actor.gradient_checkpointing_reentrant",
        ),
        (
            {"actor__policy_loss_type": "gspo", "algo__advantage__is_correction_level": "token"},
            "reinforce",
            "streaming.gspo",
            "actor.policy_loss_type",
        ),
        (
            {"reward__clip_range": (-1, 1)},
            "flash_reinforce",
            "streaming.clip_range",
            "reward.clip_range",
        ),
        ({"ds__ring_attn_size": 2}, "reinforce", "streaming.ring", "ds.ring_attn_size"),
    ],
)
def test_a_policy_whose_gradients_cannot_be_taken_early(run, changed, estimator, code, flag):
    args = space(run.args, actor__model_name_or_path="tiny", **changed)
    found = streaming._of_a_policy(args, "p", SimpleNamespace(estimator=estimator))
    assert briefs(found) == [(code, flag)]


def test_a_run_whose_gradients_cannot_be_taken_early():
    run = SimpleNamespace(
        advantages=SimpleNamespace(accumulators=None),
        optimiser_steps=2,
        trajectories=8,
        args=space(train__batch_size=4),
        need_step=["mine"],
        processes=SimpleNamespace(lasting=False),
    )
    codes = [
        "streaming.optimiser_steps",
        "streaming.estimator",
        "streaming.whole_step",
        "streaming.seats",
    ]
    assert briefs(streaming._of_the_run(run)) == [(code,) for code in codes]


# --- sections


class Brevity(Section):
    """A section."""


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("Not a key", Brevity, ("sections.name",)),
        ("brevity", dict, ("sections.model", "brevity")),
        ("roles", Brevity, ("sections.taken", "roles")),
    ],
)
def test_sections(name, model, expected):
    assert brief(sections._wrong_section(name, model)) == expected


def test_a_section_within_another_plugins():
    assert brief(sections._taken("brevity.words", {"brevity": "other"})) == (
        "sections.taken",
        "brevity.words",
    )
    assert sections._taken("brevity", {"other": "other"}) is None


# --- the sandbox


SERVICE = {"isolation": "service", "url": "http://127.0.0.1:8080"}


@pytest.mark.parametrize(
    ("settings", "packages", "expected"),
    [
        ({"url": "http://127.0.0.1:8080"}, True, ("sandbox.url", "tools.sandbox.url")),
        ({"warm_up": "absent.py"}, True, ("sandbox.warm_up", "tools.sandbox.warm_up")),
        ({"isolation": "service"}, True, ("sandbox.url", "tools.sandbox.isolation")),
        ({**SERVICE, "imports": ["json"]}, True, ("sandbox.service", "tools.sandbox.imports")),
        ({**SERVICE, "warm_up": "absent.py"}, True, ("sandbox.service", "tools.sandbox.warm_up")),
        (SERVICE, False, ("sandbox.packages", "tools.sandbox.isolation")),
    ],
)
def test_the_sandbox(settings, packages, expected, tmp_path):
    found = sandbox_checks.check_sandbox(SandboxConfig(**settings), tmp_path, packages)
    assert briefs(found) == [expected]


def test_a_service_without_its_client(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox_checks, "missing_extra", lambda: "aiohttp not installed")
    found = sandbox_checks.check_sandbox(SandboxConfig(**SERVICE), tmp_path, True)
    assert briefs(found) == [("sandbox.extra", "tools.sandbox.isolation")]


# --- servers of tools, databases, functions


PYTHON = [sys.executable]


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("A", {"command": PYTHON}, ("mcp.name", "")),
        ("a", {}, ("mcp.kind", "")),
        ("a", {"command": [" "]}, ("mcp.program", ".command")),
        ("a", {"command": ["no-such-program"]}, ("mcp.program", ".command")),
        ("a", {"command": PYTHON, "headers": {"x": "y"}}, ("mcp.headers", ".headers")),
        ("a", {"url": "http://host/mcp", "env": {"x": "y"}}, ("mcp.env", ".env")),
        ("a", {"command": PYTHON, "env": {"API_KEY": "secret"}}, ("mcp.secret", ".env.API_KEY")),
        ("a", {"url": "host"}, ("address.form", ".url")),
    ],
)
def test_servers_of_tools(name, settings, expected):
    found = mcp._problems(name, MCPServerConfig(**settings), Path())
    assert briefs(found) == [(expected[0], f"tools.mcp.{name}{expected[1]}")]


def test_the_client_of_such_servers_is_an_extra(monkeypatch):
    monkeypatch.setattr(mcp, "find_spec", lambda name: None)
    servers = SimpleNamespace(servers={"a": MCPServerConfig(command=PYTHON)})
    assert ("mcp.extra", "tools.mcp.a") in briefs(mcp.check_mcp(servers, Path()))


def test_a_table_that_a_database_lacks(tmp_path):
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE orders (id)")
    connection.close()
    found = database_problems(tmp_path / "shop.db", ["orders", "order"])
    assert briefs(found) == [("sql.table", "tools.sql.tables", "shop.db")]


def tool(name, *functions):
    made = tuple(Function(f, "", {}) for f in functions) if functions else None
    return Tool(name, None, functions=made)


@pytest.mark.parametrize(
    ("role", "tools", "expected"),
    [
        ({"reasoning": "qwen3"}, [tool("t", "f")], ("reasoning", "calls.reasoning")),
        ({"calls": "hermes"}, [], ("calls", "calls.no_tools")),
        ({"calls": "hermes"}, [tool("t")], ("calls", "calls.no_functions")),
    ],
)
def test_calls_in_a_models_own_format(role, tools, expected, monkeypatch):
    monkeypatch.setattr(
        calls, "parser_names", lambda key: {"calls": ["hermes"], "reasoning": ["qwen3"]}[key]
    )
    config = SimpleNamespace(
        **{"calls": None, "reasoning": None, "tools": [t.name for t in tools], **role}
    )
    assert [(key, problem.code) for key, problem in calls._problems(config, tools)] == [expected]


# --- seats


@pytest.mark.parametrize(
    ("trained", "nodes", "code"), [(False, 1, "seats.unused"), (True, 0, "seats.nodes")]
)
def test_seats(run, trained, nodes, code):
    policies = [policy("p", trained)]
    run = SimpleNamespace(device="cpu", policies=policies, policy_args={"p": run.args})
    found = seats.check_seating(run, Seating(1, nodes, None))
    assert briefs(found) == [(code, "marl_plugins.process_groups")]


# --- an endpoint's flags


GOOD_ENDPOINT = {
    **dict.fromkeys(("budget", "price_in", "price_out", "replay", "cache", "record")),
    "base_url": "http://host/v1",
    "api_key_env": "NO_SUCH_KEY",
    "model": "m",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"base_url": "host"}, ("coach.address", "coach.base_url")),
        ({"api_key_env": "ODD_KEY"}, ("coach.key",)),
    ],
)
def test_an_endpoints_flags(changed, expected, monkeypatch):
    monkeypatch.setenv("ODD_KEY", "no\nkey")
    assert briefs(coach.endpoint_problems(SimpleNamespace(**GOOD_ENDPOINT | changed))) == [expected]


def test_modules_that_ask_an_endpoint_are_an_extra(monkeypatch):
    monkeypatch.setattr(coach, "find_spec", lambda name: None)
    with refused(("coach.modules",)):
        coach.require_modules()


def test_a_limit_at_which_verdicts_come_too_late():
    args = space(
        coach__per_minute=1,
        coach__deadline=60.0,
        rollout__batch_size=8,
        rollout__n_samples_per_prompt=1,
    )
    run = SimpleNamespace(args=args, recipe=SimpleNamespace(roles={"a": None}))
    assert briefs(coach._too_slow(run)) == [("coach.too_slow", "coach.per_minute")]


# --- the host


def test_upstream_is_not_installed(monkeypatch):
    monkeypatch.setattr(upstream_cli.importlib.util, "find_spec", lambda name: None)
    assert found_by(upstream_cli.upstream_root.__wrapped__) == [("upstream.missing",)]


MAIN = """
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    args = parser.parse_args()
    print("careful")
    1 / 0
    train(args)
"""


def test_upstreams_command_line(tmp_path):
    (tmp_path / "cli").mkdir()
    file = tmp_path / upstream_cli.CLI
    assert found_by(upstream_cli.build_parser, tmp_path) == [
        ("upstream.syntax", "train_ppo_ray.py")
    ]
    file.write_text("def (\n")
    assert found_by(seams.syntax_tree, file) == [("upstream.syntax", "train_ppo_ray.py:1")]
    file.write_text("")
    assert found_by(upstream_cli.build_parser, tmp_path) == [
        ("upstream.unsupported", "train_ppo_ray.py")
    ]
    file.write_text(MAIN)
    problems, warnings = upstream_cli.validate(
        space(train__agent_func_path=None, reward__remote_url=None), tmp_path
    )
    assert (briefs(problems), briefs(warnings)) == (
        [("upstream.validation",)],
        [("upstream.warning",)],
    )
    assert briefs(upstream_cli.validate(SimpleNamespace(), tmp_path)[0]) == [
        ("upstream.validation",)
    ]


def test_a_wheel_that_has_no_room(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("x", "")
    folder = tmp_path / "a.whl" / "below a file"
    assert found_by(trees._unpack, tmp_path / "a.whl", folder) == [("trees.unpack", "a.whl")]


def test_operators_without_a_compiler(monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ})
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert found_by(prebuild.main) == [("machine.compiler",)]


def test_operators_that_cannot_be_built(monkeypatch, tmp_path):
    monkeypatch.setattr(prebuild, "extensions_folder", lambda device: tmp_path)
    monkeypatch.setattr(prebuild.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1))
    assert found_by(prebuild.build_missing_operators) == [("machine.operators",)]


# --- plugins and files


def test_a_plugin_that_needs_a_module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_plugin.py").write_text("import nothing_of_that_name")
    assert found_by(load, "odd_plugin") == [("plugin.needs_module", "odd_plugin")]


def test_a_recipe_of_too_many_values(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe_yaml, "MAX_YAML_VALUES", 4)
    (tmp_path / "recipe.yaml").write_text("a: [1, 2, 3, 4, 5]")
    expected = ("recipe.too_large", "recipe.yaml")
    assert found_by(recipe_yaml.read_recipe, tmp_path / "recipe.yaml") == [expected]


# --- imports


def test_imports(tmp_path):
    (tmp_path / "train.jsonl").write_text("")
    assert found_by(items.read_items, tmp_path / "train.jsonl", None, None, None) == [
        ("imports.no_items", "train.jsonl")
    ]
    report, source = Report(), SimpleNamespace(where=lambda *key: "a.yaml:3")
    imported_policies._models(
        source, [SimpleNamespace(role="solver", config={"pretrain": "$MODEL"})], None, report
    )
    roles._check_fields("{problem} {later}", "p", (), "solver", {"problem"}, report)
    few = tasks.Tasks([{"prompt": "x"}], [], tmp_path / "train.jsonl")
    tasks.fit_flags(few, {"train.batch_size": 2}, report)
    assert briefs(report.problems) == [
        ("imports.no_model", "a.yaml:3", "pretrain", "solver"),
        ("imports.early_field",),
        ("imports.too_few", "train.jsonl"),
    ]


# --- models


def test_a_tokenizer_that_ends_no_turn():
    chat = ChatFormat(SimpleNamespace(chat_template="x", eos_token_id=None), "judge")
    assert found_by(lambda: chat.end_of_turn) == [("models.no_end", "judge")]


def test_a_tokenizer_that_cannot_be_loaded(tmp_path):
    args = space(actor__model_name_or_path=str(tmp_path), data__disable_fast_tokenizer=False)
    session = SimpleNamespace(plan=space(options__trust_remote_code=False), args={"solver": args})
    assert found_by(Session._tokenizers, session) == [("models.tokenizer", "solver")]


def test_demonstrations_that_fail_when_a_run_begins():
    def demonstrate(task, rng):
        raise LookupError

    run = SimpleNamespace(
        section=lambda kind: SimpleNamespace(),
        demonstrations_module=SimpleNamespace(demonstrate=demonstrate),
        policies=[SimpleNamespace(name="a", model="tiny")],
    )
    session = space(plan__run=run, cast__policies=["a"], cast__members={}, train_tasks=["?"])
    ((code, *_),) = found_by(Session.warm_start, session, None)
    assert code == "warm_start.demonstration"


# --- the plan


def test_a_dataset_of_the_hub(tmp_path, monkeypatch):
    import datasets

    run = space(
        args__data__input_key="text", args__data__label_key="label", given={"data.input_key"}
    )
    (tmp_path / "empty").mkdir()
    name, flag = str(tmp_path / "empty"), "data.prompt_dataset"
    assert found_by(_hub_tasks, name, run, None, flag) == [("tasks.hub", flag, name)]
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_dict({"text": ["a"]})
    )
    assert found_by(_hub_tasks, "some/data", run, None, flag) == [
        ("tasks.no_column", flag, "some/data")
    ]


def test_an_evaluation_that_nothing_scores():
    plan = SimpleNamespace(
        run=space(
            recipe__grader=None,
            args__reward__remote_url=None,
            args__eval__dataset="a.jsonl",
            section=lambda kind: None,
        ),
        plugins=SimpleNamespace(claims=lambda hook, run: hook == "marl_score_action"),
    )
    assert ("scores.evaluation", "eval.dataset") in briefs(files._scorers(plan))


def test_a_tool_in_a_folder_that_nothing_gives():
    async def run(call):
        return None

    tool = Tool("write", run, lambda text: [], in_workspace=True)
    plugins = SimpleNamespace(
        owners=lambda hook, run=None: (), call_while_planning=lambda hook, run: [[tool]]
    )
    assert found_by(resolve_plugins.tools_of, plugins, None) == [("tools.workspace", "write")]


def test_a_tool_that_the_run_does_not_have():
    assert found_by(use_tool, SimpleNamespace(tools={}), "python", "the coach") == [
        ("tools.unknown", "python")
    ]


def test_returns_of_several_roles_that_are_normalised_together():
    flags = {
        "scope": "trajectory",
        "normalise": "global",
        "discount": 1.0,
        "distance": "longest",
        "origin": "action",
    }
    run = space(**{f"args__reinforce_pp__{name}": value for name, value in flags.items()})
    run.estimator, run.given = "reinforce", {}
    run.recipe = SimpleNamespace(roles=["a", "b"], populations={})
    expected = ("reinforce_pp.trajectory_scope", "reinforce_pp.scope", "reinforce_pp.normalise")
    assert briefs(reinforce_pp.marl_configure(run=run)) == [expected]


# --- the records


def test_a_folder_that_cannot_be_locked(tmp_path, monkeypatch):
    def without_locks(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without_locks)
    assert found_by(_locked, "ckpt.path", tmp_path) == [
        ("run_folder.no_lock", "ckpt.path", tmp_path.name)
    ]


def test_records_that_are_missing(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert briefs(cut_back(tmp_path, 2)) == [("records.missing", "metrics.jsonl")]


def test_a_command_that_was_changed(tmp_path, monkeypatch):
    file = tmp_path / run_folder.COMMAND_FILE
    file.parent.mkdir()
    file.write_text("")
    monkeypatch.setattr(run_folder, "read_entries", lambda path: [{"digest": "0"}])
    assert found_by(run_folder._last_entry, tmp_path) == [("run_folder.damaged", file.name)]


def test_tables_and_pages_are_extras(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with refused(("export.extra", "to")), tables.arrow(tmp_path / "a", "parquet", {}):
        pass
    assert found_by(dispatch, ["inspect", str(tmp_path)]) == [("viewer.extra", "openrlhf inspect")]


def test_a_trajectory_without_times(monkeypatch):
    def untimed(trajectory, wanted):
        raise ValueError("recorded without times")

    monkeypatch.setattr(trace, "traced", untimed)
    record = SimpleNamespace(step=1, value=None, place="trajectories.jsonl:1")
    run = SimpleNamespace(recorded=lambda wanted: [record])
    assert found_by(lambda: [*trace.trace_of(run)]) == [
        ("trace.untraceable", "trajectories.jsonl:1")
    ]


def test_checkpoints_that_cannot_be_written(tmp_path):
    # A folder where a file has to go.
    (tmp_path / "solver" / "_actor" / "latest").mkdir(parents=True)
    with refused(("resume.unwritable", "ckpt.path")):
        Checkpoints(tmp_path, 1, {}).open(resume=False)


# --- processes


def test_a_cluster_that_is_not_there(monkeypatch):
    def unreachable(**options):
        raise ConnectionError("nobody answers")

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(ray, "init", unreachable)
    run = SimpleNamespace(device="cuda", recipe=space(limits__silence_seconds=1.0))
    with refused(("devices.ray",)), cluster.ray_cluster(run, False, None):
        pass


@pytest.mark.parametrize(
    ("raised", "expected"), [(Exception("not up in time."), RunEnded), (KeyError("x"), KeyError)]
)
def test_a_node_that_is_not_up_in_time_ends_the_run_and_no_fault_is_taken_for_it(
    monkeypatch, raised, expected
):
    def slow(**options):
        raise raised

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(ray, "init", slow)
    run = SimpleNamespace(device="cuda", recipe=space(limits__silence_seconds=1.0))
    with pytest.raises(expected) as caught, cluster.ray_cluster(run, False, None):
        pass
    assert str(raised) in str(caught.value)


# --- credit and tools


@pytest.mark.parametrize(
    ("flags", "with_coach", "code"),
    [
        ({"alpha": 0, "beta": 0}, False, "reward_backprop.zero"),
        ({"prompt": "mine.md"}, False, "reward_backprop.prompt"),
        ({"attributor": "model"}, True, "reward_backprop.sleeping"),
    ],
)
def test_reward_backprop(flags, with_coach, code):
    asker = SimpleNamespace(transport=object.__new__(PolicyTransport))
    asker.transport.policy = "judge"
    states = {BackpropState: BackpropState(), Askers: SimpleNamespace(first=asker)}
    run = SimpleNamespace(
        args=SimpleNamespace(
            reward_backprop=SimpleNamespace(
                **{"alpha": 1, "beta": 1, "attributor": "rules", "prompt": None} | flags
            )
        ),
        recipe=SimpleNamespace(roles={}),
        plugins=["marl_plugins.coach"] * with_coach + ["marl_plugins.reward_backprop"],
        state=states.get,
        policy_args={"judge": space(vllm__enable_sleep=True)},
    )
    assert briefs(reward_backprop.marl_configure(run=run)) == [(code,)]


def test_a_server_without_tools(monkeypatch):
    class Silent:
        functions = ()

        def __init__(self, server):
            pass

        async def client(self):
            pass

        close = client

    monkeypatch.setattr(servers, "MCPSession", Silent)
    server = SimpleNamespace(name="a", config=SimpleNamespace(tools=()))
    assert found_by(lambda: asyncio.run(servers.MCPServer.learn(server))) == [
        ("mcp.no_tools", "tools.mcp.a")
    ]
