"""An exponential moving average of every policy's weights, kept in its training processes (Polyak
and Juditsky 1992).

    w_avg <- decay w_avg + (1 - decay) w        in float32, after every update

    openrlhf train --recipe mathchat/tiny.yaml --plugin examples/weight_average.py --average.decay
    0.9

`<ckpt.output_dir>/average/<policy>-<version>.safetensors` is written every `--average.every`
updates. The average is part of each checkpoint, so a resumed run continues it. Every rank keeps a
whole average; ZeRO 3, where no rank has whole weights, is refused.
"""

from pathlib import Path

from marl_plugins import Extension, Problem, at, at_least, between, hookimpl


class WeightAverage(Extension):
    """The average in one training process."""

    average = None

    def fitted(self, status):
        if not status:  # the fit failed
            return
        decay = self.trainer.args.average.decay
        weights = dict(self.trainer.actor.model.module.named_parameters())
        if self.average is None:
            self.average = {name: w.detach().float().cpu() for name, w in weights.items()}
        else:
            for name, w in weights.items():
                self.average[name].lerp_(w.detach().float().cpu(), 1 - decay)

    def save(self, file):
        """Write the average; rank 0 does it for all."""
        import torch.distributed
        from safetensors.torch import save_file

        if torch.distributed.get_rank() == 0 and self.average is not None:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            save_file(self.average, file)

    def state(self):
        return self.average

    def restore(self, state):
        self.average = state


@hookimpl
def marl_options(parser):
    group = parser.add_argument_group("moving average of the weights (examples/weight_average.py)")
    group.add_argument(
        "--average.decay",
        type=between(0, 1),
        default=0.99,
        help="weight of the past in the average",
    )
    group.add_argument(
        "--average.every",
        type=at_least(1),
        default=10,
        help="updates from one saved average to the next",
    )


@hookimpl
def marl_configure(run):
    sharded = [name for name, args in run.policy_args.items() if args.ds.zero_stage == 3]
    got = "3, with which a rank has no whole weights to average"
    where = {"policy": sharded, "flag": "ds.zero_stage"}
    return (
        [Problem("average.zero_stage", at(**where), got, fix="set --ds.zero_stage 2")]
        if sharded
        else []
    )


@hookimpl
def marl_extensions():
    return [f"{__file__}:WeightAverage"]


@hookimpl(wrapper=True)
def marl_sync(run, policy, version):
    synced = yield

    async def then_saved():
        done = await synced
        if policy.spec.trainable and version and version % run.args.average.every == 0:
            file = run.output.absolute() / "average" / f"{policy.name}-{version}.safetensors"
            await policy.extension("WeightAverage", "save", str(file))
        return done

    return then_saved()
