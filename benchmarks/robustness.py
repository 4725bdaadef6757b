"""Learning with a coach that fails: `python -m benchmarks.robustness --out FOLDER [--seeds 3]`
(three minutes a run)

Twenty steps of the demo's recipe, its rubric's verdicts asked for at a local endpoint
(benchmarks/rubric_endpoint.py) that fails a fifth of all requests, in eight ways; once with the
client's repeats and once without any, so that verdicts go missing. Beside them the same with an
endpoint that never fails. A verdict that is not the rubric's ends the run. Success is that of the
last step, on 400 held-out problems. Finished runs in FOLDER are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.coach import server, stats
from benchmarks.credit import successes
from benchmarks.demo import MATHCHAT, points, watched
from marl_plugins.engine.records.read import RunReader

KINDS = ("429", "500", "hang", "reset", "empty", "broken", "out of range", "injected")
FAILING = dict.fromkeys(KINDS, 0.2 / len(KINDS))
ARMS: dict[str, tuple[dict[str, float], list[str]]] = {
    "undisturbed": ({}, []),
    "failing": (FAILING, []),
    "no repeats": (FAILING, ["--coach.retries", "0"]),
}


def folder_of(arm: str, seed: int, out: Path) -> Path:
    return out / f"{arm.replace(' ', '-')}-{seed}"


def train(arm: str, seed: int, out: Path, max_steps: int) -> dict[str, Any]:
    folder = folder_of(arm, seed, out)
    failures, flags = ARMS[arm]
    done = folder / "bench.json"
    if not done.exists():
        with server("0.02", failures) as url:
            words = [
                "train",
                "--recipe",
                str(MATHCHAT / "tiny.yaml"),
                "--train.seed",
                str(seed),
                "--json",
            ]
            words += ["--plugin", str(Path(__file__).with_name("rubric_endpoint.py"))]
            words += [
                "--coach.model",
                "rubric",
                "--coach.base_url",
                f"{url}/v1",
                "--coach.form",
                "text",
            ]
            words += [
                "--coach.timeout",
                "1",
                "--coach.concurrency",
                "64",
                "--max_steps",
                str(max_steps),
                *flags,
            ]
            words += ["--ckpt.output_dir", str(folder), "--ckpt.path", str(folder / "checkpoints")]
            started = time.monotonic()
            report = json.loads(watched(words, str(folder))[1].splitlines()[-1])["report"]
            found = {"report": report, "seconds": time.monotonic() - started, "server": stats(url)}
        done.write_text(json.dumps(found | account(folder)))
    result: dict[str, Any] = json.loads(done.read_text())
    return result


def account(folder: Path) -> dict[str, Any]:
    """The ledger of a run, which has to add up, and agree with the records of the actions."""
    missing, generated, run = Counter[str](), 0, RunReader(folder)
    for ledger in run.ledgers():
        for role, count in ledger.generated.items():
            left_out = ledger.left_out.get(role, Counter())
            assert count == ledger.trained[role] + left_out.total()
            generated += count
            missing.update(left_out)
    unscored = sum(action.score is None for _, action in run.actions())
    assert unscored == missing.total(), (unscored, missing)
    return {"generated": generated, "missing": dict(missing)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.robustness", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench-robustness"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max_steps", type=int, default=20)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    after: dict[str, list[float]] = {}
    for arm in ARMS:
        runs = [train(arm, seed, options.out, options.max_steps) for seed in range(options.seeds)]
        curves = [successes(folder_of(arm, seed, options.out)) for seed in range(options.seeds)]
        after[arm], before = [[curve[step] for curve in curves] for step in (options.max_steps, 0)]
        requests = sum(r["server"]["requests"] for r in runs)
        failed = sum(r["server"].get(kind, 0) for r in runs for kind in KINDS)
        missing: dict[str, int] = {}
        for run in runs:
            for reason, count in run["missing"].items():
                missing[reason] = missing.get(reason, 0) + count
        gain = points([a - b for a, b in zip(after[arm], before, strict=True)])
        print(
            f"{arm}: {len(runs)} seeds, held-out {statistics.fmean(before):.3f} -> "
            f"{statistics.fmean(after[arm]):.3f}, gain {gain} "
            f"points; {requests} requests, {failed} failed; {sum(r['generated'] for r in runs)} "
            f"actions, missing {missing}; "
            f"{statistics.median(r['seconds'] for r in runs):.0f} s a run",
            flush=True,
        )
    for arm in list(ARMS)[1:]:
        pairs = [b - a for a, b in zip(after["undisturbed"], after[arm], strict=True)]
        print(f"{arm} - undisturbed, after: {points(pairs)} points")


if __name__ == "__main__":
    main()
