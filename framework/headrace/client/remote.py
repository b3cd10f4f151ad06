"""Remote administration of a server over HTTP."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from headrace.client.address import DEFAULT_URL, Server
from headrace.client.consumers import Consumers
from headrace.client.manual_acks import ManualAcks
from headrace.client.overview import OverviewCalls
from headrace.client.sources import Sources
from headrace.client.streams import Streams
from headrace.client.tokens import Tokens

if TYPE_CHECKING:
    from headrace.client.transport import Http, Transport

__all__ = ["Remote"]


class Remote(Streams, Consumers, ManualAcks, Sources, OverviewCalls, Tokens):
    """Read and change the streams, consumers, messages, sources and tokens of a server. It has the
    methods of `Admin`, which does the same with a database.

        async with Remote("https://headrace.example.com", token=token) as remote:
            await remote.pause("orders", "ship")

    Args:
        server: its URL, or a `Server`.
        token: sent with each request.
        transport: sends the requests. The default is the standard library's HTTP client in threads.

    Every method raises what the method of `Admin` raises. It also raises `StoreUnavailable` if the
    server can't be reached, `InDoubt` if the answer is lost, and `ConfigurationError` if the token
    is missing or not sufficient. An answer may take 30 seconds, in addition to the time that the
    call itself waits.
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
    from headrace.client.transport import Http  # imported late, it would delay `--as-curl` by milliseconds

    return Http(server)
