"""Run by tests/test_patches.py in a process whose `openrlhf` is a patched tree: prints observations
as JSON."""

import asyncio
import contextlib
import io
import json
import shlex
from pathlib import Path
from types import SimpleNamespace

from simulated import CharacterChat

from marl_plugins.engine.hosts import cpu, upstream_cli

cpu.install()
with cpu.flash_attn_stand_in():
    import openrlhf
    import openrlhf.cli.train_ppo_ray as cli
    from openrlhf.trainer import ppo_trainer, ppo_trainer_async
    from openrlhf.trainer.ppo_utils import samples_generator
    from openrlhf.trainer.ray import vllm_engine

seen = {"package": str(Path(openrlhf.__file__).parent)}


def flags(parser):
    return [
        [a.option_strings, repr(a.default), getattr(a.type, "__name__", None)]
        for a in parser._actions
    ]


# 0001
seen["flags"] = flags(cli.build_parser())
seen["flags_without_import"] = flags(upstream_cli.build_parser(Path(openrlhf.__file__).parent))
with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
    cli.main(["--help"])
seen["help"] = printed.getvalue()
trained = []
cli.train = trained.append
words = (
    "--actor.model_name_or_path m --reward.remote_url r.py --actor.num_gpus_per_node 1 "
    "--rollout.batch_size 6"
)
cli.main(shlex.split(words))
seen["trained"] = [
    trained[0].actor.model_name_or_path,
    trained[0].reward.remote_url,
    trained[0].rollout.batch_size,
]

# 0002, 0003, 0004: upstream's actor with our executor and no engine
Actor = vllm_engine.RolloutRayActor.__ray_metadata__.modified_class


def actor_with(executor):
    actor = Actor.__new__(Actor)
    actor.executor = executor

    async def generate(token_ids, params, multi_modal_data=None):
        ids = CharacterChat.encode(f"{len(token_ids)}^")
        return SimpleNamespace(
            outputs=[
                SimpleNamespace(token_ids=ids, logprobs=[-0.5] * len(ids), finish_reason="stop")
            ]
        )

    actor.generate = generate
    return actor


ours = actor_with(
    vllm_engine._load_agent_executor(str(Path(__file__).with_name("two_role_executor.py")))
)


def responses(actor, **words):
    common = {"label": "4", "sampling_params": None, "max_length": 64, "hf_tokenizer": None}
    return asyncio.run(actor.generate_responses(**common, **words))


context = {"is_eval": False, "global_step": 3, "datasource": "sums"}
seen["samples"] = responses(ours, prompt="2+2, fails 1", num_samples=3, context=context)
seen["sample_contexts"] = ours.executor.contexts.copy()


class AsBefore:
    async def execute(
        self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=None
    ):
        return {"prompt": prompt}


seen["as_before"] = responses(actor_with(AsBefore()), prompt="q", num_samples=2, context=context)

# the same, from upstream's generator of samples
samples_generator.ray = SimpleNamespace(
    get=lambda ref: ref, wait=lambda refs, **words: (refs[:1], refs[1:])
)
remote = SimpleNamespace(
    get_num_unfinished_requests=SimpleNamespace(remote=lambda: 0),
    generate_responses=SimpleNamespace(
        remote=lambda **words: asyncio.run(ours.generate_responses(**words))
    ),
)


def generator(prompts):
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=2, n_samples_per_prompt=1),
        algo=SimpleNamespace(
            dynamic_filtering_enable=False, advantage=SimpleNamespace(is_correction_level="off")
        ),
        vllm=SimpleNamespace(enable_sleep=False),
    )
    data = [([f"source of {p}"], [p], ["label"], [None]) for p in prompts]
    return samples_generator.SamplesGenerator(
        SimpleNamespace(args=args), data, data, None, [remote]
    )


def taken(samples):
    return [[s.prompts[0], s.rewards.item(), int(s.action_mask.sum())] for s in samples]


ours.executor.contexts.clear()
training = generator(["a", "b fails 0", "c", "d"])
steps = [training.generate_samples(max_len=64, global_step=step) for step in (0, 1, 2, 3)]
seen["steps"] = [[taken(samples), drawn, exhausted] for samples, _, drawn, exhausted in steps]
seen["step_contexts"] = ours.executor.contexts.copy()

ours.executor.contexts.clear()
seen["evaluated"] = taken(
    generator(["a", "b fails 0", "c"]).generate_eval_samples(
        max_len=64, global_step=7, n_samples_per_prompt=1
    )
)
seen["eval_contexts"] = ours.executor.contexts.copy()

try:
    generator([f"{i} fails 0" for i in range(9)]).generate_samples(max_len=64, global_step=0)
except RuntimeError as error:
    seen["all_fail"] = str(error)

# where `global_step` comes from: both of upstream's loops
seen["loops"] = []


class Recorder:
    def generate_samples(self, **words):
        seen["loops"].append(["train", words])
        return ["sample"], None, 1, words["global_step"] >= 6


class Loader(list):
    def state_dict(self):
        return {}


def loop(actor_class, **fields):
    made = actor_class.__ray_metadata__.modified_class
    made = made.__new__(made)
    made.args = SimpleNamespace(
        train=SimpleNamespace(num_episodes=1),
        algo=SimpleNamespace(dynamic_filtering_enable=False),
        eval=SimpleNamespace(steps=6, temperature=0.0, n_samples_per_prompt=1),
    )
    made.samples_generator, made.generate_kwargs = Recorder(), {"max_len": 8}
    made.prompts_dataloader = made.eval_dataloader = Loader("ab")
    vars(made).update(fields)
    return made


def ignore(*args, **words):
    pass


loop(
    ppo_trainer.PPOTrainer,
    init_checkpoint_states=lambda: {
        "episode": 0,
        "global_step": 5,
        "total_consumed_prompts": 0,
        "data_loader_state_dict": {},
    },
    restore_best_checkpoint_state=ignore,
    broadcast_to_vllm=ignore,
    train_step=lambda samples, step: ({}, step + 1),
    save_logs_and_checkpoints=ignore,
    save_best_checkpoint=ignore,
    evaluate=lambda step, **words: seen["loops"].append(["eval", words]),
    wandb_logger=None,
    tensorboard_logger=None,
).fit()
loop(
    ppo_trainer_async.GenerateSamplesActor,
    _partial_rollout=True,  # which takes no lock
    _last_eval_step=6,
    _eval_just_done=False,
    rollout_slots=SimpleNamespace(get=lambda block: 6),
    rollout_queue=SimpleNamespace(put=ignore),
).fit(0, 0)

print("SEEN " + json.dumps(seen))
