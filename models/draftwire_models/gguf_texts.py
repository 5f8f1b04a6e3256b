"""The lists of strings in a GGUF's metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload


class Texts(Sequence[str]):
    """A list of strings of the metadata, decoded when asked for.

    A vocabulary and its merges are 300,000 strings, of which most readers want none.
    """

    def __init__(self, raw: list[bytes]) -> None:
        """Keep the strings as the file holds them."""
        self.raw = raw

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Return one string, or a list of some."""
        if isinstance(index, slice):
            return [text.decode("utf-8", "replace") for text in self.raw[index]]
        return self.raw[index].decode("utf-8", "replace")

    def __len__(self) -> int:
        """How many there are."""
        return len(self.raw)
