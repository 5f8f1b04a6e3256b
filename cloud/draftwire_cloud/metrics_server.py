"""``/metrics`` over HTTP, on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, start_http_server

from draftwire_cloud.server import Address
from draftwire_protocol.errors import UserInputError


class MetricsServer:
    """Answers with what a registry holds; a context manager.

    Args:
        address: where to listen.
        registry: what to show.

    Raises:
        UserInputError: on entering, when the address cannot be listened on.
    """

    def __init__(self, address: Address, registry: CollectorRegistry) -> None:
        self._address = address
        self._registry = registry

    def __enter__(self) -> Self:
        host, port = self._address.host, self._address.port
        try:
            self._server, self._thread = start_http_server(port, host, self._registry)
        except OSError as error:
            raise UserInputError(
                "--metrics-port",
                f"cannot listen on {host}:{port} ({error.strerror})",
                "Choose another --metrics-port (0 takes a free one) or --metrics-host, or stop what uses it",
            ) from error
        self.port = self._server.server_port
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def exposing(address: Address | None, say: Callable[[str], None]) -> Iterator[CollectorRegistry]:
    """A registry of its own, so that servers in one process do not meet, and who shows it.

    It listens at once, before there is anything to show: a taken port should not end a service that is ready.

    Args:
        address: where to show it; None for nowhere.
        say: told where.

    Raises:
        UserInputError: the address cannot be listened on.
    """
    registry = CollectorRegistry()
    if address is None:
        yield registry
        return
    with MetricsServer(address, registry) as server:
        say(f"metrics on http://{address.host}:{server.port}/metrics")
        yield registry
