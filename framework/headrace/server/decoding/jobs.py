"""The published messages: the body of a publish request, or the delivery of a webhook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Literal

import msgspec

from headrace.model.errors import InvalidInput, public_text
from headrace.model.messages import payloads
from headrace.model.messages.publish_options import PublishOptions
from headrace.server.data_plane.publish_batching import Incoming
from headrace.server.data_plane.publish_bodies import invalid_field, read_messages
from headrace.server.errors import Problem
from headrace.sources.deliveries import Delivery, webhook_message
from headrace.sources.signatures import InvalidSignature
from headrace.sources.templates import KeyTemplate
from headrace.sources.webhook import WebhookSpec

_template = lru_cache(maxsize=1000)(KeyTemplate)  # parsed once for many deliveries


class DeliveryHead(msgspec.Struct, frozen=True):
    """A delivery without its body.

    Attributes:
        spec: its source.
        headers, query: of the request.
        now: seconds since 1970, to check the age of a signature.
    """

    spec: WebhookSpec
    headers: Sequence[tuple[bytes, bytes]]
    query: bytes
    now: float


RECEIVED: Literal["received"] = "received"
"""Stands for the head of a publish request whose messages may have the fields of received ones."""

Head = DeliveryHead | Literal["received"] | None
"""Of a delivery. None for a publish request, and `RECEIVED` for one of an older client."""


class Target(msgspec.Struct, frozen=True):
    """The database to publish to, as the server connects to it. See `store.Database`."""

    dsn: str
    application_name: str
    connect_timeout: float


class Job(msgspec.Struct, frozen=True):
    """The arguments of the process for large bodies besides a body.

    Attributes:
        stream: the name of the stream.
        head: what is known besides the body.
    """

    target: Target
    stream: str
    head: Head


class Published(msgspec.Struct, frozen=True):
    """The outcome of a body.

    Attributes:
        count: how many messages were published or scheduled, without repeated ones.
        due: when the last of them is to be delivered, if it is scheduled.
        key, message_id: of the first message.
    """

    count: int
    due: datetime | None
    key: str
    message_id: str | None


def decoded(body: bytes, head: Head = None) -> Incoming:
    """Decode and check a body. Raises what is wrong with it, for `error_response`."""
    if not isinstance(head, DeliveryHead):
        return read_messages(body, received=head == RECEIVED)
    spec = head.spec
    delivery = Delivery(spec.name, head.headers, head.query, body)
    try:
        message = webhook_message(spec, _template(spec.key), delivery, head.now)
    except InvalidSignature as error:
        raise Problem(401, "invalid_signature", public_text(error)) from error
    incoming = Incoming()
    incoming.add(
        message.key,
        payloads.encode(message.data),
        payloads.encode_headers(message.headers),
        PublishOptions(message_id=message.message_id),
    )
    return incoming


@contextmanager
def naming_field(messages: Incoming, head: Head) -> Iterator[None]:
    """Name the field of a publish request that an error of the store is about."""
    try:
        yield
    except InvalidInput as error:
        if not isinstance(head, DeliveryHead):
            error.field = error.field or invalid_field(messages)
        raise


def published(messages: Incoming, count: int) -> Published:
    """Return what became of these messages."""
    return Published(count, messages.due, messages.keys[0], messages.options[0].message_id)
