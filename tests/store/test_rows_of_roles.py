"""Rows that a role with a grant writes, and that others read: checked on their way in, owned, and bounded."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from headrace import store
from headrace.admin import Admin
from headrace.model.errors import HeadraceError
from headrace.model.watching.audit import Actor, Change
from tests.support.readers import live_revision
from tests.support.roles import Login, user

pytestmark = pytest.mark.asyncio

HEARTBEAT = "select headrace_internal.record_heartbeat($1, $2)"

UNREADABLE = [
    '{"revision": 28, "host": "\\u0000"}', '{"revision": "x"}', '{"revision": 1e9}', '{"revision": 99999999999}', '{"revision": null}',
    '{"revision": 0}', '{"pid": "x"}', '{"consumers": {"a": 1}}', '{"consumers": 7}', "[]", '"x"', "null", '{"host": "\\ud800"}',
]  # fmt: skip


@pytest.mark.parametrize("report", UNREADABLE)
async def test_a_heartbeat_that_readers_could_not_read_is_refused(
    database: store.Database, login: Login, report: str
) -> None:
    app = await login("publish")
    with pytest.raises(HeadraceError, match="A heartbeat is a JSON object"):
        await app.fetch(HEARTBEAT, uuid4(), report)
    await read_all(database)


async def read_all(database: store.Database) -> None:
    """Read what screens show, and what an upgrade looks at."""
    await Admin(database).snapshot()
    await live_revision(database)
    await store.consumer_at_work(database, "orders", "ship")
    await store.switch_on_features(database)
    await database.fetch("select headrace_internal.process_of_owner($1)", uuid4())
    await database.fetch("select * from headrace.workers")


async def test_of_two_fields_of_one_name_all_readers_see_the_same(database: store.Database, login: Login) -> None:
    app = await login("publish")
    await app.fetch(HEARTBEAT, uuid4(), '{"revision": 2, "revision": 7}')
    assert await database.fetch("select facts::text from headrace_internal.workers") == [('{"revision": 7}',)]
    assert await live_revision(database) == 7


async def test_only_its_role_overwrites_or_deletes_a_heartbeat(database: store.Database, login: Login) -> None:
    app, other = await login("publish"), await login("publish")
    of_app, of_owner = uuid4(), uuid4()
    await app.fetch(HEARTBEAT, of_app, '{"revision": 5}')
    await database.fetch(HEARTBEAT, of_owner, '{"revision": 6}')
    for one in (of_app, of_owner):
        with pytest.raises(HeadraceError, match="belongs to another role"):
            await other.fetch(HEARTBEAT, one, '{"revision": 9}')
        await store.delete_heartbeat(other, one)
    assert await database.fetchval("select array_agg(facts ->> 'revision' order by facts ->> 'revision') from headrace_internal.workers") == ["5", "6"]  # fmt: skip
    await app.fetch(HEARTBEAT, of_app, '{"revision": 7}')
    assert await live_revision(database) == 6
    await store.delete_heartbeat(app, of_app)
    await store.delete_heartbeat(database, of_owner)
    assert await live_revision(database) is None


async def test_heartbeats_of_a_role_have_a_bounded_size_together(database: store.Database, login: Login) -> None:
    app, other = await login("publish"), await login("publish")
    large = json.dumps({"host": "x" * 130_000})
    written = 16_000_000 // len(large)
    for _ in range(written):
        await app.fetch(HEARTBEAT, uuid4(), large)
    with pytest.raises(
        HeadraceError, match=f"{user(app)} has {written} heartbeats of [0-9]+ bytes, and may have no more"
    ):
        await app.fetch(HEARTBEAT, uuid4(), large)
    await other.fetch(HEARTBEAT, uuid4(), large)
    await app.fetch(HEARTBEAT, await database.fetchval("select min(id::text)::uuid from headrace_internal.workers where role_oid = to_regrole($1)", user(app)), "{}")  # fmt: skip


async def test_the_role_with_the_most_heartbeats_makes_room_for_others(database: store.Database, login: Login) -> None:
    app, other = await login("publish"), await login("publish")
    await database.fetch(
        """insert into headrace_internal.workers (id, seen_at, facts, role_oid, bytes)
           select gen_random_uuid(), clock_timestamp(), '{}', to_regrole($1), 2 from generate_series(1, 1000)""",
        user(app),
    )  # fmt: skip
    with pytest.raises(HeadraceError, match="1000 heartbeats for all roles"):
        await app.fetch(HEARTBEAT, uuid4(), "{}")
    assert await store.switch_on_features(database) == []
    await other.fetch(HEARTBEAT, uuid4(), "{}")
    await database.fetch(HEARTBEAT, uuid4(), "{}")
    counts = await database.fetch("select count(*) from headrace_internal.workers group by role_oid order by 1")
    assert [row[0] for row in counts] == [1, 1, 999]


async def test_only_a_role_that_administers_a_stream_writes_to_the_audit_log(
    database: store.Database, login: Login
) -> None:
    """The log keeps the newest entries, so many of them would drive out the others."""
    app, admin = await login("publish", "consume"), await login("admin")
    change = Change(action="stream.delete", kind="stream", name="secrets", stream="secrets")
    with pytest.raises(HeadraceError, match="may not administer"):
        await store.record_change(app, Actor("ops"), change)
    await store.record_change(admin, Actor("ops"), change)
    [entry] = await store.changes(database, action="stream.delete")
    assert entry.role == user(admin)
    write = "select headrace_internal.record_change($1, $2, $3, 'orders', 'stream', 'orders', $4)"
    for arguments in (
        ("ops", "telepathy", "stream.edit", "{}"), ("ops", "cli", "x" * 1000, "{}"), ("ops", "cli", "stream.edit", "[]"),
        ("ops", "cli", "stream.edit", '{"a": "\\u0000"}'), ("ops", "cli", "stream.edit", json.dumps({"a": "x" * 100_000})),
        ("ops", "cli", None, "{}"),
    ):  # fmt: skip
        with pytest.raises(HeadraceError):
            await admin.fetch(write, *arguments)
    assert len(await store.changes(database, action="stream")) == 1


async def test_the_role_with_the_most_entries_of_the_audit_log_loses_them_first(
    database: store.Database, login: Login
) -> None:
    admin = await login("admin")
    await database.fetch("delete from headrace_internal.audit")
    change = Change(action="stream.edit", kind="stream", name="orders", stream="orders")
    for by in (database, database, admin, admin, admin, admin, admin):
        await store.record_change(by, Actor("ops"), change)
    assert await store.delete_old_changes(database, entries=4) == 3
    assert [entry.role == user(admin) for entry in await store.changes(database)] == [True, True, False, False]


async def test_a_schedule_is_not_marked_as_running_in_the_future(database: store.Database, login: Login) -> None:
    app = await login("publish")
    await database.fetch("select headrace_internal.declare_schedule('tick', 'orders', $1, 'd')", SCHEDULE)
    await database.fetch("update headrace_internal.schedules set seen_at = clock_timestamp() - interval '1 hour'")
    await app.fetch("select * from headrace_internal.poll_schedules('{tick}', '{d}', '2200-01-01')")
    assert await database.fetchval("select seen_at <= clock_timestamp() from headrace_internal.schedules")


SCHEDULE = json.dumps(
    {"every": "1m", "zone": None, "key": "a", "data": 1, "functions": {}, "missed": "skip", "max_missed": 1, "unique_key": None}
)  # fmt: skip


@pytest.mark.parametrize("settings", ["{}", "[]", "7", SCHEDULE.replace('"a"', '"\\u0000"')])
async def test_settings_of_a_schedule_that_lists_could_not_show_are_refused(
    database: store.Database, login: Login, settings: str
) -> None:
    admin = await login("admin")
    with pytest.raises(HeadraceError, match="schedule"):
        await admin.fetch("select headrace_internal.declare_schedule('tick', 'orders', $1, 'd')", settings)
    assert await store.schedules(database) is not None


@pytest.mark.parametrize(
    "push",
    [
        "7",
        "[]",
        '{"url": 5}',
        '{"url": "http://a", "secret": "\\u0000"}',
        '{"url": "http://a", "headers": 1}',
        "{}",
    ],
)
async def test_settings_of_a_push_consumer_that_lists_could_not_show_are_refused(
    database: store.Database, login: Login, push: str
) -> None:
    admin = await login("admin")
    with pytest.raises(HeadraceError, match=r"settings of (push|a consumer)"):
        await admin.fetch(DECLARE, push)
    await admin.fetch(DECLARE, '{"url": "http://example.com"}')
    await read_all(database)


DECLARE = """
    select headrace_internal.declare_consumer('orders', 'hook', json_build_object(
        'filters', '{>}'::text[], 'ordered', true, 'ack_wait', 60, 'max_ack_pending', 10, 'max_deliver', 1, 'backoff', '[1]'::json,
        'on_exhausted', 'drop', 'max_waiting', 1, 'push', $1::json))
"""


async def test_a_worker_waits_for_notifications_for_minutes_at_most(database: store.Database, login: Login) -> None:
    """While a consumer waits, each publish notifies."""
    app = await login("consume")
    ship = await store.consumer_id(database, "orders", "ship")
    await app.fetch("select headrace_internal.subscribe_consumers($1, '1000 years')", [ship])
    for table in ("waiting", "waits"):
        assert await database.fetchval(
            f"select max(until) < clock_timestamp() + interval '1 hour' from headrace_internal.{table}"
        )


async def test_the_text_of_an_error_is_bounded(database: store.Database, login: Login) -> None:
    app = await login("consume")
    ship = await store.consumer_id(database, "orders", "ship")
    await store.publish(database, "orders", "a", "1")
    batch = await store.lease(app, ship, uuid4(), 1)
    await app.fetch(
        "select headrace_internal.settle_outcomes($1, '{}', $2, $3, array[json_build_object('kind', 'reject', 'error', $4::text, 'traceback', $4)])",
        ship, [batch.lease_id], batch.seqs, "x" * 1_000_000,
    )  # fmt: skip
    letter = await database.fetchrow(
        "select octet_length(error) as error, octet_length(traceback) as traceback from headrace_internal.dead_letters"
    )
    assert (letter["error"], letter["traceback"]) == (2_000, 16_000)
