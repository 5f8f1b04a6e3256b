"""How many positions differ between block verification beside a neighbour and one token at a time.

    python benchmarks/fixed_shapes.py FOLDER [FOLDER ...] [--positions 200]

Each folder (``config.json`` and safetensors) in float32 and bfloat16, fixed shapes on and off: the self-test
that runs at every start, longer. The text is random.
"""

import argparse
import os
from itertools import product
from pathlib import Path

# Spinning OpenMP threads take the core that the next operation needs. Must be set before torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

from draftwire_cloud.engine.precision import DtypeName
from draftwire_cloud.engine.probe import exactness_self_test
from draftwire_cloud.engine.target import Target


def main() -> None:
    """Print one line a folder, type and setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--positions", type=int, default=200)
    arguments = parser.parse_args()
    dtypes: tuple[DtypeName, ...] = ("float32", "bfloat16")
    for folder, dtype, fixed in product(arguments.folders, dtypes, (True, False)):
        target = Target.load(folder, dtype=dtype, fixed_shapes=fixed, weights="plain")
        report = exactness_self_test(target, arguments.positions, np.random.default_rng(1))
        shapes = "fixed shapes" if fixed else "as they come"
        print(f"{folder.name:24s} {dtype:9s} {shapes:13s} {report.summary()}", flush=True)


if __name__ == "__main__":
    main()
