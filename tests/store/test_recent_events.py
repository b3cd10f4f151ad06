"""The recent events of webhooks and push consumers are kept within a bound."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from headrace import store
from headrace.admin import Admin
from headrace.model.messages.publish_options import PublishOptions
from headrace.sources.webhook import WebhookSpec
from headrace.store import AnswerToRecord, DeliveryToRecord
from headrace.store.catalog.recent_events import KEPT
from tests.conftest import Declare

pytestmark = pytest.mark.asyncio

_AT = datetime(2030, 1, 1, tzinfo=UTC)


def _delivery(source: UUID, status: int = 200, **facts: Any) -> DeliveryToRecord:
    return DeliveryToRecord(source=source, at=_AT, status=status, reason=None, bytes=7, **facts)


async def _source(database: store.Database, name: str) -> UUID:
    await store.create_stream(database, "forms")
    await Admin(database).create_source(WebhookSpec(name=name, stream="forms"))
    found: UUID = await database.fetchval("select uid from headrace_internal.sources where name = $1", name)
    return found


async def test_each_source_keeps_its_last_deliveries(database: store.Database) -> None:
    one, two = await _source(database, "one"), await _source(database, "two")
    await store.record_deliveries(database, [_delivery(two, 401)])
    for start in range(0, 250, 50):
        await store.record_deliveries(database, [_delivery(one, remote=str(n)) for n in range(start, start + 50)])
    found = await store.deliveries(database, one, limit=1000)
    assert [int(one.remote or "") for one in found] == list(range(249, 249 - KEPT, -1))
    assert [(one.status, one.accepted) for one in await store.deliveries(database, two, limit=10)] == [(401, False)]


async def test_a_delivery_has_the_seq_that_its_id_is_known_by_and_those_of_unknown_sources_are_dropped(
    database: store.Database,
) -> None:
    one = await _source(database, "one")
    await store.publish(database, "forms", "a", "1", options=PublishOptions(message_id="headrace:1"))
    await store.record_deliveries(
        database, [_delivery(one, key="a", message_id="headrace:1"), _delivery(one), _delivery(uuid4())]
    )
    assert [(one.key, one.seq) for one in await store.deliveries(database, one, limit=10)] == [(None, None), ("a", 1)]
    await Admin(database).delete_source("one")
    assert await database.fetchval("select count(*) from headrace_internal.deliveries") == 0


async def test_each_consumer_keeps_its_last_answers(declare: Declare, database: store.Database) -> None:
    reader = await declare()
    answers = [
        AnswerToRecord(consumer=reader.id, at=_AT, status=200 if n % 2 else None, ms=n, error=None, messages=1)
        for n in range(KEPT + 20)
    ]
    await store.record_push_answers(
        database, [*answers, AnswerToRecord(consumer=99, at=_AT, status=1, ms=1, error="x", messages=2)]
    )
    found = await store.push_answers(database, reader.id, limit=1000)
    assert [one.ms for one in found] == list(range(KEPT + 19, 19, -1))
    await store.delete_consumer(database, reader.id)
    assert await database.fetchval("select count(*) from headrace_internal.push_answers") == 0


async def test_a_source_or_consumer_that_is_deleted_meanwhile_costs_others_none_of_their_events(
    declare: Declare, database: store.Database
) -> None:
    hook, gone = await _source(database, "hook"), await _source(database, "gone")
    reader, leaving = await declare(), await declare(name="leaving")
    answers = [
        AnswerToRecord(consumer=one, at=_AT, status=200, ms=1, error=None, messages=1)
        for one in (reader.id, leaving.id)
    ]
    async with database.transaction() as deleting:
        await deleting.execute("delete from headrace_internal.sources where name = 'gone'")
        await deleting.execute("delete from headrace_internal.consumers where id = $1", leaving.id)
        await store.record_deliveries(database, [_delivery(gone), _delivery(hook)])
        await store.record_push_answers(database, answers)
    assert len(await store.deliveries(database, hook, limit=10)) == 1
    assert len(await store.push_answers(database, reader.id, limit=10)) == 1
    assert await store.deliveries(database, gone, limit=10) == []
