"""Publications, which define the tables and actions that a replication slot sends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from headrace.model.errors import HeadraceError
from headrace.sources.postgres.connection import server_errors
from headrace.sources.postgres.connection.link import Link
from headrace.sources.postgres.database import catalog, table_names
from headrace.sources.postgres.database.tables import Table
from headrace.sources.postgres.errors import SourceRefused, SourceStopped, SourceUnavailable
from headrace.sources.postgres.spec import ACTIONS, PostgresSpec

LOCK_PATIENCE = 10
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
    `mine` says whether the role may alter it.
    """

    everything: bool
    actions: frozenset[str]
    via_root: bool
    generated: bool
    mine: bool
    owner: str
    named: frozenset[int]


async def publication_of(link: Link, name: str) -> Publication | None:
    """Return the publication of this name, or None."""
    found = await link.query(_PUBLICATION, name)
    if not found:
        return None
    everything, insert, update, delete, truncate, root, generated, mine, owner = found[0]
    published = {"insert": insert, "update": update, "delete": delete, "truncate": truncate}
    return Publication(
        everything=everything == "t", actions=frozenset(action for action, is_in in published.items() if is_in == "t"),
        via_root=root == "t", generated=generated == "s", mine=mine == "t", owner=owner or "",
        named=frozenset(int(oid or 0) for (oid,) in await link.query(_NAMED, name)),
    )  # fmt: skip


async def uncovered(link: Link, name: str, tables: Iterable[Table]) -> list[Table]:
    """Return the tables that are not in the publication, or only in part."""
    wanted = {table.oid: table for table in tables}
    rows = await link.query(_COVERED, name, "{" + ",".join(map(str, wanted)) + "}") if wanted else []
    return [wanted[int(oid or 0)] for oid, whole in rows if whole != "t"]


def creation(name: str, spec: PostgresSpec, version: int) -> str:
    """Return the statement that creates the publication of a source."""
    return f"create publication {table_names.quoted(name)} for table {', '.join(spec.tables)} with ({_options(spec, version)});"


def addition(name: str, tables: Iterable[Table]) -> str:
    """Return the statement that adds tables to a publication."""
    return f"alter publication {table_names.quoted(name)} add table {_listed(tables)};"


def publishing(name: str, actions: Iterable[str]) -> str:
    """Return the statement that sets the kinds of changes that a publication publishes."""
    return f"alter publication {table_names.quoted(name)} set (publish = '{_actions(actions)}');"


async def ensure_publication(link: Link, spec: PostgresSpec, name: str) -> None:
    """Make sure that the publication has the source's tables and actions. The source's own one is
    created or altered. A given one is only checked.

    Args:
        link: a connection to the captured database.
        spec: the source's settings. If `publication` is set, that one is given, and is not altered.
        name: the publication's name.

    Raises:
        SourceStopped: a table is missing, or can't be captured, or the role may not create a
            publication. The error has the statement that corrects it.
        SourceUnavailable: another session has locked a table.
    """
    tables = list((await catalog.load_tables(link, spec.tables)).values())
    if spec.publication is None:
        refuse_without_identity(tables, spec.actions)
    found = await publication_of(link, name)
    if found is None:
        await _create(link, spec, name)
        return
    change = _change(found, spec, name, tables, link.version)
    if change and spec.publication is None and found.mine and not found.everything:
        try:
            await _alter(link, change)
            return
        except SourceRefused as error:
            if error.sqlstate != "42501":
                raise server_errors.mended(error) from error
    await _look(link, found, spec, name, tables)


async def drop_publication(link: Link, name: str) -> None:
    """Drop the publication, if it exists."""
    await _alter(link, [f"drop publication if exists {table_names.quoted(name)}"])


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
                f"The table {table.name} has no {'replica identity' if table.identity == 'n' else 'primary key'}: once it is published,"
                " the server would refuse all updates and deletes of it, since nobody could tell which row they are of. Give it one,"
                " or have whole rows written into the WAL.",
                full_identity(table),
            )


def full_identity(table: Table) -> str:
    """Return the statement that makes the server write whole old rows into the WAL."""
    return f"alter table {table.name} replica identity full;"


async def _create(link: Link, spec: PostgresSpec, name: str) -> None:
    statement = creation(name, spec, link.version)
    if spec.publication is not None:
        raise SourceStopped(f"The captured database has no publication {name}.", statement)
    try:
        await _alter(link, [statement])
    except SourceRefused as error:
        if error.sqlstate == "42710":  # another session has just created it
            return
        if error.sqlstate != "42501":
            raise server_errors.mended(error) from error
        raise SourceStopped(
            f"The role may not make the publication {name} ({error.told}): that takes the owner of the tables, with CREATE on the"
            " database. Let a superuser make it.",
            statement,
        ) from error


def _change(found: Publication, spec: PostgresSpec, name: str, tables: Sequence[Table], version: int) -> list[str]:
    """Return the statements that give the publication what the source needs. Empty if nothing has to change."""
    change = []
    if found.named != {table.oid for table in tables}:
        change.append(f"alter publication {table_names.quoted(name)} set table {_listed(tables)}")
    whole = found.via_root and (found.generated or version < 180000)
    if not whole or found.actions != set(spec.actions):
        change.append(f"alter publication {table_names.quoted(name)} set ({_options(spec, version)})")
    return change


async def _look(link: Link, found: Publication, spec: PostgresSpec, name: str, tables: Sequence[Table]) -> None:
    """Raise `SourceStopped` unless the publication has all that the source needs. It may have more."""
    if lacking := await uncovered(link, name, tables):
        raise SourceStopped(
            f"The publication {name} lacks {' and '.join(table.name for table in lacking)}; its owner is {found.owner}.",
            addition(name, lacking),
        )
    if missing := [action for action in spec.actions if action not in found.actions]:
        raise SourceStopped(
            f"The publication {name} does not publish every {' and '.join(missing)}; its owner is {found.owner}.",
            publishing(name, found.actions | set(spec.actions)),
        )


async def _alter(link: Link, statements: Sequence[str]) -> None:
    """Run the statements in one transaction, with a short lock timeout. A session that waits for a
    lock blocks later ones.
    """
    body = "; ".join(statement.removesuffix(";") for statement in statements)
    try:
        await link.query(f"begin; set local lock_timeout = '{LOCK_PATIENCE}s'; {body}; commit")
    except HeadraceError:
        with suppress(SourceUnavailable):
            await link.query("rollback")
        raise


def _listed(tables: Iterable[Table]) -> str:
    return ", ".join(table.name for table in tables)


def _options(spec: PostgresSpec, version: int) -> str:
    options = f"publish = '{_actions(spec.actions)}', publish_via_partition_root = true"
    return options + (", publish_generated_columns = stored" if version >= 180000 else "")


def _actions(actions: Iterable[str]) -> str:
    return ", ".join(action for action in ACTIONS if action in set(actions))
