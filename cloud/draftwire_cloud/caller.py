"""Whose session it is: the host that calls, also when a front calls on its behalf."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Protocol

HOST_KEY = "draftwire-caller-host"
TOKEN_KEY = "draftwire-front-token"  # noqa: S105  # the name of it

#: What the transport of each hop writes for itself.
_OF_THE_HOP = ("grpc-", ":", "user-agent", "content-type", "te")

Metadata = tuple[tuple[str, str | bytes], ...]


class Caller(Protocol):
    """What is known of a caller; a gRPC context."""

    def peer(self) -> str:
        """Its address, as gRPC writes it."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """What it sent along."""


def caller_host(caller: Caller, front_token: str | None) -> str:
    """Who shares turns and beginnings of prompts: the host that calls, without its port.

    Args:
        caller: who calls.
        front_token: what a front must show to speak for another host; None where there is no front.
    """
    if front_token is not None:
        sent = dict(_pairs(caller))
        shown = str(sent.get(TOKEN_KEY, ""))
        if HOST_KEY in sent and hmac.compare_digest(shown.encode(), front_token.encode()):
            return str(sent[HOST_KEY])
    return caller.peer().rpartition(":")[0]


def forwarded(caller: Caller, front_token: str) -> Metadata:
    """A caller's metadata as a front passes it on, with the caller's host.

    Args:
        caller: who calls the front; what it says of hosts and tokens itself is dropped.
        front_token: shows that the front says so.
    """
    kept = [pair for pair in _pairs(caller) if not pair[0].startswith((*_OF_THE_HOP, HOST_KEY, TOKEN_KEY))]
    return (*kept, (HOST_KEY, caller_host(caller, None)), (TOKEN_KEY, front_token))


def _pairs(caller: Caller) -> list[tuple[str, str | bytes]]:
    return [(key, value) for key, value in caller.invocation_metadata() or ()]
