"""The administration of a server, over HTTP."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from headrace.client.by_hand import ByHand
from headrace.client.consumers import Consumers
from headrace.client.overview import AtAGlance
from headrace.client.server import DEFAULT_URL, Server
from headrace.client.sources import Sources
from headrace.client.streams import Streams
from headrace.client.tokens import Tokens

if TYPE_CHECKING:
    from headrace.client.transport import Http, Transport

__all__ = ["Remote"]


class Remote(Streams, Consumers, ByHand, Sources, AtAGlance, Tokens):
    """Streams, consumers and messages of a server, to be seen and mended, as `Admin` does it with a database.

        async with Remote("https://headrace.example.com", token=token) as remote:
            await remote.pause("orders", "ship")

    Args:
        server: its URL, or a `Server`.
        token: sent with each request.
        transport: what sends the requests; by default the standard library's HTTP client, in threads.

    Every method raises what that of `Admin` does, `StoreUnavailable` also when the server can't be reached, `InDoubt` when its answer
    is lost, and `ConfigurationError` when the token won't do. An answer may take 30 seconds, besides what the call itself waits.
    """

    def __init__(
        self, server: str | Server = DEFAULT_URL, *, token: str | None = None, transport: Transport | None = None
    ) -> None:
        server = Server(server, token) if isinstance(server, str) else server
        self._transport = transport or _http(server)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    async def __aenter__(self) -> Remote:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _http(server: Server) -> Http:
    from headrace.client.transport import Http  # here, since it costs `--as-curl` and its like some milliseconds

    return Http(server)
