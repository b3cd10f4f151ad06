"""The declaration of consumers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from headrace.app.consumer import check_together, define
from headrace.app.declaring.base import Declaring, arguments, named_arguments
from headrace.app.streams.stream import Stream
from headrace.model.conditions import Condition
from headrace.model.durations import Duration
from headrace.model.errors import ConfigurationError
from headrace.model.handling import Breaker, OnBatchError, Runner
from headrace.model.specs import Backoff, DeliverPolicy, OnExhausted
from headrace.runtime.handlers.middleware import Middleware

F = TypeVar("F", bound=Callable[..., Any])


class Consumers(Declaring):
    """Declares consumers."""

    @named_arguments
    def consumer(
        self,
        stream: str | Stream[Any],
        *,
        filter: str | Sequence[str] = ">",  # noqa: A002 - the word of the field
        where: str | Mapping[str, Any] | Condition | None = None,
        name: str | None = None,
        concurrency: int | tuple[int, int] = (1, 64),
        max_deliver: int = 10,
        ack_wait: Duration = "30s",
        max_ack_pending: int = 1000,
        backoff: Backoff | Duration | Sequence[Duration] | None = None,
        on_exhausted: OnExhausted = "dead_letter",
        ordered: bool = True,
        timeout: Duration | None = None,
        deliver_policy: DeliverPolicy = "all",
        start_seq: int | None = None,
        start_time: datetime | None = None,
        transactional: bool = False,
        publishes: str | Stream[Any] | None = None,
        batch: int | None = None,
        batch_bytes: int | str | None = None,
        batch_timeout: Duration = 0.0,
        group_by_key: bool = False,
        on_batch_error: OnBatchError = "retry",
        runner: Runner | None = None,
        rate_limit: float | str | None = None,
        rate_burst: int | None = None,
        history: Duration | None = None,
        key_concurrency: int | None = None,
        ack_before_next: bool = False,
        priority: int = 0,
        breaker: Breaker | bool | int | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> Callable[[F], F]:
        """Make a function the handler of a consumer of `stream`, a name or a typed stream.

        The function takes the payload, decoded into the annotated type, a `Message`, both or
        neither. When it returns, the message is acked. When it raises, the message is delivered
        again after its backoff. A plain function runs in a thread.

        Args:
            filter: which keys to read: one filter or several, at most 100. `*` matches one token, and `>` the rest.
                Such as `orders.*.new` or `orders.us.>`.
            where: a condition that the content of these messages must meet. Text such as `"data.status
                = 'paid' and data.total > 100"`, the same as JSON, or `field("total") > 100`.
            name: the consumer's name, under which the store keeps its position. The function's name
                by default.
            concurrency: how many handlers run at a time in one process: a fixed number, or a range
                to scale in.
            max_deliver: the number of attempts before a message is exhausted. -1 for no limit.
            ack_wait: the visibility timeout. A lease expires after it unless it is extended.
            max_ack_pending: the maximum number of messages that are leased and not settled, over all
                processes.
            backoff: the delay before the next attempt, or a list with one for each attempt, of which
                the last repeats. It may also be a `Backoff`. By default it is exponential, from 1 s to
                5 minutes, with jitter.
            on_exhausted: what happens to an exhausted message. `dead_letter` makes it a dead letter,
                `block` makes it one and blocks its key until you redrive or purge it, and `drop`
                discards it.
            ordered: whether the messages of a key are delivered strictly in order.
            timeout: how long the handler may take for one message.
            deliver_policy: where a new consumer starts. `all` starts at the first message, `new` after
                the last one, `by_start_seq` at `start_seq`, and `by_start_time` at `start_time`.
                `last_per_key` delivers the last message of each key, and then new ones.
            start_seq: the seq at which a new consumer starts.
            start_time: the time at which a new consumer starts.
            transactional: run the handler inside a transaction. The ack commits together with what
                the handler writes through its `Transaction` parameter. If the lease was lost,
                nothing is committed.
            publishes: a stream. The handler's return value is published to it, together with the
                ack: (key, data) or (key, data, headers), a list of these, or None for nothing.
            batch: take up to this many messages at a time, as a `list[Order]` or a `Batch`. When
                the handler returns, all are acked except those for which it set another outcome.
            batch_bytes: a batch is full once its payloads have this many bytes, a number or text such
                as "64MB", whatever the number of its messages.
            batch_timeout: how long to wait for a batch to fill, after its first message.
            group_by_key: make each batch of one key's waiting messages, in their order.
            on_batch_error: when the handler of a batch raises, "retry" retries all of it. "bisect"
                runs halves of it until the failing messages are found.
            runner: "process" for CPU-bound work, or "thread", the default of a plain function. A
                timeout can stop a process. It can't stop a thread, which is waited for.
            rate_limit: the maximum rate of deliveries, over all processes. A number of messages per
                second, or text such as "100/s" or "1000/h".
            rate_burst: the maximum number of messages that are delivered together after a pause. It
                needs `rate_limit`. By default one second of the rate.
            history: how long it is remembered when each message was done, by which process, and how
                long that took.
            key_concurrency: with `ordered=False`, how many messages of a key one process handles at
                a time.
            ack_before_next: start a key's next message only after the ack of the previous one is
                committed. A crash then repeats at most one message of a key, or one batch, instead
                of a run of them. Each message of a key costs a round trip to the database.
                Transactional handlers always work this way.
            priority: while a consumer of higher priority has waiting messages, the others in its
                process are limited to their minimum concurrency.
            breaker: the circuit breaker. It pauses when handlers fail again and again, and probes
                with single messages. True, a number of failures in a row, or a `Breaker`.
            middleware: middleware of this handler alone, the outermost first. It runs inside the
                app's. See `middleware`.

        Raises:
            ConfigurationError: an invalid setting, an annotation that can't be decoded, or a name
                that is taken.
            InvalidFilter: a filter that breaks the grammar.
        """
        given = arguments(locals())

        def register(function: F) -> F:
            consumer = define(function, given)
            check_together(consumer)
            self._add(consumer)
            return function

        if callable(stream):
            raise ConfigurationError("Write @app.consumer('orders'): the decorator needs the stream that it reads.")
        return register
