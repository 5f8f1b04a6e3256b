"""HOST:PORT, as typed and as shown."""

from __future__ import annotations

from typing import NamedTuple, Self

from draftwire_protocol.errors import UserInputError


class Address(NamedTuple):
    """A host and a TCP port; port 0 asks the system for a free one where one listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, option: str, *, free_port: bool = False) -> Self:
        """Read HOST:PORT; an IPv6 host stands in brackets.

        Raises:
            UserInputError: naming ``option``.
        """
        host, _, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        least = 0 if free_port else 1
        if not bare or not (port.isascii() and port.isdigit()) or not least <= int(port) < 65536:
            fix = "Write e.g. 127.0.0.1:0 for any free port" if free_port else "Write e.g. 127.0.0.1:50051"
            raise UserInputError(option, f"{text!r} is not HOST:PORT", fix)
        if ":" in bare and bare == host:
            raise UserInputError(option, f"{text!r} is not HOST:PORT", f"Write [{bare}]:{port}")
        return cls(bare, int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
