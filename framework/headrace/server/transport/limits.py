"""Limits on a server's concurrent requests. Requests above them get 503, so that memory use stays
bounded.

Every request passes here, thousands a second, so a request costs two additions, and its body one
entry in a set. Bodies have no timers of their own. All of them are checked at an interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from headrace.server.errors import RETRY_AFTER, Problem, error_response
from headrace.server.http import SEND_RESPONSE, Receive, Scope, Send
from headrace.server.options import Options
from headrace.server.transport.turns import Turns
from headrace.store.connections.fair_shares import FairShares, NoPlace

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_HELD = "headrace.held"
_CALLER = "headrace.caller"
_TURN = "headrace.turn"


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
    """

    def __init__(self, options: Options, overloaded: Callable[[], bool] = lambda: False) -> None:
        self.options = options
        self._per_token = options.requests_per_token
        self.turns = Turns(self._per_token, overloaded)
        self.under_way = 0
        self.waiting = 0
        self.held = 0
        self.refused: dict[int, int] = {}
        self._callers: dict[str, int] = {}
        self._managing = FairShares(options.max_managed, max(options.max_managed // 2, 1), options.max_managed_waiting)
        self._bodies: set[_IncomingBody] = set()
        self._checking = False

    def around(self, application: Application) -> Application:
        """Wrap an application in the limit of concurrent requests."""

        async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return await application(scope, receive, send)
            try:
                self.begin()
            except Problem as problem:
                return await error_response(problem).send(send)
            try:
                return await application(scope, receive, send)
            finally:
                self.end(scope)

        return bounded

    def begin(self) -> None:
        """Count a request. Call `end` at its end.

        Raises:
            Problem: too many requests are under way (503).
        """
        if self.under_way >= self.options.max_requests:
            raise self.refuse(_too_many_requests(self.options.max_requests))
        self.under_way += 1

    def end(self, scope: Scope) -> None:
        """Count a request no more, nor its body."""
        self.under_way -= 1
        self.held -= scope.get(_HELD, 0)
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
            Problem: the body is too large (413), or the server holds too many bytes (503).
        """
        if len(body) > self.options.max_body:
            raise self.refuse(_too_large(self.options.max_body, "--max-body"))
        self._hold(scope, len(body))

    def admit(self, scope: Scope, caller: str | None) -> None:
        """Count a request for its token. Call `leave` at its end.

        Args:
            caller: the name of the token. None if the request needs none. It is not counted then.

        Raises:
            Problem: the token has too many requests under way (429).
        """
        if caller is None:
            return
        if self._callers.get(caller, 0) >= self._per_token:
            raise self.refuse(_too_many_of_token(caller, self._per_token))
        scope[_CALLER] = caller
        self._callers[caller] = self._callers.get(caller, 0) + 1

    async def take_turn(self, scope: Scope) -> None:
        """Wait for the turn of a request, while several tokens are active. See `Turns`."""
        caller = scope.get(_CALLER)
        if caller is not None:
            await self.turns.take(caller)
            scope[_TURN] = caller

    def leave(self, scope: Scope) -> None:
        """End what `admit` and `take_turn` have begun."""
        turn = scope.pop(_TURN, None)
        if turn is not None:
            self.turns.give_back(turn)
        caller = scope.pop(_CALLER, None)
        if caller is not None:
            self._count_caller(caller, -1)

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
        try:
            async with self._managing.place(scope.get(_CALLER), self.options.managed_timeout):
                yield
        except NoPlace:
            raise self.refuse(_too_many_managed(self.options.max_managed)) from None

    @contextmanager
    def wait(self, scope: Scope | None = None) -> Iterator[None]:
        """Count a request as waiting for messages in this context, not as one under way, nor as one of its token."""
        caller = None if scope is None else scope.get(_CALLER)
        turn = None if scope is None else scope.get(_TURN)
        self.under_way -= 1
        self.waiting += 1
        if caller is not None:
            self._count_caller(caller, -1)
        if turn is not None:
            self.turns.give_back(turn)
        try:
            yield
        finally:
            self.under_way += 1
            self.waiting -= 1
            if caller is not None:
                self._count_caller(caller, 1)
            if turn is not None:
                self.turns.resume(turn)

    def refuse(self, problem: Problem) -> Problem:
        """Count a refusal. Returns it."""
        self.refused[problem.status] = self.refused.get(problem.status, 0) + 1
        return problem

    async def read_body(self, scope: Scope, receive: Receive, *, managed: bool = False) -> bytes:
        """Read the body of a request. After that, `receive` reports only that the client has
        disconnected.

        The bytes count as held until the request ends.

        Args:
            managed: whether it is a request of the management API, whose bodies are small.

        Raises:
            Problem: the body is too large (413) or too slow (408), the server holds too many bytes
                (503), or the client has disconnected before the end of the body (400).
        """
        limit, option = self.options.max_body, "--max-body"
        if managed and self.options.max_managed_body < limit:
            limit, option = self.options.max_managed_body, "--max-managed-body"
        declared = _declared(scope)
        if (
            declared is None and SEND_RESPONSE in scope
        ):  # Headrace's own HTTP/1.1 parser, and no header announces a body
            return b""
        if declared is not None and declared > limit:
            raise self.refuse(_too_large(limit, option))
        pieces: list[bytes] = []
        size = 0
        incoming = self._begin()
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Problem(400, "incomplete", "The client disconnected before the end of the body.")
                piece = message.get("body", b"")
                size += len(piece)
                if size > limit:
                    raise self.refuse(_too_large(limit, option))
                self._hold(scope, len(piece))
                if not message.get("more_body", False):
                    return piece if not pieces else b"".join((*pieces, piece))
                pieces.append(piece)
                incoming.add(len(piece))
        except asyncio.CancelledError:
            if not incoming.was_late():
                raise
        finally:
            self._bodies.discard(incoming)
        raise self.refuse(_too_slow(self.options.body_timeout))

    def _hold(self, scope: Scope, size: int) -> None:
        if size and self.held + size > self.options.max_held:
            raise self.refuse(_too_many_bytes())
        self.held += size
        scope[_HELD] = scope.get(_HELD, 0) + size

    def _begin(self) -> _IncomingBody:
        loop = asyncio.get_running_loop()
        incoming = _IncomingBody(loop, self.options.body_timeout, self.options.min_body_rate)
        self._bodies.add(incoming)
        if not self._checking:
            self._checking = True
            loop.call_later(self.options.body_check_interval, self._check, loop)
        return incoming

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check all incoming bodies, and schedule the next check while there are any."""
        now = loop.time()
        for incoming in self._bodies:
            incoming.check(now)
        self._checking = bool(self._bodies)
        if self._checking:
            loop.call_later(self.options.body_check_interval, self._check, loop)


class _IncomingBody:
    """An incoming body, and the task that waits for it."""

    __slots__ = ("_began", "_cancelling", "_late", "_loop", "_min_rate", "_progress_at", "_size", "_task", "_timeout")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float, min_rate: float) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task else 0
        self._timeout = timeout
        self._min_rate = min_rate
        self._began = self._progress_at = loop.time()
        self._size = 0
        self._late = False

    def add(self, size: int) -> None:
        """Record a piece of the body. An empty one is no progress."""
        if size:
            self._progress_at = self._loop.time()
            self._size += size

    def check(self, now: float) -> None:
        """Cancel the task if the next piece is late, or if the body as a whole is too slow."""
        due = min(self._progress_at + self._timeout, self._began + 2 * self._timeout + self._size / self._min_rate)
        if now > due and not self._late and self._task is not None:
            self._late = True
            self._task.cancel()

    def was_late(self) -> bool:
        """Return whether `check` caused the cancellation, and nothing else did."""
        return self._late and self._task is not None and self._task.uncancel() <= self._cancelling


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


def _declared(scope: Scope) -> int | None:
    """Return the content-length, 0 for a body of unknown length, and None if no header announces a
    body.

    Headrace's own parser only accepts digits. Under another web server the bytes are counted as
    they arrive.
    """
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 20 else 0
        if name == b"transfer-encoding":
            return 0
    return None


def _too_large(limit: int, option: str) -> Problem:
    return Problem(
        413,
        "too_large",
        f"The body is larger than {limit:,} bytes. Send less at a time, or raise the server's {option}.",
    )


def _too_slow(timeout: float) -> Problem:
    return Problem(408, "too_slow", f"The body arrived too slowly. Each piece of it may take {timeout:g} seconds.")


def _too_many_requests(limit: int) -> Problem:
    return Problem(
        503, "too_many_requests_under_way", f"The server is processing {limit:,} requests, which is its limit. Try again in a moment.",
        headers={"retry-after": RETRY_AFTER},
    )  # fmt: skip


def _too_many_of_token(name: str, limit: int) -> Problem:
    return Problem(
        429, "too_many_requests_of_token",
        f"{limit:,} requests with the token {name!r} are under way, which is the limit of one token. Wait for some of the answers.",
        headers={"retry-after": RETRY_AFTER},
    )  # fmt: skip


def _too_many_managed(limit: int) -> Problem:
    return Problem(
        503, "too_many_requests_under_way",
        f"The server processes {limit} requests of the management API at the same time, and too many wait. Try again in a moment,"
        " with fewer of them at a time.",
        headers={"retry-after": RETRY_AFTER},
    )  # fmt: skip


def _too_many_bytes() -> Problem:
    return Problem(
        503, "too_much_under_way", "The request bodies in progress have reached the server's limit of memory. Try again in a moment.",
        headers={"retry-after": RETRY_AFTER},
    )  # fmt: skip
