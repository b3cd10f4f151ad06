"""Limits on a server's concurrent requests. Requests above them get 503, so that memory use stays
bounded.

Each token has a share of the places and bytes. Callers that the server doesn't know have a small share together, of which
each address has a part. So no caller can use up what the others need.

Every request passes here, thousands a second, so a request costs two additions, and its body one
entry in a set. Bodies have no separate timers. All of them are checked at an interval.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from headrace.server.decoding.decoding import Decoding
from headrace.server.errors import Problem, error_response
from headrace.server.http import SEND_RESPONSE, Receive, Scope, Send
from headrace.server.options import Options
from headrace.server.transport import refusals
from headrace.server.transport.clients import Clients
from headrace.server.transport.incoming_bodies import IncomingBodies, declared_size, encoding_of
from headrace.server.transport.turns import Turns
from headrace.store.connections.fair_shares import FairShares, NoPlace

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

STRANGER_TIMEOUT = 5.0
"""Seconds for which a request of a caller that the server doesn't know waits for a place."""

MAX_SETTLING_BODY = 2_000_000
"""Largest size in bytes of a request that receives or settles messages. As many ids as one may have need a third of it."""

MAX_SIGN_INS = 10
"""The most requests of one address that wait for the place at which callers without a token are answered by the management
API, such as to sign in."""

PIECE = 65_536
"""Size in bytes up to which pieces of a body are put together."""

_HELD = "headrace.held"
_CALLER = "headrace.caller"
_TURN = "headrace.turn"
_STRANGERS = ""
"""The name under which all strangers together take turns. No token has it."""


class Stranger(NamedTuple):
    """A caller that the server doesn't know, by its address, see `Clients.address_of`."""

    address: str


Caller = str | Stranger
"""The name of a token, or a stranger."""


class BodyLimit(NamedTuple):
    """The largest size of a body in bytes, and what the client can do about it."""

    size: int
    remedy: str


class Limits:
    """Counts and limits the requests of one server.

    Args:
        options: the limits of number, size and speed.
        overloaded: whether calls wait for a connection of the database.

    Attributes:
        turns: shares the event loop between tokens.
        under_way: requests being processed.
        waiting: requests that wait for messages. They are counted separately, since each consumer's
            `max_waiting` limits them.
        held: bytes of the bodies of both.
        refused: refused requests since the start, by HTTP status.
        decoding: decodes and publishes bodies.
    """

    def __init__(self, options: Options, overloaded: Callable[[], bool] = lambda: False) -> None:
        self.options = options
        self._per_token = options.requests_per_token
        self.turns = Turns(self._per_token, overloaded)
        self.under_way = 0
        self.waiting = 0
        self.held = 0
        self.refused: dict[int, int] = {}
        self.clients = Clients(options.proxy_from)
        self.body = BodyLimit(options.max_body, "Send less at a time, or raise the server's --max-body.")
        self.settling_body = min(self.body, BodyLimit(MAX_SETTLING_BODY, "Send fewer ids at a time."))
        self.managed_body = min(
            self.body,
            BodyLimit(options.max_managed_body, "Send less at a time, or raise the server's --max-managed-body."),
        )
        self.decoding = Decoding()
        self._callers: dict[str, int] = {}
        self._held: dict[Caller, int] = {}
        self._held_for_strangers = 0
        self._managing = FairShares(options.max_managed, max(options.max_managed // 2, 1), options.max_managed_waiting)
        self._signing_in = FairShares(1, 1, MAX_SIGN_INS)
        places = options.requests_of_strangers
        self._strangers = FairShares(places, options.requests_per_stranger, places)
        self._strangers_waiting = 0
        self._bodies = IncomingBodies(options)
        self._connections: dict[str, int] = {}

    def around(self, application: Application, knows: Callable[[Scope], bool] = lambda scope: True) -> Application:
        """Wrap an application in the limit of concurrent requests.

        Args:
            knows: returns whether a request comes with a credential that was valid when it was last checked. Others take
                one of the places for strangers.
        """

        async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return await application(scope, receive, send)
            try:
                if not knows(scope):
                    await self.enter_as_stranger(scope)
                self.begin()
            except Problem as problem:
                self.leave(scope)
                return await error_response(problem).send(send)
            try:
                return await application(scope, receive, send)
            finally:
                self.end(scope)

        return bounded

    def connected(self, client: tuple[str, int] | None, by: int) -> bool:
        """Count a connection (1), or count it no more (-1). Returns whether its address has no more of them than its share."""
        address = self.clients.connected_from(client)
        if address is None:
            return True
        count = self._connections.pop(address, 0) + by
        if count > 0:
            self._connections[address] = count
        return count <= self.options.connections_per_address

    def begin(self) -> None:
        """Count a request. Call `end` at its end.

        Raises:
            Problem: too many requests are under way (503).
        """
        if self.under_way >= self.options.max_requests:
            raise self.refuse(refusals.too_many_requests(self.options.max_requests))
        self.under_way += 1

    async def enter_as_stranger(self, scope: Scope) -> None:
        """Wait for a place for a request of a caller that isn't known yet. Call `leave` at its end.

        Raises:
            Problem: no place became free in time, or too many requests wait for one (503).
        """
        caller, waiting = Stranger(self.clients.address_of(scope)), self._strangers_waiting
        if waiting >= self.options.max_requests:
            raise self.refuse(refusals.too_many_strangers(self.options.requests_of_strangers))
        self._strangers_waiting += 1
        try:
            await self._strangers.take(caller, STRANGER_TIMEOUT)
        except NoPlace:
            raise self.refuse(refusals.too_many_strangers(self.options.requests_of_strangers)) from None
        finally:
            self._strangers_waiting -= 1
        scope[_CALLER] = caller

    def end(self, scope: Scope) -> None:
        """Count a request no more, nor its body."""
        self.under_way -= 1
        self._release_body(scope)
        self.leave(scope)

    def begin_whole(self, size: int, *, waits: bool = False) -> bool:
        """Count a request without a token that has arrived in one piece, with a body of `size` bytes. Returns False,
        and counts nothing, if a limit does not allow it. Otherwise call `end_whole` at its end.

        Args:
            waits: whether it waits for messages.
        """
        options = self.options
        if self.under_way >= options.max_requests or size > options.max_body or self.held + size > options.max_held:
            return False
        if waits:
            self.waiting += 1
        else:
            self.under_way += 1
        self.held += size
        return True

    def end_whole(self, size: int, *, waits: bool = False) -> None:
        """Count such a request no more, nor its body."""
        if waits:
            self.waiting -= 1
        else:
            self.under_way -= 1
        self.held -= size

    def hold_body(self, scope: Scope, body: bytes) -> None:
        """Count the bytes of a body that has arrived in one piece, until the request ends.

        Raises:
            Problem: the body is too large (413), its caller has too many bytes (429), or the server holds too many (503).
        """
        if len(body) > self.body.size:
            raise self.refuse(refusals.body_too_large(self.body.size, self.body.remedy))
        self._hold(scope, len(body))

    def admit(self, scope: Scope, caller: str | None, *, everyone: bool = False) -> None:
        """Count a request for its token instead of as a stranger's. Call `leave` at its end.

        Args:
            caller: the name of the token. None if the request needs none.
            everyone: whether no request needs one, so that there are no strangers.

        Raises:
            Problem: the token has too many requests under way (429).
        """
        if caller is None:
            if everyone:
                self.leave(scope)
            return
        if self._callers.get(caller, 0) >= self._per_token:
            raise self.refuse(refusals.too_many_of_token(caller, self._per_token))
        self.leave(scope)
        scope[_CALLER] = caller
        self._callers[caller] = self._callers.get(caller, 0) + 1

    def name_of(self, scope: Scope) -> str:
        """Return under which name a request shares what the server has: its token, or its address."""
        caller: Caller | None = scope.get(_CALLER)
        return caller if isinstance(caller, str) else self.clients.address_of(scope)

    async def take_turn(self, scope: Scope) -> None:
        """Wait for the turn of a request, while several tokens are active. Strangers together count as one. See `Turns`."""
        caller: Caller | None = scope.get(_CALLER)
        if caller is not None:
            turn = caller if isinstance(caller, str) else _STRANGERS
            await self.turns.take(turn)
            scope[_TURN] = turn

    def leave(self, scope: Scope) -> None:
        """End what `enter_as_stranger`, `admit` and `take_turn` have begun."""
        turn = scope.pop(_TURN, None)
        if turn is not None:
            self.turns.give_back(turn)
        caller: Caller | None = scope.pop(_CALLER, None)
        if isinstance(caller, str):
            self._count_caller(caller, -1)
        elif caller is not None:
            self._strangers.release(caller)

    def _count_caller(self, caller: str, by: int) -> None:
        count = self._callers.get(caller, 0) + by
        if count:
            self._callers[caller] = count
        else:
            del self._callers[caller]

    @asynccontextmanager
    async def managing(self, scope: Scope) -> AsyncIterator[None]:
        """Hold one of the places of the management API.

        Its requests may take long and use connections of the database, which publishing and settling need as well.

        Raises:
            Problem: no place became free in time (503).
        """
        caller: Caller = scope.get(_CALLER) or Stranger(self.clients.address_of(scope))
        # Strangers have one separate place, which goes round their addresses. While no token exists, nobody is a
        # stranger, and all places go round the addresses.
        places = self._signing_in if isinstance(scope.get(_CALLER), Stranger) else self._managing
        try:
            async with places.place(caller, self.options.managed_timeout):
                yield
        except NoPlace:
            raise self.refuse(refusals.too_many_managed(places.places)) from None

    @contextmanager
    def wait(self, scope: Scope | None = None) -> Iterator[None]:
        """Count a request as waiting for messages in this context, not as one under way, nor as one of its token."""
        caller: Caller | None = None if scope is None else scope.get(_CALLER)
        turn = None if scope is None else scope.get(_TURN)
        self.under_way -= 1
        self.waiting += 1
        if isinstance(caller, str):  # a stranger receives nothing
            self._count_caller(caller, -1)
        if turn is not None:
            self.turns.give_back(turn)
        try:
            yield
        finally:
            self.under_way += 1
            self.waiting -= 1
            if isinstance(caller, str):
                self._count_caller(caller, 1)
            if turn is not None:
                self.turns.resume(turn)

    def refuse(self, problem: Problem) -> Problem:
        """Count a refusal. Returns it."""
        self.refused[problem.status] = self.refused.get(problem.status, 0) + 1
        return problem

    async def read_body(self, scope: Scope, receive: Receive, limit: BodyLimit | None = None) -> bytes:
        """Read the body of a request, as `read_pieces` does, in one piece."""
        return b"".join(await self.read_pieces(scope, receive, limit))

    async def read_pieces(self, scope: Scope, receive: Receive, limit: BodyLimit | None = None) -> list[bytes]:
        """Read the body of a request in pieces, the small ones put together. After that, `receive` reports only that the
        client has disconnected.

        The bytes count as held until the request ends.

        Args:
            limit: the largest body, `body` by default.

        Raises:
            Problem: the body is compressed (415), too large (413) or too slow (408), its caller has too many bytes under way (429), the server
                holds too many (503), or the client has disconnected before the end of the body (400).
        """
        limit = limit or self.body
        declared = declared_size(scope)
        if declared is None and SEND_RESPONSE in scope:  # Headrace's own parser, and no header announces a body
            return []
        if declared is not None and declared > limit.size:
            raise self.refuse(refusals.body_too_large(*limit))
        pieces: list[bytes] = []
        size = 0
        async with self._bodies.reading() as incoming:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Problem(400, "incomplete", "The client disconnected before the end of the body.")
                piece = message.get("body", b"")
                if piece and not size and (encoding := encoding_of(scope)) is not None:
                    raise self.refuse(refusals.encoded_body(encoding))
                size += len(piece)
                if size > limit.size:
                    raise self.refuse(refusals.body_too_large(*limit))
                self._hold(scope, len(piece))
                if pieces and len(pieces[-1]) + len(piece) <= PIECE:
                    pieces[-1] += piece
                else:
                    pieces.append(piece)
                if not message.get("more_body", False):
                    return pieces
                incoming.add(len(piece))
        raise self.refuse(refusals.body_too_slow(self.options.body_timeout))

    def _hold(self, scope: Scope, size: int) -> None:
        if not size:
            return
        if self.held + size > self.options.max_held:
            raise self.refuse(refusals.too_many_bytes())
        caller: Caller | None = scope.get(_CALLER)
        if caller is not None:
            self._hold_for(caller, size)
        self.held += size
        scope[_HELD] = caller, scope.get(_HELD, (None, 0))[1] + size

    def _hold_for(self, caller: Caller, size: int) -> None:
        """Count bytes for their caller. Raises a `Problem` if it has too many."""
        held = self._held.get(caller, 0) + size
        if isinstance(caller, str):
            if held > self.options.held_per_token:
                raise self.refuse(refusals.too_many_bytes_of_token(caller, self.options.held_per_token))
        else:
            together = self._held_for_strangers + size
            if held > self.options.held_per_stranger or together > self.options.held_for_strangers:
                raise self.refuse(refusals.too_many_bytes())
            self._held_for_strangers = together
        self._held[caller] = held

    def _release_body(self, scope: Scope) -> None:
        caller, size = scope.pop(_HELD, (None, 0))
        self.held -= size
        if caller is None:
            return
        if isinstance(caller, Stranger):
            self._held_for_strangers -= size
        held = self._held.pop(caller) - size
        if held:
            self._held[caller] = held


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first returns a body that was already read, and then what follows it."""
    replayed = False

    async def receive_again() -> Any:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
