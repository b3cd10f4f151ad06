"""Verifications and repairs of a source that a process captures, while others write and the process is ended."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
import pytest_asyncio

from headrace import store
from headrace.model.capture import BackfillInfo, BackfillKind
from headrace.sources.postgres.limits import CaptureLimits
from tests.sources.postgres.backfilling import until
from tests.sources.postgres.captured import Shop

pytestmark = pytest.mark.asyncio

ROWS = 1500
LIMITS = CaptureLimits(
    sources_interval=0.05, min_chunk_rows=50, first_chunk_rows=100, max_chunk_rows=200, outbox_messages=100
)


@pytest_asyncio.fixture
async def shop(dsn: str) -> AsyncIterator[Shop]:
    async with Shop.opened(dsn) as shop:
        await shop.sql.execute("alter table orders add column version bigint, add column big text")
        await shop.sql.execute("alter table orders alter column big set storage external; create sequence versions")
        await shop.sql.execute(
            f"insert into orders select i, 'new', i, nextval('versions'), repeat('x', 3000) from generate_series(1, {ROWS}) as i"
        )
        yield shop


class Writers:
    """Write to the table until they are stopped. Each write has a larger version than all before."""

    def __init__(self, connections: list[Any], seed: int) -> None:
        self.stopped = False
        self._connections = connections
        self._seed = seed

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            for number, sql in enumerate(self._connections):
                group.start_soon(self._write, sql, random.Random(self._seed * 10 + number))

    async def _write(self, sql: Any, chance: random.Random) -> None:
        while not self.stopped:
            row = chance.randrange(1, 2 * ROWS)
            match chance.randrange(8):
                case 0:
                    await sql.execute(
                        "insert into orders values ($1, 'new', 1, nextval('versions'), 'short') on conflict do nothing",
                        row,
                    )
                case 1:
                    await sql.execute("delete from orders where id = $1", row)
                case 2:
                    await sql.execute(
                        "update orders set big = repeat('y', 4000), version = nextval('versions') where id = $1", row
                    )
                case 3:
                    await sql.execute(
                        "update orders set id = $2, version = nextval('versions') where id = $1 and not exists (select from orders where id = $2)",
                        row, chance.randrange(1, 2 * ROWS),
                    )  # fmt: skip
                case 4 if chance.random() < 0.2:
                    transaction = sql.transaction()
                    await transaction.start()
                    await sql.execute(
                        "update orders set total = total + 1, version = nextval('versions') where id % 7 = 0"
                    )
                    await (transaction.rollback() if chance.random() < 0.3 else transaction.commit())
                case _:
                    await sql.execute(
                        "update orders set total = $2, version = nextval('versions') where id = $1",
                        row,
                        chance.randrange(100),
                    )
            await anyio.sleep(0.01)


async def _requested(shop: Shop, source: str, kind: BackfillKind) -> str:
    found = await store.start_backfill(shop.database, source, "public.orders", None, None, kind)
    assert found is not None
    return found


async def _ended(shop: Shop, id_: str) -> BackfillInfo | None:
    info = next(one for one in await store.backfills(shop.database) if one.id == id_)
    return None if info.state in ("queued", "running") else info


async def _end_of(shop: Shop, id_: str) -> BackfillInfo:
    with anyio.fail_after(120):
        found: BackfillInfo = await until(lambda: _ended(shop, id_))
    return found


async def _progress(shop: Shop, id_: str) -> None:
    """Wait until a verification has read more than it had, or has ended."""
    [before] = [one.read for one in await store.backfills(shop.database) if one.id == id_]

    async def more() -> bool:
        [info] = [one for one in await store.backfills(shop.database) if one.id == id_]
        return info.read > before or info.state == "done"

    with anyio.fail_after(60):
        await until(more)


async def _until_equal(shop: Shop, mode: str) -> None:
    with anyio.move_on_after(60):
        await until(lambda: _equal(shop, mode))
    assert await _mirror(shop, mode) == await _table(shop, mode)


async def _mirror(shop: Shop, mode: str) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for message in await shop.stream():
        record = message["record"]
        if mode == "rows":
            if record is not None:
                found[record["id"]] = record
        elif message["action"] == "delete":
            found.pop(record["id"], None)
        else:
            before = found.pop((message["changes"] or {}).get("id", record["id"]), {})
            found[record["id"]] = before | record
    if mode == "changes":
        return {id_: {name: value for name, value in row.items() if name != "big"} for id_, row in found.items()}
    return found


async def _table(shop: Shop, mode: str) -> dict[int, Any]:
    # In mode `changes` a value that did not change may be in no message: the backfill leaves a changed row to its change.
    columns = "id, status, total::text, version" + (", big" if mode == "rows" else "")
    rows = await shop.sql.fetch(f"select to_json(t) as row from (select {columns} from orders) as t")
    return {row["id"]: row for row in (json.loads(row["row"]) for row in rows)}


async def _equal(shop: Shop, mode: str) -> bool:
    return await _mirror(shop, mode) == await _table(shop, mode)


@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        pytest.param(mode, seed, marks=pytest.mark.torture if seed else pytest.mark.long)
        for mode in ("rows", "changes")
        for seed in range(2)
    ],
)
async def test_an_equal_mirror_is_found_equal_under_load_and_over_the_ends_of_processes(
    shop: Shop, connect: Any, mode: str, seed: int
) -> None:
    deletes = {"deletes": "tombstone"} if mode == "rows" else {}
    source = (await shop.source(mode=mode, backfill=True, **deletes)).id
    writers, chance = Writers([await connect() for _ in range(3)], seed), random.Random(seed)
    async with anyio.create_task_group() as group:
        group.start_soon(writers.run)
        async with shop.captured(LIMITS):
            await shop.until_running()
            [first] = await store.backfills(shop.database)
            await _end_of(shop, first.id)
            kinds: tuple[BackfillKind, ...] = ("verification", "repair")
            for kind in kinds:
                info = await _end_of(shop, await _requested(shop, source, kind))
                assert (info.state, info.differences.count, info.differences.unchecked, info.published) == (
                    "done",
                    0,
                    0,
                    0,
                )
        verification = await _requested(shop, source, "verification")
        while await _ended(shop, verification) is None:  # each process ends soon
            async with shop.captured(LIMITS):
                await _progress(shop, verification)
                await anyio.sleep(chance.random() / 5)
        writers.stopped = True
    info = await _end_of(shop, verification)
    assert info.differences is not None
    assert (info.state, info.differences.count, info.differences.unchecked) == ("done", 0, 0)
    async with shop.captured(LIMITS):
        await _until_equal(shop, mode)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.torture if seed else pytest.mark.long) for seed in range(3)]
)
async def test_a_damaged_mirror_is_repaired_under_load_and_never_set_back(shop: Shop, connect: Any, seed: int) -> None:
    source = (await shop.source(mode="rows", deletes="tombstone", backfill=True)).id
    writers, chance = Writers([await connect() for _ in range(3)], seed), random.Random(seed)
    async with shop.captured(LIMITS):
        await shop.until_running()
        [first] = await store.backfills(shop.database)
        await _end_of(shop, first.id)
    # Old versions, missing rows, and rows that the table does not have.
    await shop.sql.execute(
        """update headrace_streams.shop set data = replace(replace(data::text, 'xxx', 'old'), '"new"', '"old"')::json where seq % 3 = 0"""
    )
    await shop.sql.execute("delete from headrace_streams.shop where seq % 5 = 0")
    await shop.sql.execute(
        """insert into headrace_streams.shop (key, data) select 'public.orders.' || i,
           json_build_object('record', json_build_object('id', i, 'version', 0),
                             'metadata', json_build_object('table_schema', 'public', 'table_name', 'orders'))
           from generate_series(10001, 10300) as i"""
    )
    # A consumer would see a version that is smaller than one before, or an old value after the repair.
    await shop.sql.execute(
        """create table set_back (key text, before json, after json);
           create function note() returns trigger language plpgsql set search_path = pg_catalog, public as $$ begin
               if (new.data #>> '{record,version}')::bigint < (old.data #>> '{record,version}')::bigint
                  or old.data::text !~ 'old' and new.data::text ~ 'old'
               then insert into public.set_back values (new.key, old.data, new.data); end if;
               return new; end $$;
           create trigger note before update on headrace_streams.shop for each row execute function note()"""
    )
    repair = await _requested(shop, source, "repair")
    async with anyio.create_task_group() as group:
        group.start_soon(writers.run)
        while await _ended(shop, repair) is None:
            async with shop.captured(LIMITS):
                await _progress(shop, repair)
                await anyio.sleep(chance.random() / 5)
        writers.stopped = True
    info = await _end_of(shop, repair)
    assert (info.state, info.reason) == ("done", None)
    assert await shop.sql.fetch("select key, before, after from set_back limit 3") == []
    async with shop.captured(LIMITS):
        await _until_equal(shop, "rows")
        info = await _end_of(shop, await _requested(shop, source, "verification"))
    assert info.differences is not None
    assert info.differences.count == 0
