"""Up to which round trip drafting on the laptop is quicker than streaming from the cloud.

python -m draftwire_sim.break_even --alone-ms 50 --draft-ms 10
"""

from __future__ import annotations

from math import log
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from draftwire_protocol.acceptance import expected_tokens

ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
#: Longest block that is tried.
MOST = 64


def lockstep_break_even_ms(alpha: float, draft_ms: float, alone_ms: float, slope_ms: float) -> float:
    """The largest R at which some γ of lockstep takes no longer than the cloud alone.

    From (γ·c_d + R + t_v(γ+1)) / E(γ) = t_v(1): R = E(γ)·t_v(1) - γ·c_d - t_v(γ+1), at the best γ. Below 0
    lockstep does not pay on any link.

    Args:
        alpha: α, chance that one drafted token is accepted.
        draft_ms: c_d.
        alone_ms: t_v(1).
        slope_ms: b of t_v(n) = t_v(1) + b·(n - 1).
    """
    return max(
        (expected_tokens(alpha, gamma) - 1.0) * alone_ms - gamma * (draft_ms + slope_ms)
        for gamma in range(1, MOST + 1)
    )


def pipelined_break_even_ms(alpha: float, draft_ms: float, alone_ms: float, slope_ms: float) -> float:
    """The largest R at which pipelined takes no longer than the cloud alone.

    From c_d + (1 - α)(R + t_v(2)) = t_v(1).

    Args:
        alpha: α, < 1.
        draft_ms: c_d.
        alone_ms: t_v(1).
        slope_ms: b.
    """
    return (alone_ms - draft_ms) / (1.0 - alpha) - alone_ms - slope_ms


def overtaking_limit_ms(alpha: float, draft_ms: float, alone_ms: float, chance: float = 0.5) -> float:
    """The R at which a branch still gets ahead of a cloud that fills with this chance, in duplex.

    From α^((R + c_d) / (t_v(1) - c_d)) = chance; beyond it duplex is hardly quicker than the cloud alone. It
    is never slower.

    Args:
        alpha: α, 0 < α < 1.
        draft_ms: c_d.
        alone_ms: t_v(1).
        chance: of a branch to get ahead.
    """
    return (alone_ms - draft_ms) * log(chance) / log(alpha) - draft_ms


def main(
    alone_ms: Annotated[
        float, typer.Option(min=0.1, help="t_v(1), time per token of the cloud alone.")
    ] = 50.0,
    draft_ms: Annotated[float, typer.Option(min=0.0, help="c_d, time to draft one token.")] = 10.0,
    slope_ms: Annotated[float, typer.Option(min=0.0, help="b, time to verify one token more.")] = 1.0,
) -> None:
    """Print the map: one row for each acceptance."""
    title = f"largest R in ms; cloud alone {alone_ms:g} ms a token, drafting {draft_ms:g}"
    table = Table("α", "lockstep", "pipelined", "duplex ahead half the time", title=title)
    costs = (draft_ms, alone_ms, slope_ms)
    for alpha in ALPHAS:
        limits = (
            lockstep_break_even_ms(alpha, *costs),
            pipelined_break_even_ms(alpha, *costs),
            overtaking_limit_ms(alpha, draft_ms, alone_ms) if draft_ms < alone_ms else -1.0,
        )
        table.add_row(f"{alpha:g}", *("never" if limit < 0 else f"{limit:.0f}" for limit in limits))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
