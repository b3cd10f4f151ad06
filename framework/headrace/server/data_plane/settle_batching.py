"""Batched settling. Concurrent acks and nacks of one consumer share a call."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

from headrace import store
from headrace.model.ack_ids import AckId
from headrace.model.outcomes import Failure, Settlement
from headrace.server.data_plane.coalescing import Coalescer, fail
from headrace.server.data_plane.gathering import Gathering
from headrace.server.errors import unavailable

MAX_MESSAGES = 5000
"""Largest number of messages in one settle call, unless a single request has more."""


Lost = set[tuple[int, int | None]]
"""Messages with a lost lease by (lease, seq), and whole leases that were lost by (lease, None)."""


class _PendingSettle:
    """The messages that one request settles: leases that it acks completely, and single messages."""

    __slots__ = ("answer", "failure", "singles", "whole")

    def __init__(
        self, whole: set[int], singles: Sequence[tuple[int, int]] = (), failure: Failure | None = None
    ) -> None:
        self.whole = whole
        self.singles = singles
        self.failure = failure
        self.answer: asyncio.Future[Lost] = asyncio.get_running_loop().create_future()


def _pending(ids: Sequence[AckId], failure: Failure | None, strict: bool) -> _PendingSettle:
    whole: set[int] = set()
    if failure is None and not strict:
        held = Counter([one.lease for one in ids])
        whole = {one.lease for one in ids if held[one.lease] == one.size}
    return _PendingSettle(whole, [(one.lease, one.seq) for one in ids if one.lease not in whole], failure)


class SettleBatcher:
    """The settle requests of this process for one consumer.

    Args:
        database: an open database.
        consumer: the consumer's number.
        start: starts a task that lives as long as the engine.
        coalescer: coalesces the settle calls of this process.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        database: store.Database,
        consumer: int,
        start: Callable[..., None],
        coalescer: Coalescer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._consumer = consumer
        self._start = start
        self._calls = coalescer.turns()
        self._queue: list[_PendingSettle] = []
        self._working = False
        self._gathering = Gathering(clock)
        self._clock = clock
        self.used_at = clock()

    @property
    def unused(self) -> bool:
        """Whether no request is in work."""
        return not self._working

    async def settle(self, ids: Sequence[AckId], failure: Failure | None, *, strict: bool) -> Lost:
        """Settle messages. Returns (lease, seq) of those with a lost lease, and (lease, None) for a
        whole lease.

        Args:
            ids: ack ids of distinct messages.
            failure: None to ack.
            strict: whether to check each message. Otherwise a lease that is acked completely is
                checked as one, and a message of it that was acked before goes unnoticed.

        Raises:
            UnknownConsumer, StoreUnavailable.
        """
        return await self._begin(_pending(ids, failure, strict))

    def ack_lease(self, lease: int) -> asyncio.Future[Lost]:
        """Ack all messages that a lease holds. If the lease was lost, (lease, None) is in the future's result. It has
        the exceptions of `settle`.

        Raises:
            StoreUnavailable: the server is stopping. Nothing is settled.
        """
        return self._begin(_PendingSettle({lease}))

    def _begin(self, request: _PendingSettle) -> asyncio.Future[Lost]:
        self.used_at = self._clock()
        if not self._working:
            self._start(self._work)
            self._working = True
        self._queue.append(request)
        self._gathering.joined(self._queue)
        return request.answer

    async def _work(self) -> None:
        try:
            while self._queue:
                await self._gathering.gather(self._queue)
                async with self._calls.turn():
                    requests = self._next()
                    try:
                        with self._gathering.call(requests):
                            await self._settle(requests)
                    except BaseException as error:  # raised in the requests
                        fail([one.answer for one in requests], error)
                        if not isinstance(error, Exception):
                            raise
        finally:
            self._working = False
            remaining, self._queue = self._queue, []  # empty unless cancelled
            fail([one.answer for one in remaining], unavailable("The server is stopping. Try again."))

    def _next(self) -> list[_PendingSettle]:
        """Take requests for one call. If two name the same message, the second waits for the next call."""
        batch: list[_PendingSettle] = []
        remaining: list[_PendingSettle] = []
        whole: set[int] = set()
        partly: set[int] = set()
        seen: set[tuple[int, int]] = set()
        size = 0
        for index, request in enumerate(self._queue):
            if batch and size + len(request.singles) > MAX_MESSAGES:
                remaining += self._queue[index:]
                break
            leases = {lease for lease, _ in request.singles}
            if not (
                request.whole.isdisjoint(whole)
                and request.whole.isdisjoint(partly)
                and leases.isdisjoint(whole)
                and seen.isdisjoint(request.singles)
            ):
                remaining.append(request)
                continue
            batch.append(request)
            whole |= request.whole
            partly |= leases
            seen.update(request.singles)
            size += len(request.singles)
        self._queue = remaining
        return batch

    async def _settle(self, requests: list[_PendingSettle]) -> None:
        settlement = Settlement()
        for request in requests:
            settlement.whole += request.whole
            settlement.leases += [lease for lease, _ in request.singles]
            settlement.seqs += [seq for _, seq in request.singles]
            settlement.failures += [request.failure] * len(request.singles)
        lost: Lost = set()
        if settlement:
            lost = {(one.lease_id, one.seq) for one in await store.settle(self._database, self._consumer, settlement)}
        for request in requests:
            if not request.answer.done():
                request.answer.set_result(lost)
