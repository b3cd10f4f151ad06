"""verifications: what the stream has of a captured table. See `sql/functions/capture/verifications.sql`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.store.database.database import Executor


class TableInStream(msgspec.Struct, frozen=True, kw_only=True):
    """A captured table, as messages name it. `prefix` begins the keys of messages that name no table, or is None."""

    stream: str
    schema: str
    relation: str
    prefix: str | None


class CapturedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a page. `values` has columns of its row as JSON, or null for those that it lacks. It is None
    for a message that is no row of the table.
    """

    key: str
    seq: int
    values: dict[str, msgspec.Raw] | None


async def compare_messages(
    executor: Executor, stream: str, keys: Sequence[str], digests: Sequence[bytes | None]
) -> dict[int, str | None]:
    """Return the messages that differ, or are missing, by the index of their key.

    Args:
        digests: SHA-256 of the record that each message should have. None returns the message in any case.
    """
    rows = await executor.fetch("select * from headrace_internal.compare_messages($1, $2, $3)", stream, keys, digests)
    return {row["place"] - 1: row["data"] for row in rows}


async def live_messages(
    executor: Executor, table: TableInStream, keys: Sequence[str], seqs: Sequence[int | None]
) -> set[str]:
    """Return those of the keys that have a row of the table in the stream. With a seq, only if the message still has
    that seq.
    """
    rows = await executor.fetch(
        "select * from headrace_internal.live_messages($1, $2, $3, $4, $5, $6) as key",
        table.stream,
        keys,
        seqs,
        table.schema,
        table.relation,
        table.prefix,
    )
    return {row["key"] for row in rows}


async def captured_page(
    executor: Executor, table: TableInStream, after: str, limit: int, columns: Sequence[str]
) -> list[CapturedMessage]:
    """Return the next messages of the stream above a key."""
    rows = await executor.fetch(
        "select * from headrace_internal.captured_page($1, $2, $3, $4, $5, $6, $7)",
        table.stream,
        after,
        limit,
        table.schema,
        table.relation,
        table.prefix,
        columns,
    )
    return [CapturedMessage(key=row["key"], seq=row["seq"], values=_decoded(row["values"])) for row in rows]


def _decoded(text: str | None) -> dict[str, msgspec.Raw] | None:
    return None if text is None else msgspec.json.decode(text, type=dict[str, msgspec.Raw])


async def last_key(executor: Executor, stream: str) -> str:
    """Return the largest key of a stream. Empty if it has no messages."""
    key: str = await executor.fetchval("select headrace_internal.largest_key($1)", stream)
    return key


async def fold_messages(
    executor: Executor, verification: int, table: TableInStream, key: Sequence[str], limit: int
) -> bool:
    """Remember the newest message of each row among the next messages of a stream in mode `changes`.

    Args:
        verification: its number.
        key: the columns of the table's key.

    Returns:
        Whether there are no more messages.
    """
    done: bool = await executor.fetchval(
        "select headrace_internal.fold_messages($1, $2, $3, $4, $5, $6)",
        verification,
        table.stream,
        table.schema,
        table.relation,
        key,
        limit,
    )
    return done


async def compare_folded(
    executor: Executor, verification: int, stream: str, keys: Sequence[str], digests: Sequence[bytes | None]
) -> dict[int, str | None]:
    """Return the newest messages of rows that differ, or are missing, by the index of their key. A key is a JSON array."""
    rows = await executor.fetch(
        "select * from headrace_internal.compare_folded($1, $2, $3, $4)", verification, stream, keys, digests
    )
    return {row["place"] - 1: row["data"] for row in rows}


async def folded_page(
    executor: Executor, verification: int, after: str, limit: int, columns: Sequence[str]
) -> list[CapturedMessage]:
    """Return the next rows that are in the stream. The key of each is the hash of its row, in hexadecimal. `values` is None
    for a row that was folded by a key of another number of columns.
    """
    rows = await executor.fetch(
        "select * from headrace_internal.folded_page($1, $2, $3)", verification, bytes.fromhex(after), limit
    )
    return [
        CapturedMessage(
            key=row["hash"].hex(),
            seq=row["seq"],
            values=dict(zip(columns, values, strict=True)) if len(values) == len(columns) else None,
        )
        for row in rows
        for values in [msgspec.json.decode(row["key"], type=list[msgspec.Raw])]
    ]


async def live_folded(
    executor: Executor, verification: int, stream: str, hashes: Sequence[str], seqs: Sequence[int | None]
) -> dict[str, str]:
    """Return those of the rows that still have this newest message, with the message's key."""
    rows = await executor.fetch(
        "select * from headrace_internal.live_folded($1, $2, $3, $4)",
        verification,
        stream,
        [bytes.fromhex(one) for one in hashes],
        seqs,
    )
    return {row["hash"].hex(): row["key"] for row in rows}


async def delete_verified_rows(executor: Executor, number: int, limit: int = 10_000) -> int:
    """Delete what verifications of a source that have ended remember, at most `limit` rows. Returns how many."""
    count: int = await executor.fetchval("select headrace_internal.delete_verified_rows($1, $2)", number, limit)
    return count
