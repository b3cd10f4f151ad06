"""A server's own pgoutput bytes, through the plainest client that there can be: it reads, and keeps nothing alive."""

from __future__ import annotations

import select
from collections.abc import Iterator
from types import TracebackType
from uuid import uuid4

from psycopg import pq
from psycopg.conninfo import make_conninfo

LONGEST_WAIT = 60.0  # seconds


class Walsender:
    """A connection that streams from a slot of its own, which ends with it.

    Args:
        dsn: the database.
        publication: what is streamed.
        version: of the protocol.
        streaming: `off`, `on` or `parallel`.
        settings: of the server's process.
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
        # The server is not told how far we are, and must not take that for being gone.
        given = settings | {"wal_sender_timeout": "0"}
        options = " ".join(f"-c {name}={value}" for name, value in given.items())
        conninfo = make_conninfo(dsn, replication="database", options=options)
        self._link = pq.PGconn.connect(conninfo.encode())
        if self._link.status != pq.ConnStatus.OK:
            raise AssertionError(self._link.error_message)
        self._slot = f"headrace_test_{uuid4().hex}"
        also = " (TWO_PHASE)" if two_phase else ""
        self._execute(f"CREATE_REPLICATION_SLOT {self._slot} TEMPORARY LOGICAL pgoutput{also}", pq.ExecStatus.TUPLES_OK)
        asked = {
            "proto_version": str(version),
            "publication_names": publication,
            "messages": "true",
            "streaming": streaming,
        }
        # Version 1 knows nothing of streaming, not even of turning it off.
        told = ", ".join(f"{name} '{value}'" for name, value in asked.items() if (name, value) != ("streaming", "off"))
        self._execute(f"START_REPLICATION SLOT {self._slot} LOGICAL 0/0 ({told})", pq.ExecStatus.COPY_BOTH)
        self._copying = True

    def _execute(self, command: str, expected: pq.ExecStatus) -> None:
        result = self._link.exec_(command.encode())
        if result.status != expected:
            raise AssertionError(result.error_message)

    def __iter__(self) -> Iterator[bytes]:
        """The payloads of pgoutput, one after the other; waits for the next."""
        while (payload := self._next()) is not None:
            # w: begins where, up to where, sent when; then what the plugin wrote. k is a keepalive.
            if payload[:1] == b"w":
                yield payload[25:]
        result = self._link.get_result()
        raise AssertionError(result.error_message if result else "The server ended the copy.")

    def _next(self) -> bytes | None:
        """What the server sends next; None once it has ended the copy."""
        while True:
            count, data = self._link.get_copy_data(1)
            if count > 0:
                return bytes(data)
            if count < 0:
                self._copying = False
                return None
            ready, _, _ = select.select([self._link.socket], [], [], LONGEST_WAIT)
            if not ready:
                raise AssertionError("The server sent nothing more.")
            self._link.consume_input()

    def _end(self) -> None:
        if self._copying:
            self._link.put_copy_end()
            self._link.flush()
            while self._next() is not None:
                pass
        while self._link.get_result() is not None:
            pass
        # It would go by itself, but later: a database can't be dropped before.
        self._execute(f"DROP_REPLICATION_SLOT {self._slot}", pq.ExecStatus.COMMAND_OK)

    def __enter__(self) -> Walsender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end()
        finally:
            self._link.finish()
