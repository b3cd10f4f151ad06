"""Dispatch of the data plane: publish, receive, ack, nack, extend. Clients call these for every batch,
and everything else rarely. A framework's routing, parsing and answering would take longer than the rest of such a request.

An endpoint takes a `Request` and returns its `Response`. Routes are few, so they are found by
splitting the path.
"""

from __future__ import annotations

from functools import lru_cache

from headrace.server.data_plane.delivery_bodies import RECEIVE_PARAMETERS
from headrace.server.dialects import consume, pull
from headrace.server.dialects.consume import Consume
from headrace.server.dialects.operations import Operations
from headrace.server.dialects.pull import Pull
from headrace.server.dialects.streams import Streams
from headrace.server.engine import Engine
from headrace.server.http import Endpoint, Request, parameters
from headrace.server.query_parameters import check_parameters
from headrace.server.slashes import unmarked
from headrace.server.transport.limits import Limits

_RECEIVE = ("receive", "next")
"""Names of the endpoints that receive."""


_TO_STREAMS = {("POST", "/v1/messages"), ("POST", "/api/messages")}


class DataPlane:
    """The endpoints of all dialects.

    Args:
        engine: publishes, leases and settles.
        limits: counts waiting requests separately.
    """

    def __init__(self, engine: Engine, limits: Limits) -> None:
        operations = Operations(engine, limits)
        self.streams = Streams(operations)
        self.pull = Pull(operations)
        self.consume = Consume(operations)
        self._by_name = dict.fromkeys(pull.PREFIXES, self.pull.find) | {consume.PREFIX: self.consume.find}

    @staticmethod
    def check_query(endpoint: Endpoint, request: Request) -> None:
        """Raise a `Problem` if a request has a query parameter that its endpoint doesn't take."""
        if request.query_string:
            _check_query(request.query_string, RECEIVE_PARAMETERS if endpoint.__name__ in _RECEIVE else ())

    @staticmethod
    def check_query_of_receive(query_string: bytes) -> None:
        """Raise a `Problem` if a query has a parameter that a receive request doesn't take."""
        if query_string:
            _check_query(query_string, RECEIVE_PARAMETERS)

    def find(self, method: str, path: str) -> tuple[Endpoint, tuple[str, ...]] | None:
        """Return the endpoint for a path and the names in the path. None if the path isn't part
        of the data plane."""
        parts = path.split("/")
        if len(parts) < 5 or parts[1] not in ("v1", "api"):
            return (self.streams.publish_to_streams, ()) if (method, path) in _TO_STREAMS else None
        if not path.isascii():
            parts = [unmarked(part) for part in parts]
        if parts[2] == "streams":
            return self.streams.find(method, parts[3:], older=parts[1] == "api")
        if len(parts) == 5 and parts[2] in self._by_name:
            endpoint = self._by_name[parts[2]](method, parts[4])
            return None if endpoint is None else (endpoint, (parts[3],))
        return None


@lru_cache(maxsize=100)
def _check_query(query: bytes, known: tuple[str, ...]) -> None:
    """Check the names in a query. A client usually sends the same one again."""
    check_parameters(parameters(query), known)
