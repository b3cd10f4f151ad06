"""The commands of docs/privileges.md run, and each row of its table is tried as such a role."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headrace import store
from headrace.admin import Admin
from headrace.cli.main import main
from headrace.model.errors import HeadraceError
from headrace.model.specs import ConsumerSpec
from tests.support import servers
from tests.support.roles import Login, login, user

__all__ = ["login"]

PAGE = (Path(__file__).parents[2] / "docs" / "privileges.md").read_text(encoding="utf-8")

Try = Callable[[store.Database], Awaitable[Any]]


def run(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code, words


@pytest.mark.process
def test_the_commands_of_the_page_run(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_DATABASE", empty_dsn)
    block = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    names = {name: f"{name}_{uuid4().hex[:12]}" for name in ("headrace", "shop", "shipping")}
    commands = [shlex.split(line, comments=True)[1:] for line in block[1].splitlines()]
    assert {command[0] for command in commands} == {"migrate", "grant", "revoke"}

    async def execute(*statements: str) -> None:
        async with servers.opened(empty_dsn) as database:
            for statement in statements:
                await database.fetch(statement)

    servers.run(execute(f"create role {names['shop']}", f"create role {names['shipping']}"))
    try:
        for command in commands:
            words = [names.get(word, empty_dsn if word.startswith("postgresql:") else word) for word in command]
            run(words)
            if words[0] == "migrate":
                servers.run(execute("select headrace.create_stream('orders')"))
        written = capsys.readouterr().out
        assert f"created the role {names['headrace']}" in written
        assert f"The role {names['shop']} has publish for orders." in written
        assert f"Removed 1 grant of the role {names['shop']}." in written
    finally:
        for name in names.values():
            servers.run(execute(f"drop owned by {name} cascade", f"drop role {name}"))


@pytest.mark.asyncio
async def test_the_sql_of_the_page_is_what_the_command_prints_and_runs(database: store.Database, login: Login) -> None:
    app = await login()
    script = re.search(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    assert script is not None
    assert script[1].strip() == store.grant_sql("publish", "shop", ["orders"])
    connection = await database.connect()
    try:
        await connection.execute(script[1].replace("'shop'", f"'{user(app)}'"))
    finally:
        await connection.close()
    assert await store.publish(app, "orders", "a", "1") == 1


# --- the table


async def number(database: store.Database) -> int:
    return await store.consumer_id(database, "orders", "ship")


async def publishes(database: store.Database) -> None:
    await store.publish(database, "orders", "a", "1")
    async with database.transaction() as connection:
        await store.publish_many(connection, "orders", ["a"], ["1"])
    await database.fetch("select headrace.publish('orders', 'a', '1')")


async def leases(database: store.Database) -> None:
    await store.lease(database, await number(database), uuid4(), 1)


async def reads(database: store.Database) -> None:
    await store.messages(database, "orders")


async def sees_figures(database: store.Database) -> None:
    assert await database.fetch("select * from headrace.consumers")
    assert await database.fetch("select * from headrace.streams")


async def sees_processes(database: store.Database) -> None:
    await database.fetch("select * from headrace.workers")


async def observes(database: store.Database) -> None:
    await Admin(database).snapshot()


async def changes_consumers(database: store.Database) -> None:
    await store.declare_consumer(database, ConsumerSpec(stream="orders", name="ship", max_deliver=9))


async def seeks(database: store.Database) -> None:
    await store.seek(database, await number(database), 0)


async def creates_streams(database: store.Database) -> None:
    await store.create_stream(database, f"new_{uuid4().hex[:8]}")


async def maintains(database: store.Database) -> None:
    assert database.maintains
    await database.fetch("select headrace_internal.resign($1)", uuid4())


async def grants(database: store.Database) -> None:
    await store.grant(database, "publish", user(database), ["orders"])


MAY: dict[str, tuple[tuple[str, ...], bool, list[Try], list[Try]]] = {
    "publishes, in SQL, in Python and in your own transactions": (
        ("publish",), False, [publishes], [reads, leases, sees_figures, changes_consumers, grants]),
    "runs consumers that exist: leases, acks, retries, dead letters, transactional handlers": (
        ("consume",), False, [leases, sees_figures], [publishes, changes_consumers, seeks, creates_streams, grants]),
    "reads messages, dead letters and blocked keys": (("consume",), False, [reads], [publishes]),
    "reads the views": (
        ("observe",), True, [sees_figures, sees_processes], [reads, leases, publishes, seeks, observes]),
    "creates, changes, seeks, pauses, replays, redrives, deletes on a stream": (
        ("admin",), False, [changes_consumers, seeks, publishes, leases, reads, sees_figures], [creates_streams, maintains, grants]),
    "creates streams and sources, runs `headrace serve` and `headrace observe`, does the maintenance": (
        ("admin",), True, [creates_streams, maintains, changes_consumers, sees_processes, observes], [grants]),
    "migrates and grants": ((), True, [grants], []),
}  # fmt: skip


def test_each_row_of_the_table_is_tried() -> None:
    table = PAGE.partition("## Each privilege")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    assert {row[0]: re.findall(r"`(publish|consume|observe|admin)`", row[1]) for row in rows[2:]} == {
        what: list(privileges) for what, (privileges, *_) in MAY.items()
    }


@pytest.mark.asyncio
@pytest.mark.parametrize("what", MAY)
async def test_a_role_may_what_its_row_says_and_nothing_more(what: str, database: store.Database, login: Login) -> None:
    privileges, everywhere, may, may_not = MAY[what]
    app = await login(*privileges, streams=() if everywhere else ("orders",))
    if not privileges:  # a member of the owner
        owner = await database.fetchval("select quote_ident(current_user)")
        await database.fetch(f"grant {owner} to {user(app)}")
        await app.close()
        await app.open()
        with pytest.raises(HeadraceError, match="may do everything already"):
            await grants(app)
        return
    for attempt in may:
        await attempt(app)
    for attempt in may_not:
        with pytest.raises((HeadraceError, AssertionError)):
            await attempt(app)
