"""Databases in encodings other than UTF-8. Readable text is read, and unreadable text stops nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from headrace.sources.postgres.connection.source_connection import SourceConnection
from tests.runtime.running import eventually
from tests.sources.postgres.backfilling import chunks_of
from tests.sources.postgres.captured import Shop
from tests.sources.postgres.connections import APPLICATION, connected
from tests.sources.postgres.sessions import Session
from tests.support import servers

pytestmark = pytest.mark.asyncio

NOTES = """
create table notes (id text primary key, body text, words text[]);
alter table notes replica identity full;
"""
PLAIN = "café, naïve"
LATIN = r"convert_from('\x{}'::bytea, current_setting('server_encoding'))"
"""SQL that makes text of bytes that are not valid UTF-8."""


def odd(text: str) -> str:
    """SQL for the text, as a client with the encoding Latin-1 writes it."""
    return LATIN.format(text.encode("latin-1").hex())


@pytest.fixture
def bytes_dsn(server_dsn: str) -> Iterator[str]:
    """The URL of a database that stores arbitrary bytes as text."""
    with database_in(server_dsn, "SQL_ASCII") as dsn:
        yield dsn


@pytest.fixture
def latin_dsn(server_dsn: str) -> Iterator[str]:
    """The URL of a database in Latin-1."""
    with database_in(server_dsn, "LATIN1") as dsn:
        yield dsn


def database_in(server_dsn: str, encoding: str) -> AbstractContextManager[str]:
    session = Session(server_dsn)
    provider = "locale_provider libc" if session.version >= 15 else ""  # older versions have no other provider
    session.close()
    return servers.clone(server_dsn, f"template0 encoding '{encoding}' lc_collate 'C' lc_ctype 'C' {provider}")


async def source(shop: Shop, dsn: str, **settings: Any) -> None:
    await shop.source(tables=("public.notes",), database=dsn, **settings)


def bodies(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["record"]["body"] for message in messages]


@pytest.mark.parametrize("replication", [False, True])
async def test_bytes_that_are_no_utf_8_are_read_as_they_are(bytes_dsn: str, replication: bool) -> None:
    async with await SourceConnection.connect(
        bytes_dsn, application_name=APPLICATION, replication=replication
    ) as connection:
        assert connection.server_encoding == "SQL_ASCII"
        assert await connection.rows(f"select {odd(PLAIN)}") == [[PLAIN.encode("latin-1")]]
        assert await connection.query(f"select {odd(PLAIN)}, 'é'") == [("caf\ufffd, na\ufffdve", "é")]


async def test_such_a_value_is_a_parameter_again(bytes_dsn: str) -> None:
    async with await SourceConnection.connect(bytes_dsn, application_name=APPLICATION) as connection:
        again = PLAIN.encode("latin-1").decode(errors="surrogateescape")
        assert await connection.query(f"select $1::text = {odd(PLAIN)}", again) == [("t",)]


async def test_text_in_latin_1_is_converted_by_the_server(latin_dsn: str) -> None:
    async with await SourceConnection.connect(latin_dsn, application_name=APPLICATION) as connection:
        assert connection.server_encoding == "LATIN1"
        assert await connection.query(f"select {odd(PLAIN)}, $1", "ÿ") == [(PLAIN, "ÿ")]


async def test_invalid_utf_8_is_published_with_replacement_characters_and_the_slot_goes_on(
    shop: Shop, bytes_dsn: str
) -> None:
    async with connected(bytes_dsn) as connection:
        await connection.query(NOTES)
        await source(shop, bytes_dsn)
        async with shop.captured():
            await shop.until_running()
            await connection.query(f"insert into notes values ('a', {odd(PLAIN)}, array[{odd('é')}, 'é'])")
            await connection.query(f"update notes set body = {odd('ÿ')} || 'ÿ'")
            await connection.query("insert into notes values ('b', 'all is well', '{}')")
            found = await shop.until(3)
    assert bodies(found) == ["caf\ufffd, na\ufffdve", "\ufffdÿ", "all is well"]
    assert found[0]["record"]["words"] == ["\ufffd", "é"]
    assert found[1]["changes"] == {"body": "caf\ufffd, na\ufffdve"}


async def test_latin_1_text_is_published_unchanged(shop: Shop, latin_dsn: str) -> None:
    async with connected(latin_dsn) as connection:
        await connection.query(NOTES)
        await connection.query(f"insert into notes values ('é', {odd(PLAIN)})")
        await source(shop, latin_dsn, backfill=True)
        async with shop.captured():
            await shop.until(1)
            await connection.query(f"update notes set body = {odd('ÿ')}")
            found = await shop.until(2)
    assert bodies(found) == [PLAIN, "ÿ"]
    assert await shop.keys() == ["public.notes.é"] * 2


async def test_a_table_with_keys_that_are_not_utf_8_is_read_to_its_end(shop: Shop, bytes_dsn: str) -> None:
    keys = ["a", "é", "ê", "ë", "ÿ", "ÿÿ"]  # in UTF-8, U+FFFD sorts before the last ones
    async with connected(bytes_dsn) as connection:
        await connection.query(NOTES)
        for key in keys:
            await connection.query(f"insert into notes values ({odd(key)}, {odd(key)})")
        await source(shop, bytes_dsn, mode="rows", backfill=True)
        async with shop.captured(chunks_of(2)):
            await shop.until(len(keys))

            async def is_done() -> bool:
                return await _state(shop) == "done"

            await eventually(is_done)
            await connection.query(f"update notes set body = 'newer' where id = {odd('ÿ')}")

            async def is_newer() -> bool:
                return "newer" in bodies(await shop.stream())

            await eventually(is_newer)
    rows = await shop.rows()
    assert len(rows) == len(keys)
    assert sorted(bodies(list(rows.values()))) == ["a", "newer", "\ufffd", "\ufffd", "\ufffd", "\ufffd\ufffd"]


async def _state(shop: Shop) -> str | None:
    value: str | None = await shop.sql.fetchval(
        "select state from headrace_internal.backfills order by id desc limit 1"
    )
    return value
