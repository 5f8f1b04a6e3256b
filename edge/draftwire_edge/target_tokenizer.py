"""The target's own tokenizer, fetched from the cloud: for a draft model that has another one."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Sequence

from tokenizers import Tokenizer as Backend

from draftwire_edge.channel import CloudChannel
from draftwire_protocol.errors import DraftwireError, UserInputError
from draftwire_protocol.fingerprint import piece_hashes
from draftwire_protocol.messages import ModelCard

#: Ids whose bytes are asked for at once.
_PIECES_AT_ONCE = 16_384
#: No tokenizer comes near it; more is an attack or an error.
MAX_JSON_BYTES = 256 * 1024 * 1024
#: The same, compressed: several times the largest one known.
MAX_PACKED_BYTES = 64 * 1024 * 1024


class TargetTokenizer:
    """Vocabulary and text-to-ids of the cloud's target; same use as ``GgufTokenizer``.

    Args:
        card: of the target.
        pieces: bytes of every real id, ``[n_tokens]``.
        packed: the tokenizers library's JSON, compressed by zlib.

    Raises:
        DraftwireError: it is no such JSON.
    """

    def __init__(self, card: ModelCard, pieces: Sequence[bytes], packed: bytes) -> None:
        self.pieces = list(pieces)
        self.n_tokens = card.n_tokens
        self.special_ids = frozenset(card.special_ids)
        #: Ids that end the target's texts, rising; an end among the padding has no bytes.
        self.eos_ids = tuple(token for token in card.eos_ids if token < card.n_tokens)
        self.eos_id = _main_end(card, self.eos_ids)
        self.bos_id = card.bos_id
        self.chat_template = card.chat_template
        self._lock = threading.Lock()
        try:
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(packed, MAX_JSON_BYTES).decode()
            self._backend = Backend.from_str(text)
            # What a training run left in the file must not cut or fill a prompt.
            self._backend.no_truncation()
            self._backend.no_padding()
        except Exception as error:  # the library raises bare ones
            raise DraftwireError(f"the cloud's tokenizer cannot be read ({error})") from error
        self.add_bos = self.bos_id is not None and self._backend.encode("").ids[:1] == [self.bos_id]

    def text_of(self, token: int | None) -> str:
        """Written form of one id, "" for None."""
        return "" if token is None else self.pieces[token].decode("utf-8", "replace")

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of ``text``; see ``GgufTokenizer.encode``."""
        start = [self.bos_id] if add_special and self.add_bos and self.bos_id is not None else []
        text = text.encode("utf-8", "replace").decode()
        # The flag is the library's state, and the drafter's thread encodes as well.
        with self._lock:
            self._backend.encode_special_tokens = not parse_special
            return start + list(self._backend.encode(text, add_special_tokens=False).ids)

    def close(self) -> None:
        """Nothing to free."""


def _main_end(card: ModelCard, eos_ids: Sequence[int]) -> int | None:
    """The tokenizer's own, or the lowest of ``eos_ids`` where the card does not say."""
    if card.eos_id is not None and card.eos_id < card.n_tokens:
        return card.eos_id
    return next(iter(eos_ids), None)


async def fetch_tokenizer(channel: CloudChannel, card: ModelCard) -> TargetTokenizer:
    """Ask the cloud for its tokenizer and the bytes of every id: some megabytes.

    Raises:
        UserInputError: the cloud does not give it.
        CloudUnavailableError: the connection broke.
        DraftwireError: what it gives is too large, or does not fit its card.
    """
    packed = await channel.get_tokenizer(max_bytes=MAX_PACKED_BYTES)
    if not packed:
        raise UserInputError(
            "--cross-vocab",
            f"the cloud does not give the tokenizer of {card.name}",
            "Use a draft model of the same family, or a newer draftwire-cloud",
        )
    pieces: list[bytes] = []
    while len(pieces) < card.n_tokens:
        wanted = min(_PIECES_AT_ONCE, card.n_tokens - len(pieces))
        found = (await channel.get_model(piece_start=len(pieces), piece_count=wanted)).pieces
        if len(found) != wanted:
            raise DraftwireError(f"the cloud gave {len(found)} of {wanted} ids' bytes")
        pieces += found
    if piece_hashes(pieces) != card.piece_hashes:
        raise DraftwireError("the bytes that the cloud gave for its ids do not have its card's hash")
    return await asyncio.to_thread(TargetTokenizer, card, pieces, packed)
