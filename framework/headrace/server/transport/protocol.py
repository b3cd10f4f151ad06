"""A connection of `headrace serve`: uvicorn's protocol, with limits on the size and the duration of
requests, and without ASGI for the usual requests of the data plane, see `Exchange`.

The limits cost a few comparisons per request. After the first request of a connection, timers are
set only for slow clients: if request line and headers arrive in several pieces, or if a response is
not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import proxy

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from headrace.server.errors import Problem
from headrace.server.http import SEND_RESPONSE
from headrace.server.transport import refusals
from headrace.server.transport.ambiguity import ambiguity, without_offer
from headrace.server.transport.exchange import Exchange, FindEndpoint, plain_head
from headrace.server.transport.heads import KnownHeads, size_of
from headrace.server.transport.limits import Limits
from headrace.server.transport.responses import send_at_once
from headrace.server.transport.write_deadline import WriteDeadline

REFUSED_CONNECTIONS = 100
"""Connections above the limit that get a 503 response. Those above that are closed without one."""


class Connection(HttpToolsProtocol):
    """A connection. The server's part is in class attributes. See `connection_class`."""

    limits: Limits
    on_closed: Callable[[], None]
    find_endpoint: FindEndpoint
    known_heads: KnownHeads

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._options = self.limits.options
        self._in_head = False
        self._head = 0  # bytes of the head after its first piece
        self._piece = self._first = 0  # bytes of the last piece, and of the one in which the head began
        self._framing = 0  # bytes since the body's last byte, such as trailers
        self._ignore_input = False
        self._refusal: Problem | None = None
        self._last: Problem | None = None  # a refusal that waits for the responses to earlier requests
        self._exchange: Exchange | None = None  # the request that is being parsed, if it needs no ASGI
        self._answering: Exchange | RequestResponseCycle | None = None  # the request whose response is the next one
        self._begun = 0  # requests that began in the last piece
        self._may_offer = False  # the last piece began with a request, which may offer another protocol
        self._idle_since = 0.0
        self._deadline: asyncio.TimerHandle | None = None  # of the head, a refusal, or the rest of a refused body
        self._write_deadline = WriteDeadline(self.loop, self._options.write_timeout)

    # --- the beginning and the end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a client's connection, or refuse it above the limit."""
        super().connection_made(transport)
        count, limit = len(self.connections), self._options.max_connections
        of_address = self.limits.connected(self.client, 1)
        if count <= limit and not of_address:
            self._refuse(refusals.too_many_connections_of_address(self._options.connections_per_address))
        elif count <= limit:
            self._wait_for_head()
        elif count <= limit + REFUSED_CONNECTIONS:
            self._refuse(refusals.too_many_connections(limit))
        else:
            self._ignore_input = True
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection has ended."""
        self._cancel_deadline()
        self._write_deadline.stop()
        self.limits.connected(self.client, -1)
        super().connection_lost(exc)  # it notifies the last request, which may be one that was sent ahead
        answering = self._answering
        if answering is not None and answering is not self.cycle and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        self.cycle = self._answering = None  # type: ignore[assignment]  # they have this connection
        self.pipeline.clear()  # as these do
        self.on_closed()

    def _wait_for_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._options.head_timeout, self._deadline_passed)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _deadline_passed(self) -> None:
        self._deadline = None
        if not self._in_head or self._ignore_input:  # no request has begun, so none is answered
            self.transport.close()
            return
        self._refuse(refusals.head_too_slow(self._options.head_timeout))

    # --- requests

    def data_received(self, data: bytes) -> None:
        """Parse a piece of input."""
        if self._ignore_input:
            return
        between_requests = self._is_between_requests()
        if between_requests and (known := self.known_heads.find(data)) is not None:
            if self._deadline is not None:
                self._cancel_deadline()
            self._answer(Exchange(known[0], self, known[1]))
            return
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        self._begun = 0
        self._may_offer = between_requests
        self._parse(data)
        if between_requests and self._begun == 1 and self._exchange is None and isinstance(self.cycle, Exchange):
            self._remember(self.cycle, data)

    def _is_between_requests(self) -> bool:
        """Return whether every request has arrived and is answered, so that the next byte begins another one."""
        if self._in_head:
            return False
        cycle = self.cycle
        return cycle is None or (cycle.response_complete and not cycle.more_body)

    def _remember(self, exchange: Exchange, data: bytes) -> None:
        """Remember the head of a request, if it and its body are all of a piece."""
        if exchange.keep_alive and not self._in_head and not self._ignore_input:
            self.known_heads.add(data, exchange.head, exchange.body)

    def _parse(self, data: bytes) -> None:
        self._piece = len(data)
        if self._in_head:
            self._head += self._piece
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            if self._begun == 1 and self._may_offer and (rest := self._without_offer(data)) is not None:
                self._parse(rest)
                return
            self._refuse(self._refusal or refusals.malformed("The request is not HTTP/1.1."))
            return
        except httptools.HttpParserUpgrade:
            # The upgrade is ignored and the request answered as usual. What follows may be of the other
            # protocol, so it is not read as HTTP.
            self._ignore_input = True
            return
        if self._exchange is not None:
            self._go_on_through_asgi(self._exchange)
        cycle = self.cycle
        if self._in_head:
            if self._head > self._options.max_head or self._is_too_large():
                self._refuse(refusals.head_too_large(self._options.max_head))
            else:
                self._wait_for_head()
        elif cycle is None or (cycle.response_complete and not cycle.more_body):
            self._wait_for_head()  # empty lines are no request
        elif cycle.more_body:
            self._framing += self._piece
            if self._framing > self._options.max_head + self._piece:
                self._refuse(refusals.head_too_large(self._options.max_head))

    def _without_offer(self, data: bytes) -> bytes | None:
        """Begin to parse a request again that is refused at its head. Returns it without the offer of another protocol, or
        None if it has none.
        """
        rest = without_offer(data) if self._in_head else None
        if rest is not None:
            self._may_offer, self._refusal, self.parser = False, None, httptools.HttpRequestParser(self)
        return rest

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.url = b""
        self.headers = []
        self._in_head = True
        self._head = 0
        self._first = self._piece
        self._begun += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Trailers are discarded, since the request has begun without them."""
        if self._in_head:
            self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._framing = 0
        if self._exchange is not None:
            self._exchange.body += body
        else:
            super().on_body(body)

    def on_headers_complete(self) -> None:
        """Check the complete headers of a request. Raises to refuse them."""
        options = self._options
        if self._is_too_large():
            self._refusal = refusals.head_too_large(options.max_head)
        elif len(self.headers) > options.max_headers:
            self._refusal = refusals.too_many_headers(len(self.headers), options.max_headers)
        elif len(self.pipeline) >= options.max_pipelined:
            self._refusal = refusals.too_many_pipelined(options.max_pipelined)
        else:
            self._exchange = self._begin_exchange()
            if self._exchange is None and (reason := ambiguity(self.parser, self.url, self.headers)) is not None:
                self._refusal = refusals.malformed(reason)
        if self._refusal is not None:
            raise self._refusal
        self._in_head = False
        self._framing = 0
        if self._deadline is not None:
            self._cancel_deadline()
        if self._exchange is None:
            self._begin_asgi()

    def _begin_exchange(self) -> Exchange | None:
        """Begin a request that needs no ASGI, as far as its head says. None if it does."""
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        head = plain_head(self.parser, self.url, self.headers, self.find_endpoint)
        return None if head is None else Exchange(head, self, keep_alive=self.parser.should_keep_alive())

    def _go_on_through_asgi(self, exchange: Exchange) -> None:
        """Take a request for an ordinary one, since only the first piece of its body has arrived."""
        self._exchange = None
        self._begin_asgi()
        if exchange.body:
            super().on_body(exchange.body)

    def _begin_asgi(self) -> None:
        """Begin a request that the application answers through ASGI."""
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()
        cycle = self.cycle
        cycle.keep_alive = self.parser.should_keep_alive() and not self.parser.should_upgrade()
        if cycle.keep_alive and self.parser.get_http_version() == "1.0":  # only a client that asks for it
            cycle.default_headers = [*cycle.default_headers, (b"connection", b"keep-alive")]
        if not self.pipeline:
            self._answering = cycle
        self.scope[SEND_RESPONSE] = partial(send_at_once, proxy(cycle))  # type: ignore[literal-required]  # it has the scope

    def _is_too_large(self) -> bool:
        """Return whether the known part of the head is too large.

        A header that began in the head's first piece and has not ended is not counted, but the size
        of a piece is bounded, too.
        """
        limit = self._options.max_head
        if self._first + self._head <= limit:  # all that has arrived, which is usually enough to know
            return False
        return size_of(self.url, self.headers) > limit

    def on_message_complete(self) -> None:
        """End a request's body, which may have been refused long before."""
        if self._exchange is not None:
            self._answer(self._exchange)
            return
        cycle = self.cycle
        if cycle.response_complete and cycle.more_body:
            cycle.more_body = False
            self._cancel_deadline()
            self._keep_alive()
        super().on_message_complete()

    def _answer(self, exchange: Exchange) -> None:
        """Answer a request that has arrived in one piece."""
        self._exchange = None
        self.cycle = self._answering = exchange  # type: ignore[assignment]  # it has what uvicorn uses of a cycle
        coroutine = exchange.head.endpoint(exchange)
        if coroutine is not None:
            exchange.start(coroutine)

    # --- responses

    def on_response_complete(self) -> None:
        """End a response. If the request's body has not ended, the rest is awaited for a moment,
        so that the client gets the response."""
        cycle = self.cycle
        if self._last is not None and not self.pipeline:
            self._end_with(self._last)
            return
        if isinstance(cycle, Exchange) and not self.pipeline:
            self._end_exchange()
            return
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None:
            self._idle_since = self.loop.time()
        if self.transport.is_closing():
            return
        if cycle is self.cycle and cycle.response_complete and cycle.more_body:
            self._unset_keepalive_if_required()
            self._deadline = self.loop.call_later(self._options.discard_time, self.transport.close)

    def _end_exchange(self) -> None:
        """Wait for the next request, as uvicorn does after a response. The timer of an idle connection that is set
        already goes on, and finds that the connection was not idle."""
        self.server_state.total_requests += 1
        self.cycle = self._answering = None  # type: ignore[assignment]  # it has its body, and this connection
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._keep_alive()

    def _keep_alive(self) -> None:
        self._unset_keepalive_if_required()
        self._idle_since = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has been idle for long enough. It may have had requests since the timer was set."""
        self.timeout_keep_alive_task = None
        if self.transport.is_closing() or not self._is_between_requests():
            return  # the next response sets the timer
        remaining = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if remaining > 0:
            self.timeout_keep_alive_task = self.loop.call_later(remaining, self.timeout_keep_alive_handler)
        else:
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        """Respond with a problem after the responses to earlier requests, and end the connection."""
        self.limits.refuse(problem)
        self._ignore_input = True
        self._cancel_deadline()
        cycle = self.cycle
        if self.pipeline and self.pipeline[0][0] is cycle and cycle.more_body:
            self.pipeline.popleft()  # the malformed request itself, which has not begun
        elif cycle is not None and not cycle.response_complete and cycle.more_body:
            self.transport.close()  # the request in progress itself, which may have begun to respond
            return
        if cycle is None or (cycle.response_complete and not self.pipeline):
            self._end_with(problem)
        else:
            self._last = problem

    def _end_with(self, problem: Problem) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(refusals.last_response(problem))
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._deadline = self.loop.call_later(self._options.discard_time, self.transport.close)
        else:
            self.transport.close()  # TLS has its own end of the connection

    # --- unread responses

    def pause_writing(self) -> None:
        """Start the timer of a client that reads more slowly than the server writes."""
        super().pause_writing()
        self._write_deadline.start(self.transport)

    def resume_writing(self) -> None:
        """Stop the timer of a client that has read."""
        super().resume_writing()
        self._write_deadline.stop()


def connection_class(
    limits: Limits, on_closed: Callable[[], None], find_endpoint: FindEndpoint = lambda method, path: None
) -> type[Connection]:
    """Make the class of a server's connections. uvicorn instantiates it, and has no arguments for
    limits.

    Args:
        limits: the limits of the server.
        on_closed: called when a connection has ended.
        find_endpoint: returns what answers a request without ASGI. By default nothing does.
    """
    functions = {"on_closed": staticmethod(on_closed), "find_endpoint": staticmethod(find_endpoint)}
    return type("Connection", (Connection,), {"limits": limits, "known_heads": KnownHeads(), **functions})
