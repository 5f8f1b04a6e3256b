"""Before the first token: do draft and target model share a vocabulary?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from draftwire_edge.channel import CloudChannel
from draftwire_protocol.errors import (
    CloudUnavailableError,
    DraftwireError,
    ModelMismatchError,
    UserInputError,
)
from draftwire_protocol.fingerprint import CHUNK, first_differing_id, first_differing_run, piece_hashes
from draftwire_protocol.messages import ModelCard

_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Difference:
    """The first id whose text differs between the two models."""

    token: int
    ours: bytes | None
    theirs: bytes | None

    def __str__(self) -> str:
        return f"token {self.token} is {_shown(self.ours)} here and {_shown(self.theirs)} in the cloud"


def _shown(piece: bytes | None) -> str:
    return "missing" if piece is None else repr(piece.decode(errors="backslashreplace"))


async def fetch_card(channel: CloudChannel, wait_s: float = 0.0) -> ModelCard:
    """Ask the cloud what it serves.

    Args:
        channel: where to ask.
        wait_s: how long to go on asking while nothing answers, in seconds.

    Raises:
        UserInputError: nothing answers there, or something that is no draftwire service.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + wait_s
    while True:
        try:
            return await channel.get_model()
        except CloudUnavailableError as error:
            if loop.time() >= give_up:
                fix = "Start it with `draftwire-cloud serve`, or give the address of a running one"
                raise UserInputError(
                    "--cloud", f"nothing answers at {channel.address} ({error})", fix
                ) from error
            await asyncio.sleep(_RETRY_S)
        except DraftwireError as error:
            # An answer, but not ours; asking again would not change it.
            raise UserInputError(
                "--cloud",
                f"what answers at {channel.address} is not a draftwire service ({error})",
                "Give the HOST:PORT that `draftwire-cloud serve` printed",
            ) from error


async def check_vocabulary(channel: CloudChannel, card: ModelCard, pieces: Sequence[bytes]) -> None:
    """Refuse a pair that does not share a vocabulary.

    Args:
        channel: for asking for the bytes of some ids.
        card: of the target.
        pieces: the draft model's bytes of every real id; more than the target has are ignored.

    Raises:
        ModelMismatchError: naming the first differing id with both texts.
    """
    difference = await find_difference(channel, card, pieces)
    if difference is not None:
        raise ModelMismatchError(
            f"the draft model does not belong to the cloud's {card.name}: {difference}. "
            "Use the draft model of the same family (--pair or --draft-model), or another --cloud; with "
            "--cross-vocab it can draft all the same, by its text"
        )


async def find_difference(
    channel: CloudChannel, card: ModelCard, pieces: Sequence[bytes]
) -> Difference | None:
    """The first difference, or None; see ``check_vocabulary``."""
    ours = pieces[: card.n_tokens]
    start = first_differing_run(piece_hashes(ours), card.piece_hashes)
    if start is None:
        return None
    theirs = (await channel.get_model(piece_start=start, piece_count=CHUNK)).pieces
    run = ours[start : start + CHUNK]
    at = first_differing_id(run, theirs)
    if at is None:
        return None
    return Difference(start + at, _item(run, at), _item(theirs, at))


def _item(pieces: Sequence[bytes], index: int) -> bytes | None:
    return pieces[index] if index < len(pieces) else None
