"""Time per token against round-trip time, of every way to take turns: as ``draftwire bench latency``.

python benchmarks/latency.py --help
"""

import os

# Spinning OpenMP threads take the core that the next operation needs. Inherited by the service.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import typer

from draftwire_sim.bench.cli import latency

if __name__ == "__main__":
    typer.run(latency)
