"""Checks that a captured stream is correct, from its messages alone, and rebuilds the tables from them.

The judge does not depend on how capture works. It raises `Wrong` for every fault, which its own tests
prove.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

Record = dict[str, Any]
Key = tuple[Any, ...]


class Wrong(AssertionError):
    """The stream is not correct."""


class Metadata(msgspec.Struct):
    """The metadata of a message."""

    table_schema: str
    table_name: str
    commit_timestamp: str
    commit_lsn: int
    commit_idx: int
    unchanged: list[str] = []

    @property
    def table(self) -> str:
        return f"{self.table_schema}.{self.table_name}"


class Taken(msgspec.Struct):
    """A message of a stream in mode `changes`."""

    record: Record | None
    action: str
    metadata: Metadata
    changes: Record | None = None
    seq: int = 0
    key: str = ""

    @property
    def place(self) -> tuple[int, int]:
        return self.metadata.commit_lsn, self.metadata.commit_idx

    def __str__(self) -> str:
        return f"message {self.seq} ({self.action} of {self.metadata.table} at {self.place}, key {self.key!r})"


async def taken(executor: Any, stream: str) -> list[Taken]:
    """Return all messages of a stream in order."""
    decoder = msgspec.json.Decoder(Taken)
    found = []
    for row in await executor.fetch(f'select seq, key, data from headrace_streams."{stream}" order by seq'):
        message = decoder.decode(row["data"])
        message.seq, message.key = row["seq"], row["key"]
        found.append(message)
    return found


def check_places(messages: Iterable[Taken], *, whole: bool = False) -> int:
    """Check that changes are in the order of their commits and appear once. Returns the number of changes.

    Args:
        messages: The messages of one source in order.
        whole: Whether everything that the source's transactions changed is captured. In that case no
            change may be missing within a transaction.
    """
    count, last = 0, (0, 0)
    for message in messages:
        if message.action == "read":
            continue
        count += 1
        if message.place == last:
            raise Wrong(f"{message} is there twice")
        if message.place < last:
            raise Wrong(f"{message} comes after {last}")
        new = message.place[0] > last[0]
        if whole and message.place[1] != (0 if new else last[1] + 1):
            raise Wrong(f"{message} comes right after {last}: changes between them are missing")
        last = message.place
    return count


def transactions(messages: Iterable[Taken]) -> Iterator[list[Taken]]:
    """Group changes by transaction. Messages of a backfill belong to no transaction."""
    changes = (message for message in messages if message.action != "read")
    for _, group in groupby(changes, key=lambda message: message.metadata.commit_lsn):
        yield list(group)


class Replica:
    """Tables rebuilt from the messages so far.

    Args:
        keys: The key columns of each table. A table without a key is a multiset of rows, to which rows
            are only added.
        complete: Whether the tables are captured from their first row on, so that every change must be
            of a known row.
    """

    def __init__(self, keys: Mapping[str, Sequence[str]], *, complete: bool = True) -> None:
        self.keys = keys
        self.complete = complete
        self.rows: dict[str, dict[Key, Record]] = {table: {} for table in keys}
        self.bags: dict[str, Counter[str]] = {table: Counter() for table, key in keys.items() if not key}
        self._gone: dict[str, set[Key]] = {table: set() for table in keys}
        self._emptied: set[str] = set()
        self.confirmed = 0
        """Number of backfill reads of a row that was known already, with the same values."""

    def apply(self, message: Taken) -> Record | None:
        """Apply a message. Returns the row as it was known before. Raises `Wrong` if the message is
        impossible at this position.
        """
        table = message.metadata.table
        if table not in self.keys:
            raise Wrong(f"{message} is of a table that is not captured")
        if message.action == "truncate":
            self._empty(table)
            return None
        if not self.keys[table]:
            self._into_bag(table, message)
            return None
        apply: Callable[[str, Taken], Record | None] = getattr(self, f"_{message.action}")
        return apply(table, message)

    def all(self, messages: Iterable[Taken]) -> Replica:
        for message in messages:
            self.apply(message)
        return self

    # --- possible changes

    def _insert(self, table: str, message: Taken) -> None:
        key = self._key(table, message.record, message)
        if key in self.rows[table]:
            raise Wrong(f"{message} inserts a row that is there already")
        self._put(table, key, message.record)

    def _update(self, table: str, message: Taken) -> Record | None:
        key = self._key(table, message.record, message)
        old_key = tuple(
            (message.changes or {}).get(name, value) for name, value in zip(self.keys[table], key, strict=True)
        )
        old = self.rows[table].get(old_key)
        if old is None and (self.complete or self._known_to_be_absent(table, old_key)):
            raise Wrong(f"{message} updates a row that is not there")
        if old_key != key:
            if key in self.rows[table]:
                raise Wrong(f"{message} takes the place of another row")
            self._take(table, old_key)
        for name, value in (message.changes or {}).items():
            if old is not None and old[name] != value:
                raise Wrong(f"{message} says that {name} was {value!r}, and it was {old[name]!r}")
        record = dict(message.record or {})
        for name in message.metadata.unchanged:
            if name in record:
                raise Wrong(f"{message} has the value of {name}, of which it says that it lacks it")
            if old is not None:
                record[name] = old[name]
        if old is not None and record.keys() < old.keys():
            raise Wrong(f"{message} lacks {sorted(old.keys() - record.keys())}")
        self._put(table, key, record)
        return old

    def _delete(self, table: str, message: Taken) -> Record | None:
        key = self._key(table, message.record, message)
        old = self.rows[table].get(key)
        if old is None and (self.complete or self._known_to_be_absent(table, key)):
            raise Wrong(f"{message} deletes a row that is not there")
        for name, value in (message.record or {}).items():
            if old is not None and old[name] != value:
                raise Wrong(f"{message} says that {name} was {value!r}, and it was {old[name]!r}")
        self._take(table, key)
        return old

    def _read(self, table: str, message: Taken) -> Record | None:
        """A row that a backfill read must equal the result of all earlier changes. Otherwise the read
        is older than one of them.
        """
        key = self._key(table, message.record, message)
        old = self.rows[table].get(key)
        if old is None and self._known_to_be_absent(table, key):
            raise Wrong(f"{message} was deleted before, and nothing inserted it since")
        if old is not None:
            if old != message.record:
                raise Wrong(f"{message} is {message.record}, and the changes before it make it {old}")
            self.confirmed += 1
        self._put(table, key, message.record)
        return old

    def _known_to_be_absent(self, table: str, key: Key) -> bool:
        return key in self._gone[table] or table in self._emptied

    def _empty(self, table: str) -> None:
        self.rows[table].clear()
        self._gone[table].clear()
        self._emptied.add(table)
        if table in self.bags:
            self.bags[table].clear()

    def _into_bag(self, table: str, message: Taken) -> None:
        if message.action != "insert":
            raise Wrong(f"{message} can't be of a table without a key")
        self.bags[table][canonical(message.record)] += 1

    def _key(self, table: str, record: Record | None, message: Taken) -> Key:
        try:
            return tuple((record or {})[name] for name in self.keys[table])
        except KeyError as error:
            raise Wrong(f"{message} lacks its key's {error}") from None

    def _put(self, table: str, key: Key, record: Record | None) -> None:
        self._gone[table].discard(key)
        self.rows[table][key] = dict(record or {})

    def _take(self, table: str, key: Key) -> None:
        self.rows[table].pop(key, None)
        self._gone[table].add(key)

    # --- comparison

    def compare(self, table: str, records: Iterable[Record]) -> None:
        """Raise `Wrong` unless the table has exactly these rows."""
        if not self.keys[table]:
            there = Counter(canonical(record) for record in records)
            _compare(table, dict(self.bags[table]), dict(there))
        else:
            _compare(
                table,
                self.rows[table],
                {tuple(record[name] for name in self.keys[table]): record for record in records},
            )


def canonical(record: Record | None) -> str:
    return msgspec.json.encode(record, order="sorted").decode()


def _compare(table: str, made: Mapping[Any, Any], there: Mapping[Any, Any]) -> None:
    if made == there:
        return
    missing = [key for key in there if key not in made][:3]
    beyond = [key for key in made if key not in there][:3]
    other = [(key, made[key], there[key]) for key in made if key in there and made[key] != there[key]][:3]
    raise Wrong(
        f"{table}: the messages make {len(made)} rows, the table has {len(there)}; missing {missing}, too many {beyond}, "
        f"other than in the table {other}"
    )
