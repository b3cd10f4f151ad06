"""The simplest client of a server's pgoutput stream. It only reads and sends no keepalives."""

from __future__ import annotations

import select
from collections.abc import Iterator
from types import TracebackType
from uuid import uuid4

from psycopg import pq
from psycopg.conninfo import make_conninfo

LONGEST_WAIT = 60.0  # seconds


class Walsender:
    """A connection that streams from a temporary slot.

    Args:
        dsn: The database.
        publication: The publication to stream.
        version: The protocol version.
        streaming: `off`, `on` or `parallel`.
        settings: Settings of the server process.
    """

    def __init__(
        self,
        dsn: str,
        publication: str,
        version: int,
        streaming: str = "off",
        *,
        two_phase: bool = False,
        **settings: str,
    ) -> None:
        # The client never confirms a position. The server must not treat it as dead.
        given = settings | {"wal_sender_timeout": "0"}
        options = " ".join(f"-c {name}={value}" for name, value in given.items())
        conninfo = make_conninfo(dsn, replication="database", options=options)
        self._connection = pq.PGconn.connect(conninfo.encode())
        if self._connection.status != pq.ConnStatus.OK:
            raise AssertionError(self._connection.error_message)
        self._slot = f"headrace_test_{uuid4().hex}"
        also = " (TWO_PHASE)" if two_phase else ""
        self._execute(f"CREATE_REPLICATION_SLOT {self._slot} TEMPORARY LOGICAL pgoutput{also}", pq.ExecStatus.TUPLES_OK)
        asked = {
            "proto_version": str(version),
            "publication_names": publication,
            "messages": "true",
            "streaming": streaming,
        }
        # Version 1 has no streaming option, so it can't be turned off either.
        text = ", ".join(f"{name} '{value}'" for name, value in asked.items() if (name, value) != ("streaming", "off"))
        self._execute(f"START_REPLICATION SLOT {self._slot} LOGICAL 0/0 ({text})", pq.ExecStatus.COPY_BOTH)
        self._copying = True

    def _execute(self, command: str, expected: pq.ExecStatus) -> None:
        result = self._connection.exec_(command.encode())
        if result.status != expected:
            raise AssertionError(result.error_message)

    def __iter__(self) -> Iterator[bytes]:
        """The payloads of pgoutput, one after the other. Waits for the next one."""
        while (payload := self._next()) is not None:
            # w: start position, end position and send time, then the plugin's payload. k: keepalive.
            if payload[:1] == b"w":
                yield payload[25:]
        result = self._connection.get_result()
        raise AssertionError(result.error_message if result else "The server ended the copy.")

    def _next(self) -> bytes | None:
        """Return what the server sends next, or None after the server has ended the copy."""
        while True:
            count, data = self._connection.get_copy_data(1)
            if count > 0:
                return bytes(data)
            if count < 0:
                self._copying = False
                return None
            ready, _, _ = select.select([self._connection.socket], [], [], LONGEST_WAIT)
            if not ready:
                raise AssertionError("The server sent nothing more.")
            self._connection.consume_input()

    def _end(self) -> None:
        if self._copying:
            self._connection.put_copy_end()
            self._connection.flush()
            while self._next() is not None:
                pass
        while self._connection.get_result() is not None:
            pass
        # The slot would be dropped automatically, but too late: until then, the database can't be
        # dropped.
        self._execute(f"DROP_REPLICATION_SLOT {self._slot}", pq.ExecStatus.COMMAND_OK)

    def __enter__(self) -> Walsender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end()
        finally:
            self._connection.finish()
