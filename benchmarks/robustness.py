"""Learning with a coach that fails: `python -m benchmarks.robustness --out FOLDER [--seeds 3]` (seven minutes a run)

The demo's recipe, its rubric's verdicts asked for at a local endpoint (benchmarks/rubric_endpoint.py) that fails a fifth of all
requests, in eight ways. Beside it the same with an endpoint that never fails. A verdict that is not the rubric's ends the run.
Finished runs in FOLDER are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.coach import server, stats
from benchmarks.demo import MATHCHAT, points, watched

KINDS = ("429", "500", "hang", "reset", "empty", "broken", "out of range", "injected")
ARMS: dict[str, dict[str, float]] = {"undisturbed": {}, "20 % fail": dict.fromkeys(KINDS, 0.2 / len(KINDS))}


def train(arm: str, seed: int, out: Path, max_steps: int | None) -> dict[str, Any]:
    folder = out / f"{arm.split()[0]}-{seed}"
    done = folder / "bench.json"
    if not done.exists():
        with server("0.02", ARMS[arm]) as url:
            words = ["train", "--recipe", str(MATHCHAT / "tiny.yaml"), "--train.seed", str(seed), "--json"]
            words += ["--plugin", str(Path(__file__).with_name("rubric_endpoint.py"))]
            words += ["--coach.model", "rubric", "--coach.base_url", f"{url}/v1", "--coach.form", "text"]
            words += ["--coach.timeout", "1", "--coach.concurrency", "64"]
            words += ["--ckpt.output_dir", str(folder), "--ckpt.path", str(folder / "checkpoints")]
            words += [] if max_steps is None else ["--max_steps", str(max_steps)]
            started = time.monotonic()
            report = json.loads(watched(words, str(folder))[1].splitlines()[-1])["report"]
            found = {"report": report, "seconds": time.monotonic() - started, "server": stats(url)}
        done.write_text(json.dumps(found | account(folder)))
    result: dict[str, Any] = json.loads(done.read_text())
    return result


def account(folder: Path) -> dict[str, Any]:
    """The ledger of a run, which has to add up, and agree with the records of the actions."""
    missing: dict[str, int] = {}
    generated = 0
    for line in (folder / "ledger.jsonl").read_text().splitlines():
        for role in json.loads(line)["roles"].values():
            assert role["generated"] == role["trained"] + sum(role["left_out"].values())
            generated += role["generated"]
            for reason, count in role["left_out"].items():
                missing[reason] = missing.get(reason, 0) + count
    unscored = 0
    for line in (folder / "trajectories.jsonl").read_text().splitlines():
        unscored += sum(a["score"] is None for a in json.loads(line)["actions"])
    assert unscored == sum(missing.values()), (unscored, missing)
    return {"generated": generated, "missing": missing}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robustness", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/bench-robustness"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max_steps", type=int, help="for a shorter try")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    after: dict[str, list[float]] = {}
    for arm in ARMS:
        runs = [train(arm, seed, options.out, options.max_steps) for seed in range(options.seeds)]
        after[arm] = [r["report"]["held_out"]["after"]["outcome"] for r in runs]
        before = [r["report"]["held_out"]["before"]["outcome"] for r in runs]
        requests = sum(r["server"]["requests"] for r in runs)
        failed = sum(r["server"].get(kind, 0) for r in runs for kind in KINDS)
        missing: dict[str, int] = {}
        for run in runs:
            for reason, count in run["missing"].items():
                missing[reason] = missing.get(reason, 0) + count
        gain = points([a - b for a, b in zip(after[arm], before, strict=True)])
        print(
            f"{arm}: {len(runs)} seeds, held-out {statistics.fmean(before):.3f} -> {statistics.fmean(after[arm]):.3f}, gain {gain} "
            f"points; {requests} requests, {failed} failed; {sum(r['generated'] for r in runs)} actions, missing {missing}; "
            f"{statistics.median(r['seconds'] for r in runs):.0f} s a run",
            flush=True,
        )
    pairs = [b - a for a, b in zip(*after.values(), strict=True)]
    print(f"20 % fail - undisturbed, after: {points(pairs)} points")


if __name__ == "__main__":
    main()
