"""Several databases behind one server: the list of the others, and which stream and which source lives where.

The configuration database has both. See `sql/functions/catalog/databases.sql`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Literal
from uuid import UUID

import msgspec

from headrace.model.keys import looks_like_id
from headrace.model.records import DatabaseInfo
from headrace.store.database.database import Executor

PlaceKind = Literal["stream", "source"]
"""What has a name that is unique among all databases."""

GRACE = 600.0
"""Seconds for which a placed name is kept although its database doesn't have it. Its creation may be about to
commit."""

PLACES_PAGE = 1_000
"""The number of names that are reconciled in one call."""


class Place(msgspec.Struct, frozen=True):
    """Where a stream or a source lives.

    Attributes:
        name: its name.
        database: the name of its database.
    """

    name: str
    database: str


async def add_database(executor: Executor, name: str, url_from: str) -> bool:
    """Add a database to the list. Returns False if one of this name exists."""
    return bool(await executor.fetchval("select headrace_internal.add_database($1, $2)", name, url_from))


async def edit_database(executor: Executor, name: str, url_from: str) -> bool:
    """Change where servers find the URL of a database. Returns False if there is none of this name."""
    return bool(
        await executor.fetchval(
            "update headrace_internal.databases set url_from = $2 where name = $1 returning true", name, url_from
        )
    )


async def remove_database(executor: Executor, name: str) -> bool:
    """Remove a database from the list. It keeps its streams. Returns False if there is none of this name."""
    return bool(await executor.fetchval("select headrace_internal.remove_database($1)", name))


async def databases(executor: Executor) -> list[DatabaseInfo]:
    """All databases of the list, by name."""
    rows = await executor.fetch("select name, url_from, created_at from headrace_internal.databases order by name")
    return [DatabaseInfo(**row) for row in rows]


async def database_identity(executor: Executor) -> UUID:
    """An id of the database itself, which no other database has, also if it is a copy."""
    found: UUID = await executor.fetchval("select headrace_internal.database_identity()")
    return found


async def stream_count(executor: Executor) -> int:
    """The number of streams of a database."""
    count: int = await executor.fetchval("select count(*) from headrace_internal.streams")
    return count


async def place_of(executor: Executor, kind: PlaceKind, ref: str) -> Place | None:
    """Where the stream or source with this id or name lives. None if it is not in another database."""
    if "\0" in ref:
        return None
    if looks_like_id(ref):
        row = await executor.fetchrow(
            "select name, database from headrace_internal.places where kind = $1 and uid = $2", kind, _as_uuid(ref)
        )
    else:
        row = await executor.fetchrow(
            "select name, database from headrace_internal.places where kind = $1 and name = $2", kind, ref
        )
    return None if row is None else Place(row["name"], row["database"])


async def places_of(executor: Executor, kind: PlaceKind, names: Iterable[str]) -> list[Place]:
    """Where those of these streams or sources live that are in other databases."""
    rows = await executor.fetch(
        "select name, database from headrace_internal.places where kind = $1 and name = any($2::text[])",
        kind,
        list(names),
    )
    return [Place(row["name"], row["database"]) for row in rows]


async def place_name(executor: Executor, kind: PlaceKind, name: str, database: str) -> str:
    """Place a name in a database, before it is created there.

    Returns:
        The database that has the name: the given one, another one, or an empty string for the configuration database.
    """
    found: str = await executor.fetchval("select headrace_internal.place_name($1, $2, $3)", kind, name, database)
    return found


async def confirm_place(executor: Executor, kind: PlaceKind, name: str, database: str, uid: str) -> None:
    """Note the id of what was created under a placed name."""
    await executor.fetchval(
        "select headrace_internal.confirm_place($1, $2, $3, $4)", kind, name, database, _as_uuid(uid)
    )


async def forget_place(executor: Executor, kind: PlaceKind, name: str, database: str) -> None:
    """Forget where a name was placed, after it was deleted there."""
    await executor.fetchval("select headrace_internal.forget_place($1, $2, $3)", kind, name, database)


async def names_of(executor: Executor, kind: PlaceKind, after: str | None) -> list[tuple[str, UUID]]:
    """A page of the names and ids that a database has itself, by name."""
    table = {"stream": "streams", "source": "sources"}[kind]
    rows = await executor.fetch(
        f"select name, uid from headrace_internal.{table} where $1::text is null or name > $1 order by name limit {PLACES_PAGE}",
        after,
    )
    return [(row["name"], row["uid"]) for row in rows]


async def own_names(executor: Executor, kind: PlaceKind, names: Sequence[str]) -> list[str]:
    """Those of these streams or sources that the database has itself."""
    table = {"stream": "streams", "source": "sources"}[kind]
    rows = await executor.fetch(
        f"select name from headrace_internal.{table} where name = any($1::text[]) order by name", list(names)
    )
    return [row["name"] for row in rows]


async def names_elsewhere(
    executor: Executor, kind: PlaceKind, database: str, names: Sequence[str], limit: int | None = None
) -> list[str]:
    """Those of these names that lead to another database than this one: to the configuration database, or a further one."""
    table = {"stream": "streams", "source": "sources"}[kind]
    arguments = (kind, database, list(names), limit)
    rows = await executor.fetch(
        f"""select name from unnest($3::text[]) as n (name)
            where exists (select from headrace_internal.{table} as t where t.name = n.name)
                or exists (select from headrace_internal.places as p where p.kind = $1 and p.name = n.name and p.database <> $2)
            order by name limit $4""",
        *arguments,
    )
    return [row["name"] for row in rows]


async def reconcile_places(
    executor: Executor,
    kind: PlaceKind,
    database: str,
    found: Sequence[tuple[str, UUID]],
    after: str | None,
    *,
    grace: float = GRACE,
) -> tuple[list[str], bool]:
    """Make the places of a database those that a page of its names has.

    Args:
        found: the page, see `names_of`. The last one has less than `PLACES_PAGE` entries.
        after: the name after which the page begins.
        grace: seconds for which a name that is missing there is kept.

    Returns:
        The names that another database has, so that servers can't reach these streams. And whether anything changed.
    """
    names = [name for name, _ in found]
    page, last = [uid for _, uid in found], names[-1] if len(found) >= PLACES_PAGE else None
    arguments = (kind, database, names, page, after, last, timedelta(seconds=grace))
    row = await executor.fetchrow(
        "select * from headrace_internal.reconcile_places($1, $2, $3, $4, $5, $6, $7)", *arguments
    )
    return list(row["conflicts"]), row["changed"]


def _as_uuid(text: str) -> UUID:
    """An id in any spelling, see `looks_like_id`."""
    digits = "".join(digit for digit in text.lower().replace("urn:", "").replace("uuid:", "") if digit in _DIGITS)
    return UUID(digits) if len(digits) == 32 else UUID(text)  # Python reads the digits of other scripts, too


_DIGITS = frozenset("0123456789abcdef")
