"""grants: let roles publish, consume, observe or administer, on all streams or on some."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, get_args

import msgspec

from headrace.model.errors import InvalidInput, NotGranted, UnknownStream
from headrace.model.text.sql import literal, quoted
from headrace.model.watching.audit import Actor, Change
from headrace.store.database.database import Database, Executor
from headrace.store.watching.audit import record_change

Privilege = Literal["publish", "consume", "observe", "admin"]

PRIVILEGES: tuple[Privilege, ...] = get_args(Privilege)

_BEGIN = "begin;\nselect headrace_internal.remove_stale_grants();"

_APPLY = "select headrace_internal.apply_grants();"


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The grants of one role.

    Attributes:
        stream: the name of the stream. None for all streams.
        role: the present name of the role.
        exists: whether the role exists. The grants of a role that was dropped stay until the next change of grants.
        bound: whether it counts. A grant in a database that was restored from a dump of another server counts only after
            `restore_grants`.
    """

    role: str
    privilege: Privilege
    stream: str | None
    granted_at: datetime
    exists: bool
    bound: bool = True


def grant_sql(privilege: str, role: str, streams: Sequence[str] = ()) -> str:
    """The statements that give a role a privilege, in one transaction. No streams stand for all of them."""
    checked = _privilege(privilege)
    if not streams:
        rows = f"values ({literal(role)}, {literal(checked)}, 0)"
    else:
        rows = (
            f"select {literal(role)}, {literal(checked)}, id from headrace_internal.streams"
            f" where name in ({', '.join(map(literal, streams))})"
        )
    return _transaction(
        f"insert into headrace_internal.grants (role, privilege, stream_id)\n    {rows}\n    on conflict do nothing;"
    )


def revoke_sql(privilege: str, role: str, streams: Sequence[str] = ()) -> str:
    """The statements that take a privilege away. No streams stand for the privilege on all streams and on each."""
    condition = f"role = {literal(role)} and privilege = {literal(_privilege(privilege))}"
    if streams:
        condition += (
            "\n    and stream_id in (select id from headrace_internal.streams"
            f" where name in ({', '.join(map(literal, streams))}))"
        )
    return _transaction(f"delete from headrace_internal.grants\n    where {condition};")


def _transaction(change: str) -> str:
    return f"{_BEGIN}\n{change}\n{_APPLY}\ncommit;"


async def grant(
    database: Database, privilege: str, role: str, streams: Sequence[str] = (), *, actor: Actor | None = None
) -> None:
    """Give a role a privilege, on these streams, or on all streams and those that are created later.

    Args:
        actor: in whose name it is recorded in the audit log. None for code.

    Raises:
        InvalidInput: there is no such role, or it needs no grant.
        UnknownStream: a stream doesn't exist.
        NotGranted: the database's own role is not a member of the schema's owner.
    """
    statements = _statements(grant_sql(privilege, role, streams))
    require_membership(database)
    async with database.transaction() as connection:
        await require_role(connection, role)
        await _require_streams(connection, streams)
        for statement in statements:
            await connection.execute(statement)
        await _record(connection, actor, "grant", privilege, role, streams)


async def require_role(executor: Executor, role: str) -> None:
    """Raise `InvalidInput` if there is no such database role, or it needs no grant."""
    found = await executor.fetchrow(
        """select r.rolsuper or pg_has_role(r.oid, n.nspowner, 'usage') as owns
           from pg_roles as r, pg_namespace as n where r.rolname = $1 and n.nspname = 'headrace_internal'""",
        role,
    )
    if found is None:
        raise InvalidInput(
            f"There is no database role {role!r}. Create it first: create role {quoted(role)} login.", field="role"
        )
    if found["owns"]:
        raise InvalidInput(
            f"The role {role!r} may do everything already, as a superuser or a member of the schema's owner.",
            field="role",
        )


class Right(msgspec.Struct, frozen=True):
    """A privilege of a role on one stream, or on all streams if the stream is None."""

    role: str
    privilege: Privilege
    stream: str | None


async def change_grants(executor: Executor, give: Sequence[Right], take: Sequence[Right] = ()) -> None:
    """Give and take exactly these rights, in a transaction.

    Raises:
        InvalidInput: there is no such role, or it needs no grant.
        UnknownStream: a stream doesn't exist.
    """
    await executor.fetchval("select headrace_internal.remove_stale_grants()")
    for role in dict.fromkeys(right.role for right in give):
        await require_role(executor, role)
    await _require_streams(executor, [right.stream for right in give if right.stream is not None])
    for right in take:
        await executor.fetchval(
            f"delete from headrace_internal.grants where role = $1 and privilege = $2 and {_STREAM}", *_row(right)
        )
    for right in give:
        await executor.fetchval(
            """insert into headrace_internal.grants (role, privilege, stream_id)
               select $1, $2, coalesce((select id from headrace_internal.streams where name = $3), 0) on conflict do nothing""",
            *_row(right),
        )
    await executor.fetchval("select headrace_internal.apply_grants()")


async def has_right(executor: Executor, right: Right) -> bool:
    """Whether the role has been given exactly this right."""
    found: bool = await executor.fetchval(
        f"""select exists (select from headrace_internal.grants
                           where bound and role_oid = to_regrole(quote_ident($1)) and privilege = $2 and {_STREAM})""",
        *_row(right),
    )
    return found


_STREAM = """stream_id = case when $3::text is null then 0
    else (select id from headrace_internal.streams where name = $3) end"""


def _row(right: Right) -> tuple[str, str, str | None]:
    return right.role, right.privilege, right.stream


async def revoke(
    database: Database, privilege: str, role: str, streams: Sequence[str] = (), *, actor: Actor | None = None
) -> int:
    """Take a privilege from a role: on these streams, or everywhere. Running processes of the role fail at their
    next call.

    Returns:
        The number of grants that were removed.

    Raises:
        InvalidInput: the role has the privilege on all streams, so it can't be taken for one.
        UnknownStream: a stream doesn't exist.
    """
    first, delete, apply = _statements(revoke_sql(privilege, role, streams))
    require_membership(database)
    async with database.transaction() as connection:
        await connection.execute(first)
        await _require_streams(connection, streams)
        if streams and await connection.fetchval(
            """select exists (select from headrace_internal.grants where role = $1 and privilege = $2 and stream_id = 0)""",
            role,
            privilege,
        ):
            raise InvalidInput(
                f"The role {role!r} has {privilege!r} for all streams. Revoke that without --stream, and grant the streams"
                " that it is to keep.",
                field="streams",
            )
        count = int((await connection.execute(delete)).split()[-1])
        await connection.execute(apply)
        if count:
            await _record(connection, actor, "revoke", privilege, role, streams)
    return count


async def _record(
    connection: Executor, actor: Actor | None, action: str, privilege: str, role: str, streams: Sequence[str]
) -> None:
    details = {"allows": privilege, "streams": list(streams) or "all"}
    stream = streams[0] if len(streams) == 1 else None
    change = Change(action=f"grant.{action}", kind="grant", name=role, stream=stream, details=details)
    await record_change(connection, actor or Actor(), change)


async def grants(database: Database) -> list[Grant]:
    """All grants, by role, privilege and stream. Raises `NotGranted`."""
    require_membership(database)
    rows = await database.fetch(
        """select coalesce(r.rolname, g.role) as role, g.privilege, s.name as stream, g.granted_at, r.oid is not null as exists, g.bound
           from headrace_internal.grants as g
           left join headrace_internal.streams as s on s.id = g.stream_id
           left join pg_roles as r on case when g.bound then r.oid = g.role_oid else r.rolname = g.role end
           where g.stream_id = 0 or s.id is not null order by 1, g.privilege, s.name nulls first"""
    )
    return [Grant(**dict(row)) for row in rows]


async def restore_grants(database: Database, *, actor: Actor | None = None) -> int:
    """Let the grants of a dump of another server count, for the roles that have the same names here.

    Args:
        actor: in whose name it is recorded in the audit log. None for code.

    Returns:
        The number of grants that count from now on.

    Raises:
        NotGranted: the database's own role is not a member of the schema's owner.
    """
    require_membership(database)
    async with database.transaction() as connection:
        count: int = await connection.fetchval("select headrace_internal.restore_grants()")
        if count:
            change = Change(action="grant.restore", kind="grant", name="", stream=None, details={"grants": count})
            await record_change(connection, actor or Actor(), change)
    return count


def require_membership(database: Database, what: str = "see and change grants") -> None:
    """Raise `NotGranted` unless the database's own role is a member of the schema's owner."""
    if database.granted:
        raise NotGranted(f"Only a member of the schema's owner may {what}. Connect as such a role.")


async def _require_streams(connection: Any, streams: Sequence[str]) -> None:
    found = await connection.fetchval(
        "select array_agg(name) from headrace_internal.streams where name = any ($1::text[])", list(streams)
    )
    for name in streams:
        if name not in (found or ()):
            raise UnknownStream(f"The stream {name!r} does not exist.")


def _privilege(privilege: str) -> Privilege:
    if privilege not in PRIVILEGES:
        raise InvalidInput(
            f"The privilege {privilege!r} is unknown. It is one of {', '.join(PRIVILEGES)}.", field="privilege"
        )
    return privilege


def _statements(script: str) -> list[str]:
    """The statements between BEGIN and COMMIT: one before the change, the change, and one after it."""
    first, rest = script.removeprefix("begin;\n").removesuffix("\ncommit;").split("\n", 1)
    return [first, *rest.rsplit("\n", 1)]
