"""The recent answers of a push consumer's endpoint, and the state of its circuit breaker."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import store
from headrace.admin import Admin
from headrace.model.errors import InvalidInput
from headrace.model.specs import ConsumerSpec
from headrace.store import AnswerToRecord
from tests.server.push.endpoints import Endpoint, always, running_push
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio


async def test_each_answer_is_recorded_with_its_status_and_without_its_body(dsn: str, endpoint: Endpoint) -> None:
    answers: list[AnswerToRecord] = []
    async with running_push(dsn) as push_app:
        push_app.push_consumers._answered = answers.append
        endpoint.answer = always(200)
        number = await push_app.declare(endpoint.url, max_deliver=1)
        await publish(push_app.app.database, "a")
        await push_app.done()
        endpoint.answer = always(500, "the card 4111 is invalid")
        await publish(push_app.app.database, "b")
        await push_app.done()
    assert [(one.consumer, one.status, one.error, one.messages) for one in answers] == [
        (number, 200, None, 1), (number, 500, "The endpoint responded with 500.", 1),
    ]  # fmt: skip
    assert all(one.ms >= 0 for one in answers)


async def test_an_endpoint_that_is_away_is_recorded_without_a_status(dsn: str) -> None:
    answers: list[AnswerToRecord] = []
    from tests.runtime.running import eventually

    async with running_push(dsn) as push_app:
        push_app.push_consumers._answered = answers.append
        await push_app.declare("http://127.0.0.1:9/hook")
        await publish(push_app.app.database, "a")

        async def look() -> bool:
            return bool(answers)

        await eventually(look)
    assert answers[0].status is None
    assert "can't be reached" in (answers[0].error or "")


async def test_the_status_has_the_breaker_and_the_counts_that_servers_report(
    dsn: str, database: store.Database, endpoint: Endpoint
) -> None:
    admin = Admin(database)
    async with running_push(dsn) as push_app:
        number = await push_app.declare(endpoint.url)
        assert (await admin.push_status("orders", "ship")).url == endpoint.url
        await publish(database, "a")
        await push_app.done()
        answer: dict[str, Any] = {
            "at": (await push_app.info()).created_at,
            "status": 200,
            "ms": 1.5,
            "error": None,
            "messages": 1,
        }
        await store.record_push_answers(database, [AnswerToRecord(consumer=number, **answer)])
    found = await admin.push_status("orders", "ship")
    assert [(one.status, one.ms, one.messages) for one in found.recent] == [(200, 1.5, 1)]
    await store.declare_consumer(database, ConsumerSpec(stream="orders", name="pull"))
    with pytest.raises(InvalidInput, match="not a push consumer"):
        await admin.push_status("orders", "pull")


async def test_the_breaker_is_that_of_the_process_where_it_is_the_least_closed(database: store.Database) -> None:
    from datetime import UTC, datetime, timedelta
    from uuid import uuid4

    from headrace.model.push import Push
    from headrace.model.records import ConsumerAtWork, WorkerFacts

    await store.create_stream(database, "orders")
    await store.declare_consumer(
        database, ConsumerSpec(stream="orders", name="ship", push=Push(url="https://shop.example/hook"))
    )
    assert (await Admin(database).push_status("orders", "ship")).breaker is None
    for breaker, left, acked, failed in (("closed", None, 5, 0), ("open", 4.0, 2, 7)):
        at_work = ConsumerAtWork(
            stream="orders", name="ship", breaker=breaker, breaker_left=left, acked=acked, failed=failed
        )
        facts = WorkerFacts(
            host="h", pid=1, kind="serve", version="1", started_at=datetime.now(UTC), consumers=[at_work]
        )
        await store.record_heartbeat(database, uuid4(), facts)
    found = await Admin(database).push_status("orders", "ship")
    assert (found.counts.ok, found.counts.failed) == (7, 7)
    assert found.breaker is not None
    assert found.breaker.state == "open"
    assert found.breaker.until is not None
    assert timedelta(0) < found.breaker.until - datetime.now(UTC) < timedelta(seconds=5)
