"""Chunks: reads a table in the order of its key, each in its own transaction.

    select … from only public.orders where (id) > ($1::bigint) and (id) <= ($2::bigint) order by id limit 5000

The lower bound is the last row that was read, so no transaction stays open between chunks. The
upper bound is the last row at the beginning. Later rows are captured as changes, so the backfill
ends however fast the table grows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from headrace.model.errors import HeadraceError, InvalidInput, public_text
from headrace.sources.postgres.backfill.row_conditions import compile_condition
from headrace.sources.postgres.backfill.visibility import Snapshot
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.errors import SourceRefused
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.table_names import joined, quoted
from headrace.sources.postgres.tables import Table, TableColumn
from headrace.store import CapturedMessage, ChunkDone

WATERMARK_PREFIX = "headrace"
"""Prefix of the WAL messages that are watermarks."""

MAX_READ_TIME = 0.1
"""Seconds after which reading a chunk stops."""

FIRST_FETCH_ROWS = 10
MAX_FETCH_ROWS = 1_000
"""Rows per fetch. The first fetch is small, since the size of the rows is not known yet."""

# No sequential scans, since one for each chunk would read the table a thousand times. No row
# security, so that a role that can't see all rows gets an error. No waiting for a synchronous
# standby, since the commit of a watermark only states a chunk's place.
SETTINGS = (
    "set enable_seqscan = off; set enable_bitmapscan = off; set jit = off; set row_security = off; set lock_timeout = '5s';"
    " set synchronous_commit = local"
)

BEGIN = "begin isolation level repeatable read read only; {lock}"
_EQUAL_SORT_ORDER = ({20, 21, 23}, {25, 1043})  # sets of types with the same sort order: integers, and texts


class BackfillImpossible(HeadraceError):
    """Raised when a backfill is impossible, or can't continue."""


class LookedUp(msgspec.Struct, frozen=True):
    """A message whose row was looked up in the table.

    Attributes:
        message: the message.
        key: the values of the table's key in the message, as the server writes them. None if they can't be read.
        row: the columns of which the message's key is made, or None if there is no such row.
        impossible: whether the server refuses the values in the message, so that no row can have them.
    """

    message: CapturedMessage
    key: list[bytes] | None
    row: list[bytes | None] | None
    impossible: bool = False


class Verified(msgspec.Struct, frozen=True):
    """How a chunk is verified.

    Attributes:
        repair: whether to correct the stream.
        missing: what a row without a message is.
        messages: the messages of a chunk of the stream. Empty for a chunk of the table.
        fold: number of messages of the stream to fold. None folds all.
    """

    repair: bool
    missing: Literal["difference", "unchecked", "ignored"]
    messages: list[LookedUp] = []
    fold: int | None = None


class Chunk(msgspec.Struct):
    """Rows of a backfill that are to be appended here, or compared if they are `verified`.

    Attributes:
        columns: the names of each row's values.
        changed_rows: rows that were changed since they were read, by changes that leave out the values of these columns.
    """

    table: Table
    columns: list[str]
    rows: list[list[bytes | None]]
    done: ChunkDone
    verified: Verified | None = None
    changed_rows: list[tuple[list[bytes | None], frozenset[str]]] = []


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a table is read.

    Attributes:
        table: its current definition, under the source's name for it.
        source: the table in SQL, after `from`.
        columns: the columns to read.
        order: the columns to sort by: the sort column, if there is one, and the key.
        types: the SQL names of the types of `order`.
        where: the condition on rows as SQL, with `$1` for the first of `params`.
        params: the condition's parameters, as text.
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

    def chunk_sql(self, *, after: bool, up_to: bool, limit: int) -> str:
        """Return a chunk's statement. Its parameters are those of the condition, then those of the bounds."""
        conditions = [] if self.where is None else [f"({self.where})"]
        place = len(self.params)
        for is_set, operator in ((after, ">"), (up_to, "<=")):
            if is_set:
                conditions.append(f"{self._ordered()} {operator} {self._bound(place)}")
                place += len(self.order)
        where = f" where {' and '.join(conditions)}" if conditions else ""
        listed = ", ".join(quoted(column.name) for column in self.columns)
        order = ", ".join(quoted(column.name) for column in self.order)
        return f"select {listed} from {self.source}{where} order by {order} limit {limit}"

    def last_row_sql(self) -> str:
        """Return the statement for the last row in this order."""
        order = ", ".join(f"{quoted(column.name)} desc" for column in self.order)
        return f"select {', '.join(quoted(column.name) for column in self.order)} from {self.source} order by {order} limit 1"

    def estimate_sql(self) -> str:
        """Return the statement for the planner's estimate of the number of rows."""
        return f"explain (format json) select from {self.source}" + (
            "" if self.where is None else f" where {self.where}"
        )

    def lock_sql(self) -> str:
        """Return the statement that locks the table's definition. It has to run before the snapshot is
        taken. Otherwise the table could be rewritten in between, and would look empty.
        """
        return f"lock table {self.source} in access share mode"

    def place_of(self, row: Sequence[bytes | None]) -> list[Any]:
        """Return a row's place in the order, to be stored as JSON: name, type and value of each column."""
        names = self.names
        return [[column.name, column.type_oid, _as_json(row[names.index(column.name)])] for column in self.order]

    def bound_of(self, place: Sequence[Any]) -> list[str]:
        """Return the values of a stored place. Raises `BackfillImpossible` if it is of another order."""
        names = [name for name, *_ in place]
        if names != [column.name for column in self.order] or not all(
            _sort_alike(before, column.type_oid) for (_, before, _), column in zip(place, self.order, strict=True)
        ):
            now = ", ".join(column.name for column in self.order)
            raise BackfillImpossible(
                f"The backfill of {self.table.name} has read rows in the order of {', '.join(names)}. Since then the table's key, its type, or the"
                f" source's sort column has changed, and the order is {now}. Start a new backfill."
            )
        return [_text(bytes.fromhex(value["hex"])) if isinstance(value, dict) else value for *_, value in place]

    def _ordered(self) -> str:
        return f"({', '.join(quoted(column.name) for column in self.order)})"

    def _bound(self, place: int) -> str:
        return f"({', '.join(f'${place + n}::{name}' for n, name in enumerate(self.types, 1))})"


def _text(value: bytes | None) -> str:
    """Return a value as a parameter."""
    assert value is not None  # columns of the order are not null
    return value.decode(errors="surrogateescape")


def _as_json(value: bytes | None) -> str | dict[str, str]:
    """Return a value in a form that JSON can hold exactly. A database in SQL_ASCII may have values
    that are not UTF-8.
    """
    assert value is not None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _sort_alike(before: int, now: int) -> bool:
    return before == now or any(before in same and now in same for same in _EQUAL_SORT_ORDER)


async def plan(connection: SourceConnection, known: Table, now: Table, spec: PostgresSpec, where: Any) -> Plan:
    """Return the plan to read a table.

    Args:
        known: the table with the source's name and schema for it.
        now: the table as the catalog has it now.
        where: the condition on rows, as JSON. None means all rows.

    Raises:
        BackfillImpossible: the table can't be read. The message says why.
    """
    table = msgspec.structs.replace(now, name=known.name, schema=known.schema, relation=known.relation)
    columns = {column.name: column for column in table.columns}
    _check_key(table, columns)
    order = _order(table, columns, spec)
    try:
        sql, params = compile_condition(where, table) if where is not None else (None, [])
    except InvalidInput as error:
        raise BackfillImpossible(public_text(error)) from error
    return Plan(
        table=table,
        source=("" if table.partitioned else "only ") + joined(now.schema, now.relation),
        columns=_columns_to_read(table, spec, order),
        order=order,
        types=await _types(connection, order),
        where=sql,
        params=tuple(params),
    )


def _check_key(table: Table, columns: Mapping[str, TableColumn]) -> None:
    if not table.key:
        raise BackfillImpossible(
            f"The table {table.name} has neither a primary key nor a unique index on columns that are not null, so it can't be read in chunks."
            f" Add one: alter table {table.name} add primary key (…), or a column for it:"
            f" alter table {table.name} add column id bigint generated always as identity primary key."
        )
    unpublished = [name for name in table.key if not columns[name].published]
    if unpublished:
        raise BackfillImpossible(
            f"The key of {table.name} has the generated column {unpublished[0]!r}, which replication does not send. Add a primary key of other"
            " columns."
        )
    if table.identity == "i" and not set(table.key) <= set(table.identity_columns):
        raise BackfillImpossible(
            f"The replica identity of {table.name} is an index without its key ({', '.join(table.key)}), so deleted rows can't be identified."
            f" Change it: alter table {table.name} replica identity default."
        )


def _order(table: Table, columns: Mapping[str, TableColumn], spec: PostgresSpec) -> tuple[TableColumn, ...]:
    names = list(table.key)
    if spec.sort is not None:
        column = columns.get(spec.sort)
        if column is None or not column.published:
            raise BackfillImpossible(
                f"The table {table.name} has no replicated column {spec.sort!r} to sort by. Edit the source."
            )
        if not column.not_null:
            raise BackfillImpossible(
                f"The sort column {spec.sort!r} of {table.name} may be null. Change it:"
                f" alter table {table.name} alter column {quoted(spec.sort)} set not null."
            )
        names = [spec.sort, *(name for name in names if name != spec.sort)]
    return tuple(columns[name] for name in names)


def _columns_to_read(table: Table, spec: PostgresSpec, order: Sequence[TableColumn]) -> tuple[TableColumn, ...]:
    """Return the columns to read. Columns that messages don't need are left out."""
    selected = spec.columns.get(table.name)
    if selected is None or spec.key is not None or spec.where is not None or spec.transform is not None:
        is_set = None
    else:
        is_set = {*selected, *(column.name for column in order), *(spec.group or ())}
    return tuple(column for column in table.columns if column.published and (is_set is None or column.name in is_set))


async def _types(connection: SourceConnection, columns: Sequence[TableColumn]) -> tuple[str, ...]:
    """Return the SQL names of the columns' types. The modifier is -1, since `character` without one
    means `character(1)`.
    """
    oids = ",".join(str(column.type_oid) for column in columns)
    found = await connection.query(
        "select oid, format_type(oid, -1) from pg_type where oid = any ($1::oid[])", f"{{{oids}}}"
    )
    names = {int(oid or 0): name or "" for oid, name in found}
    return tuple(names[column.type_oid] for column in columns)


async def last_key(connection: SourceConnection, plan: Plan) -> list[str] | None:
    """Return the values of the last row's order columns. None if there are no rows."""
    found = await connection.rows(plan.last_row_sql())
    return [_text(value) for value in found[0]] if found else None


async def estimated_rows(connection: SourceConnection, plan: Plan) -> int | None:
    """Return the estimated number of rows."""
    if plan.where is None and plan.table.estimate:
        return plan.table.estimate
    [(text,)] = await connection.query(plan.estimate_sql(), *plan.params)
    [found] = msgspec.json.decode(text or "[]")
    return int(found["Plan"]["Plan Rows"])


class ChunkRead(msgspec.Struct):
    """The result of reading a chunk. `done` means that there are no more rows."""

    rows: list[list[bytes | None]]
    snapshot: Snapshot
    done: bool


async def read(
    connection: SourceConnection,
    plan: Plan,
    after: Sequence[str] | None,
    up_to: Sequence[str] | None,
    limit: int,
    max_bytes: int,
    clock: Callable[[], float],
) -> ChunkRead:
    """Read a chunk, in one transaction, under one snapshot. It ends early when it takes long, or is
    large.

    Args:
        after, up_to: the bounds, as values of the plan's order. None means no bound.
        limit: largest number of rows.
        max_bytes: size of the values in bytes at which it ends. A single row may be larger.
        clock: seconds, monotonic.

    Raises:
        SourceRefused, SourceUnavailable.
    """
    until = clock() + MAX_READ_TIME
    try:
        await connection.query(BEGIN.format(lock=plan.lock_sql()))
        sql = plan.chunk_sql(after=after is not None, up_to=up_to is not None, limit=limit)
        await connection.query(
            f"declare headrace_chunk no scroll cursor for {sql}", *plan.params, *(after or ()), *(up_to or ())
        )
        rows, done = await _fetch(connection, limit, max_bytes, lambda: clock() >= until)
        [(text,)] = await connection.query("select pg_current_snapshot()")
    except SourceRefused:
        await connection.query("rollback")
        raise
    await connection.query("commit")
    assert text is not None
    return ChunkRead(rows, Snapshot.of(text), done)


async def _fetch(
    connection: SourceConnection, limit: int, max_bytes: int, is_late: Callable[[], bool]
) -> tuple[list[list[bytes | None]], bool]:
    """Return the rows of a cursor, and whether there are no more."""
    rows: list[list[bytes | None]] = []
    size, widest, step = 0, 1, FIRST_FETCH_ROWS
    while True:
        step = min(step, limit - len(rows))
        found = await connection.rows(f"fetch forward {step} from headrace_chunk")
        rows += found
        for row in found:
            width = sum([len(value) for value in row if value is not None])
            size += width
            widest = max(widest, width)
        if len(found) < step:
            return rows, True
        if len(rows) == limit or size >= max_bytes or is_late():
            return rows, False
        step = max(min(step * 10, MAX_FETCH_ROWS, (max_bytes - size) // widest), 1)


async def write_watermark(connection: SourceConnection, watermark: str) -> None:
    """Write a watermark into the WAL, at which a chunk is appended. All transactions that an earlier
    snapshot sees come before it in the WAL.
    """
    await connection.query("select pg_logical_emit_message(true, $1::text, $2::text)", WATERMARK_PREFIX, watermark)
