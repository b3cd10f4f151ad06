"""recent events: what webhooks and push consumers did lately."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from headrace.model.watching.operations import PushAnswer, WebhookDelivery
from headrace.store.database.database import Executor

KEPT = 100
"""How many deliveries of a webhook, and answers of an endpoint, are kept."""


class DeliveryToRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery to a webhook, without what it contained.

    Attributes:
        source: the id of the source.
        status: of the response.
        reason: why it was refused or not published again.
        bytes: the size of the body.
        key: of the message.
        message_id: the id under which the message was published.
        remote: the address of the client.
    """

    source: UUID
    at: datetime
    status: int
    reason: str | None
    bytes: int
    key: str | None = None
    message_id: str | None = None
    remote: str | None = None


class AnswerToRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the endpoint of a push consumer.

    Attributes:
        consumer: the number of the consumer.
        status: None without a response.
        ms: how long it took, in milliseconds.
        messages: the number of messages in the request.
    """

    consumer: int
    at: datetime
    status: int | None
    ms: float
    error: str | None
    messages: int


async def record_deliveries(executor: Executor, deliveries: Sequence[DeliveryToRecord]) -> None:
    """Record deliveries to webhooks. Each source keeps the last `KEPT`."""
    rows = msgspec.json.encode(deliveries).decode()
    await executor.fetchval("select headrace_internal.record_deliveries($1, $2)", rows, KEPT)


async def deliveries(executor: Executor, source: UUID, *, limit: int) -> list[WebhookDelivery]:
    """The last deliveries to a webhook, the newest first."""
    rows = await executor.fetch("select * from headrace_internal.delivery_page($1, $2)", source, limit)
    return [WebhookDelivery(**row) for row in rows]


async def record_push_answers(executor: Executor, answers: Sequence[AnswerToRecord]) -> None:
    """Record answers of endpoints. Each consumer keeps the last `KEPT`."""
    rows = msgspec.json.encode(answers).decode()
    await executor.fetchval("select headrace_internal.record_push_answers($1, $2)", rows, KEPT)


async def push_answers(executor: Executor, consumer: int, *, limit: int) -> list[PushAnswer]:
    """The last answers of the endpoint of a push consumer, the newest first."""
    rows = await executor.fetch("select * from headrace_internal.push_answer_page($1, $2)", consumer, limit)
    return [PushAnswer(**row) for row in rows]
