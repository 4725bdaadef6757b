"""Metrics of every step in trackio, on this machine (pip install trackio).

    openrlhf train --recipe mathchat/tiny.yaml --plugin examples/track_trackio.py
    TRACKIO_DIR=FOLDER trackio show

The project is the recipe's name and the run is that of the output folder; a resumed run goes on in
it. Everything is done in a thread of its own, so that no step waits for it, and an error of
trackio's is a warning.
"""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from marl_plugins import hookimpl

THREAD = ThreadPoolExecutor(1, "trackio")
OPENED = []


def write(run, step, metrics):
    try:
        if not OPENED:
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
            import trackio

            resume = "allow" if run.args.ckpt.load_enable else "never"
            opened = trackio.init(run.recipe.name, run.output.absolute().name, resume=resume)
            OPENED.append(opened)
        OPENED[0].log(metrics, step=step)  # trackio.log would look for it in this thread's context
    except Exception as error:
        print(f"warning: trackio, step {step}: {error}", file=sys.stderr)


def close():
    while OPENED:
        OPENED.pop().finish()


@hookimpl
def marl_log(run, step, metrics):
    THREAD.submit(write, run, step, dict(metrics))


@hookimpl
async def marl_stop():
    await asyncio.wrap_future(THREAD.submit(close))
