"""Checks of single functions, each called with one bad input: the code and the place of what they
return.

What a whole plan says is in the tests of its parts; `openrlhf docs problems` prints the sentence of
every code.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from refusals import brief, briefs, found_by, refused

from marl_plugins import flat_sync
from marl_plugins.builtin.tools.mcp import checks as mcp
from marl_plugins.builtin.tools.mcp.section import MCPServerConfig
from marl_plugins.builtin.tools.sql.databases import database_problems
from marl_plugins.cli import dispatch
from marl_plugins.coach import flags as coach
from marl_plugins.core.estimators import Estimator, check_estimator
from marl_plugins.core.recipe.addresses import wrong_address, wrong_variables
from marl_plugins.core.recipe.recipe_yaml import Origins
from marl_plugins.core.recipe.schema import PolicyConfig
from marl_plugins.core.section import Section
from marl_plugins.core.tools import Function, Tool
from marl_plugins.engine.plan import calls, sections
from marl_plugins.engine.plan.checks import numbers, placement, policies
from marl_plugins.process_groups import checks as seats
from marl_plugins.process_groups.seats import Seating
from marl_plugins.sandbox import checks as sandbox_checks
from marl_plugins.sandbox.section import SandboxConfig
from marl_plugins.streaming import checks as streaming


def space(**values):
    """Nested attributes: `space(a__b=1).a.b`."""
    root = SimpleNamespace()
    for name, value in values.items():
        *parts, last = name.split("__")
        below = root
        for part in parts:
            below = below.__dict__.setdefault(part, SimpleNamespace())
        setattr(below, last, value)
    return root


# --- addresses and variables
# ----------------------------------------------------------------------------------------------


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
# --------------------------------------------------------------------------------------------------


class Mine(Estimator):
    def estimate(self, rows, rewards):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("fields", "run", "code"),
    [
        ({"scope": "word"}, {}, "estimator.field"),
        ({"gamma": 2}, {}, "estimator.gamma"),
        ({"needs_critic": True}, {}, "estimator.critic"),
        ({"scope": "group"}, {}, "estimator.no_group"),
        ({"scope": "action", "group_by": "task"}, {}, "estimator.scope"),
        ({"scope": "group", "group_by": "task"}, {"samples": 1}, "estimator.samples"),
        ({"scope": "group", "group_by": "task"}, {"turns": 2}, "estimator.turns"),
        ({"scope": "group", "group_by": "task"}, {"roles": 2}, "estimator.roles"),
    ],
)
def test_estimators(fields, run, code):
    found = check_estimator(Mine(**fields), **{"samples": 2, "roles": 1, **run})
    assert briefs(found) == [(code, "Mine")]


# --- policies
# --------------------------------------------------------------------------------------------------


def policy(name, trainable=True, follows=""):
    return SimpleNamespace(name=name, trainable=trainable, follows=follows)


def run_of(roles=(), configs=None, device="cpu", **more):
    mapping = dict(roles)
    recipe = SimpleNamespace(
        mapped_roles=[*mapping], policies_of=lambda role: (mapping[role],), policies=configs or {}
    )
    return SimpleNamespace(recipe=recipe, device=device, **more)


@pytest.mark.parametrize(
    ("run", "of_run", "expected"),
    [
        (run_of(), [policy("a"), policy("a")], ("policies.twice",)),
        (run_of({"r": "b"}), [policy("a")], ("roles.no_policy",)),
        (run_of(configs={"idle": PolicyConfig()}), [policy("a")], ("policies.unused",)),
        (run_of(), [policy("a b")], ("policies.name", "a b")),
        (run_of(), [policy("a", trainable=False)], ("policies.frozen",)),
    ],
)
def test_policies(run, of_run, expected):
    assert briefs(policies.check_policies(run, of_run, {}, Origins())) == [expected]


@pytest.mark.parametrize(
    ("run", "follower", "code", "key"),
    [
        (run_of(), policy("b", False, "b"), "policies.itself", "follows"),
        (run_of(), policy("b", False, "c"), "policies.unknown", "follows"),
        (run_of(), policy("b", False, "frozen"), "policies.untrained", "follows"),
        (run_of(), policy("b", True, "a"), "policies.trained_follower", "trainable"),
        (
            run_of(configs={"b": PolicyConfig(model="m")}),
            policy("b", False, "a"),
            "policies.model_of_follower",
            "model",
        ),
        (run_of(device="cuda"), policy("b", False, "a"), "policies.follower_on_gpus", "follows"),
    ],
)
def test_followers(run, follower, code, key):
    found = policies.check_followers(
        run, [policy("a"), policy("frozen", False), follower], Origins()
    )
    assert briefs(found) == [(code, f"policies.b.{key}")]


# --- numbers
# --------------------------------------------------------------------------------------------------


GOOD_NUMBERS = {
    "train__dynamic_batch_enable": False,
    "train__max_tokens_per_gpu": 10,
    "train__colocate_all": False,
    "rollout__max_tokens_per_gpu": None,
    "data__max_len": 100,
    "ds__ring_attn_size": 1,
    "ds__packing_samples": False,
    "ds__attn_implementation": "eager",
    "ds__enable_sleep": False,
    "ds__zero_stage": 2,
    "vllm__enable_sleep": False,
    "vllm__num_engines": 1,
    "vllm__tensor_parallel_size": 1,
    "actor__num_nodes": 1,
    "actor__num_gpus_per_node": 1,
    "actor__model_name_or_path": "tiny",
    "critic__model_name_or_path": "tiny",
    "critic__num_nodes": 1,
    "critic__num_gpus_per_node": 1,
    "algo__advantage__estimator": "reinforce",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"train__dynamic_batch_enable": True},
            ("lengths.micro_batch", "train.max_tokens_per_gpu"),
        ),
        (
            {
                "train__dynamic_batch_enable": True,
                "train__max_tokens_per_gpu": 200,
                "rollout__max_tokens_per_gpu": 10,
            },
            ("lengths.micro_batch", "rollout.max_tokens_per_gpu"),
        ),
        (
            {"ds__packing_samples": True, "ds__attn_implementation": "flex"},
            ("devices.packing", "ds.packing_samples"),
        ),
    ],
)
def test_batching(changed, expected):
    assert briefs(numbers._batching("cpu", space(**GOOD_NUMBERS | changed))) == [expected]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"ds__ring_attn_size": 2}, "devices.ring_attention"),
        ({"ds__attn_implementation": "flash_attention_2"}, "devices.attention"),
        ({"vllm__enable_sleep": True}, "devices.no_gpu"),
    ],
)
def test_what_needs_gpus(changed, code):
    assert briefs(placement._on_cpu(space(**GOOD_NUMBERS | changed))) == [(code,)]


# --- gradients that are taken early
# ----------------------------------------------------------------------------------------


GOOD_POLICY = {
    "train__max_epochs": 1,
    "ds__zero_stage": 2,
    "ds__param_dtype": "bf16",
    "ds__ring_attn_size": 1,
    "actor__gradient_checkpointing_enable": False,
    "actor__gradient_checkpointing_reentrant": False,
    "actor__model_name_or_path": "tiny",
    "actor__policy_loss_type": "ppo",
    "algo__advantage__is_correction_level": "off",
    "reward__clip_range": None,
}


@pytest.mark.parametrize(
    ("changed", "estimator", "code", "flag"),
    [
        ({"train__max_epochs": 2}, "reinforce", "streaming.epochs", "train.max_epochs"),
        ({"ds__zero_stage": 3}, "reinforce", "streaming.zero_stage", "ds.zero_stage"),
        ({"ds__param_dtype": "fp16"}, "reinforce", "streaming.dtype", "ds.param_dtype"),
        (
            {
                "actor__gradient_checkpointing_enable": True,
                "actor__gradient_checkpointing_reentrant": True,
            },
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
def test_a_policy_whose_gradients_cannot_be_taken_early(changed, estimator, code, flag):
    found = streaming._of_a_policy(
        space(**GOOD_POLICY | changed), "p", SimpleNamespace(estimator=estimator)
    )
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


@pytest.mark.parametrize(
    ("device", "with_ray", "code"),
    [
        ("cpu", False, "flat_sync.cpu"),
        ("cuda", True, "flat_sync.ray"),
        ("cuda", False, "flat_sync.unrecorded"),
    ],
)
def test_flat_sync(device, with_ray, code):
    run = SimpleNamespace(
        device=device,
        policies=[SimpleNamespace(name="a", trainable=True)],
        args=space(vllm__sync_with_ray=with_ray),
        policy_args={"a": space(ds__lora__rank=0, train__colocate_all=False)},
    )
    assert briefs(flat_sync.marl_configure(run=run)) == [(code, "marl_plugins.flat_sync")]


# --- sections
# --------------------------------------------------------------------------------------------------


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
# --------------------------------------------------------------------------------------------------


SERVICE = {"isolation": "service", "url": "http://127.0.0.1:8080"}


@pytest.mark.parametrize(
    ("settings", "packages", "expected"),
    [
        ({"imports": ["nowhere.at.all"]}, True, ("sandbox.import", "tools.sandbox.imports.0")),
        ({"imports": ["json"]}, False, ("sandbox.packages", "tools.sandbox.imports")),
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
# -------------------------------------------------------------------------------


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


def test_a_database(tmp_path):
    import sqlite3

    assert briefs(database_problems(tmp_path / "none.db", ())) == [
        ("sql.database", "tools.sql.database", "none.db")
    ]
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
        ({"calls": "hermess"}, [tool("t", "f")], ("calls", "calls.parser")),
        ({"reasoning": "qwen3"}, [tool("t", "f")], ("reasoning", "calls.reasoning")),
        ({"calls": "hermes"}, [], ("calls", "calls.no_tools")),
        ({"calls": "hermes"}, [tool("t")], ("calls", "calls.no_functions")),
        ({}, [tool("t", "f"), tool("u", "f")], ("tools", "calls.same_function")),
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
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "trained", "nodes", "code"),
    [
        ("cuda", True, 1, "seats.gpus"),
        ("cpu", False, 1, "seats.unused"),
        ("cpu", True, 0, "seats.nodes"),
    ],
)
def test_seats(device, trained, nodes, code):
    args = space(**GOOD_NUMBERS)
    run = SimpleNamespace(device=device, policies=[policy("p", trained)], policy_args={"p": args})
    found = seats.check_seating(run, Seating(1, nodes, None))
    assert briefs(found) == [(code, "marl_plugins.process_groups")]


# --- commands
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trian"], ("command.unknown", "openrlhf")),
        (["doctor", "--nonsense"], ("doctor.argument", "openrlhf doctor")),
        (["eval", "--recipe", "mathchat", "--resume", "runs/a"], ("eval.resumed", "resume")),
    ],
)
def test_commands(words, expected):
    assert found_by(dispatch, words) == [expected]


# --- an endpoint's flags
# --------------------------------------------------------------------------------------------------


GOOD_ENDPOINT = {
    **dict.fromkeys(("budget", "price_in", "price_out", "replay", "cache", "record")),
    "base_url": "http://host/v1",
    "api_key_env": "NO_SUCH_KEY",
    "model": "m",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"budget": 5.0}, ("coach.no_price",)),
        ({"replay": "a.jsonl", "cache": "b.jsonl"}, ("coach.replay",)),
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
