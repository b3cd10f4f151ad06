"""Request bodies of push consumers, as `receive` returns messages: one alone, or several as
`{"data": […]}`. Payloads stay as they are stored."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from headrace.model.ack_ids import AckIds
from headrace.runtime.messages.message import Message
from headrace.server.data_plane.delivery_bodies import Delivery
from headrace.server.data_plane.publish_bodies import WireMessage
from headrace.server.wire.dialect_answers import ConsumerNamed, change

_NULL = msgspec.Raw(b"null")

_NO_LEASE_SIZE = 0
"""The size in ack ids. It makes every settle name its messages, since a pipeline's lease is
never sent to one client as a whole."""


class RequestBodies:
    """Makes the bodies of one consumer's requests.

    Args:
        consumer: the consumer's number.
        stream_id: its stream's UUID.
        ack_ids: makes the ids with which a receiver may settle a message itself.
        named: the consumer, if captured changes are sent with their parts at the top.
    """

    def __init__(self, consumer: int, stream_id: str, ack_ids: AckIds, named: ConsumerNamed | None = None) -> None:
        self._consumer = consumer
        self._stream_id = stream_id
        self._named = named
        self._seal = ack_ids.seal
        self._encode = msgspec.json.Encoder().encode

    def one(self, message: Message) -> bytes:
        """Return the body for one message."""
        return self._encode(self._delivery(message))

    def many(self, messages: Iterable[Message]) -> bytes:
        """Return the body for several messages."""
        return self._encode({"data": [self._delivery(message) for message in messages]})

    def _delivery(self, message: Message) -> Struct:
        ack_id = self._seal(self._consumer, message.lease.id, message.seq, message.attempt, _NO_LEASE_SIZE)
        if self._named is not None and (captured := change(message.raw, self._named, ack_id)) is not None:
            return captured
        headers = message.raw_headers
        return Delivery(
            ack_id,
            WireMessage(
                message.key,
                msgspec.Raw(message.raw),
                message.seq,
                self._stream_id,
                _NULL if headers is None else msgspec.Raw(headers),
                message.created_at,
                message.created_at,
                message.attempt,
                msgspec.UNSET if (expires_at := message.expires_at) is None else expires_at,
            ),
        )
