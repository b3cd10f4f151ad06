"""Chunks: a table that is read by its key, piece by piece, each in a transaction of its own.

    select … from only public.orders where (id) > ($1::bigint) and (id) <= ($2::bigint) order by id limit 5000

The lower bound is the last row that was read, so nothing is held while the piece before is on its way. The upper one is the last row that
there was at the beginning: what has come after it is captured, and the reading comes to an end however fast the table grows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.model.errors import HeadraceError, InvalidInput
from headrace.sources.postgres.backfill.rows_where import compiled
from headrace.sources.postgres.backfill.visibility import Snapshot
from headrace.sources.postgres.connection.link import Link
from headrace.sources.postgres.errors import SourceRefused
from headrace.sources.postgres.server.names import joined, quoted
from headrace.sources.postgres.server.tables import Table, TableColumn
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store import ChunkDone

PREFIX = "headrace"
"""Of the messages in the WAL that say where a chunk belongs."""

MOST_BYTES = 8 * 1024 * 1024
"""Of values in a chunk; one row may be larger."""

LONGEST_READ = 0.1
"""Seconds after which a chunk is large enough."""

FIRST_STEP = 10
LONGEST_STEP = 1_000
"""Rows that are fetched at once: few at first, since nobody knows how large they are."""

# A sequential scan for each chunk would read the table a thousand times. A role that doesn't see all rows must not think it does. Nobody
# waits for a standby to have a mark that only says where a chunk belongs.
SETTINGS = (
    "set enable_seqscan = off; set enable_bitmapscan = off; set jit = off; set row_security = off; set lock_timeout = '5s';"
    " set synchronous_commit = local"
)

_BEGIN = "begin isolation level repeatable read read only; {lock}"
_SAME_ORDER = ({20, 21, 23}, {25, 1043})  # types whose values sort alike: integers, and texts


class Unfit(HeadraceError):
    """This backfill can't be, or can't go on."""


class Chunk(msgspec.Struct):
    """Rows of a backfill that are to be appended here. `columns`: what the values of each row are of."""

    table: Table
    columns: list[str]
    rows: list[list[bytes | None]]
    done: ChunkDone


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a table is read.

    Attributes:
        table: as it is now, under the name that the source has for it.
        source: the table as it stands in SQL after `from`.
        columns: those that are read.
        order: those by which: the sort column, if there is one, and the key.
        types: the names of their types.
        where: which rows, as SQL with `$1` for the first of `params`.
    """

    table: Table
    source: str
    columns: tuple[TableColumn, ...]
    order: tuple[TableColumn, ...]
    types: tuple[str, ...]
    where: str | None
    params: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def key_at(self) -> list[int]:
        """Where the key's values are among those of a row."""
        names = self.names
        return [names.index(name) for name in self.table.key]

    def sql(self, *, above: bool, below: bool, limit: int) -> str:
        """A chunk's statement. Its parameters are the condition's, then those of the bounds."""
        conditions = [] if self.where is None else [f"({self.where})"]
        place = len(self.params)
        for wanted, operator in ((above, ">"), (below, "<=")):
            if wanted:
                conditions.append(f"{self._ordered()} {operator} {self._bound(place)}")
                place += len(self.order)
        where = f" where {' and '.join(conditions)}" if conditions else ""
        listed = ", ".join(quoted(column.name) for column in self.columns)
        order = ", ".join(quoted(column.name) for column in self.order)
        return f"select {listed} from {self.source}{where} order by {order} limit {limit}"

    def last(self) -> str:
        """The statement for the last row in this order."""
        order = ", ".join(f"{quoted(column.name)} desc" for column in self.order)
        return f"select {', '.join(quoted(column.name) for column in self.order)} from {self.source} order by {order} limit 1"

    def counted(self) -> str:
        """The statement for how many rows the planner expects."""
        return f"explain (format json) select from {self.source}" + (
            "" if self.where is None else f" where {self.where}"
        )

    def lock(self) -> str:
        """The table's definition stays as it is; taken before the snapshot, or the table might have been rewritten in between, and
        would look empty."""
        return f"lock table {self.source} in access share mode"

    def place_of(self, row: Sequence[bytes | None]) -> list[Any]:
        """Where a row is in the order, to be kept as JSON: name, type and value of each column."""
        names = self.names
        return [[column.name, column.type_oid, _kept(row[names.index(column.name)])] for column in self.order]

    def bound_of(self, place: Sequence[Any]) -> list[str]:
        """The values of a place that was kept. Raises `Unfit` when the order was another one."""
        told = [name for name, *_ in place]
        if told != [column.name for column in self.order] or not all(
            _sort_alike(was, column.type_oid) for (_, was, _), column in zip(place, self.order, strict=True)
        ):
            now = ", ".join(column.name for column in self.order)
            raise Unfit(
                f"The backfill of {self.table.name} was read in the order of {', '.join(told)}, and the table's key, the type of the key or"
                f" the source's sort column has changed since, to {now}: start the backfill anew."
            )
        return [_text(bytes.fromhex(value["hex"])) if isinstance(value, dict) else value for *_, value in place]

    def _ordered(self) -> str:
        return f"({', '.join(quoted(column.name) for column in self.order)})"

    def _bound(self, place: int) -> str:
        return f"({', '.join(f'${place + n}::{name}' for n, name in enumerate(self.types, 1))})"


def _text(value: bytes | None) -> str:
    """A value, as a parameter."""
    assert value is not None  # columns of the order are not null
    return value.decode(errors="surrogateescape")


def _kept(value: bytes | None) -> str | dict[str, str]:
    """A value, as JSON can keep it exactly: a database in SQL_ASCII may have some that are no text in UTF-8."""
    assert value is not None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _sort_alike(was: int, now: int) -> bool:
    return was == now or any(was in same and now in same for same in _SAME_ORDER)


async def plan(link: Link, known: Table, now: Table, spec: PostgresSpec, where: Any) -> Plan:
    """How a table is to be read.

    Args:
        known: the table under the name, and with the schema, that the source has for it.
        now: the same as the catalog has it at this time.
        where: which rows, as the JSON of a condition; None for all.

    Raises:
        Unfit: it can't be read, and why.
    """
    table = msgspec.structs.replace(now, name=known.name, schema=known.schema, relation=known.relation)
    columns = {column.name: column for column in table.columns}
    _check_key(table, columns)
    order = _order(table, columns, spec)
    try:
        sql, params = compiled(where, table) if where is not None else (None, [])
    except InvalidInput as error:
        raise Unfit(str(error)) from error
    return Plan(
        table=table,
        source=("" if table.partitioned else "only ") + joined(now.schema, now.relation),
        columns=_read(table, spec, order),
        order=order,
        types=await _types(link, order),
        where=sql,
        params=tuple(params),
    )


def _check_key(table: Table, columns: Mapping[str, TableColumn]) -> None:
    if not table.key:
        raise Unfit(
            f"The table {table.name} has neither a primary key nor a unique index on columns that are not null, so it can't be read piece"
            f" by piece: alter table {table.name} add primary key (…), or add a column for it:"
            f" alter table {table.name} add column id bigint generated always as identity primary key."
        )
    unpublished = [name for name in table.key if not columns[name].published]
    if unpublished:
        raise Unfit(
            f"The key of {table.name} has the generated column {unpublished[0]!r}, which replication does not send, so changes can't be told"
            " from what was read: add a primary key of other columns."
        )
    if table.identity == "i" and not set(table.key) <= set(table.identity_columns):
        raise Unfit(
            f"The replica identity of {table.name} is an index without its key ({', '.join(table.key)}), so nobody is told which rows are"
            f" deleted: alter table {table.name} replica identity default."
        )


def _order(table: Table, columns: Mapping[str, TableColumn], spec: PostgresSpec) -> tuple[TableColumn, ...]:
    names = list(table.key)
    if spec.sort is not None:
        column = columns.get(spec.sort)
        if column is None or not column.published:
            raise Unfit(
                f"The table {table.name} has no column {spec.sort!r} to sort by that replication sends: edit the source."
            )
        if not column.not_null:
            raise Unfit(
                f"The sort column {spec.sort!r} of {table.name} may be null, and such rows have no place in its order:"
                f" alter table {table.name} alter column {quoted(spec.sort)} set not null."
            )
        names = [spec.sort, *(name for name in names if name != spec.sort)]
    return tuple(columns[name] for name in names)


def _read(table: Table, spec: PostgresSpec, order: Sequence[TableColumn]) -> tuple[TableColumn, ...]:
    """Columns to read: what a message is made of; nothing else needs to leave the server."""
    selected = spec.columns.get(table.name)
    if selected is None or spec.key is not None or spec.where is not None or spec.transform is not None:
        wanted = None
    else:
        wanted = {*selected, *(column.name for column in order), *(spec.group or ())}
    return tuple(column for column in table.columns if column.published and (wanted is None or column.name in wanted))


async def _types(link: Link, columns: Sequence[TableColumn]) -> tuple[str, ...]:
    """Their names in SQL. Of -1 as the modifier, since `character` without one is `character(1)`."""
    oids = ",".join(str(column.type_oid) for column in columns)
    found = await link.query("select oid, format_type(oid, -1) from pg_type where oid = any ($1::oid[])", f"{{{oids}}}")
    names = {int(oid or 0): name or "" for oid, name in found}
    return tuple(names[column.type_oid] for column in columns)


async def last_of(link: Link, plan: Plan) -> list[str] | None:
    """The values of the order of the last row that there is; None if there is none."""
    found = await link.rows(plan.last())
    return [_text(value) for value in found[0]] if found else None


async def estimate(link: Link, plan: Plan) -> int | None:
    """How many rows there are, about."""
    if plan.where is None and plan.table.estimate:
        return plan.table.estimate
    [(text,)] = await link.query(plan.counted(), *plan.params)
    [found] = msgspec.json.decode(text or "[]")
    return int(found["Plan"]["Plan Rows"])


class Reading(msgspec.Struct):
    """What was read. `done`: there is no more."""

    rows: list[list[bytes | None]]
    snapshot: Snapshot
    done: bool


async def read(
    link: Link,
    plan: Plan,
    above: Sequence[str] | None,
    below: Sequence[str] | None,
    limit: int,
    clock: Callable[[], float],
) -> Reading:
    """Read a chunk, in one transaction, under one snapshot. It ends early when it has taken long, or is large.

    Args:
        above, below: bounds, values of the plan's order; None for no bound.
        limit: rows, at most.
        clock: seconds, monotonic.

    Raises:
        SourceRefused, SourceUnavailable.
    """
    until = clock() + LONGEST_READ
    try:
        await link.query(_BEGIN.format(lock=plan.lock()))
        sql = plan.sql(above=above is not None, below=below is not None, limit=limit)
        await link.query(
            f"declare headrace_chunk no scroll cursor for {sql}", *plan.params, *(above or ()), *(below or ())
        )
        rows, done = await _fetch(link, limit, lambda: clock() >= until)
        [(text,)] = await link.query("select pg_current_snapshot()")
    except SourceRefused:
        await link.query("rollback")
        raise
    await link.query("commit")
    assert text is not None
    return Reading(rows, Snapshot.of(text), done)


async def _fetch(link: Link, limit: int, late: Callable[[], bool]) -> tuple[list[list[bytes | None]], bool]:
    """The rows of a cursor, and whether these are all that the table has."""
    rows: list[list[bytes | None]] = []
    size, widest, step = 0, 1, FIRST_STEP
    while True:
        step = min(step, limit - len(rows))
        found = await link.rows(f"fetch forward {step} from headrace_chunk")
        rows += found
        for row in found:
            width = sum([len(value) for value in row if value is not None])
            size += width
            widest = max(widest, width)
        if len(found) < step:
            return rows, True
        if len(rows) == limit or size >= MOST_BYTES or late():
            return rows, False
        step = max(min(step * 10, LONGEST_STEP, (MOST_BYTES - size) // widest), 1)


async def mark(link: Link, token: str) -> None:
    """Write a mark into the WAL, at which a chunk is appended. Everything that a snapshot from before it sees comes before it."""
    await link.query("select pg_logical_emit_message(true, $1::text, $2::text)", PREFIX, token)
