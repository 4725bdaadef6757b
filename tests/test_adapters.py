"""Adapters: who shares what, what is refused, one pool of engines for several policies, and tensors
that are there once."""

import asyncio
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from refusals import found_by, refused
from test_balance import LOADING
from virtual_time import SimulatedEngine, run

from marl_plugins.adapters.bases import bases_of
from marl_plugins.adapters.blob import packed, packed_folder, unpacked
from marl_plugins.builtin.routing import least_loaded
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.process_backend import TrainingSpec
from marl_plugins.core.workflow import Call, Sampling
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.devices import needed_devices
from marl_plugins.engine.plan.engines_only import only_players, with_models
from marl_plugins.engine.processes.engines import EnginePool, RestartBudget
from marl_plugins.engine.runtime.tiny_model import resolve

WORDS = [
    "--recipe",
    "mathchat/tiny.yaml",
    "--plugin",
    "marl_plugins.adapters",
    "--ds.lora.rank",
    "8",
]


# --- who shares what
# --------------------------------------------------------------------------------------------------


def bases(*words):
    return bases_of(build_plan([*WORDS, *words]).run)


def test_all_policies_of_a_model_share_it():
    (base,) = bases("--policy.coder.ds.lora.rank", "3")
    assert (base.model, base.adapters, base.owner) == (
        "tiny",
        ("solver", "coder", "verifier"),
        "solver",
    )
    assert base.slots == {"solver": 1, "coder": 2, "verifier": 3}


@pytest.mark.parametrize(("rank", "of_engines"), [(3, 8), (300, 320)])
def test_engines_are_started_for_the_next_rank_that_they_know(rank, of_engines):
    plan = build_plan([*WORDS[:-1], str(rank), "--policy.coder.ds.lora.rank", "1"])
    assert bases_of(plan.run)[0].engine_rank(plan.run) == of_engines


def test_each_model_is_shared_by_its_own_adapters():
    words = [
        "--policy.coder.actor.model_name_or_path",
        "tiny:seed=1",
        "--policy.verifier.ds.lora.rank",
        "0",
    ]
    run = build_plan([*WORDS, *words]).run
    assert [(base.model, base.adapters) for base in bases_of(run)] == [
        ("tiny", ("solver",)),
        ("tiny:seed=1", ("coder",)),
    ]
    assert [run.processes.engines_of(run, name) for name in ("solver", "coder", "verifier")] == [
        "solver",
        "coder",
        "verifier",
    ]


def test_on_gpus_one_model_is_estimated_and_its_adapters_take_turns(monkeypatch):
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    apart = [
        "--recipe",
        "mathchat/tiny.yaml",
        "--actor.model_name_or_path",
        "hub/model-1B",
        "--ds.zero_stage",
        "2",
    ]
    whole = describe(build_plan(apart))
    shared = describe(build_plan([*apart, *WORDS[2:]]))
    assert [*shared["estimate"]["memory"]] == ["solver"] and len(whole["estimate"]["memory"]) == 3
    assert "weights 2 GB)" in shared["estimate"]["memory"]["solver"]
    assert (shared["devices_together"], whole["devices_together"]) == (2, 6)


def test_frozen_policies_and_followers_are_answered_by_the_same_engines(tmp_path):
    folder = shutil.copytree("recipes/mathchat", tmp_path / "mathchat")
    recipe = folder / "mixed.yaml"
    recipe.write_text(
        """
        extends: tiny.yaml
        plugins: [marl_plugins.coach, marl_plugins.adapters]
        mapping: {solver: solver, coder: old, verifier: still}
        policies:
          old: {follows: solver}
          still: {trainable: false}
        flags: {ds.lora.rank: 8}
        """
    )
    run = build_plan(["--recipe", str(recipe)]).run
    (base,) = bases_of(run)
    assert (base.adapters, base.following, base.frozen) == (("solver",), ("old",), ("still",))
    assert base.slots == {"solver": 1, "old": 2}
    assert {run.processes.engines_of(run, policy.name) for policy in run.policies} == {"solver"}
    (base,) = bases_of(
        build_plan(["--recipe", str(recipe), "--policy.still.vllm.num_engines", "2"]).run
    )
    assert base.frozen == ()  # it has engines of its own kind
    for flag, value in (("vllm.num_engines", "2"), ("data.max_len", "200")):
        words = ["--recipe", str(recipe), f"--policy.old.{flag}", value]
        assert found_by(build_plan, words) == [("adapters.shared", "old", flag)]


# --- what is refused
# --------------------------------------------------------------------------------------------------


def problems(*words):
    return found_by(build_plan, [*WORDS, *words])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--ds.lora.dropout", "0.1"], ("adapters.dropout", "ds.lora.dropout")),
        (
            ["--ds.lora.target_modules", "q_proj", "lm_head"],
            ("adapters.targets", "ds.lora.target_modules"),
        ),
        (["--algo.advantage.estimator", "gae"], ("adapters.critic",)),
        (["--ds.use_liger_kernel"], ("adapters.liger", "ds.use_liger_kernel")),
        (["--policy.coder.data.max_len", "200"], ("adapters.shared", "coder", "data.max_len")),
        (
            ["--plugin", "marl_plugins.process_groups"],
            (
                "plugin.both",
                "marl_plugins.adapters",
                "marl_plugins.process_groups",
                "marl_processes",
            ),
        ),
    ],
)
def test_what_an_adapter_cannot_be_is_refused_with_its_flag(words, expected):
    assert expected in problems(*words)


def test_zero_3_is_refused_on_gpus(monkeypatch):
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    found = found_by(build_plan, [*WORDS, "--ds.zero_stage", "3"])
    assert ("adapters.zero_stage", "ds.zero_stage") in found


def test_an_adapter_without_the_plugin_is_refused():
    plain = WORDS[:2]
    assert found_by(build_plan, [*plain, "--ds.lora.rank", "8"])[0][0] == "policies.adapter"


def test_a_plugin_without_adapters_says_so():
    assert "adapters.none" in {problem.code for problem in build_plan(WORDS[:4]).run.warnings}


# --- one pool for several policies
# ----------------------------------------------------------------------------------------


class SharedEngine(SimulatedEngine):
    """An engine that holds the weights of several policies, each of a version of its own."""

    def __init__(self, versions, seconds):
        super().__init__("", lambda call: seconds, places=9)
        self.versions = dict(versions)

    async def answer(self, call, silence):
        before = self.versions[call.policy]
        given = await super().answer(call, silence)
        version = before if before == self.versions[call.policy] else -1
        return replace(given, policy=call.policy, version=version)

    async def push(self, policy, version):
        self.versions[policy] = -1
        await asyncio.sleep(LOADING)
        self.versions[policy] = version


def shared_pool(seconds=5.0, budget=1):
    """Two policies over one engine, of versions 3 and 8; what a new engine was given."""
    restored = []

    def restore(policy, version):
        async def give(handle):
            restored.append(policy)
            await handle.engine.push(policy, version)

        return give

    def engine():
        return SharedEngine({"p": 0, "q": 0}, seconds)

    budget = RestartBudget(budget)
    pool = EnginePool("p", [engine()], lambda dead: engine(), restore("p", 3), budget, 600.0, 9)
    pool.serve("q", restore("q", 8))
    pool.versions = {"p": (3,), "q": (8,)}
    pool.engines[0].versions = {"p": 3, "q": 8}
    return pool, restored


def request(policy, number=1):
    return Call(
        policy, (1, 2), Sampling(1.0, 1.0, 8, 1000), 8, number, "a", "t", 0, f"a.{number}", 1, 0
    )


def test_a_push_of_one_policy_leaves_the_others_answers_valid():
    async def go():
        pool, _ = shared_pool()
        asked = {
            policy: asyncio.create_task(pool.generate(request(policy), least_loaded))
            for policy in "pq"
        }
        await asyncio.sleep(1)
        with pool.changing("p", 4):
            await pool.on_all(lambda handle: handle.engine.push("p", 4))
        return [await asked[policy] for policy in "pq"], len(pool.engines[0].served)

    ((p, q), served), seconds = run(go())
    assert (p.policy, p.version, q.policy, q.version) == ("p", 4, "q", 8)
    assert served == 3 and seconds == 10.0  # p was asked again


def test_an_answer_by_another_version_of_one_policy_ends_the_run_whatever_the_others_have():
    async def go():
        pool, _ = shared_pool()
        pool.engines[0].versions["q"] = 3  # p's
        return await pool.generate(request("q"), least_loaded)

    with pytest.raises(RunEnded, match="policy 'q', version 3, where policy 'q', version 8"):
        run(go())


def test_a_new_engine_is_given_the_weights_of_all_and_is_counted_once():
    async def go():
        pool, restored = shared_pool()
        asked = [
            asyncio.create_task(pool.generate(request(policy), least_loaded)) for policy in "pq"
        ]
        await asyncio.sleep(1)
        pool.engines[0].die()
        answers = [await one for one in asked]
        return pool, restored, answers

    (pool, restored, answers), _ = run(go())
    assert [(a.policy, a.version) for a in answers] == [("p", 3), ("q", 8)]
    assert (restored, pool.restarted, pool.budget.left, len(pool.remarks)) == (["p", "q"], 1, 0, 1)


# --- tensors
# --------------------------------------------------------------------------------------------------


def test_module_trees_share_their_tensors_and_nothing_else(monkeypatch):
    import marl_plugins.adapters.worker as worker

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.name_or_path = "tied"
            self.embed, self.head = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("scale", torch.ones(1))

    loads = []
    monkeypatch.setattr(
        worker,
        "AutoModelForCausalLM",
        SimpleNamespace(from_pretrained=lambda *a, **k: loads.append(a) or Tied()),
    )
    shared = worker.SharedModel()
    one, two = shared.from_pretrained("m"), shared.from_pretrained("m")
    assert len(loads) == 1 and one is not two and one.head is not two.head
    assert one.head.weight is two.head.weight is one.embed.weight and one.scale is two.scale
    one.head = torch.nn.Linear(4, 5)  # as PEFT replaces modules
    assert two.head.weight is two.embed.weight


def test_a_module_that_the_model_does_not_have_is_named():
    """PEFT says nothing of it where another one is there."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from marl_plugins.adapters.worker import check_targets

    model = AutoModelForCausalLM.from_pretrained(resolve("tiny"))
    targets = ["q_proj", "self_attn.k_proj", "v_porj"]
    model = get_peft_model(model, LoraConfig(r=2, target_modules=targets))
    check_targets(model, targets[:2])
    check_targets(model, "all-linear")
    with refused(("adapters.no_module", "ds.lora.target_modules")) as caught:
        check_targets(model, targets)
    (problem,) = caught.value.problems
    assert "v_porj" in problem.got and "v_proj" in problem.fix and "q_proj" not in problem.got


def test_an_adapter_comes_back_from_bytes_with_its_configuration():
    tensors = {
        "a.lora_A.weight": torch.randn(2, 3),
        "a.lora_B.weight": torch.zeros(3, 2).bfloat16(),
    }
    found, config = unpacked(
        packed(tensors, {"r": 2, "lora_alpha": 16, "target_modules": {"b", "a"}, "task_type": None})
    )
    assert config == {"r": 2, "lora_alpha": 16, "target_modules": ["a", "b"], "task_type": None}
    assert all(
        torch.equal(value, found[name]) and value.dtype == found[name].dtype
        for name, value in tensors.items()
    )


# --- beside other capabilities
# --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A PEFT folder as a run saves it, and its model with it."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base, folder = resolve("tiny"), tmp_path_factory.mktemp("saved") / "solver"
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=3, target_modules="all-linear")
    )
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    model.config.to_json_file(folder / "config.json")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder, model


def evaluated(folder, *words):
    run = only_players(build_plan([*WORDS, *words]).run)
    return with_models(run, folder, ["solver", "verifier"])


def test_saved_adapters_are_answered_by_one_engine_of_their_model(adapter, tmp_path):
    """Whole, beside a model in bfloat16: added to its weights, most of a small one would be
    rounded away."""
    from safetensors.torch import load_file

    folder, _ = adapter
    shutil.copytree(folder, tmp_path / "solver")
    shutil.copytree(folder, tmp_path / "verifier")
    run = evaluated(tmp_path)
    (base,) = bases_of(run)
    assert (base.model, base.adapters) == (resolve("tiny"), ("solver", "verifier"))
    assert base.engine_rank(run) == 8
    assert needed_devices(run) == {"solver": 1, "coder": 1, "verifier": 0}
    solver = run.policies[0]
    assert (solver.model, solver.adapter) == (resolve("tiny"), str(tmp_path / "solver"))
    tensors, config = unpacked(packed_folder(tmp_path / "solver"))
    written = load_file(folder / "adapter_model.safetensors")
    assert config["r"] == 3 and tensors.keys() == written.keys()
    assert all(torch.equal(value, written[name]) for name, value in tensors.items())


@pytest.mark.parametrize(
    ("base", "code"), [("/nowhere/model", "eval.base_gone"), ("tiny:hidden=32", "eval.other_base")]
)
def test_an_adapter_of_another_model_is_refused(adapter, tmp_path, base, code):
    for name in ("solver", "verifier"):
        shutil.copytree(adapter[0], tmp_path / name)
    file = tmp_path / "solver" / "adapter_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "base_model_name_or_path": resolve(base)}))
    with refused((code, "solver", "adapter_config.json")):
        evaluated(tmp_path)


# --- turns
# --------------------------------------------------------------------------------------------------


def turns_of(names):
    """Adapters of one model, whose work is what a test says."""
    from marl_plugins.adapters.processes import AdapterProcesses, SharedProcesses

    shared, made = SharedProcesses(), []
    for name in names:
        args = SimpleNamespace(algo=None)
        made.append(AdapterProcesses(shared, TrainingSpec(name, args, "cpu", None, 1, 600.0)))
    return made


def test_adapters_take_turns_in_the_order_in_which_they_ask():
    done = []

    async def work(processes, seconds):
        async with processes.active():
            await processes.await_work("worked", asyncio.sleep(seconds))
            done.append((processes.policy, asyncio.get_running_loop().time()))

    async def go():
        p, q, r = turns_of("pqr")
        await asyncio.gather(work(q, 3), work(p, 1), work(r, 2))

    run(go())
    assert done == [("q", 3.0), ("p", 4.0), ("r", 6.0)]


def test_a_turn_that_is_given_up_ends_with_its_work():
    """A thread may still be asking ranks for a fit: were the next adapter asked in between, ranks
    would mix the two."""

    async def go():
        p, q = turns_of("pq")

        async def turn(processes, seconds):
            async with processes.active():
                began = asyncio.get_running_loop().time()
                await processes.await_work("worked", asyncio.sleep(seconds))
                return began

        first = asyncio.create_task(turn(p, 5))
        await asyncio.sleep(1)
        second = asyncio.create_task(turn(q, 1))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        given_up = asyncio.get_running_loop().time()
        return given_up, await second, await turn(p, 0)

    assert run(go())[0] == (1.0, 5.0, 6.0)


def test_a_turn_that_fails_does_not_keep_the_others_waiting():
    async def go():
        p, q = turns_of("pq")

        async def fails():
            raise FloatingPointError("a weight")

        with pytest.raises(FloatingPointError):
            async with p.active():
                await p.await_work("was updated", fails())
        async with q.active():
            return await q.await_work("worked", asyncio.sleep(2, "done"))

    assert run(go())[0] == "done"


# --- an engine's own account
# ----------------------------------------------------------------------------------------------


class SimulatedLLM:
    """vLLM as an engine of adapters sees it: log-probs by the number of the adapter; `leak`: how
    much a request without one has of the adapter that is answered beside it; `flat`: each samples a
    token of its own, all with the same log-prob."""

    def __init__(self, leak=0.0, effect=1.0, flat=False):
        self.leak, self.effect, self.flat = leak, effect, flat
        self.inside, self.asked, self.pushed = [], [], []
        self.pushing = 0.0

    async def collective_rpc(self, function, args):
        await asyncio.sleep(self.pushing)
        self.pushed.append(args[1])

    async def generate(self, prompt, params, request_id, lora_request):
        number = lora_request.lora_int_id if lora_request else 0
        self.asked.append(lora_request.lora_name if lora_request else "")
        self.inside.append(number)
        await asyncio.sleep(1.0)
        beside = any(self.inside) and not number
        self.inside.remove(number)
        value = -1.0 - self.effect * (bool(number) + self.leak * beside)
        token = 7 + number * self.flat
        entry = {token: SimpleNamespace(logprob=-1.0 if self.flat else value)}
        output = SimpleNamespace(
            token_ids=[token] * 2, logprobs=[entry, entry], finish_reason="stop"
        )
        ids = prompt["prompt_token_ids"]
        shown = [None, *({i: SimpleNamespace(logprob=value)} for i in ids[1:])]
        yield SimpleNamespace(outputs=[output], prompt_token_ids=ids, prompt_logprobs=shown)


def engine_of(**more):
    from marl_plugins.adapters.engine import AdapterEngine

    engine = AdapterEngine.__new__(AdapterEngine)
    engine.numbers, engine.held_by, engine.loaded, engine.llm = (
        {"p": 1, "q": 2},
        {},
        set(),
        SimulatedLLM(**more),
    )
    engine.requests, engine.asleep, engine.adapters = set(), set(), {}
    return engine


async def piece(blob):
    """What Ray's store has, as whoever awaits a reference to it gets it."""
    return [blob]


BLOB = packed({"a.lora_A.weight": torch.ones(2, 3), "a.lora_B.weight": torch.zeros(3, 2)}, {"r": 2})


def test_requests_name_the_adapter_and_the_epoch_of_its_weights():
    """A version may be pushed again after other weights were in its place, and prefixes are cached
    by the name."""

    async def go():
        engine = engine_of()
        for policy, version in (("p", 3), ("q", 8), ("q", 8)):
            await engine.load_state([piece(BLOB)], policy, version)
        await engine.identify("still", 0)
        engine.llm.asked.clear()
        answers = [await engine.sample([1], None, policy) for policy in ("p", "q", "still")]
        return engine.llm.asked, [answer[-2:] for answer in answers]

    (asked, answers), _ = run(go())
    assert asked == ["p@1", "q@2", ""] and answers == [("p", 3), ("q", 8), ("still", 0)]


def test_what_is_sampled_over_a_push_of_its_own_adapter_belongs_to_no_version():
    async def go():
        engine = engine_of()
        for policy in "pq":
            await engine.load_state([piece(BLOB)], policy, 3)
        engine.llm.pushing = 0.2
        sampling = [asyncio.create_task(engine.sample([1], None, policy)) for policy in "pq"]
        await asyncio.sleep(0.5)
        await engine.load_state([piece(BLOB)], "p", 4)
        return [(await one)[-2:] for one in sampling]

    assert run(go())[0] == [("p", -1), ("q", 3)]


@pytest.mark.parametrize("wrong", [{"leak": 1.0}, {"leak": 0.3}, {"effect": 0.0}])
def test_an_engine_that_mixes_adapters_and_model_up_is_not_used(wrong):
    """As vLLM 0.29 does on CPU where all slots are taken; and one on which adapters do nothing."""

    async def go():
        await engine_of(**wrong).load_state([piece(BLOB)], "p", 1)

    with pytest.raises(RunEnded):
        run(go())


def test_an_adapter_is_seen_where_other_tokens_are_as_likely():
    """A random model's: one in four runs of a 10 M one was refused."""
    run(engine_of(flat=True).load_state([piece(BLOB)], "p", 1))


class Scheduler:
    """vLLM's, as far as it is paused."""

    async def is_scheduler_paused_async(self):
        return False

    async def pause_scheduler_async(self, mode, clear_cache):
        pass

    async def resume_scheduler_async(self):
        pass


def test_an_engine_of_one_policy_answers_with_what_it_holds_whoever_is_asked():
    from marl_plugins.engine.processes.engine_actor import HeldWeights, RolloutActor

    async def go():
        engine = RolloutActor.__new__(RolloutActor)
        engine.held, engine.llm, engine.requests = HeldWeights(), SimulatedLLM(), set()
        engine.asleep = set()

        async def nothing():
            pass

        async def called(function, args=()):
            return [len(args)]

        engine.llm.engine_core = Scheduler()
        engine.llm.reset_prefix_cache, engine.llm.collective_rpc = nothing, called
        await engine.identify("p", 3)
        first = await engine.sample([1], None, "p")
        again = asyncio.create_task(engine.sample([1], None, "p"))
        await asyncio.sleep(0.5)
        await engine.load_state([], "q", 3)
        return first[-2:], (await again)[-2:], (await engine.sample([1], None, "p"))[-2:]

    assert run(go())[0] == (("p", 3), ("p", -1), ("q", 3))


def test_an_adapter_is_put_under_the_names_that_vllm_has_for_the_models_modules():
    """gpt-oss's `self_attn` is vLLM's `attn`."""
    pytest.importorskip("vllm")
    from vllm.config.lora import LoRAConfig
    from vllm.model_executor.models.gpt_oss import GptOssForCausalLM

    from marl_plugins.adapters.engine import set_adapter

    added = []
    layer = "model.layers.0.attn"
    manager = SimpleNamespace(
        model=GptOssForCausalLM,
        modules={f"{layer}.qkv_proj": None, f"{layer}.o_proj": None},
        packed_modules={f"{layer}.qkv_proj": [f"{layer}.{part}_proj" for part in "qkv"]},
        remove_adapter=lambda number: None,
        add_adapter=added.append,
        activate_adapter=lambda number: None,
    )
    limits = LoRAConfig(max_lora_rank=8, max_loras=2, max_cpu_loras=2)
    limits.lora_dtype = torch.bfloat16
    outer = SimpleNamespace(_adapter_manager=manager, lora_config=limits)
    worker = SimpleNamespace(model_runner=SimpleNamespace(lora_manager=outer))
    names = [f"base_model.model.model.layers.0.self_attn.{part}_proj" for part in "qo"]
    tensors = {}
    for name in names:
        tensors[f"{name}.lora_A.weight"] = torch.ones(2, 3)
        tensors[f"{name}.lora_B.weight"] = torch.ones(3, 2)
    config = {"r": 2, "lora_alpha": 2, "target_modules": ["q_proj", "o_proj"]}
    set_adapter(worker, packed(tensors, config), 1)
    assert added[0].loras.keys() == {f"{layer}.q_proj", f"{layer}.o_proj"}


@pytest.mark.parametrize("alone", [True, False])
def test_products_on_cpu_are_vllms_own(alone):
    """Up to the order of the sums; the tokens of no adapter get nothing."""
    punica = pytest.importorskip("vllm.lora.punica_wrapper.punica_cpu")
    from marl_plugins.adapters import on_cpu

    draw = torch.Generator().manual_seed(0)
    tokens, rank, slices = 50, 16, (576, 192, 192)
    adapters = torch.randint(-1, 3, (tokens,), generator=draw)
    if alone:
        adapters[:] = 1
    down = [torch.randn(3, 1, rank, 576, generator=draw) for _ in slices]
    up = [torch.randn(3, 1, size, rank, generator=draw) for size in slices]
    inputs = torch.randn(tokens, 576, generator=draw)
    start = torch.randn(tokens, sum(slices), generator=draw)
    wrapper = punica.PunicaWrapperCPU(64, 8, "cpu")
    wrapper._token_lora_indices[:tokens], wrapper.indices_len[0] = adapters, tokens
    made = []
    for add in (punica.PunicaWrapperCPU.add_lora_linear, on_cpu.add_products):
        made.append(start.clone())
        add(wrapper, made[-1], inputs, down, up, 0.5, slices)
    made[0][adapters < 0] = start[adapters < 0]  # vLLM's own gives them the last adapter
    torch.testing.assert_close(*made, rtol=1e-3, atol=1e-3)
