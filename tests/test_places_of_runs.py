"""Checks of the host, of files and of a run's parts, each called with one bad input: the code and
the place of what they return.

As test_places_of_checks.py, for what is not checked by a function of the plan alone.
"""

import asyncio
import errno
import fcntl
import os
import shutil
import sys
import zipfile
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import RayActorError
from refusals import brief, briefs, found_by, refused
from test_places_of_checks import GOOD_NUMBERS, policy, space

from marl_plugins import reward_backprop
from marl_plugins.asking.askers import Askers
from marl_plugins.asking.policy import PolicyTransport
from marl_plugins.builtin import reinforce_pp
from marl_plugins.builtin.recipe import _hub_tasks
from marl_plugins.builtin.tools.mcp import servers
from marl_plugins.cli import dispatch
from marl_plugins.commands.imports import items, policies, roles, tasks
from marl_plugins.commands.imports.report import Report
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.loading import load, load_file
from marl_plugins.core.recipe import recipe_yaml
from marl_plugins.core.run import use_tool
from marl_plugins.core.tools import Tool
from marl_plugins.engine.hosts import prebuild, releases, seams, trees, upstream_cli
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.plan import files, models, resolve_plugins
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.checks import numbers
from marl_plugins.engine.processes import cluster
from marl_plugins.engine.processes.launch import not_started
from marl_plugins.engine.records import run_folder, tables, trace
from marl_plugins.engine.records.write import _locked, cut_back
from marl_plugins.engine.runtime.checkpoints import Checkpoints
from marl_plugins.engine.runtime.session import Session
from marl_plugins.process_groups.backend import SharedSeats
from marl_plugins.reward_backprop import BackpropState

# --- the host
# --------------------------------------------------------------------------------------------------


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


def test_a_release_with_another_loss():
    assert brief(releases.refusal("0.10.3")) == ("upstream.loss", "openrlhf 0.10.3")


def test_a_wheel_that_has_no_room(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("x", "")
    folder = tmp_path / "a.whl" / "below a file"
    assert found_by(trees._unpack, tmp_path / "a.whl", folder) == [("trees.unpack", "a.whl")]


def test_operators_without_a_compiler(monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ})
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert found_by(prebuild.main) == [("machine.compiler",)]


# --- plugins and files
# --------------------------------------------------------------------------------------------------


def test_plugins(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_plugin.py").write_text("import nothing_of_that_name")
    assert found_by(load, "odd_plugin") == [("plugin.needs_module", "odd_plugin")]
    (tmp_path / "needy.py").write_text("requires = 3")
    assert found_by(Plugins, [str(tmp_path / "needy.py")]) == [
        ("plugin.requires", "needy.py", "requires")
    ]
    wrapper = (
        "from marl_plugins import hookimpl\n@hookimpl(wrapper=True)\ndef marl_log(): return 1\n"
    )
    (tmp_path / "wrapper.py").write_text(wrapper)  # it yields nothing
    assert found_by(Plugins, [str(tmp_path / "wrapper.py")]) == [("plugin.signature", "wrapper.py")]
    assert found_by(load_file, tmp_path) == [("files.no_file", tmp_path.name)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:\n  <<: {b: 1}", ("recipe.merge_key", "recipe.yaml:2")),
        ("a: [1, 2, 3, 4, 5]", ("recipe.too_large", "recipe.yaml")),
    ],
)
def test_recipes(text, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe_yaml, "MAX_YAML_VALUES", 4)
    (tmp_path / "recipe.yaml").write_text(text)
    assert found_by(recipe_yaml.read_recipe, tmp_path / "recipe.yaml") == [expected]


def test_nothing_was_asked_for():
    assert found_by(build_plan, []) == [("flags.nothing",)]


# --- imports
# --------------------------------------------------------------------------------------------------


def test_imports(tmp_path):
    (tmp_path / "train.jsonl").write_text("")
    assert found_by(items.read_items, tmp_path / "train.jsonl", None, None, None) == [
        ("imports.no_items", "train.jsonl")
    ]
    report, source = Report(), SimpleNamespace(where=lambda *key: "a.yaml:3")
    policies._models(
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
# --------------------------------------------------------------------------------------------------


def test_the_folder_of_a_model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    assert briefs(models._config_problems(folder)) == [("models.no_config", "model")]
    assert briefs(models.tokenizer_problems(folder)) == [("models.no_tokenizer", "model")]
    (folder / "tokenizer_config.json").write_text("{}")
    assert briefs(models.tokenizer_problems(folder)) == [("models.no_template", "model")]


def test_a_process_that_raises_while_it_starts():
    error = RayActorError(error_msg="ValueError: no such model", actor_init_failed=True)
    assert briefs(not_started("solver", "some/model", error).problems) == [
        ("models.start", "solver")
    ]


def test_a_tokenizer_that_ends_no_turn():
    chat = ChatFormat(SimpleNamespace(chat_template="x", eos_token_id=None), "judge")
    assert found_by(lambda: chat.end_of_turn) == [("models.no_end", "judge")]


def test_a_tokenizer_that_cannot_be_loaded(tmp_path):
    args = space(actor__model_name_or_path=str(tmp_path), data__disable_fast_tokenizer=False)
    session = SimpleNamespace(plan=space(options__trust_remote_code=False), args={"solver": args})
    assert found_by(Session._tokenizers, session) == [("models.tokenizer", "solver")]


# --- the plan
# --------------------------------------------------------------------------------------------------


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


def test_groups_of_ray_for_several_policies(monkeypatch):
    for other in ("_lengths", "_batching", "check_placement", "_unlikely"):  # of one policy each
        monkeypatch.setattr(numbers, other, lambda *_: [])
    wanted = {
        "ckpt__save_steps": 1,
        "ckpt__disable_ds": False,
        "vllm__sync_with_ray": True,
        "train__batch_size": 1,
    }
    args = space(**GOOD_NUMBERS | wanted)
    run = SimpleNamespace(
        args=args, trajectories=1, device="cuda", policies=[policy("a"), policy("b")]
    )
    run.recipe = space(limits__task_seconds=60.0)
    run.policy_args, run.logical_gpus = {"a": args, "b": args}, None
    assert briefs(numbers.check_numbers(run)) == [("plan.sync_with_ray",)]


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


def test_a_file_without_a_reward_function(tmp_path):
    (tmp_path / "reward.py").write_text("")
    plan = SimpleNamespace(
        run=space(args__reward__remote_url=str(tmp_path / "reward.py"), recipe__grader=None)
    )
    assert briefs(files._reward_function(plan)) == [("reward.no_function", "reward.remote_url")]


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
    run.estimator, run.recipe, run.given = (
        "reinforce",
        SimpleNamespace(roles=["a", "b"], populations={}),
        {},
    )
    expected = ("reinforce_pp.trajectory_scope", "reinforce_pp.scope", "reinforce_pp.normalise")
    assert briefs(reinforce_pp.marl_configure(run=run)) == [expected]


# --- the records
# --------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_locked(tmp_path, monkeypatch):
    def without_locks(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without_locks)
    assert found_by(_locked, "ckpt.path", tmp_path) == [
        ("run_folder.no_lock", "ckpt.path", tmp_path.name)
    ]


def test_records_that_are_missing_or_out_of_order(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert briefs(cut_back(tmp_path, 2)) == [("records.missing", "metrics.jsonl")]
    (tmp_path / "metrics.jsonl").write_text('{"step": 2}\n{"step": 1}\n{"step": 3}\n')
    assert found_by(cut_back, tmp_path, 3) == [("records.order", "metrics.jsonl:2")]


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
    (tmp_path / "solver" / "_actor" / "latest").mkdir(
        parents=True
    )  # a folder where a file has to go
    with refused(("resume.unwritable", "ckpt.path")):
        Checkpoints(tmp_path, 1, {}).open(resume=False)


# --- processes
# --------------------------------------------------------------------------------------------------


def test_a_cluster_that_is_too_small(monkeypatch):
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 1, "object_store_memory": 1})
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(cluster, "needed_devices", lambda run: {"solver": 2})
    monkeypatch.setattr(cluster, "shown_devices", lambda run: "solver 2")
    monkeypatch.setattr(cluster, "too_few", lambda run, found: "ask for fewer")
    assert found_by(cluster._check_devices, SimpleNamespace(processes=None)) == [
        ("devices.too_few",)
    ]
    backend = SimpleNamespace(
        seating=SimpleNamespace(seats=1, nodes=1),
        devices=lambda run: {},
        object_store_bytes=lambda run: 2,
    )
    assert found_by(SharedSeats.check_cluster, backend, None) == [("seats.object_store",)]


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
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "with_coach", "code"),
    [
        ({"alpha": 0, "beta": 0}, False, "reward_backprop.zero"),
        ({"prompt": "mine.md"}, False, "reward_backprop.prompt"),
        ({"attributor": "model"}, False, "reward_backprop.no_model"),
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
