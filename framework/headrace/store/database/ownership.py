"""The role that owns the schema: create it, transfer the schema to it, and act as it."""

from __future__ import annotations

from typing import Any

import asyncpg

from headrace.model.errors import InvalidInput, SchemaError
from headrace.model.text.sql import quoted
from headrace.store.database.errors import first_line

SCHEMAS = ("headrace", "headrace_internal", "headrace_granted", "headrace_streams", "headrace_staging")
"""The schemas of a database that belong to Headrace."""

_SCHEMAS = str(SCHEMAS)

# What another role put there stays its own, or a function of its own would run with the rights of the owner.
_GIVES = "pg_has_role({0}, 'usage') and pg_has_role({0}, n.nspowner, 'member')"

_TRANSFER = f"""
    select format('alter schema %I owner to %I', n.nspname, $1::text)
    from pg_namespace as n where n.nspname in {_SCHEMAS} and pg_get_userbyid(n.nspowner) <> $1 and {_GIVES.format("n.nspowner")}
    union all
    select format('alter %s %s owner to %I',
                  case c.relkind when 'v' then 'view' when 'S' then 'sequence' when 'c' then 'type' else 'table' end,
                  c.oid::regclass, $1::text)
    from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
    where n.nspname in {_SCHEMAS} and c.relkind in ('r', 'p', 'v', 'S', 'c') and pg_get_userbyid(c.relowner) <> $1 and {_GIVES.format("c.relowner")}
      and not exists (    -- the sequence of a column belongs to the owner of the table
            select from pg_depend as d where d.objid = c.oid and d.classid = 'pg_class'::regclass and d.deptype in ('a', 'i')
                and d.refclassid = 'pg_class'::regclass and c.relkind = 'S')
    union all
    select format('alter function %s owner to %I', p.oid::regprocedure, $1::text)
    from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
    where n.nspname in {_SCHEMAS} and pg_get_userbyid(p.proowner) <> $1 and {_GIVES.format("p.proowner")}
"""
"""The statements that give to a role all objects of the schema that the current role may give away."""


async def current_owner(connection: asyncpg.Connection[Any]) -> str | None:
    """The role that owns the schema. None if there is no schema."""
    owner: str | None = await connection.fetchval(
        "select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'headrace_internal'"
    )
    return owner


async def may_migrate(connection: asyncpg.Connection[Any]) -> bool:
    """Whether the current role is the owner of the schema, a member of it, or a superuser."""
    allowed: bool = await connection.fetchval(
        """select coalesce(bool_or(pg_has_role(current_user, nspowner, 'member')), true)
           from pg_namespace where nspname = 'headrace_internal'"""
    )
    return allowed


async def become_owner(connection: asyncpg.Connection[Any], owner: str | None) -> list[str]:
    """Act as the owner of the schema until the end of the transaction, so that it owns what is created.

    Args:
        owner: the role to which the schema is given. It is created if it does not exist. None for the present owner.

    Returns:
        What was done, a phrase for each step.

    Raises:
        SchemaError: the current role may not do that.
    """
    current = await current_owner(connection)
    steps = []
    if owner is not None:
        try:
            steps = await _give(connection, current, owner)
        except asyncpg.InsufficientPrivilegeError as error:
            raise SchemaError(
                f"The schema can't be given to the role {owner!r} ({first_line(error)}). Migrate once as a superuser, or as a role"
                " that may create in the database, and that is a member of both owners."
            ) from error
    elif current is not None:
        # Objects that a superuser or a member created in the schema before all of it belonged to one role.
        await _transfer(connection, current)
    target = owner or current
    if target is not None and target != await connection.fetchval("select current_user"):
        await connection.execute(f"set local role {quoted(target)}")
    return steps


async def _give(connection: asyncpg.Connection[Any], current: str | None, owner: str) -> list[str]:
    if not owner or "\0" in owner or len(owner.encode()) > 63:
        raise InvalidInput(f"The role {owner!r} is invalid. A name has 1 to 63 bytes.", field="owner")
    steps = []
    if not await connection.fetchval("select exists (select from pg_roles where rolname = $1)", owner):
        await connection.execute(f"create role {quoted(owner)} nologin")
        steps.append(f"created the role {owner}")
    if not await connection.fetchval("select pg_has_role(current_user, $1, 'member')", owner):
        await connection.execute(f"grant {quoted(owner)} to current_user")
    if not await connection.fetchval("select has_database_privilege($1, current_database(), 'create')", owner):
        database = await connection.fetchval("select quote_ident(current_database())")
        await connection.execute(f"grant create on database {database} to {quoted(owner)}")
    if current is not None:
        await _transfer(connection, owner)
        if current != owner:
            steps.append(f"gave the schema to the role {owner}")
    return steps


async def _transfer(connection: asyncpg.Connection[Any], owner: str) -> None:
    statements = [row[0] for row in await connection.fetch(_TRANSFER, owner)]
    if statements:
        await connection.execute("; ".join(statements))
