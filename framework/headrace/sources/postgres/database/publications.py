"""Publications, which define the tables and actions that a replication slot sends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from headrace.model.errors import HeadraceError
from headrace.sources.postgres import table_names
from headrace.sources.postgres.connection import server_errors
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog
from headrace.sources.postgres.errors import SourceRefused, SourceStopped, SourceUnavailable
from headrace.sources.postgres.settings import ACTIONS
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table

LOCK_TIMEOUT = 10.0
"""Timeout in seconds for locks on the tables. Vacuum and schema changes hold such locks."""

_PUBLICATION = """
    select p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot, to_jsonb(p) ->> 'pubgencols',
           pg_catalog.pg_has_role(p.pubowner, 'USAGE'), p.pubowner::regrole::text
      from pg_catalog.pg_publication as p where p.pubname = $1
"""

# _NAMED lists the tables that were added by name. _COVERED lists all tables in it, including all
# tables of a schema or of the database, and partitions in place of their roots.
_NAMED = """
    select r.prrelid::pg_catalog.text
      from pg_catalog.pg_publication_rel as r
           join pg_catalog.pg_publication as p on p.oid = r.prpubid join pg_catalog.pg_class as c on c.oid = r.prrelid
     where p.pubname = $1
       and coalesce(to_jsonb(r) -> 'prqual', 'null') = 'null' and coalesce(to_jsonb(r) -> 'prattrs', 'null') = 'null'  -- whole tables
       and (c.relispartition                            -- tables that inherit from a table come with it, unless they are partitions
            or not exists (select from pg_catalog.pg_inherits as i join pg_catalog.pg_publication_rel as parent on parent.prrelid = i.inhparent
                            where i.inhrelid = r.prrelid and parent.prpubid = p.oid))
"""
_COVERED = """
    with published as (select g.relid from pg_catalog.pg_get_publication_tables($1::text) as g)
    select w.oid::pg_catalog.text,
           w.oid in (select p.relid from published as p)
           or (select bool_and(exists (select from pg_catalog.pg_partition_ancestors(t.relid) as a
                                        where a.relid in (select p.relid from published as p)))
                 from pg_catalog.pg_partition_tree(w.oid) as t where t.isleaf)
      from unnest($2::pg_catalog.oid[]) as w(oid)
"""


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a publication. `named` has the oids of the tables that were added by name.
    `owned` says whether the role may alter it.
    """

    all_tables: bool
    actions: frozenset[str]
    via_root: bool
    generated: bool
    owned: bool
    owner: str
    named: frozenset[int]


async def find_publication(connection: SourceConnection, name: str) -> Publication | None:
    """Return the publication of this name, or None."""
    rows = await connection.query(_PUBLICATION, name)
    if not rows:
        return None
    all_tables, insert, update, delete, truncate, root, generated, owned, owner = rows[0]
    flags = {"insert": insert, "update": update, "delete": delete, "truncate": truncate}
    return Publication(
        all_tables=all_tables == "t", actions=frozenset(action for action, published in flags.items() if published == "t"),
        via_root=root == "t", generated=generated == "s", owned=owned == "t", owner=owner or "",
        named=frozenset(int(oid or 0) for (oid,) in await connection.query(_NAMED, name)),
    )  # fmt: skip


async def tables_missing_from(connection: SourceConnection, name: str, tables: Iterable[Table]) -> list[Table]:
    """Return the tables that are not in the publication, or only in part."""
    wanted = {table.oid: table for table in tables}
    rows = await connection.query(_COVERED, name, "{" + ",".join(map(str, wanted)) + "}") if wanted else []
    return [wanted[int(oid or 0)] for oid, complete in rows if complete != "t"]


def create_statement(name: str, spec: PostgresSpec, version: int, tables: Iterable[Table] | None = None) -> str:
    """Return the statement that creates the publication of a source, with these tables, or those that it names."""
    names = ", ".join(spec.tables) if tables is None else _names(tables)
    return f"create publication {table_names.quoted(name)} for table {names} with ({_options(spec, version)});"


def add_tables_statement(name: str, tables: Iterable[Table]) -> str:
    """Return the statement that adds tables to a publication."""
    return f"alter publication {table_names.quoted(name)} add table {_names(tables)};"


def set_actions_statement(name: str, actions: Iterable[str]) -> str:
    """Return the statement that sets the kinds of changes that a publication publishes."""
    return f"alter publication {table_names.quoted(name)} set (publish = '{_actions(actions)}');"


async def ensure_publication(
    connection: SourceConnection, spec: PostgresSpec, name: str, tables: Sequence[Table] | None = None,
    *, lock_timeout: float = LOCK_TIMEOUT,
) -> None:  # fmt: skip
    """Make sure that the publication has the source's tables and actions. The source's own one is
    created or altered. A given one is only checked.

    Args:
        connection: a connection to the captured database.
        spec: the source's settings. If `publication` is set, that one is given, and is not altered.
        name: the publication's name.
        tables: the tables. None for those that have the names in the settings.
        lock_timeout: timeout in seconds for locks on the tables.

    Raises:
        SourceStopped: a table is missing, or can't be captured, or the role may not create a
            publication. The error has the statement that corrects it.
        SourceUnavailable: another session has locked a table.
    """
    if tables is None:
        tables = list((await catalog.load_tables(connection, spec.tables)).values())
    if spec.publication is None:
        refuse_without_identity(tables, spec.actions)
    publication = await find_publication(connection, name)
    if publication is None:
        await _create(connection, spec, name, tables, lock_timeout)
        return
    statements = _changes(publication, spec, name, tables, connection.version)
    if statements and spec.publication is None and publication.owned and not publication.all_tables:
        try:
            await _alter(connection, statements, lock_timeout)
            return
        except SourceRefused as error:
            if error.sqlstate != "42501":
                raise server_errors.setup_error(error) from error
    await _verify(connection, publication, spec, name, tables)


async def refresh_publication(connection: SourceConnection, spec: PostgresSpec, name: str) -> None:
    """Set the options of the source's own publication to what they are. The server then looks again at which tables are
    in it.
    """
    try:
        await _alter(
            connection, [f"alter publication {table_names.quoted(name)} set ({_options(spec, connection.version)})"]
        )
    except SourceRefused as error:
        if error.sqlstate != "42501":  # made by another role
            raise server_errors.setup_error(error) from error


async def drop_publication(connection: SourceConnection, name: str) -> None:
    """Drop the publication, if it exists."""
    await _alter(connection, [f"drop publication if exists {table_names.quoted(name)}"])


def refuse_without_identity(tables: Iterable[Table], actions: Sequence[str]) -> None:
    """Raise `SourceStopped` for a table without a replica identity.

    As soon as such a table is in a publication, the server refuses all updates and deletes of it,
    by any client.
    """
    if not {"update", "delete"} & set(actions):
        return
    for table in tables:
        if table.identity != "f" and not table.identity_columns:
            raise SourceStopped(
                f"The table {table.name} has no {'replica identity' if table.identity == 'n' else 'primary key'}. If it were published, the server"
                " would refuse all its updates and deletes, because it could not identify their rows. Add a primary key, or write whole"
                " rows into the WAL.",
                full_identity(table),
            )


def full_identity(table: Table) -> str:
    """Return the statement that makes the server write whole old rows into the WAL."""
    return f"alter table {table.name} replica identity full;"


async def _create(
    connection: SourceConnection, spec: PostgresSpec, name: str, tables: Sequence[Table], lock_timeout: float
) -> None:
    statement = create_statement(name, spec, connection.version, tables)
    if spec.publication is not None:
        raise SourceStopped(f"The captured database has no publication {name}.", statement)
    try:
        await _alter(connection, [statement], lock_timeout)
    except SourceRefused as error:
        if error.sqlstate == "42710":  # another session has just created it
            return
        if error.sqlstate != "42501":
            raise server_errors.setup_error(error) from error
        raise SourceStopped(
            f"The role may not create the publication {name} ({error.server_message}). Only the owner of its tables with CREATE on the"
            " database may, or a superuser. Let a superuser create it.",
            statement,
        ) from error


def _changes(
    publication: Publication, spec: PostgresSpec, name: str, tables: Sequence[Table], version: int
) -> list[str]:
    """Return the statements that give the publication what the source needs. Empty if nothing has to change."""
    statements = []
    if publication.named != {table.oid for table in tables}:
        statements.append(f"alter publication {table_names.quoted(name)} set table {_names(tables)}")
    complete = publication.via_root and (publication.generated or version < 180000)
    if not complete or publication.actions != set(spec.actions):
        statements.append(f"alter publication {table_names.quoted(name)} set ({_options(spec, version)})")
    return statements


async def _verify(
    connection: SourceConnection, publication: Publication, spec: PostgresSpec, name: str, tables: Sequence[Table]
) -> None:
    """Raise `SourceStopped` unless the publication has all that the source needs. It may have more."""
    if missing_tables := await tables_missing_from(connection, name, tables):
        raise SourceStopped(
            f"The publication {name}, owned by {publication.owner}, lacks {' and '.join(table.name for table in missing_tables)}.",
            add_tables_statement(name, missing_tables),
        )
    if missing_actions := [action for action in spec.actions if action not in publication.actions]:
        raise SourceStopped(
            f"The publication {name}, owned by {publication.owner}, does not publish these actions: {', '.join(missing_actions)}.",
            set_actions_statement(name, publication.actions | set(spec.actions)),
        )


async def _alter(connection: SourceConnection, statements: Sequence[str], lock_timeout: float = LOCK_TIMEOUT) -> None:
    """Run the statements in one transaction, with a short lock timeout. A session that waits for a
    lock blocks later ones.
    """
    body = "; ".join(statement.removesuffix(";") for statement in statements)
    try:
        await connection.query(f"begin; set local lock_timeout = '{int(lock_timeout * 1000)}ms'; {body}; commit")
    except HeadraceError:
        with suppress(SourceUnavailable):
            await connection.query("rollback")
        raise


def _names(tables: Iterable[Table]) -> str:
    return ", ".join(table.sql_name for table in tables)


def _options(spec: PostgresSpec, version: int) -> str:
    options = f"publish = '{_actions(spec.actions)}', publish_via_partition_root = true"
    return options + (", publish_generated_columns = stored" if version >= 180000 else "")


def _actions(actions: Iterable[str]) -> str:
    return ", ".join(action for action in ACTIONS if action in set(actions))
