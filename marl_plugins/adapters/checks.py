"""Checks what cannot be an adapter, and what adapters of one model cannot have each for itself."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING

from marl_plugins import Problem, at
from marl_plugins.adapters.bases import Base, bases_of

# inside: works in the training processes
from marl_plugins.core.run import is_partial
from marl_plugins.engine.hosts.flags import FLAGS
from marl_plugins.engine.plan.checks.numbers import with_policies_named
from marl_plugins.engine.plan.describe import flag_value

if TYPE_CHECKING:
    from marl_plugins import Run

WHO = "marl_plugins.adapters"
OWN = (
    "ds.lora.",
    "actor.optim",
    "actor.muon.",
    "actor.adam.",
    "actor.lr_",
    "actor.min_lr_ratio",
    "actor.max_norm",
    "actor.eps_clip",
    "actor.dual_clip",
    "actor.policy_loss_type",
    "actor.loss_agg_mode",
    "actor.entropy_coef",
    "actor.model_name_or_path",
    "algo.",
    "reward.",
    "ref.",
    "critic.",
    "rollout.temperature",
    "rollout.top_p",
    "rollout.max_new_tokens",
    "train.max_epochs",
    "train.ema_beta",
)
"""Beginnings of the flags that each adapter has for itself; all others of a policy are the
processes' and the engines'."""
OF_ENGINES = ("vllm.", "data.max_len")
"""Beginnings of the engines' own; `vllm.enable_sleep` is off for whoever is not trained."""
WITHOUT_ADAPTERS = ("lm_head", "embed_tokens")
"""Modules that upstream's Actor does not train as adapters right, or vLLM's engines have none
for."""


def check_adapters(run: Run) -> list[Problem]:
    """Returns what is wrong with a run's adapters."""
    bases = bases_of(run)
    if not bases:
        got = (
            "no policy that is trained has --ds.lora.rank above 0, so that the plugin changes "
            "nothing"
        )
        fix = "give a rank, or leave out the plugin"
        return [
            Problem(
                "adapters.none",
                at(plugin=WHO),
                got,
                fix=fix,
                severity="warning",
                flags=("ds.lora.rank",),
            )
        ]
    of_one = {name: [*_of_one(run.policy_args[name])] for base in bases for name in base.adapters}
    unlike = [
        problem
        for base in bases
        for name in (*base.adapters, *base.following)
        for problem in _unlike(run, base, name)
    ]
    return [*with_policies_named(of_one), *unlike]


def _of_one(args: SimpleNamespace) -> Iterator[Problem]:
    """Returns what keeps a policy from being an adapter."""
    lora = args.ds.lora
    if args.ds.zero_stage == 3:
        got = (
            "3: ranks would each hold a part of the model, and an adapter's module tree needs "
            "whole tensors"
        )
        yield Problem(
            "adapters.zero_stage", at(flag="ds.zero_stage"), got, fix="set --ds.zero_stage 2"
        )
    if lora.dropout:
        got = (
            f"{lora.dropout:g}: log-probs would be those of another network each time, and the "
            "engine's have no dropout"
        )
        yield Problem("adapters.dropout", at(flag="ds.lora.dropout"), got, fix="leave it out")
    if args.critic.model_name_or_path:
        got = "a critic is a whole model of its own, with processes that no adapter shares"
        flags = ("algo.advantage.estimator", "critic.model_name_or_path")
        fix = "use an estimator without a critic, or --ds.lora.rank 0"
        yield Problem("adapters.critic", got=got, fix=fix, flags=flags)
    targets = (
        [lora.target_modules] if isinstance(lora.target_modules, str) else lora.target_modules or []
    )
    if wrong := [target for target in targets if target.rpartition(".")[2] in WITHOUT_ADAPTERS]:
        got = f"{', '.join(wrong)}: engines have no adapters for embeddings and output heads"
        yield Problem(
            "adapters.targets",
            at(flag="ds.lora.target_modules"),
            got,
            fix="leave it out: all-linear is the default",
        )
    if args.ds.use_liger_kernel:
        got = "it brings a model class of its own, whose weights adapters do not share"
        yield Problem("adapters.liger", at(flag="ds.use_liger_kernel"), got, fix="remove it")
    if is_partial(args):
        got = "adapters that change in the middle of answers have not been tried"
        yield Problem(
            "adapters.partial", got=got, fix="remove it", flags=("train.partial_rollout_enable",)
        )


def _unlike(run: Run, base: Base, policy: str) -> Iterator[Problem]:
    """Returns the flags that a policy does not have in common with the first adapter of its
    model; of a policy that follows one, those of engines."""
    mine, first = run.policy_args[policy], run.policy_args[base.owner]
    trained = policy in base.adapters
    alone = f", or make one a policy of its own (--policy.{policy}.ds.lora.rank 0)"
    for flag, entry in sorted(FLAGS.items()):
        if (
            entry.status == "policy"
            and not flag.startswith(OWN)
            and (trained or (flag.startswith(OF_ENGINES) and flag != "vllm.enable_sleep"))
            and flag_value(mine, flag) != flag_value(first, flag)
        ):
            yield Problem(
                "adapters.shared",
                at(policy=policy, flag=flag),
                f"{flag_value(mine, flag)!r}, and {flag_value(first, flag)!r} for {base.owner!r}, "
                "an adapter of the same model",
                expected="one value: training processes and engines are the same",
                fix=f"give both the same{alone * trained}",
            )
