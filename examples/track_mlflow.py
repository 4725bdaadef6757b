"""Metrics of every step in MLflow (pip install mlflow).

    openrlhf train --recipe mathchat/tiny.yaml --plugin examples/track_mlflow.py

`MLFLOW_TRACKING_URI` says where; default: `sqlite:///mlflow.db`, a file in this folder. The
experiment is the recipe's name; a resumed run goes on in the run that has its output folder as a
tag. Everything is done in a thread of its own, so that no step waits for it, and an error of
MLflow's is a warning. It takes no number that is not finite, and few signs in names.
"""

import asyncio
import math
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from marl_plugins import hookimpl

THREAD = ThreadPoolExecutor(1, "mlflow")
OPENED = []


def opened(run):
    os.environ.setdefault("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    from mlflow import MlflowClient

    client, folder = MlflowClient(), str(run.output.absolute())
    name = run.recipe.name
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known else client.create_experiment(name)
    runs = []
    if run.args.ckpt.load_enable:
        runs = client.search_runs([experiment], f"tags.output = '{folder}'")
    tags = {"output": folder, "mlflow.runName": run.output.name}
    return client, (runs[0] if runs else client.create_run(experiment, tags=tags)).info.run_id


def write(run, step, metrics):
    try:
        from mlflow.entities import Metric

        OPENED[:] = OPENED or [opened(run)]
        client, key = OPENED[0]
        now = int(1000 * time.time())
        named = [
            Metric(re.sub(r"[^\w./: -]", "_", name), value, now, step)
            for name, value in metrics.items()
            if math.isfinite(value)
        ]
        client.log_batch(key, named)
    except Exception as error:
        print(f"warning: MLflow, step {step}: {error}", file=sys.stderr)


def close():
    while OPENED:
        client, key = OPENED.pop()
        client.set_terminated(key)


@hookimpl
def marl_log(run, step, metrics):
    THREAD.submit(write, run, step, dict(metrics))


@hookimpl
async def marl_stop():
    await asyncio.wrap_future(THREAD.submit(close))
