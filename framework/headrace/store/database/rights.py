"""The rights that the role of a connection has in Headrace's schema."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec

# As headrace_granted.is_direct has it. A role without any right gets the server's errors.
_HAS_GRANTS = """
    select exists (
        select from pg_proc as p
        join pg_namespace as g on g.oid = p.pronamespace and g.nspname = 'headrace_granted'
        join pg_namespace as n on n.nspname = 'headrace_internal'
        where p.proname = 'lease' and not has_schema_privilege(n.oid, 'create') and has_function_privilege(p.oid, 'execute'))
"""

OWNS = "select coalesce(has_schema_privilege(to_regnamespace('headrace_internal')::oid, 'create'), false)"
"""Whether the role needs no grant, whatever happens to its grants while the connections are open."""

_ADMINISTERS = "select coalesce(0 = any (headrace_granted.streams_of('admin')), false)"


class Rights(msgspec.Struct, frozen=True):
    """The rights of a role.

    Attributes:
        granted: whether it uses the schema through its grants (`headrace grant`), and not as a member of the owner.
        owns: whether it is a member of the owner of the schema. False if there is none.
        maintains: whether it may do the maintenance of all streams.
    """

    granted: bool
    owns: bool
    maintains: bool


async def rights_of(connection: asyncpg.Connection[Any]) -> Rights:
    """Return the rights of the role of a connection."""
    granted = await connection.fetchval(_HAS_GRANTS)
    owns = await connection.fetchval(OWNS)
    return Rights(granted, owns, not granted or await connection.fetchval(_ADMINISTERS))
