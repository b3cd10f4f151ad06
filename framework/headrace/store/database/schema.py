"""The state of the schema in a database, and whether it fits the code of this process."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec

from headrace.model.errors import SchemaError
from headrace.model.text.masking import masked
from headrace.store.database.ownership import SCHEMAS
from headrace.store.database.revisions import newest_revision

FIRST = "headrace"
"""The name of revision 1. Development versions before 0.1.0 had another one."""

_DROP = f"drop schema if exists {', '.join(SCHEMAS)} cascade"


class SchemaState(msgspec.Struct, frozen=True, kw_only=True):
    """The schema in a database.

    Attributes:
        revision: its revision, 0 for none.
        serves_from: the oldest revision whose processes work with it.
        digest: the SHA-256 of the text of its functions.
        supported: False if a development version before 0.1.0 created it.
        bare: whether its tables exist and its data does not, as after a restore of the schema alone.
    """

    revision: int = 0
    serves_from: int = 0
    digest: str | None = None
    supported: bool = True
    bare: bool = False

    def refusal(self, dsn: str) -> str | None:
        """Why no process of this code may start with the schema, or None. A schema that is too old is no reason."""
        if not self.supported:
            return (
                f"The schema in {masked(dsn)} was created by a development version of Headrace before 0.1.0. Remove it with all"
                f" its data: {_DROP}."
            )
        if self.bare:
            return (
                f"The schema in {masked(dsn)} was restored without its data. Restore the data, too (pg_restore --data-only), or"
                f" remove the schema: {_DROP}."
            )
        if self.serves_from > newest_revision():
            return (
                f"The schema in {masked(dsn)} has revision {self.revision}, and serves Headrace from revision {self.serves_from} on."
                f" This Headrace has revision {newest_revision()}. Upgrade Headrace: pip install --upgrade headrace."
            )
        return None

    def outdated(self, dsn: str) -> str | None:
        """Why the schema must be upgraded before this code can use it, or None."""
        if self.revision == 0:
            return f"The database {masked(dsn)} has no Headrace schema. Run `headrace migrate`."
        if self.revision < newest_revision():
            return (
                f"The schema in {masked(dsn)} has revision {self.revision}, and this Headrace needs revision {newest_revision()}."
                " Run `headrace migrate` of this version first."
            )
        return None

    def mismatch(self, dsn: str) -> str | None:
        """Why this code can't use the schema as it is, or None."""
        return self.refusal(dsn) or self.outdated(dsn)


async def read_state(connection: asyncpg.Connection[Any]) -> SchemaState:
    """Read the state of the schema, in a transaction that the caller began or in one of its own."""
    # Not to_regclass: it would still return what it found before this call waited for another migration.
    if not await connection.fetchval(
        "select exists (select from pg_tables where schemaname = 'headrace_internal' and tablename = 'migrations')"
    ):
        return SchemaState()
    # As JSON, because a later revision may add columns, or have them otherwise.
    texts = await connection.fetch(
        "select to_jsonb(m)::text as row from headrace_internal.migrations as m order by version"
    )
    if not texts:
        return SchemaState(bare=True)
    first, row = (msgspec.json.decode(texts[place]["row"]) for place in (0, -1))
    return SchemaState(
        revision=row["version"],
        serves_from=row.get("serves_from") or 1,
        digest=row.get("functions"),
        supported=first["name"] == FIRST,
    )


async def require_schema(connection: asyncpg.Connection[Any], dsn: str) -> SchemaState:
    """Return the state of the schema. Raises `SchemaError` if this code can't use it as it is."""
    state = await read_state(connection)
    if (reason := state.mismatch(dsn)) is not None:
        raise SchemaError(reason)
    return state
