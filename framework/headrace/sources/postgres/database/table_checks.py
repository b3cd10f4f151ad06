"""The part of `check` that concerns each table: that it can be captured and read, and that its rows
can be identified.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from headrace.model.capture import Finding
from headrace.sources.postgres import table_names
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog, columns, coverage
from headrace.sources.postgres.database.coverage import WRITES, Refusal
from headrace.sources.postgres.database.findings import error, ok, warning
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
           (select json_agg(json_build_array(n2.nspname, leaf.relname) order by leaf.oid)
              from pg_catalog.pg_partition_tree(c.oid) as t join pg_catalog.pg_class as leaf on leaf.oid = t.relid
                   join pg_catalog.pg_namespace as n2 on n2.oid = leaf.relnamespace
             where t.isleaf and leaf.oid <> c.oid and leaf.relreplident in ('d', 'i')),
           (select json_agg(json_build_array(n2.nspname, child.relname) order by child.oid)
              from pg_catalog.pg_inherits as i join pg_catalog.pg_class as child on child.oid = i.inhrelid
                   join pg_catalog.pg_namespace as n2 on n2.oid = child.relnamespace
             where i.inhparent = c.oid and c.relkind = 'r'),
           (select json_agg(json_build_array(n2.nspname, leaf.relname) order by leaf.oid)
              from pg_catalog.pg_partition_tree(c.oid) as t join pg_catalog.pg_class as leaf on leaf.oid = t.relid
                   join pg_catalog.pg_namespace as n2 on n2.oid = leaf.relnamespace
             where t.isleaf and leaf.oid <> c.oid and (leaf.relkind = 'f' or leaf.relpersistence <> 'p')),
           exists (select from pg_catalog.pg_attribute as a where a.attrelid = c.oid and a.attgenerated = 'v' and not a.attisdropped),
           exists (select from pg_catalog.pg_index as i where i.indrelid = c.oid and i.indisprimary),
           exists (select from pg_catalog.pg_index as i join pg_catalog.pg_attribute as a on a.attrelid = c.oid and a.attnum = i.indkey[0]
                    where i.indrelid = c.oid and i.indisvalid and i.indpred is null and a.attname = $2)
      from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace where c.oid = $1::pg_catalog.oid
"""


class _Facts(msgspec.Struct, frozen=True):
    """Facts about a table from the catalog.

    Attributes:
        keyed_partitions: the partitions of whose old rows only the key is in the WAL.
        children: the tables that inherit from it and are not partitions.
        unreplicated: the partitions whose changes are not in the WAL.
        virtual: whether it has virtual columns, so that its replica identity can't be `full`.
        has_primary: whether it has a primary key, which may be deferrable.
        sorted: whether an index begins with the sort column.
    """

    role: str
    has_usage: bool
    has_select: bool
    row_security: bool
    keyed_partitions: list[str]
    children: list[str]
    unreplicated: list[str]
    virtual: bool
    has_primary: bool
    sorted: bool


async def tables(
    connection: SourceConnection, spec: PostgresSpec, own_publication: str, checked: list[Table]
) -> AsyncIterator[Finding]:
    """Check each table of a source. Adds to `checked` the tables that can be published, or will be once
    they are corrected. `own_publication` is the name of the source's own publication, which may not exist.
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
        refusals = await coverage.refusals(
            connection, spec, [table.oid], None if publication is not None else own_publication
        )
        findings = [
            *_privileges(table, facts, spec),
            *_key(table, facts, spec, refusals),
            *_refusals(table, facts, spec, refusals),
            *_identity(table, facts, spec),
            *_descendants(table, facts, spec),
            *_columns(table, spec),
            *_sort(table, facts, spec),
        ]
        if located.problem is None and not any(finding.level == "error" for finding in findings):
            row_count = f" and has about {table.estimate:,} rows" if (table.estimate or 0) > 1 else ""
            yield ok(table.name, f"The table exists{row_count}. Its key is {', '.join(table.key) or 'none'}.")
        for finding in findings:
            yield finding


async def _facts(connection: SourceConnection, table: Table, spec: PostgresSpec) -> _Facts:
    ((role, *facts),) = await connection.query(_FACTS, str(table.oid), spec.sort)
    flags, relations = [fact == "t" for fact in facts], map(_names, facts[3:6])
    values: tuple[Any, ...] = (role or "", *flags[:3], *relations, *flags[6:])
    return _Facts(*values)


def _names(listed: str | None) -> list[str]:
    return [table_names.joined(*name) for name in msgspec.json.decode(listed or "[]", type=list[tuple[str, str]])]


def _privileges(table: Table, facts: _Facts, spec: PostgresSpec) -> Iterator[Finding]:
    level = error if spec.backfill or spec.mode == "rows" else warning
    if not facts.has_usage:
        yield level(
            table.name,
            f"The role {facts.role} has no usage privilege on the schema {table.schema}, so it can't read rows.",
            f"grant usage on schema {table_names.quoted(table.schema)} to {facts.role};",
        )
    if not facts.has_select:
        yield level(
            table.name,
            f"The role {facts.role} has no select privilege on the table, so a backfill can't read it.",
            f"grant select on {table.name} to {facts.role};",
        )
    if facts.row_security:
        yield warning(
            table.name,
            f"Row security hides rows from the role {facts.role}. A backfill lacks them, although their changes are captured.",
            f"alter role {facts.role} bypassrls;",
        )


def _key(table: Table, facts: _Facts, spec: PostgresSpec, refusals: Sequence[Refusal]) -> Iterator[Finding]:
    if table.key:
        unpublished = [column.name for column in table.columns if column.name in table.key and not column.published]
        if unpublished:
            yield error(
                table.name,
                f"The key has the generated column {unpublished[0]}, which is not replicated. Add a primary key of other columns.",
            )
        return
    mend = None
    if not (table.partitioned or facts.has_primary or any(refusal.adds_key for refusal in refusals)) or _key_corrects(
        table, facts, spec
    ):
        has_id = any(column.name == "id" for column in table.columns)
        mend = f"alter table {table.name} {coverage.add_primary_key(None, None, (), has_id=has_id, version=0)};"
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


def _key_corrects(table: Table, facts: _Facts, spec: PostgresSpec) -> bool:
    """Whether the primary key that mode `rows` needs is also the correction of a refusal."""
    return spec.mode == "rows" and not table.key and not table.partitioned and not facts.has_primary


def _refusals(table: Table, facts: _Facts, spec: PostgresSpec, refusals: Sequence[Refusal]) -> Iterator[Finding]:
    """Report the relations of which the server refuses writes, or would."""
    for refusal in refusals:
        if refusal.publication is not None:
            yield (error if refusal.covered else warning)(refusal.relation, refusal.text, refusal.mend)
            continue
        mend = refusal.mend
        if refusal.is_table and _key_corrects(table, facts, spec):
            if refusal.identity == "d":
                continue
            mend = f"alter table {table.name} replica identity default;"
        text = f"{refusal.text} Once it is published, the server refuses all its updates and deletes."
        if mend is None:
            text += " It can't have a primary key, because it is partitioned by an expression: capture only inserts, actions insert and truncate."
        yield error(refusal.relation, text, mend)


def _identity(table: Table, facts: _Facts, spec: PostgresSpec) -> Iterator[Finding]:
    """Check how much of old rows is in the WAL."""
    if table.identity == "f" or not table.identity_columns or not WRITES & set(spec.actions):
        return
    known, mend = ", ".join(table.identity_columns), _full_identity(table, facts)
    required = [column for column in _keyed_by(table, spec) if column not in table.identity_columns]
    if required and "delete" in spec.actions:
        yield error(
            table.name,
            f"Of deleted rows, the WAL contains only {known}. The keys of their messages also need {', '.join(required)}."
            + (" The replica identity can't be full, since the table has virtual columns." if facts.virtual else ""),
            mend,
        )
    elif spec.mode == "changes":
        yield warning(
            table.name,
            f"Of updated and deleted rows, the WAL contains only {known}. `changes` lacks other old values, and so does the record of a"
            " deletion."
            + (
                " The replica identity can't be full, since the table has virtual columns."
                if facts.virtual
                else " Whole old rows make the WAL larger."
            ),
            mend,
        )


def _full_identity(table: Table, facts: _Facts) -> str | None:
    """Return the statement that makes the server write whole old rows into the WAL. None if the server would refuse
    updates and deletes then.
    """
    if facts.virtual:
        return None
    return " ".join(f"alter table {name} replica identity full;" for name in (table.name, *facts.keyed_partitions))


def _keyed_by(table: Table, spec: PostgresSpec) -> Iterable[str]:
    """Return the columns that the keys of the table's messages are made of."""
    return spec.group or (RowKeyTemplate(spec.key).columns if spec.key is not None else table.key)


def _descendants(table: Table, facts: _Facts, spec: PostgresSpec) -> Iterator[Finding]:
    """Check the tables below a table. A partition has its own replica identity, and does not inherit its root's."""
    if table.identity == "f" and facts.keyed_partitions and WRITES & set(spec.actions):
        yield warning(
            table.name,
            f"These partitions have another replica identity than {table.name}, and their own one applies: {', '.join(facts.keyed_partitions[:10])}."
            " So do partitions that are added later.",
            _full_identity(table, facts),
        )
    if facts.unreplicated:
        yield warning(
            table.name,
            f"These partitions are unlogged or foreign, so their changes are not captured: {', '.join(facts.unreplicated[:10])}.",
        )
    if facts.children:
        yield warning(
            table.name,
            f"Tables that inherit from {table.name} are not captured with it: {', '.join(facts.children[:10])}. Name them as tables of the"
            " source to capture them.",
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
            table.name,
            f"The sort column {name} may be null. It must be not null.",
            f"alter table {table.name} alter column {name} set not null;",
        )
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
            table.name,
            f"No index begins with the sort column {name}, so a backfill would sort the whole table for each chunk.",
            f"create index {how}on {table.name} ({order});",
        )
