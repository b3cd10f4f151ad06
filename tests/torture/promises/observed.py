"""Records of what processes saw. Each process has a file with one JSON line for each event. Each line is one write,
so that a kill leaves no partial line.

A line has the times of the request and of the answer, on the machine's clock. At the end the lines of
all processes are loaded into the tables below, beside the database's own records, and judged there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLES = """
create schema if not exists judge;

-- Outcomes that the store took: singly, or (seq null) all that a lease still held.
create table judge.saw_settled (lease_id bigint not null, seq bigint, kind text not null, asked float8 not null, answered float8 not null);

-- Effects of handlers that are not transactional, of which the commit returned.
create table judge.saw_worked (kind text not null, seq bigint not null, uid text not null, asked float8 not null, answered float8 not null);

-- From when to when a handler was at work on a key, in which process.
create table judge.saw_run (kind text not null, key text not null, process text not null, began float8 not null, ended float8 not null);

-- Messages of which a publish returned.
create table judge.saw_published (uid text not null, asked float8 not null, answered float8 not null);

-- Messages of transactions that were said to be committed. looked_up: not by the answer to the COMMIT.
create table judge.saw_committed (uid text not null, asked float8 not null, answered float8 not null, looked_up boolean not null);

-- What look-ups of commits in doubt said.
create table judge.saw_look_up (committed boolean);

-- Messages that came to clients over HTTP, and acks that were confirmed to them.
create table judge.saw_received (seq bigint not null, attempt int not null, uid text not null, key text not null, asked float8 not null, answered float8 not null);
create table judge.saw_acked (seq bigint not null, attempt int not null, uid text not null, asked float8 not null, answered float8 not null);

-- See tests.torture.promises.nodes.Failover.
create table judge.failovers (cut_at float8 not null, stopped_at float8 not null, kept_until float8 not null, promoted_at float8 not null);
"""

_COLUMNS = {
    "settled": ("lease_id", "seq", "kind", "asked", "answered"),
    "worked": ("kind", "seq", "uid", "asked", "answered"),
    "run": ("kind", "key", "process", "began", "ended"),
    "published": ("uid", "asked", "answered"),
    "committed": ("uid", "asked", "answered", "looked_up"),
    "look_up": ("committed",),
    "received": ("seq", "attempt", "uid", "key", "asked", "answered"),
    "acked": ("seq", "attempt", "uid", "asked", "answered"),
}


class Notes:
    """The file of one process."""

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, what: str, rows: list[tuple[Any, ...]]) -> None:
        """Write rows. `rows` have the columns of the table `saw_<what>`."""
        if rows:
            os.write(self._file, json.dumps([what, rows]).encode() + b"\n")


def read(directory: Path) -> Iterator[tuple[str, list[list[Any]]]]:
    """Read all records of the files of a directory."""
    for path in sorted(directory.glob("*.notes")):
        yield from read_file(path)


def read_file(path: Path) -> Iterator[tuple[str, list[list[Any]]]]:
    """Read the records of one file, which may be missing."""
    if path.exists():
        with path.open() as file:
            for line in file:
                what, rows = json.loads(line)
                yield what, rows


async def load(connection: Any, directory: Path) -> None:
    """Load the records into the tables."""
    gathered: dict[str, list[list[Any]]] = {what: [] for what in _COLUMNS}

    async def put(what: str) -> None:
        await connection.copy_records_to_table(
            f"saw_{what}", schema_name="judge", columns=_COLUMNS[what], records=[tuple(row) for row in gathered[what]]
        )
        gathered[what].clear()

    for what, rows in read(directory):
        gathered[what] += rows
        if len(gathered[what]) > 10_000:
            await put(what)
    for what in _COLUMNS:
        await put(what)
