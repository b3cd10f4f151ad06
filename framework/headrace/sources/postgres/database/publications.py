"""Publications, which define the tables and actions that a replication slot sends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from headrace.model.errors import HeadraceError
from headrace.sources.postgres import table_names
from headrace.sources.postgres.connection import server_errors
from headrace.sources.postgres.connection.arrays import oid_array
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.errors import SourceRefused, SourceUnavailable
from headrace.sources.postgres.settings import ACTIONS
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table

LOCK_TIMEOUT = 10.0
"""Timeout in seconds for locks on the tables. Vacuum and schema changes hold such locks."""

_INCOMPLETE = "Headrace has not captured all changes of the tables with these oids:"

_PUBLICATION = """
    select p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot, to_jsonb(p) ->> 'pubgencols',
           to_jsonb(p) ->> 'puballsequences',
           pg_catalog.pg_has_role(p.pubowner, 'USAGE'), p.pubowner::regrole::text, pg_catalog.obj_description(p.oid, 'pg_publication'),
           (select json_agg(json_build_array(r.prrelid::bigint, n.nspname, c.relname))
              from pg_catalog.pg_publication_rel as r join pg_catalog.pg_class as c on c.oid = r.prrelid
                   join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
             where r.prpubid = p.oid)
      from pg_catalog.pg_publication as p where p.pubname = $1
"""

# All tables in it, including all tables of a schema or of the database, and partitions in place of their roots.
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
    """The current state of a publication.

    Attributes:
        all_sequences: whether it is for all sequences, so that no table can be added by name. From PostgreSQL 19 on.
        owned: whether the role may alter it.
        named: the names of the tables that were added by name, by oid. Of a publication of all tables, its exceptions.
        incomplete: the oids of the source's tables of which it has not published all changes. It is kept in the
            publication's comment, since a comment is written in one transaction with the tables.
    """

    all_tables: bool
    actions: frozenset[str]
    via_root: bool
    generated: bool
    all_sequences: bool
    owned: bool
    owner: str
    named: dict[int, str]
    incomplete: frozenset[int]


async def find_publication(connection: SourceConnection, name: str) -> Publication | None:
    """Return the publication of this name, or None."""
    rows = await connection.query(_PUBLICATION, name)
    if not rows:
        return None
    all_tables, insert, update, delete, truncate, root, generated, sequences, owned, owner, comment, named = rows[0]
    flags = {"insert": insert, "update": update, "delete": delete, "truncate": truncate}
    listed = msgspec.json.decode(named or "[]", type=list[tuple[int, str, str]])
    incomplete = (comment or "").partition(_INCOMPLETE)[2]
    return Publication(
        all_tables=all_tables == "t",
        actions=frozenset(action for action, published in flags.items() if published == "t"),
        via_root=root == "t",
        generated=generated == "s",
        all_sequences=sequences == "true",
        owned=owned == "t",
        owner=owner or "",
        named={oid: table_names.joined(schema, relation) for oid, schema, relation in listed},
        incomplete=frozenset(int(oid) for oid in incomplete.split(",") if oid.strip().isdigit()),
    )


async def tables_missing_from(connection: SourceConnection, name: str, tables: Iterable[Table]) -> list[Table]:
    """Return the tables that are not in the publication, or only in part."""
    wanted = {table.oid: table for table in tables}
    rows = await connection.query(_COVERED, name, oid_array(wanted)) if wanted else []
    return [wanted[int(oid or 0)] for oid, complete in rows if complete != "t"]


def create_statement(name: str, tables: Sequence[str], spec: PostgresSpec, version: int) -> str:
    """Return the statement that creates the publication of a source."""
    return f"create publication {table_names.quoted(name)} for table {_only(tables)} with ({_options(spec, version)});"


def may_not_create(name: str, detail: str = "") -> str:
    """Return the text for a role that may not create a publication. `detail`: of the server, in parentheses."""
    return (
        f"The role may not create the publication {name}{detail}. Only the owner of its tables with CREATE on the database may, or a"
        " superuser. Let a superuser create it."
    )


def add_tables_statement(name: str, tables: Iterable[Table]) -> str:
    """Return the statement that adds tables to a publication."""
    return f"alter publication {table_names.quoted(name)} add table {_only(table.name for table in tables)};"


def complete_statement(name: str, publication: Publication, lacking: Sequence[Table]) -> str | None:
    """Return the statement that adds tables to a publication which may be for all tables, with exceptions. None if there is
    none that adds only these.
    """
    if not (publication.all_tables or publication.all_sequences):
        return add_tables_statement(name, lacking)
    if not publication.named.keys() >= {table.oid for table in lacking}:
        return None
    left = publication.named.keys() - {table.oid for table in lacking}
    exceptions = f" except (table {_only(sorted(publication.named[oid] for oid in left))})" if left else ""
    sequences = ", all sequences" if publication.all_sequences else ""
    return f"alter publication {table_names.quoted(name)} set all tables{exceptions}{sequences};"


def drop_tables_statement(name: str, tables: Iterable[str]) -> str:
    """Return the statement that takes tables out of a publication."""
    return f"alter publication {table_names.quoted(name)} drop table {_only(tables)};"


def set_actions_statement(name: str, actions: Iterable[str]) -> str:
    """Return the statement that sets the kinds of changes that a publication publishes."""
    return f"alter publication {table_names.quoted(name)} set (publish = '{_actions(actions)}');"


def set_options_statement(name: str, spec: PostgresSpec, version: int) -> str:
    """Return the statement that sets all options of a source's own publication."""
    return f"alter publication {table_names.quoted(name)} set ({_options(spec, version)});"


def touch_statement(name: str, publication: Publication) -> str:
    """Return a statement that alters a publication and leaves it as it is."""
    via_root = str(publication.via_root).lower()
    return f"alter publication {table_names.quoted(name)} set (publish_via_partition_root = {via_root});"


def set_incomplete_statement(name: str, tables: Iterable[int]) -> str:
    """Return the statement that stores the oids of the tables of which not all changes were published."""
    listed = ", ".join(map(str, sorted(tables)))
    return f"comment on publication {table_names.quoted(name)} is " + (
        f"'{_INCOMPLETE} {listed}';" if listed else "null;"
    )


def has_options(publication: Publication, spec: PostgresSpec, version: int) -> bool:
    """Whether the publication has the options that a source's own one has."""
    complete = publication.via_root and (publication.generated or version < 180000)
    return complete and publication.actions == set(spec.actions)


async def refresh_publication(connection: SourceConnection, spec: PostgresSpec, name: str) -> None:
    """Set the options of the source's own publication to what they are. The server then looks again at which tables are
    in it.
    """
    try:
        await alter(
            connection, [f"alter publication {table_names.quoted(name)} set ({_options(spec, connection.version)})"]
        )
    except SourceRefused as error:
        if error.sqlstate != "42501":  # made by another role
            raise server_errors.setup_error(error) from error


async def drop_publication(connection: SourceConnection, name: str) -> None:
    """Drop the publication, if it exists."""
    await alter(connection, [f"drop publication if exists {table_names.quoted(name)}"])


async def alter(connection: SourceConnection, statements: Sequence[str], lock_timeout: float = LOCK_TIMEOUT) -> None:
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


def _only(tables: Iterable[str]) -> str:
    """List tables without those that inherit from them, whose changes the source does not capture. A partitioned
    table has its partitions nevertheless.
    """
    return ", ".join(f"only {table}" for table in tables)


def _options(spec: PostgresSpec, version: int) -> str:
    options = f"publish = '{_actions(spec.actions)}', publish_via_partition_root = true"
    return options + (", publish_generated_columns = stored" if version >= 180000 else "")


def _actions(actions: Iterable[str]) -> str:
    return ", ".join(action for action in ACTIONS if action in set(actions))
