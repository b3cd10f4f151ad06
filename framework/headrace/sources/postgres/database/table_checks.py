"""The part of `check` that concerns each table: that it can be captured and read, and that its rows
can be identified.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

import msgspec

from headrace.model.capture import Finding
from headrace.sources.postgres import table_names
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog, columns
from headrace.sources.postgres.database.findings import error, ok, warning
from headrace.sources.postgres.database.publications import full_identity
from headrace.sources.postgres.rules.keys import RowKeyTemplate
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table

# Types with values that can grow: int2, int4, int8, oid, numeric, float4, float8, date, timestamp,
# timestamptz, pg_lsn.
_ORDERED_TYPES = frozenset((20, 21, 23, 26, 1700, 700, 701, 1082, 1114, 1184, 3220))
_UUID = 2950

_FACTS = """
    select pg_catalog.quote_ident(current_user), pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
           pg_catalog.has_table_privilege(c.oid, 'SELECT'), pg_catalog.row_security_active(c.oid),
           (select json_agg(json_build_array(n2.nspname, leaf.relname, leaf.relreplident) order by leaf.oid)
              from pg_catalog.pg_partition_tree(c.oid) as t join pg_catalog.pg_class as leaf on leaf.oid = t.relid
                   join pg_catalog.pg_namespace as n2 on n2.oid = leaf.relnamespace
             where t.isleaf and leaf.oid <> c.oid and leaf.relreplident <> c.relreplident),
           exists (select from pg_catalog.pg_index as i join pg_catalog.pg_attribute as a on a.attrelid = c.oid and a.attnum = i.indkey[0]
                    where i.indrelid = c.oid and i.indisvalid and i.indpred is null and a.attname = $2)
      from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace where c.oid = $1::pg_catalog.oid
"""


class _Facts(msgspec.Struct, frozen=True):
    """Facts about a table from the catalog. `other_identities` lists partitions with another replica identity,
    and that identity.
    """

    role: str
    has_usage: bool
    has_select: bool
    row_security: bool
    other_identities: list[tuple[str, str]]
    sorted: bool


async def tables(connection: SourceConnection, spec: PostgresSpec, checked: list[Table]) -> AsyncIterator[Finding]:
    """Check each table of a source. Adds to `checked` the tables that can be published, or will be once
    they are corrected.
    """
    publication = spec.publication
    for located in await catalog.locate_tables(connection, spec.tables):
        if located.problem is not None:
            yield error(located.name, located.problem, located.mend)
        if located.oid is None or (located.problem is not None and located.mend is None):
            continue
        loaded = await catalog.table_with_oid(connection, int(located.oid), publication)
        if loaded is None:  # it was just dropped, which the next check reports
            continue
        table, _ = loaded
        if table.own_part is not None:
            yield error(table.name, catalog.OWN_TABLE.format(table.own_part))
            continue
        checked.append(table)
        facts = await _facts(connection, table, spec)
        findings = [
            *_privileges(table, facts, spec), *_key(table, spec), *_identity(table, spec), *_partitions(table, facts, spec),
            *_columns(table, spec), *_sort(table, facts, spec),
        ]  # fmt: skip
        if located.problem is None and not any(finding.level == "error" for finding in findings):
            row_count = f" and has about {table.estimate:,} rows" if (table.estimate or 0) > 1 else ""
            yield ok(table.name, f"The table exists{row_count}. Its key is {', '.join(table.key) or 'none'}.")
        for finding in findings:
            yield finding


async def _facts(connection: SourceConnection, table: Table, spec: PostgresSpec) -> _Facts:
    ((role, has_usage, has_select, row_security, other_identities, sorted_),) = await connection.query(
        _FACTS, str(table.oid), spec.sort
    )
    parts = msgspec.json.decode(other_identities or "[]")
    return _Facts(
        role or "", has_usage == "t", has_select == "t", row_security == "t",
        [(table_names.joined(schema, relation), identity) for schema, relation, identity in parts], sorted_ == "t",
    )  # fmt: skip


def _privileges(table: Table, facts: _Facts, spec: PostgresSpec) -> Iterator[Finding]:
    level = error if spec.backfill or spec.mode == "rows" else warning
    if not facts.has_usage:
        yield level(
            table.name, f"The role {facts.role} has no usage privilege on the schema {table.schema}, so it can't read rows.",
            f"grant usage on schema {table_names.quoted(table.schema)} to {facts.role};",
        )  # fmt: skip
    if not facts.has_select:
        yield level(
            table.name, f"The role {facts.role} has no select privilege on the table, so a backfill can't read it.",
            f"grant select on {table.name} to {facts.role};",
        )  # fmt: skip
    if facts.row_security:
        yield warning(
            table.name,
            f"Row security hides rows from the role {facts.role}. A backfill lacks them, although their changes are captured.",
            f"alter role {facts.role} bypassrls;",
        )


def _key(table: Table, spec: PostgresSpec) -> Iterator[Finding]:
    if table.key:
        unpublished = [column.name for column in table.columns if column.name in table.key and not column.published]
        if unpublished:
            yield error(
                table.name,
                f"The key has the generated column {unpublished[0]}, which is not replicated. Add a primary key of other columns.",
            )
        return
    has_id = any(column.name == "id" for column in table.columns)
    mend = (
        f"alter table {table.name} add primary key (id);"
        if has_id
        else f"alter table {table.name} add column id bigint generated always as identity primary key;"
    )
    problem_text = "The table has neither a primary key nor a unique index over columns that are not null"
    if spec.mode == "rows":
        yield error(table.name, f"{problem_text}, so its rows can't be identified.", mend)
        return
    if spec.backfill:
        yield warning(table.name, f"{problem_text}, so a backfill can't read it in chunks.", mend)
    if spec.group is None and spec.key is None:
        yield warning(
            table.name,
            f"{problem_text}, so all its messages have one key and are handled one at a time. Add a primary key, or set group.",
            None if spec.backfill else mend,  # the warning about the backfill has it already
        )


def _identity(table: Table, spec: PostgresSpec) -> Iterator[Finding]:
    if table.identity == "f" or not {"update", "delete"} & set(spec.actions):
        return
    mend = full_identity(table)
    if not table.identity_columns and not (
        table.identity == "d" and not table.key and spec.mode == "rows"
    ):  # then a key corrects that, too
        yield error(
            table.name,
            f"The table has no {'replica identity' if table.identity == 'n' else 'primary key'}. Once it is published, the server refuses"
            " all its updates and deletes.",
            mend,
        )
    if not table.identity_columns:
        return
    known = ", ".join(table.identity_columns)
    required = [column for column in _keyed_by(table, spec) if column not in table.identity_columns]
    if required and "delete" in spec.actions:
        yield error(
            table.name,
            f"Of deleted rows, the WAL contains only {known}. The keys of their messages also need {', '.join(required)}.",
            mend,
        )
    elif spec.mode == "changes":
        yield warning(
            table.name,
            f"Of updated and deleted rows, the WAL contains only {known}. `changes` lacks other old values, and so does the record of a"
            " deletion. Whole old rows make the WAL larger.",
            mend,
        )


def _keyed_by(table: Table, spec: PostgresSpec) -> Iterable[str]:
    """Return the columns that the keys of the table's messages are made of."""
    return spec.group or (RowKeyTemplate(spec.key).columns if spec.key is not None else table.key)


def _partitions(table: Table, facts: _Facts, spec: PostgresSpec) -> Iterator[Finding]:
    """Check the replica identity of partitions. A partition has its own one, and does not inherit its
    root's.
    """
    if not {"update", "delete"} & set(spec.actions):
        return
    for name, identity in facts.other_identities:
        if table.identity == "f" or identity == "n":
            problem_text = (
                f"The partition {name} has another replica identity than {table.name}. The partition's own one applies."
            )
            level = error if identity == "n" else warning
            yield level(
                name,
                problem_text,
                f"alter table {name} replica identity {'full' if table.identity == 'f' else 'default'};",
            )


def _columns(table: Table, spec: PostgresSpec) -> Iterator[Finding]:
    known = {column.name: column for column in table.columns}
    for setting, names in columns.named_columns(spec, table.name).items():
        # All tables share one condition. A column in it may exist in some tables, and is null for the others.
        level = warning if setting == "where" and len(spec.tables) > 1 else error
        verb = "uses" if setting == "where" else "names"
        for name in names:
            if name not in known:
                yield level(
                    table.name,
                    f"The setting {setting} {verb} {name!r}, but the table has no such column.{columns.closest(name, known)}",
                )
            elif not known[name].published:
                yield level(
                    table.name,
                    f"The setting {setting} {verb} the generated column {name!r}, which is not replicated. Leave it out.",
                )
    generated = [column.name for column in table.columns if not column.published]
    if generated and table.name not in spec.columns:
        yield warning(
            table.name,
            f"These columns are generated or not in the publication, so they are not captured: {', '.join(generated)}.",
        )


def _sort(table: Table, facts: _Facts, spec: PostgresSpec) -> Iterator[Finding]:
    column = next((column for column in table.columns if column.name == spec.sort), None)
    if column is None:
        return
    name = table_names.quoted(column.name)
    if not column.not_null:
        yield error(
            table.name, f"The sort column {name} may be null. It must be not null.",
            f"alter table {table.name} alter column {name} set not null;",
        )  # fmt: skip
    if column.type_oid == _UUID:
        yield warning(
            table.name,
            f"The sort column {name} is a uuid, which does not grow. Sort by a timestamp or a number that grows.",
        )
    elif column.type_oid not in _ORDERED_TYPES:
        yield warning(
            table.name,
            f"The sort column {name} is not a number, date or timestamp. It must grow with every insert and update of a row.",
        )
    if not facts.sorted:
        order = ", ".join([name, *(table_names.quoted(key) for key in table.key if key != column.name)])
        how = "" if table.partitioned else "concurrently "
        yield warning(
            table.name, f"No index begins with the sort column {name}, so a backfill would sort the whole table for each chunk.",
            f"create index {how}on {table.name} ({order});",
        )  # fmt: skip
