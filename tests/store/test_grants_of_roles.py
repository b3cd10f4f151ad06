"""A grant belongs to a role: not to its name, and not to another role that takes the name."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from headrace import store
from headrace.model.errors import NotGranted
from tests.support.roles import Login, as_role, user

pytestmark = pytest.mark.asyncio

PUBLISH_SECRETS = "select headrace.publish('secrets', 'a', '1')"


async def run_as(database: store.Database, role: str, sql: str) -> Any:
    connection = await asyncpg.connect(as_role(database.dsn, role))
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def denied(database: store.Database, role: str, sql: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await run_as(database, role, sql)


async def drop(database: store.Database, role: str) -> None:
    await database.fetch(f"drop owned by {role}")
    await database.fetch(f"drop role {role}")


async def test_a_role_that_is_renamed_to_the_name_of_a_dropped_one_gets_nothing_of_it(
    database: store.Database, login: Login
) -> None:
    first, second = await login("publish", streams=("secrets",)), await login("observe")
    name = user(first)
    await first.close()
    await second.close()
    await drop(database, name)
    await database.fetch(f"alter role {user(second)} rename to {name}")
    await denied(database, name, PUBLISH_SECRETS)
    await store.grant(database, "observe", name, ["secrets"])
    await store.migrate(database, reinstall=True)
    await denied(database, name, PUBLISH_SECRETS)
    assert {(one.role, one.privilege, one.stream) for one in await store.grants(database)} == {
        (name, "observe", "orders"), (name, "observe", "secrets"),
    }  # fmt: skip
    await database.fetch(f"create role {user(second)}")  # for the end of the test


async def test_a_role_that_is_created_again_in_a_group_gets_only_what_the_group_has(
    database: store.Database, login: Login
) -> None:
    member, group = await login("publish", streams=("secrets",)), await login("observe")
    name = user(member)
    await member.close()
    await drop(database, name)
    await database.fetch(f"create role {name} login password 'secret' in role {user(group)}")
    await denied(database, name, PUBLISH_SECRETS)
    assert await run_as(database, name, "select count(*) from headrace.streams where name = 'orders'") == 1


async def test_a_grant_follows_the_rename_of_its_role(database: store.Database, login: Login) -> None:
    app = await login("publish")
    name = user(app)
    await app.close()
    await database.fetch(f"alter role {name} rename to {name}_new")
    await database.fetch(f"create role {name} login password 'secret'")
    publish = "select headrace.publish('orders', 'a', '1')"
    assert await run_as(database, f"{name}_new", publish) == 1
    await denied(database, name, publish)
    assert [one.role for one in await store.grants(database)] == [f"{name}_new"]
    assert await store.revoke(database, "publish", name) == 0
    await store.grant(database, "publish", name, ["orders"])  # the name of a grant that was another role's
    assert await store.revoke(database, "publish", f"{name}_new") == 1
    await denied(database, f"{name}_new", publish)
    assert await run_as(database, name, publish) == 2
    await drop(database, f"{name}_new")


async def test_two_roles_that_swap_their_names_keep_their_grants(database: store.Database, login: Login) -> None:
    """Also for a session that had set its role before."""
    first, second = await login("publish"), await login("publish", streams=("secrets",))
    a, b = user(first), user(second)
    await first.close()
    await second.close()
    other = await login()
    await database.fetch(f"grant {a} to {user(other)}")
    session = await asyncpg.connect(other.dsn)
    await session.execute(f"set role {a}")
    assert await session.fetchval("select headrace.publish('orders', 'a', '1')") == 1
    for old, new in ((a, f"{a}_"), (b, a), (f"{a}_", b)):
        await database.fetch(f"alter role {old} rename to {new}")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await session.fetchval(PUBLISH_SECRETS)
    await session.close()
    for _ in range(2):
        await denied(database, b, PUBLISH_SECRETS)
        assert await run_as(database, b, "select headrace.publish('orders', 'a', '1')")
        await denied(database, a, "select headrace.publish('orders', 'a', '1')")
        await store.migrate(database, reinstall=True)
    assert {(one.role, one.stream) for one in await store.grants(database)} == {(b, "orders"), (a, "secrets")}


async def test_grants_of_another_server_count_only_once_they_are_restored(
    database: store.Database, login: Login
) -> None:
    """The numbers of roles differ from server to server, so a number of the other one may be any role's here."""
    app, other = await login("publish"), await login("observe")
    await database.fetch(
        """update headrace_internal.grants set cluster = cluster + 1,
               role_oid = case role when $1 then to_regrole($2) else to_regrole($1) end""",
        user(app), user(other),
    )  # fmt: skip
    publish = "select headrace.publish('orders', 'a', '1')"
    for role in (user(app), user(other)):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="headrace grant restore"):
            await run_as(database, role, publish)
    await store.migrate(database, reinstall=True)
    await denied(database, user(app), publish)
    assert [one.bound for one in await store.grants(database)] == [False, False]
    assert await store.restore_grants(database) == 2
    assert await store.restore_grants(database) == 0
    assert await run_as(database, user(app), publish) == 1
    await denied(database, user(other), publish)
    assert all(one.bound and one.exists for one in await store.grants(database))


async def test_a_role_that_a_restored_server_lacks_gets_nothing(database: store.Database, login: Login) -> None:
    app = await login("publish")
    await database.fetch(
        "insert into headrace_internal.grants (role, role_oid, cluster, privilege) values ('no_such_role', $1, 1, 'admin')",
        await database.fetchval("select to_regrole($1)::oid", user(app)),
    )
    assert await store.restore_grants(database) == 0
    await denied(database, user(app), PUBLISH_SECRETS)
    assert await store.revoke(database, "admin", "no_such_role") == 1


async def test_owned_objects_that_are_given_away_take_no_grant_along(database: store.Database, login: Login) -> None:
    app, heir = await login("publish"), await login("observe", streams=("secrets",))
    await database.fetch(f"reassign owned by {user(app)} to {user(heir)}")
    await denied(database, user(heir), "select headrace.publish('orders', 'a', '1')")
    assert await run_as(database, user(app), "select headrace.publish('orders', 'a', '1')") == 1
    await database.fetch(f"drop owned by {user(app)}")
    await denied(database, user(app), "select headrace.publish('orders', 'a', '1')")


async def test_a_script_of_grants_names_a_role_that_does_not_exist(database: store.Database, login: Login) -> None:
    await login("publish")
    connection = await database.connect()
    try:
        with pytest.raises(asyncpg.UndefinedObjectError, match='no database role "nobody_here"'):
            await connection.execute(store.grant_sql("publish", "nobody_here"))
    finally:
        await connection.close()
    with pytest.raises(NotGranted):
        await store.restore_grants(await login("admin", streams=()))
