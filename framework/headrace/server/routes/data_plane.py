"""OpenAPI declarations of the data plane.

The server dispatches these endpoints before Litestar does (`DataPlane.find`). They are declared
here with their types, and call the same code.
"""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, post
from litestar.params import JSONBody, QueryParameter
from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.model.messages.publish_options import PublishOptions
from headrace.server.access import methods
from headrace.server.data_plane.bounds import MAX_RECEIVED
from headrace.server.routes.context import AnyRequest, Context, call
from headrace.server.routes.parameters import AnyConsumerRef, ConsumerRef, StreamRef
from headrace.server.wire.common import Listed, Success
from headrace.server.wire.dialect_answers import Change, Changes, NextAnswer
from headrace.server.wire.messages import (
    Delivered,
    Nack,
    NewMessage,
    PublishedAnswer,
    PublishToStreams,
    Receive,
    Received,
    Settle,
)
from headrace.server.wire.settings import request

_OF_STREAM = "/streams/{stream:str}/consumers/{consumer:str}"
_PULL = ("/http_pull_consumers/{consumer:str}", "/consumers/{consumer:str}")
_CONSUME = "/http-consumers/{consumer:str}"

BatchSize = Annotated[int, QueryParameter(ge=1, le=MAX_RECEIVED, description="Maximum number of messages.")]
WaitFor = Annotated[
    str,
    QueryParameter(
        description='How long to wait for the first message, in milliseconds, or as "60s", "500ms" or "5m". At most an hour.'
    ),
]


@request(PublishOptions)
class Publish(Struct, kw_only=True, forbid_unknown_fields=True):
    """One message to publish, or several in `messages`. Several are published all or none, and
    exclude the other members."""

    key: Annotated[str | UnsetType, Meta(examples=["orders.us.cus_a.order_1"])] = UNSET
    data: Annotated[Any, Meta(description="Any JSON value.", examples=[{"product": "Shoes"}])] = UNSET
    headers: dict[str, Any] | None = None
    messages: Annotated[list[NewMessage] | UnsetType, Meta(description="At most 10,000 messages.")] = UNSET


@post(
    "/streams/{stream:str}/messages",
    effect="publish",
    summary="Publish messages to a stream",
    tags=["Messages"],
    status_code=200,
)
async def publish(
    request: AnyRequest, context: Context, stream: StreamRef, data: JSONBody[Publish]
) -> Response[PublishedAnswer]:
    """Publishes one message, or several in `messages`, all or none. The answer is sent after the commit."""
    return await call(request, context.data_plane.streams.publish, stream)


@post("/messages", effect="publish", summary="Publish messages to several streams", tags=["Messages"], status_code=200)
async def publish_to_streams(
    request: AnyRequest, context: Context, data: JSONBody[PublishToStreams]
) -> Response[PublishedAnswer]:
    """Publishes messages to the streams that they name, in one transaction. The streams lie in one
    database, and the token needs the scope `publish` for each. The answer is sent after the
    commit."""
    return await call(request, context.data_plane.streams.publish_to_streams)


@methods.receive(f"{_OF_STREAM}/receive", summary="Receive messages", tags=["Delivery"])
async def receive_by_query(
    request: AnyRequest,
    context: Context,
    stream: StreamRef,
    consumer: ConsumerRef,
    batch_size: BatchSize = 1,
    wait_for: WaitFor = "0",
) -> Response[Listed[Received]]:
    """Leases messages for the consumer's `ack_wait_ms`. Ack, nack or extend them in that
    time. Otherwise they are delivered again."""
    return await call(request, context.data_plane.streams.receive, stream, consumer)


@methods.deliver([f"{_OF_STREAM}/receive", f"{_OF_STREAM}/messages"], summary="Receive messages", tags=["Delivery"])
async def receive(
    request: AnyRequest,
    context: Context,
    stream: StreamRef,
    consumer: ConsumerRef,
    data: JSONBody[Receive | None] = None,
    batch_size: BatchSize = 1,
    wait_for: WaitFor = "0",
) -> Response[Delivered]:
    """Leases messages for the consumer's `ack_wait_ms`. Ack, nack or extend them in that
    time. Otherwise they are delivered again. Messages that you have handled can be settled by the
    next receive, with `ack_ids` and `nack_ids`. They are settled before it waits."""
    return await call(request, context.data_plane.streams.receive, stream, consumer)


@methods.deliver(f"{_OF_STREAM}/ack", summary="Ack messages", tags=["Delivery"])
async def ack(
    request: AnyRequest, context: Context, stream: StreamRef, consumer: ConsumerRef, data: JSONBody[Settle]
) -> Response[Success]:
    """Settles messages as done. Ids of lost leases change nothing."""
    return await call(request, context.data_plane.streams.ack, stream, consumer)


@methods.deliver(f"{_OF_STREAM}/nack", summary="Nack messages", tags=["Delivery"])
async def nack(
    request: AnyRequest, context: Context, stream: StreamRef, consumer: ConsumerRef, data: JSONBody[Nack]
) -> Response[Success]:
    """Settles messages as failed. They are delivered again."""
    return await call(request, context.data_plane.streams.nack, stream, consumer)


@methods.deliver(f"{_OF_STREAM}/extend", summary="Extend leases", tags=["Delivery"])
async def extend(
    request: AnyRequest, context: Context, stream: StreamRef, consumer: ConsumerRef, data: JSONBody[Settle]
) -> Response[Success]:
    """Extends the lease of each message by another `ack_wait_ms` from now. This includes all
    messages of the same answer."""
    return await call(request, context.data_plane.streams.extend, stream, consumer)


@methods.receive(
    [f"{path}/receive" for path in _PULL], summary="Receive messages of a pull consumer", tags=["Pull consumers"]
)
async def pull_by_query(
    request: AnyRequest,
    context: Context,
    consumer: AnyConsumerRef,
    batch_size: BatchSize = 1,
    wait_for: WaitFor = "0",
) -> Response[Listed[Change]]:
    """Returns changes or rows of captured tables. The data of any other message is its `record`."""
    return await call(request, context.data_plane.pull.receive, consumer)


@methods.deliver(
    [f"{path}/receive" for path in _PULL], summary="Receive messages of a pull consumer", tags=["Pull consumers"]
)
async def pull_changes(
    request: AnyRequest,
    context: Context,
    consumer: AnyConsumerRef,
    data: JSONBody[Receive | None] = None,
    batch_size: BatchSize = 1,
    wait_for: WaitFor = "0",
) -> Response[Changes]:
    """Returns changes or rows of captured tables. The data of any other message is its `record`."""
    return await call(request, context.data_plane.pull.receive, consumer)


@methods.deliver([f"{path}/ack" for path in _PULL], summary="Ack messages of a pull consumer", tags=["Pull consumers"])
async def pull_ack(
    request: AnyRequest, context: Context, consumer: AnyConsumerRef, data: JSONBody[Settle]
) -> Response[Success]:
    """Settles changes or rows as done."""
    return await call(request, context.data_plane.pull.ack, consumer)


@methods.deliver(
    [f"{path}/nack" for path in _PULL], summary="Nack messages of a pull consumer", tags=["Pull consumers"]
)
async def pull_nack(
    request: AnyRequest, context: Context, consumer: AnyConsumerRef, data: JSONBody[Nack]
) -> Response[Success]:
    """Settles changes or rows as failed. They are delivered again."""
    return await call(request, context.data_plane.pull.nack, consumer)


@methods.receive(f"{_CONSUME}/next", summary="Receive records", tags=["Consume API"])
async def next_records(
    request: AnyRequest,
    context: Context,
    consumer: AnyConsumerRef,
    batch_size: BatchSize = 1,
    wait_for: WaitFor = "0",
) -> Response[NextAnswer]:
    """Returns records with the size of the backlog, which is at most a second old."""
    return await call(request, context.data_plane.consume.next, consumer)


@methods.deliver(f"{_CONSUME}/ack", summary="Ack records", tags=["Consume API"])
async def consume_ack(
    request: AnyRequest, context: Context, consumer: AnyConsumerRef, data: JSONBody[Settle]
) -> Response[Success]:
    """Settles records as done."""
    return await call(request, context.data_plane.consume.ack, consumer)


@methods.deliver(f"{_CONSUME}/nack", summary="Nack records", tags=["Consume API"])
async def consume_nack(
    request: AnyRequest, context: Context, consumer: AnyConsumerRef, data: JSONBody[Nack]
) -> Response[Success]:
    """Settles records as failed. They are delivered again."""
    return await call(request, context.data_plane.consume.nack, consumer)
