"""Output tokens a second and verdict latency against the number of edges: as ``draftwire bench capacity``.

python benchmarks/capacity.py --help
"""

import os

# Spinning OpenMP threads take the core that the next operation needs. Inherited by the service.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import typer

from draftwire_sim.bench.capacity.cli import capacity

if __name__ == "__main__":
    typer.run(capacity)
