"""``draftwire netem``: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from draftwire_edge.exits import errors_explained


def netem(
    to: Annotated[str, typer.Option("--to", metavar="HOST:PORT", help="Where the service runs.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen; port 0 is any free one.")
    ] = "127.0.0.1:0",
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="lan, wifi, 5g, 4g, cross-continent, geo-satellite or train, which changes."
        ),
    ] = None,
    rtt_ms: Annotated[
        float | None, typer.Option("--rtt-ms", help="Round trip; each direction takes half.")
    ] = None,
    jitter_ms: Annotated[
        float | None, typer.Option("--jitter-ms", help="What queues add to a round trip on average.")
    ] = None,
    rate_kbit: Annotated[
        float | None, typer.Option("--rate-kbit", help="Kilobits a second, in each direction.")
    ] = None,
    loss: Annotated[
        float | None,
        typer.Option(help="Chance that a segment is lost and sent again, so later; 0.01 for 1 %."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of jitter and losses.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of text.")] = False,
) -> None:
    """Relay TCP connections over an emulated link, to try draftwire as if the cloud were far away.

    Options beside `--profile` replace its figures. The first line says where it listens. Ctrl-C ends it.

    For example:

    - `draftwire netem --to 127.0.0.1:50051 --listen 127.0.0.1:50052 --rtt-ms 80`

    - `draftwire netem --to 127.0.0.1:50051 --profile train --seed 7 --json`
    """
    from draftwire_edge.netem.address import Address  # noqa: PLC0415  # keeps --help quick
    from draftwire_edge.netem.command import NetemJob, chosen_profile, run_netem  # noqa: PLC0415

    with errors_explained():
        chosen = chosen_profile(profile, rtt_ms=rtt_ms, jitter_ms=jitter_ms, rate_kbit=rate_kbit, loss=loss)
        at = Address.parse(listen, "--listen", free_port=True)
        run_netem(NetemJob(at, Address.parse(to, "--to"), chosen, seed, as_json))
