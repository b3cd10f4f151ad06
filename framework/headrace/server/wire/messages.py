"""API types of messages. Data and headers pass through exactly as they were published."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headrace.admin.messages import MAX_ERASED
from headrace.admin.requests.consumers import Choice
from headrace.model.durations import MAX_WAIT
from headrace.model.keys import MAX_KEY_BYTES
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.records import PeekedMessage, Standing, StoredMessage
from headrace.model.text.error_text import MAX_ERROR
from headrace.server.data_plane.bounds import MAX_DELAY_MS, MAX_PUBLISHED, MAX_RECEIVED, MAX_SETTLED
from headrace.server.wire.settings import request

_DELAY = {"minimum": 0, "maximum": MAX_DELAY_MS}
_ACK_IDS = {"maxItems": MAX_SETTLED}


class Message(Struct, kw_only=True):
    """A message of a stream."""

    key: Annotated[str, Meta(examples=["orders.us.cus_a.order_1"])]
    data: Annotated[Any, Meta(description="Any JSON, as it was published.")]
    seq: int
    stream_id: str
    headers: Annotated[Any, Meta(description="An object, or null.")]
    inserted_at: datetime
    updated_at: Annotated[datetime, Meta(description="For older clients. The same as `inserted_at`.")]
    expires_at: Annotated[
        datetime | UnsetType,
        Meta(description="When it expires. Only of a message with a time to live. No consumer gets it from then on."),
    ] = UNSET

    @classmethod
    def of(cls, message: StoredMessage, stream_id: str) -> Message:
        """Convert a message of the store."""
        return cls(
            key=message.key,
            data=message.data,
            seq=message.seq,
            stream_id=stream_id,
            headers=message.headers,
            inserted_at=message.created_at,
            updated_at=message.created_at,
            expires_at=UNSET if message.expires_at is None else message.expires_at,
        )


class PeekInfo(Struct, kw_only=True):
    """The state of a message in a consumer."""

    ack_id: Annotated[str | None, Meta(description="Of a message in flight, to settle it by.")]
    deliver_count: Annotated[int, Meta(description="Deliveries that counted, the one in flight included.")]
    state: Literal["in_flight", "parked", "blocked", "next"]
    not_visible_until: Annotated[datetime | None, Meta(description="When its lease expires, or it is redelivered.")]
    owner: Annotated[str | None, Meta(description="Who has it in flight.")]
    failed_at: Annotated[
        datetime | None,
        Meta(description="When its last attempt failed, if it waits for a retry or blocks its key. Else null."),
    ]
    error: Annotated[str | None, Meta(description="Of that attempt. The first 2,000 characters.")]
    error_type: Annotated[str | None, Meta(description="null if there was no exception.")]
    failed_by: Annotated[
        str | None, Meta(description="The worker process of that attempt, as `host:pid`. null for a client.")
    ]


class Peeked(Struct):
    """A message that a consumer has in flight, parked or blocked, or will receive next."""

    message: Message
    info: PeekInfo


def peeked(message: PeekedMessage, stream_id: str, ack_id: str | None) -> Peeked:
    """Convert a peeked message of the store."""
    info = PeekInfo(
        ack_id=ack_id,
        deliver_count=message.attempts,
        state=message.state,
        not_visible_until=message.until,
        owner=message.owner,
        failed_at=message.failed_at,
        error=message.error,
        error_type=message.error_type,
        failed_by=message.failed_by,
    )
    return Peeked(Message.of(message, stream_id), info)


class ConsumerStanding(Struct, kw_only=True):
    """The state of a key's latest message in a consumer."""

    consumer_id: str
    consumer: Annotated[str, Meta(description="Its name.")]
    seq: Annotated[int, Meta(description="Of the message.")]
    state: Literal["in_flight", "parked", "blocked", "replaying", "pending", "dead_letter", "filtered", "acked"]
    deliver_count: Annotated[int | None, Meta(description="Deliveries that counted, or null if they are not known.")]
    not_visible_until: datetime | None
    owner: str | None
    failed_at: Annotated[
        datetime | None, Meta(description="When its last attempt failed, if it waits for a retry, or when it died.")
    ]
    error: str | None
    error_type: str | None

    @classmethod
    def of(cls, standing: Standing, seq: int) -> ConsumerStanding:
        """Convert a standing of the store."""
        return cls(
            consumer_id=standing.consumer_id,
            consumer=standing.consumer,
            seq=seq,
            state=standing.state,
            deliver_count=standing.attempts,
            not_visible_until=standing.until,
            owner=standing.owner,
            failed_at=standing.failed_at,
            error=standing.error,
            error_type=standing.error_type,
        )


class Republish(Choice, kw_only=True, forbid_unknown_fields=True):
    """Messages to publish to another stream."""

    target: Annotated[str, Meta(description="The stream that gets them, by id or name.", examples=["mystream"])]


class Erase(Struct, kw_only=True, forbid_unknown_fields=True):
    """Messages to erase."""

    seqs: Annotated[
        list[Annotated[int, Meta(ge=1, le=2**63 - 1)]],
        Meta(min_length=1, max_length=MAX_ERASED, description="The messages, by their seqs.", examples=[[17, 18]]),
    ]
    reason: Annotated[
        str | None,
        Meta(
            description="The reason, as text. It is stored.",
            examples=["request 2031-17"],
            extra_json_schema={"maxLength": MAX_ERROR},
        ),
    ] = None


class Erased(Struct):
    """The messages that were erased now. Those that are not there, or were erased before, are left out."""

    erased: list[int]


class ErasedAnswer(Struct):
    """The messages that were erased now."""

    data: Erased


class Published(Struct):
    """The number of messages that were published or scheduled. It excludes those that are known already: by their message
    id, or because one of their unique key is pending."""

    published: int


class PublishedAnswer(Struct):
    """The number of messages that were published."""

    data: Published


@request(PublishOptions)
class NewMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """A message to publish."""

    key: Annotated[
        str,
        Meta(
            description=f"Tokens separated by dots, at most {MAX_KEY_BYTES} bytes of UTF-8.",
            examples=["orders.us.cus_a.order_1"],
            extra_json_schema={"minLength": 1, "maxLength": MAX_KEY_BYTES},
        ),
    ]
    data: Annotated[Any, Meta(description="Any JSON.")]
    headers: dict[str, Any] | None = None


class MessageByHand(Struct, kw_only=True, forbid_unknown_fields=True):
    """A message that a person publishes."""

    key: Annotated[str, Meta(examples=["orders.us.42"], extra_json_schema={"minLength": 1, "maxLength": MAX_KEY_BYTES})]
    data: Annotated[Any, Meta(description="Any JSON.", examples=[{"total": 12}])]
    headers: dict[str, Any] | None = None


class DataText(Struct):
    """The data of such a message as it was sent."""

    data: Raw


class PublishedByHand(Struct):
    """The seq of the message that was published."""

    seq: int | None


class PublishedByHandAnswer(Struct):
    """The message that was published."""

    data: PublishedByHand


class NewMessages(Struct, kw_only=True, forbid_unknown_fields=True):
    """Messages to publish, all or none."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=MAX_PUBLISHED)]


class StreamMessage(NewMessage, kw_only=True, forbid_unknown_fields=True):
    """A message to publish, and its stream."""

    stream: Annotated[str, Meta(description="Its id or name.", examples=["mystream"])]


class PublishToStreams(Struct, kw_only=True, forbid_unknown_fields=True):
    """Messages to publish to their streams, all or none."""

    messages: Annotated[list[StreamMessage], Meta(min_length=1, max_length=MAX_PUBLISHED)]


class Receive(Struct, kw_only=True, forbid_unknown_fields=True):
    """How many messages to receive, how long to wait, and which earlier messages to settle before."""

    batch_size: Annotated[int, Meta(ge=1, le=MAX_RECEIVED)] = 1
    wait_for: Annotated[
        float | str,
        Meta(
            description='How long to wait for the first message: milliseconds, or "60s".',
            examples=["5s"],
            extra_json_schema={"minimum": 0, "maximum": MAX_WAIT * 1000},
        ),
    ] = 0
    ack_ids: Annotated[
        list[str] | None,
        Meta(
            description=f"Messages to ack before others are leased. At most {MAX_SETTLED:,} with `nack_ids`.",
            extra_json_schema=_ACK_IDS,
        ),
    ] = None
    nack_ids: Annotated[
        list[str] | None,
        Meta(description="Messages to nack before, as by a nack without further fields.", extra_json_schema=_ACK_IDS),
    ] = None


class Settle(Struct, kw_only=True, forbid_unknown_fields=True):
    """The messages to settle or extend."""

    ack_ids: Annotated[
        list[str] | UnsetType,
        Meta(description=f"At most {MAX_SETTLED:,} with `ack_tokens`.", extra_json_schema=_ACK_IDS),
    ] = UNSET
    ack_tokens: Annotated[
        list[str] | UnsetType, Meta(description="The same as `ack_ids`.", extra_json_schema=_ACK_IDS)
    ] = UNSET
    strict: Annotated[bool, Meta(description="Whether lost leases are reported, by 409.")] = False


class Nack(Settle, kw_only=True, forbid_unknown_fields=True):
    """The messages that failed, and why."""

    delay_ms: Annotated[
        float | None,
        Meta(
            description="The delay before redelivery. null for none, or for the consumer's own backoff.",
            extra_json_schema=_DELAY,
        ),
    ] = None
    error: Annotated[str | None, Meta(description="The error, as text. The first 2,000 characters are kept.")] = None
    snooze: Annotated[
        bool,
        Meta(description="Nothing has failed, and the attempt doesn't count. It needs `delay_ms`, and has no `error`."),
    ] = False


class ReceivedMessage(Message, kw_only=True):
    """A message that was received."""

    attempt: Annotated[int, Meta(description="1 for the first.")]


class Received(Struct):
    """A message, and the id to ack it by."""

    ack_id: str
    message: ReceivedMessage


class Settled(Struct, kw_only=True):
    """What a receive request has settled before."""

    stale: Annotated[
        list[str] | UnsetType,
        Meta(
            description="Given if the request has `ack_ids` or `nack_ids`: those that changed nothing, as their leases were lost."
        ),
    ] = UNSET


class Delivered(Settled, kw_only=True):
    """The messages that were received."""

    data: list[Received]
