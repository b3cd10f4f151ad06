"""The operation `history`: was order 42 shipped?"""

from __future__ import annotations

import pytest

from headrace import store
from headrace.admin import Admin
from headrace.model.errors import InvalidInput
from headrace.model.specs import ConsumerSpec
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio

SHIP = ("orders", "ship")


@pytest.fixture
def admin(database: store.Database) -> Admin:
    return Admin(database, judging=10)


async def shipped(admin: Admin, database: store.Database, *keys: str) -> None:
    """Publish to these keys and ack the messages, one by one."""
    await admin.create_stream("orders")
    await admin.create_consumer(ConsumerSpec(stream="orders", name="ship", history=3600.0))
    await publish(database, *keys)
    while received := await admin.receive(*SHIP):
        await admin.ack(*SHIP, [received[0].ack_id])


async def test_a_message_is_found_by_its_key_and_by_its_seq(admin: Admin, database: store.Database) -> None:
    await shipped(admin, database, "orders.41", "orders.42", "orders.42", "orders.43")
    assert [one.seq for one in (await admin.history(*SHIP, key="orders.42")).completions] == [3, 2]
    assert [one.seq for one in (await admin.history(*SHIP, seq=4)).completions] == [4]
    assert (await admin.history(*SHIP, key="orders.44")).completions == []


async def test_pages_follow_each_other_from_the_newest_entry_on(admin: Admin, database: store.Database) -> None:
    await shipped(admin, database, *["a", "b"] * 5)
    for key, wanted in ((None, list(range(10, 0, -1))), ("a", [9, 7, 5, 3, 1])):
        found, before = [], None
        while True:
            page = await admin.history(*SHIP, key=key, limit=2, before=before)
            found += [one.seq for one in page.completions]
            if (before := page.next) is None:
                break
        assert found == wanted


async def test_a_consumer_without_history_and_wrong_arguments_are_refused(
    admin: Admin, database: store.Database
) -> None:
    await shipped(admin, database, "a")
    for arguments in ({"key": "a", "seq": 1}, {"seq": 0}, {"before": "x"}, {"key": "a", "before": "x"}, {"limit": 0}):
        with pytest.raises(InvalidInput):
            await admin.history(*SHIP, **arguments)  # type: ignore[arg-type]
    await admin.edit_consumer(*SHIP, history=None)
    with pytest.raises(InvalidInput, match="keeps no history"):
        await admin.history(*SHIP)
