"""The books of the demo: what the workers did with each message, written in the transactions that ack the messages.

A message that is lost, doubled or out of order within its key shows here, or breaks the chain of object ids, or
results in another tree.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from headrace import Batch, Transaction
from headrace.cli.demo.git_log import Change
from headrace.store import Database

EXAMPLES = 5
"""How many descriptions of messages out of order are kept for the report."""


class Totals(msgspec.Struct, frozen=True):
    """The state of the books.

    Attributes:
        messages: messages in the stream.
        handled: messages with an effect.
        dead: dead letters.
        lost: messages with neither.
        doubled: effects beyond one for each message.
        again: messages whose effect is that of a later attempt, since the process that had them first was killed.
        out_of_order: messages that did not follow the state of their key.
        examples: descriptions of the first of these.
        files: the state of all files that exist now, key to object id.
        keys: files that existed at any time.
    """

    messages: int
    handled: int
    dead: int
    lost: int
    doubled: int
    again: int
    out_of_order: int
    examples: list[str]
    files: dict[str, str]
    keys: int

    @property
    def correct(self) -> bool:
        return not self.lost and not self.doubled and not self.out_of_order


class Books:
    """Tables in their own schema, for one run.

    Args:
        stream: the name of the run's stream, which is the schema's name as well. It needs no escaping in quotes.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._schema = f'"{stream}"'

    async def create(self, database: Database) -> None:
        # Nothing is unique here, so that a doubled effect is seen, and not prevented.
        async with database.transaction() as connection:
            await connection.execute(f"""
                create schema {self._schema};
                create table {self._schema}.effects (seq bigint, attempt int, process int);
                create table {self._schema}.files (key text primary key, object text, seq bigint);
                create table {self._schema}.wrong (seq bigint, about text);
            """)

    async def enter(self, changes: Sequence[Change], batch: Batch, tx: Transaction) -> None:
        """Apply changes, and note that they were applied."""
        rows = await tx.fetch(
            f"select key, object, seq from {self._schema}.files where key = any($1::text[])",
            [message.key for message in batch],
        )
        states: dict[str, tuple[str | None, int]] = {row["key"]: (row["object"], row["seq"]) for row in rows}
        wrong: list[tuple[int, str]] = []
        for message, change in zip(batch, changes, strict=True):
            before, seq = states.get(message.key, (None, 0))
            if change.old != before or message.seq <= seq:
                about = f"{change.path}: commit {change.commit[:10]} changes {change.old}, but the file was at {before}"
                wrong.append((message.seq, about))
            states[message.key] = change.new, message.seq
        await tx.execute(
            f"""insert into {self._schema}.files select * from unnest($1::text[], $2::text[], $3::bigint[])
                on conflict (key) do update set object = excluded.object, seq = excluded.seq""",
            list(states),
            [object_ for object_, _ in states.values()],
            [seq for _, seq in states.values()],
        )
        await tx.execute(
            f"insert into {self._schema}.effects select seq, attempt, $3 from unnest($1::bigint[], $2::int[]) as e (seq, attempt)",
            [message.seq for message in batch],
            [message.attempt for message in batch],
            os.getpid(),
        )
        if wrong:
            await tx.executemany(f"insert into {self._schema}.wrong values ($1, $2)", wrong)

    async def handled(self, database: Database) -> int:
        """How many messages were handled so far."""
        return int(await database.fetchval(f"select count(*) from {self._schema}.effects"))

    async def totals(self, database: Database) -> Totals:
        messages = f'headrace_streams."{self._stream}"'
        row = await database.fetchrow(
            f"""
            select (select count(*) from {messages}) as messages, count(distinct seq) as handled,
                count(*) - count(distinct seq) as doubled, count(distinct seq) filter (where attempt > 1) as again,
                (select count(*) from headrace.dead_letters where stream = $1) as dead,
                (select count(*) from {messages} as m
                 where not exists (select from {self._schema}.effects as e where e.seq = m.seq)
                 and not exists (select from headrace.dead_letters as d where d.stream = $1 and d.seq = m.seq)) as lost,
                (select count(*) from {self._schema}.wrong) as out_of_order
            from {self._schema}.effects
            """,
            self._stream,
        )
        wrong = await database.fetch(f"select about from {self._schema}.wrong order by seq limit {EXAMPLES}")
        files = await database.fetch(f"select key, object from {self._schema}.files where key like 'git.%'")
        return Totals(
            **row,
            examples=[one["about"] for one in wrong],
            files={one["key"]: one["object"] for one in files if one["object"] is not None},
            keys=len(files),
        )

    async def drop(self, database: Database) -> None:
        await database.fetch(f"drop schema if exists {self._schema} cascade")


def compare_trees(actual: dict[str, str], expected: dict[str, str]) -> list[str]:
    """Return the differences between two trees, one sentence per file. Empty if they are equal."""
    return [
        f"{key}: the handler has {actual.get(key, 'no such file')}, git has {expected.get(key, 'no such file')}"
        for key in sorted(actual.keys() | expected.keys())
        if actual.get(key) != expected.get(key)
    ]
