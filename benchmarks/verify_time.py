"""How long the target takes to verify n tokens at once: t_v(n), past about 200 tokens.

    python benchmarks/verify_time.py FOLDER [--dtype float32] [--threads 2] [--weights plain]

Repeats of all n, with fixed shapes on and off, are interleaved, so that a busy neighbour slows all alike;
the median is printed.
"""

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

# Spinning OpenMP threads take the core that the next operation needs. Must be set before torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

from draftwire_cloud.engine.packing import Span
from draftwire_cloud.engine.shapes import ShapePolicy
from draftwire_cloud.engine.target import Target

SIZES = (1, 2, 3, 5, 6, 9, 12, 13, 17)
PAST = 200


def time_verification(target: Target, sizes: Sequence[int], repeats: int) -> dict[int, list[float]]:
    """Seconds of every repeat, by number of tokens verified."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, min(target.facts.n_vocab, 100_000), size=PAST + max(sizes)).tolist()
    slot = target.slots.open(len(ids))
    target.forward([Span(slot, ids[:PAST], 0)])
    seconds: dict[int, list[float]] = {n: [] for n in sizes}
    for repeat in range(repeats + 1):
        for n in sizes:
            start = time.perf_counter()
            target.forward([Span(slot, ids[PAST : PAST + n], n)])
            elapsed = time.perf_counter() - start
            slot.truncate(PAST)
            if repeat > 0:  # the first round warms up
                seconds[n].append(elapsed)
    target.slots.release(slot)
    return seconds


def report(label: str, seconds: dict[int, list[float]]) -> str:
    """One table row a size: median and fastest in milliseconds, and the ratio to one token."""
    one = statistics.median(seconds[min(seconds)])
    lines = [f"{label}", "  n   median ms   fastest ms   times n=1"]
    for n, values in seconds.items():
        median = statistics.median(values)
        lines.append(f"{n:3d} {median * 1e3:11.1f} {min(values) * 1e3:12.1f} {median / one:11.2f}")
    return "\n".join(lines)


def main() -> None:
    """Measure one folder with fixed shapes on and off."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--weights", choices=("auto", "plain"), default="auto")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    target = Target.load(args.folder, dtype=args.dtype, weights=args.weights, threads=args.threads)
    policies = {"on": target.policy, "off": ShapePolicy.off()}
    seconds = {name: {n: list[float]() for n in SIZES} for name in policies}
    for _ in range(args.repeats):
        for name, policy in policies.items():
            target.policy = policy
            for n, values in time_verification(target, SIZES, repeats=1).items():
                seconds[name][n] += values
    for name in policies:
        print(f"{target.facts.architecture} {target.facts.dtype} ({target.facts.weights})")
        print(report(f"fixed shapes {name}", seconds[name]))


if __name__ == "__main__":
    main()
