"""TRL's turns-to-rows on given conversations, in TRL's own environment:
`python -m benchmarks.trl_rows FILE`.

Prints the seconds of each run as JSON, after asserting that its rows are the expected ones.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from trl.experimental.async_grpo.async_rollout_worker import TurnRecord, _chain_to_sequences


def records(deltas: Sequence[tuple[list[int], list[int], list[float]]]) -> list[Any]:
    """TRL's turns hold the whole prompt each; ours hold what was added."""
    made: list[Any] = []
    context: list[int] = []
    for shown, sampled, logprobs in deltas:
        context = context + shown
        made.append(TurnRecord(context, sampled, logprobs))
        context = context + sampled
    return made


def main() -> None:
    with open(sys.argv[1]) as file:
        data = json.load(file)
    chains = [records(deltas) for deltas in data["given"]]
    times = []
    for _ in range(data["runs"] + 1):
        started = time.perf_counter()
        made = [_chain_to_sequences(chain, "id", 64)[0] for chain in chains]
        times.append(time.perf_counter() - started)
    for (sequence,), (ids, sampled, logprobs) in zip(made, data["expected"], strict=True):
        assert sequence.input_ids == ids
        assert sequence.completion_mask == sampled
        assert sequence.old_log_probs == logprobs
    print(json.dumps(times[1:]))


if __name__ == "__main__":
    main()
