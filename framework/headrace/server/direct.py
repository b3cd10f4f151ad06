"""The usual requests of the data plane, answered without a task.

A publish, a receive or the ack of a whole lease only waits for a call of the database that it shares with others. So it
needs no task and no coroutine of its own: it is handed over when it arrives, and its response is written by a callback
when that call is done. That holds while nothing about the request needs anything else: its stream or consumer is cached,
the server is open (see `headrace.server.access`), and no limit stops it. Otherwise, and if anything is wrong with
it, the request is answered by a coroutine, which checks everything again and says what is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import msgspec

from headrace.model.errors import InvalidInput
from headrace.server.access.origins import OriginPolicy
from headrace.server.access.scopes import Access
from headrace.server.data_plane.delivery_bodies import (
    ReceiveOptions,
    ack_ids_of,
    decode_settle,
    encode_deliveries,
    read_receive,
)
from headrace.server.data_plane.publish_batching import Incoming
from headrace.server.data_plane.publish_bodies import invalid_field, read_messages
from headrace.server.data_plane.receive_request import ClientGone, Receiver, Share
from headrace.server.data_plane.receiving import Receivers
from headrace.server.data_plane.registry import CachedConsumer, CachedStream
from headrace.server.data_plane.settle_batching import Lost
from headrace.server.dialects.dispatch import DataPlane
from headrace.server.dialects.operations import SUCCESS
from headrace.server.engine import Engine
from headrace.server.errors import error_response, forget_frames
from headrace.server.http import Endpoint, Response
from headrace.server.transport.exchange import Endpoint as ExchangeEndpoint
from headrace.server.transport.exchange import Exchange
from headrace.server.transport.limits import Limits

Count = Callable[[Endpoint, str, Response | None, float], None]
"""Counts a request: its endpoint, method, response (None if its client has disconnected) and when it began."""

Otherwise = Callable[[Exchange], Coroutine[Any, Any, None]]
"""Answers any request in a task."""


class _Receiving:
    """A receive request in progress. `ack_ids`: those that it has yet to ack. `stale`: those that it acked without effect,
    None if it acks nothing."""

    __slots__ = ("ack_ids", "batch_size", "consumer", "exchange", "receivers", "stale", "wait_for")

    def __init__(
        self, consumer: CachedConsumer, receivers: Receivers, options: ReceiveOptions, exchange: Exchange
    ) -> None:
        self.consumer = consumer
        self.receivers = receivers
        self.exchange = exchange
        self.batch_size, self.wait_for = options.batch_size, options.wait_for
        self.ack_ids: Sequence[str] = options.ack_ids or ()
        self.stale: list[str] | None = [] if options.settles else None


class DirectAnswers:
    """Answers requests without tasks.

    Args:
        engine: publishes, leases and settles.
        data_plane: the endpoints that are answered in this way as well.
        access: says whether the server is open.
        limits: counts the requests.
        origins: knows which requests come from no browser.
        elsewhere: whether another database may have to answer.
        count: counts each request.
    """

    def __init__(
        self,
        engine: Engine,
        data_plane: DataPlane,
        access: Access,
        limits: Limits,
        origins: OriginPolicy,
        elsewhere: Callable[[], bool],
        count: Count,
    ) -> None:
        self._engine = engine
        self._data_plane = data_plane
        self._access = access
        self._limits = limits
        self._origins = origins
        self._elsewhere = elsewhere
        self._count = count
        streams, pull, consume = data_plane.streams, data_plane.pull, data_plane.consume
        self._publish, self._receive = streams.publish, streams.receive
        self._acks = frozenset((streams.ack, pull.ack, consume.ack))

    def endpoint(self, endpoint: Endpoint, names: tuple[str, ...], otherwise: Otherwise) -> ExchangeEndpoint:
        """Return what answers the requests of an endpoint of the data plane.

        Args:
            endpoint: the endpoint.
            names: the names in the path.
            otherwise: answers what isn't answered here.
        """
        begin: Callable[[Exchange], bool]
        if endpoint == self._publish:
            begin = partial(self._begin_publish, names[0])
        elif endpoint == self._receive:
            begin = partial(self._begin_receive, names)
        elif endpoint in self._acks:
            begin = partial(self._begin_ack, endpoint, names)
        else:
            return otherwise

        def answer(exchange: Exchange) -> Coroutine[Any, Any, None] | None:
            if self._access.open and not self._elsewhere() and self._is_plain(exchange):
                try:
                    exchange.began = perf_counter()
                    begun = begin(exchange)
                except Exception:
                    begun = False  # nothing has begun, and the coroutine finds the same
                if begun:
                    return None
            return otherwise(exchange)

        return answer

    def _is_plain(self, exchange: Exchange) -> bool:
        head = exchange.head
        if not head.plain:
            head.plain = self._origins.is_plain(head.scope["headers"])
        return head.plain

    # --- publish

    def _begin_publish(self, name: str, exchange: Exchange) -> bool:
        stream = self._engine.cached_stream(name)
        if stream is None or exchange.head.query_string:
            return False
        if not self._limits.begin_whole(len(exchange.body)):
            return False
        try:
            messages = read_messages(exchange.body)
            answer = self._engine.begin_publish(stream, messages)
        except BaseException:
            self._limits.end_whole(len(exchange.body))
            raise
        exchange.begin_waiting(answer)
        answer.add_done_callback(partial(self._end_publish, stream, messages, exchange))
        return True

    def _end_publish(
        self, stream: CachedStream, messages: Incoming, exchange: Exchange, answer: asyncio.Future[int]
    ) -> None:
        response: Response | None = None
        try:
            response = Response(200, b'{"data":{"published":%d}}' % self._engine.end_publish(stream, messages, answer))
        except InvalidInput as error:
            error.field = error.field or invalid_field(messages)
            response = error_response(error)
        except Exception as error:
            response = error_response(error)
        except asyncio.CancelledError:
            pass
        self._end(self._publish, exchange, response, answer)

    # --- receive

    def _begin_receive(self, names: tuple[str, ...], exchange: Exchange) -> bool:
        consumer = self._engine.cached_consumer(*names)
        receivers = None if consumer is None else self._engine.receivers(consumer)
        if consumer is None or receivers is None:
            return False
        query_string = exchange.head.query_string
        self._data_plane.check_query_of_receive(query_string)
        options = read_receive(exchange.body, query_string)
        if options.nack_ids or not self._limits.begin_whole(len(exchange.body), waits=True):
            return False
        receiving = _Receiving(consumer, receivers, options, exchange)
        begun = False
        try:
            begun = self._settle_earlier(receiving) if receiving.ack_ids else self._lease(receiving)
        finally:
            if not begun:
                self._limits.end_whole(len(exchange.body), waits=True)
        return begun

    def _settle_earlier(self, receiving: _Receiving) -> bool:
        """Ack the messages that a receive request names, if they are a lease that this server has given, and receive
        after that."""
        begun = self._engine.begin_ack(receiving.consumer, receiving.ack_ids)
        if begun is None:
            return False
        lease, answer = begun
        receiving.exchange.begin_waiting(answer)
        answer.add_done_callback(partial(self._end_settle_earlier, receiving, lease))
        return True

    def _end_settle_earlier(self, receiving: _Receiving, lease: int, answer: asyncio.Future[Lost]) -> None:
        exchange = receiving.exchange
        response: Response | None = None
        try:
            receiving.stale = self._engine.end_ack(receiving.consumer, receiving.ack_ids, lease, answer)
            receiving.ack_ids = ()  # they need no memory while it waits
            if not exchange.gone:
                exchange.end_waiting(answer)
                self._lease(receiving)
                return
        except Exception as error:
            response = error_response(error)
        except asyncio.CancelledError:
            pass
        self._end(self._receive, exchange, response, answer, waits=True)

    def _lease(self, receiving: _Receiving) -> bool:
        exchange = receiving.exchange
        receiver = receiving.receivers.begin(receiving.batch_size, receiving.wait_for, exchange.wait_for_disconnect)
        exchange.begin_waiting(receiver.answer)
        receiver.answer.add_done_callback(partial(self._end_receive, receiving, receiver))
        return True

    def _end_receive(self, receiving: _Receiving, receiver: Receiver, answer: asyncio.Future[Share]) -> None:
        consumer, exchange = receiving.consumer, receiving.exchange
        response: Response | None = None
        undelivered: Callable[[], None] | None = None
        try:
            share = self._engine.end_receive(consumer, receiving.receivers, receiver)
            if receiving.stale is not None:
                share = msgspec.structs.replace(share, stale=receiving.stale)
            if share.lease is not None:
                undelivered = partial(self._engine.start_release, consumer, share)
            if not exchange.gone:
                response = Response(200, encode_deliveries(share))
            elif undelivered is not None:
                undelivered()
        except ClientGone as error:
            forget_frames(error)
        except Exception as error:
            response = error_response(error)
        except asyncio.CancelledError:
            pass
        self._end(self._receive, exchange, response, answer, waits=True, undelivered=undelivered)

    # --- ack

    def _begin_ack(self, endpoint: Endpoint, names: tuple[str, ...], exchange: Exchange) -> bool:
        engine = self._engine
        consumer = engine.cached_consumer(*names) if len(names) == 2 else engine.cached_consumer_anywhere(names[0])
        if consumer is None or exchange.head.query_string:
            return False
        if not self._limits.begin_whole(len(exchange.body)):
            return False
        begun = None
        try:
            body = decode_settle(exchange.body)
            ack_ids = ack_ids_of(body)
            begun = None if body.strict else engine.begin_ack(consumer, ack_ids)
        finally:
            if begun is None:
                self._limits.end_whole(len(exchange.body))
        if begun is None:
            return False
        lease, answer = begun
        exchange.begin_waiting(answer)
        answer.add_done_callback(partial(self._end_ack, endpoint, consumer, ack_ids, lease, exchange))
        return True

    def _end_ack(
        self,
        endpoint: Endpoint,
        consumer: CachedConsumer,
        ack_ids: list[str],
        lease: int,
        exchange: Exchange,
        answer: asyncio.Future[Lost],
    ) -> None:
        response: Response | None = None
        try:
            self._engine.end_ack(consumer, ack_ids, lease, answer)
            response = SUCCESS  # also if the lease was lost, since the request isn't strict
        except Exception as error:
            response = error_response(error)
        except asyncio.CancelledError:
            pass
        self._end(endpoint, exchange, response, answer)

    # --- the response

    def _end(
        self,
        endpoint: Endpoint,
        exchange: Exchange,
        response: Response | None,
        answer: asyncio.Future[Any],
        *,
        waits: bool = False,
        undelivered: Callable[[], None] | None = None,
    ) -> None:
        """Send the response, if there is one, and count the request as ended.

        Args:
            undelivered: called if the client disconnects while the response waits for it.
        """
        exchange.end_waiting(answer)
        if response is not None and exchange.must_wait:
            # Its end is not left to the coroutine, which never begins if its task is cancelled before.
            later = exchange.start(_respond_later(exchange, response, undelivered))
            later.add_done_callback(partial(self._ended, endpoint, exchange, response, waits))
            return
        try:
            if response is not None:
                exchange.respond_now(response)
        finally:
            self._ended(endpoint, exchange, response, waits)

    def _ended(
        self,
        endpoint: Endpoint,
        exchange: Exchange,
        response: Response | None,
        waits: bool,
        task: asyncio.Task[None] | None = None,
    ) -> None:
        self._limits.end_whole(len(exchange.body), waits=waits)
        self._count(endpoint, exchange.head.method, response, exchange.began)


async def _respond_later(exchange: Exchange, response: Response, undelivered: Callable[[], None] | None) -> None:
    """Send a response once the client has read enough of earlier ones."""
    await exchange.client_has_read()
    if undelivered is not None and exchange.gone:
        undelivered()
    else:
        exchange.respond_now(response)
