"""A replication stream reads a replication slot: the changes of publications as pgoutput's messages, and the
server's position.

One task calls `read`, and another one runs `send_statuses` at the same time. The server learns a position
only after `confirm`. It gets a status regularly even while no task reads, for instance while the
capturer is busy appending. Otherwise it would end the connection.

The protocol: https://www.postgresql.org/docs/18/protocol-replication.html
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import msgspec

from headrace.model.errors import HeadraceError
from headrace.sources.postgres import table_names
from headrace.sources.postgres.connection import server_errors
from headrace.sources.postgres.connection.gathering import Gathering
from headrace.sources.postgres.connection.source_connection import SourceConnection, is_error, server_message
from headrace.sources.postgres.connection.untrusted import SourceDatabase
from headrace.sources.postgres.errors import (
    NoFreeSlot,
    PublicationMissing,
    SlotInUse,
    SlotLost,
    SourceRefused,
    SourceUnavailable,
    StreamingFailed,
)
from headrace.sources.postgres.pgoutput import positions

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

MAX_PAYLOADS = 200
"""Largest number of payloads that one `read` returns. While they are handled, a running append is neither sent nor ends."""

MAX_BYTES = 4_000_000
"""Size of payloads in bytes at which one `read` returns."""

CONFIRM_INTERVAL = 1.0
"""Seconds after which a confirmed position is sent to the server."""

STATUS_INTERVAL = 10.0
"""Longest time in seconds between two status messages, even if the position has not changed."""

CLOSE_TIMEOUT = 2.0
"""Timeout in seconds for the server to end the copy at `close`."""

_DATA, _KEEPALIVE = ord("w"), ord("k")
_HEADER = 25  # of data: the letter, its start and end in the WAL, and the time
_keepalive = struct.Struct("!xQQB").unpack_from  # the server's position, its time, whether it wants a reply
_status = struct.Struct("!cQQQQB").pack  # received, durable here, applied, our time, whether a reply is wanted
_PREREQUISITE = "55000"  # object_not_in_prerequisite_state
_INTERNAL = "XX000"  # internal_error
_EPOCH = 946_684_800  # 2000-01-01 in UTC, from which the protocol counts microseconds


class ReceivedPayloads(msgspec.Struct, frozen=True):
    """The data that has arrived. After these payloads, everything that was committed up to `end` has arrived."""

    payloads: list[bytes]
    end: int


class Replication(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to stream.

    Args:
        slot: a slot of pgoutput in the captured database, which no other client uses.
        publications: which changes to send.
        position: everything up to here is known. If the slot's confirmed position is higher,
            the server silently begins there.
        confirmed: the position that the server may be told at first, if it is lower than `position`.
        copy_of: another slot. `slot` is created as a temporary copy of it, and ends with the connection.
        streaming: whether the server may stream large transactions while they are still open.
        confirm_interval: seconds after which a confirmed position is sent to the server.
        status_interval: longest time in seconds between two status messages. It is shorter if
            the server's timeout requires that.
        max_bytes: size of payloads in bytes at which one `read` returns.
    """

    slot: str
    publications: Sequence[str]
    position: int
    confirmed: int | None = None
    copy_of: str | None = None
    streaming: bool = True
    confirm_interval: float = CONFIRM_INTERVAL
    status_interval: float = STATUS_INTERVAL
    max_bytes: int = MAX_BYTES


class ReplicationStream:
    """One stream of changes. Create it with `start`. It allows one reader only."""

    def __init__(self, connection: SourceConnection, replication: Replication) -> None:
        self._connection = connection
        self._slot = replication.slot
        self._publications = replication.publications
        self._confirm_interval = replication.confirm_interval
        self._status_interval = replication.status_interval
        self._max_bytes = replication.max_bytes
        self._end = position = replication.position
        self._confirmed = self._reported = position if replication.confirmed is None else replication.confirmed
        self._reported_at = time.monotonic()
        self._gathering = Gathering()
        self._next_read_at = 0.0  # on the event loop's clock
        self._reply_requested = False  # the server wants a status
        self._copy_ended = False  # the server has ended the copy
        self._streaming = replication.streaming
        self._publication_warning = ""  # the server's warning about a missing publication
        self._failure: HeadraceError | None = None
        connection.conn.notice_handler = self._on_notice

    @classmethod
    async def start(
        cls, database: SourceDatabase, replication: Replication, *, application_name: str
    ) -> ReplicationStream:
        """Start streaming the changes that were committed after the position.

        Args:
            database: the captured database.
            replication: the changes to stream.
            application_name: the connection's name in `pg_stat_replication`.

        Raises:
            SlotLost: there is no such slot, or the WAL that it needs is gone.
            SourceStopped: another client uses the slot, or something else has to be corrected.
            SourceUnavailable: the server can't be reached or used for now.
        """
        connection = await SourceConnection.connect(database, application_name=application_name, replication=True)
        try:
            ((timeout,),) = await connection.query(
                "select setting from pg_catalog.pg_settings where name = 'wal_sender_timeout'"
            )
            await connection.query("set client_min_messages = 'warning'")  # see `_on_notice`
            if replication.copy_of is not None:
                names = f"'{_literal(replication.copy_of)}', '{_literal(replication.slot)}'"
                await connection.query(f"select pg_catalog.pg_copy_logical_replication_slot({names}, true)")
            await connection.query(_statement(replication, connection.version))
        except SourceRefused as error:
            await connection.close()
            raise _start_error(error, replication.slot) from error
        except BaseException:
            await connection.close()
            raise
        sender_timeout = int(timeout or 0) / 1000  # 0 means that the server waits for ever
        if sender_timeout:
            status_interval = min(replication.status_interval, sender_timeout / 3)
            replication = msgspec.structs.replace(replication, status_interval=status_interval)
        return cls(connection, replication)

    async def read(self) -> ReceivedPayloads:
        """Wait for something, and return everything that has arrived, up to `MAX_PAYLOADS` payloads or `MAX_BYTES` bytes.

        Cancelling it loses nothing.

        Raises:
            SourceUnavailable: the connection is lost, or the server ended it. It is a
                `StreamingFailed` if a replication stream without `streaming` may succeed.
            SlotLost: the WAL that the slot needs is gone, or the publication was missing for a
                while.
            SourceStopped: something else has to be corrected.
        """
        if (gathering := self._next_read_at - anyio.current_time()) > 0:
            await anyio.sleep(gathering)
        else:
            await anyio.lowlevel.checkpoint()
        end = self._end
        while True:
            payloads = self._receive()
            if self._reply_requested:
                self._send_status()
            if payloads or self._end != end:
                self._next_read_at = self._gathering.next_read(len(payloads), anyio.current_time())
                return ReceivedPayloads(payloads, self._end)
            if self._failure is None and self._copy_ended:
                self._failure = await self._end_error()
            if self._failure is not None:
                raise self._failure
            await self._connection.wait_readable()

    async def send_statuses(self) -> None:
        """Send status messages until cancelled: within a second after the position has changed, and at
        least every 10 seconds.

        It does not raise when the connection is lost. `read` does.
        """
        with suppress(SourceUnavailable):
            while self._failure is None:
                await anyio.sleep(min(self._confirm_interval, self._status_interval))
                if self._confirmed != self._reported or time.monotonic() - self._reported_at >= self._status_interval:
                    self._send_status()
                with self._connection.translating_errors():
                    await self._connection.flush()
        await anyio.sleep_forever()

    def confirm(self, position: int) -> None:
        """Note that everything that was committed up to `position` is stored. The server learns it
        within a second.
        """
        self._confirmed = max(self._confirmed, position)

    async def close(self) -> None:
        """Send the last position, end the copy and close. No task may be in `read` or `send_statuses` any more."""
        try:
            with anyio.move_on_after(CLOSE_TIMEOUT, shield=True), suppress(SourceUnavailable):
                await self._end_copy()
        finally:
            await self._connection.close()

    # --- what is received

    def _receive(self) -> list[bytes]:
        """Return the payloads that have arrived. If the connection breaks, the error is kept until
        these have been handed out.
        """
        payloads: list[bytes] = []
        if self._copy_ended or self._failure is not None:
            return payloads
        try:
            with self._connection.translating_errors():
                self._copy_ended = self._read_copy(payloads)
        except SourceUnavailable as error:
            self._failure = error
        return payloads

    def _read_copy(self, payloads: list[bytes]) -> bool:
        """Add what has arrived to `payloads`. Returns whether the copy is over."""
        conn, size, empty_reads = self._connection.conn, 0, 0
        get, consume = conn.get_copy_data, conn.consume_input
        while len(payloads) < MAX_PAYLOADS and size < self._max_bytes:
            length, data = get(1)
            if self._publication_warning:
                return True
            if length > 0:
                empty_reads = 0
                message = bytes(data)  # a slice of bytes is cheaper than one of a view
                if message[0] == _DATA:
                    payloads.append(message[_HEADER:])
                    size += length
                elif message[0] == _KEEPALIVE:
                    end, _, reply_requested = _keepalive(data)
                    self._end = max(self._end, end)
                    self._reply_requested |= bool(reply_requested)
            elif length < 0:
                return True
            elif empty_reads == 3:  # with TLS, what has arrived may take several reads, see `SourceConnection.result`
                return False
            else:
                empty_reads += 1
                consume()
        return False

    def _on_notice(self, notice: PGresult) -> None:
        """Handle a notice. From PostgreSQL 18 on a server skips changes while their publication is
        missing, with only a warning.
        """
        if server_message(notice).sqlstate == _PREREQUISITE:
            self._publication_warning = server_message(notice).text

    async def _end_error(self) -> HeadraceError:
        """Return the error that explains why the copy is over."""
        if self._publication_warning:
            return _publication_missing(self._publications, self._publication_warning)
        try:
            with self._connection.translating_errors():
                while (result := await self._connection.result()) is not None:
                    if is_error(result):
                        error = self._connection.error_of(result)
                        if self._streaming and isinstance(error, SourceRefused) and error.sqlstate == _INTERNAL:
                            return StreamingFailed(
                                f"The captured server can't stream an open transaction: {error.server_message}."
                            )
                        return _stream_error(error, self._slot, self._publications)
        except SourceUnavailable as error:
            return error
        return SourceUnavailable(
            f"The captured database {self._connection.label} ended the replication, because it is shutting down."
        )

    # --- what is sent

    def _send_status(self) -> None:
        """Queue a status, and send what can be sent without waiting. `send_statuses` sends the rest."""
        now = int((time.time() - _EPOCH) * 1_000_000)
        try:
            with self._connection.translating_errors():
                self._connection.conn.put_copy_data(
                    _status(b"r", max(self._end, self._confirmed), self._confirmed, self._confirmed, now, 0)
                )
                self._connection.conn.flush()
        except SourceUnavailable as error:
            self._failure = self._failure or error
        self._reported, self._reported_at, self._reply_requested = self._confirmed, time.monotonic(), False

    async def _end_copy(self) -> None:
        if self._copy_ended or self._failure is not None:
            return
        self._send_status()
        with self._connection.translating_errors():
            self._connection.conn.put_copy_end()
            await self._connection.flush()
            # Read and discard what is still arriving. If it were left unread, the operating system
            # would drop the last status when it closes the socket.
            while not self._copy_ended:
                self._copy_ended = self._read_copy([])
                if not self._copy_ended:
                    await self._connection.wait_readable()


def _statement(replication: Replication, version: int) -> str:
    # 2 (PostgreSQL 14) has streamed transactions, 3 (15) prepared ones, 4 (16) streamed ones for
    # parallel apply.
    protocol = min(max(version // 10_000 - 12, 2), 4)
    options = {
        "proto_version": str(protocol),
        "publication_names": ", ".join(map(table_names.quoted, replication.publications)),
        "messages": "true",
        "streaming": "on" if replication.streaming else "off",
    }
    text = ", ".join(f"{name} '{_literal(value)}'" for name, value in options.items())
    slot, position = table_names.quoted(replication.slot), positions.as_text(replication.position)
    return f"START_REPLICATION SLOT {slot} LOGICAL {position} ({text})"


def _literal(text: str) -> str:
    return text.replace("'", "''")


def _start_error(error: SourceRefused, slot: str) -> HeadraceError:
    """Return the error for a replication that did not start."""
    if error.sqlstate == "53400":
        return NoFreeSlot(server_errors.setup_error(error).reason)
    if error.sqlstate == "42704":
        return SlotLost(
            f"The replication slot {slot} no longer exists ({error.server_message}). Changes that were not captured are missing."
        )
    if error.sqlstate == "55006":
        return SlotInUse(
            f"The replication slot {slot} is in use by another client ({error.server_message}). Stop that client, or name another slot."
        )
    return _stream_error(error, slot, ())


def _stream_error(error: HeadraceError, slot: str, publications: Sequence[str]) -> HeadraceError:
    """Return the error for a replication that ended."""
    if not isinstance(error, SourceRefused):
        return error
    if error.sqlstate == "42704" and publications:
        return _publication_missing(publications, error.server_message)
    lost = (
        error.sqlstate == _PREREQUISITE
        and not server_errors.is_about_wal_level(error)
        and not server_errors.is_about_slots(error)
    )
    if lost or error.sqlstate == "58P01":
        hint = f". {server_errors.one_line(error.hint)}" if error.hint else ""
        return SlotLost(
            f"The replication slot {slot} is lost ({error.server_message}{hint}). The server has removed WAL that the slot needs."
        )
    return server_errors.setup_error(error)


def _publication_missing(publications: Sequence[str], text: str) -> PublicationMissing:
    # The server looks the publication up as of the change. Recreating it does not help with changes
    # that were made without it.
    publication = next((name for name in publications if name in text), publications[0])
    return PublicationMissing(
        publication,
        f"The publication {publication} was missing while its tables changed ({text}). These changes can't be captured any more.",
    )
