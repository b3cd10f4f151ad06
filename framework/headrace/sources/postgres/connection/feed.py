"""The feed reads a replication slot: the changes of a publication as pgoutput's messages, and the
server's position.

One task calls `read`, and another one runs `keep` at the same time. The server learns a position
only after `confirm`. It gets a status regularly even while no task reads, for instance while the
capturer is busy appending. Otherwise it would end the connection.

The protocol: https://www.postgresql.org/docs/18/protocol-replication.html
"""

from __future__ import annotations

import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import msgspec

from headrace.model.errors import HeadraceError
from headrace.sources.postgres.connection import server_errors
from headrace.sources.postgres.connection.link import Link, failed, message_of
from headrace.sources.postgres.database import table_names
from headrace.sources.postgres.errors import SlotLost, SourceRefused, SourceStopped, SourceUnavailable, StreamingFailed
from headrace.sources.postgres.pgoutput import positions

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

MOST_PAYLOADS = 2_000
MOST_BYTES = 4_000_000

SOON = 1.0
"""Seconds after which a confirmed position is sent to the server."""

ANYWAY = 10.0
"""Longest time in seconds between two status messages, even if the position has not changed."""

GOODBYE = 2.0
"""Timeout in seconds for the server to end the copy at `close`."""

_DATA, _KEEPALIVE = ord("w"), ord("k")
_HEADER = 25  # of data: the letter, its start and end in the WAL, and the time
_keepalive = struct.Struct("!xQQB").unpack_from  # the server's position, its time, whether it wants a reply
_status = struct.Struct("!cQQQQB").pack  # received, durable here, applied, our time, whether a reply is wanted
_PREREQUISITE = "55000"  # object_not_in_prerequisite_state
_INTERNAL = "XX000"  # internal_error
_EPOCH = 946_684_800  # 2000-01-01 in UTC, from which the protocol counts microseconds


class Received(msgspec.Struct, frozen=True):
    """What has arrived. After these payloads, everything that was committed up to `end` has arrived."""

    payloads: list[bytes]
    end: int


class Feed:
    """One stream of changes. Create it with `start`. It allows one reader only."""

    def __init__(
        self, link: Link, *, slot: str, publication: str, position: int, anyway: float = ANYWAY, streaming: bool = True
    ) -> None:
        self._link = link
        self._slot = slot
        self._publication = publication
        self._anyway = anyway
        self._confirmed = self._told = self._end = position
        self._told_at = time.monotonic()
        self._answer = False  # the server wants a status
        self._over = False  # the server has ended the copy
        self._streaming = streaming
        self._skipped = ""  # the server's warning about a missing publication
        self._failure: HeadraceError | None = None
        link.conn.notice_handler = self._noticed

    @classmethod
    async def start(
        cls, dsn: str, *, slot: str, publication: str, position: int, application_name: str, streaming: bool = True
    ) -> Feed:
        """Start streaming what was committed after `position`.

        Args:
            dsn: the captured database.
            slot: a slot of pgoutput in that database, which no other client uses.
            publication: which changes to send.
            position: everything up to here is known. If the slot's confirmed position is higher,
                the server silently begins there.
            application_name: the connection's name in `pg_stat_replication`.
            streaming: whether the server may send large transactions in pieces while they are still
                open.

        Raises:
            SlotLost: there is no such slot, or the WAL that it needs is gone.
            SourceStopped: another client uses the slot, or something else has to be corrected.
            SourceUnavailable: the server can't be reached or used for now.
        """
        link = await Link.connect(dsn, application_name=application_name, replication=True)
        try:
            ((timeout,),) = await link.query(
                "select setting from pg_catalog.pg_settings where name = 'wal_sender_timeout'"
            )
            await link.query("set client_min_messages = 'warning'")  # see `_noticed`
            await link.query(_statement(slot, publication, position, link.version, streaming))
        except SourceRefused as error:
            await link.close()
            raise _not_begun(error, slot) from error
        except BaseException:
            await link.close()
            raise
        patience = int(timeout or 0) / 1000  # 0 means that the server waits for ever
        anyway = min(ANYWAY, patience / 3) if patience else ANYWAY
        return cls(link, slot=slot, publication=publication, position=position, anyway=anyway, streaming=streaming)

    async def read(self) -> Received:
        """Wait for something, and return everything that has arrived, up to 2,000 payloads or 4 MB.

        Cancelling it loses nothing.

        Raises:
            SourceUnavailable: the connection is lost, or the server ended it. It is a
                `StreamingFailed` if a feed without streaming may succeed.
            SlotLost: the WAL that the slot needs is gone, or the publication was missing for a
                while.
            SourceStopped: something else has to be corrected.
        """
        await anyio.lowlevel.checkpoint()
        end = self._end
        while True:
            payloads = self._take()
            if self._answer:
                self._say()
            if payloads or self._end != end:
                return Received(payloads, self._end)
            if self._failure is None and self._over:
                self._failure = await self._last_words()
            if self._failure is not None:
                raise self._failure
            await self._link.readable()

    async def keep(self) -> None:
        """Send status messages until cancelled: within a second after the position has changed, and at
        least every 10 seconds.

        It does not raise when the connection is lost. `read` does.
        """
        with suppress(SourceUnavailable):
            while self._failure is None:
                await anyio.sleep(min(SOON, self._anyway))
                if self._confirmed != self._told or time.monotonic() - self._told_at >= self._anyway:
                    self._say()
                with self._link.speaking():
                    await self._link.flush()
        await anyio.sleep_forever()

    def confirm(self, position: int) -> None:
        """Note that everything that was committed up to `position` is stored. The server learns it
        within a second.
        """
        self._confirmed = max(self._confirmed, position)

    async def close(self) -> None:
        """Send the last position, end the copy and close. No task may be in `read` or `keep` any more."""
        try:
            with anyio.move_on_after(GOODBYE, shield=True), suppress(SourceUnavailable):
                await self._part()
        finally:
            await self._link.close()

    # --- what is received

    def _take(self) -> list[bytes]:
        """Return the payloads that have arrived. If the connection breaks, the error is kept until
        these have been handed out.
        """
        payloads: list[bytes] = []
        if self._over or self._failure is not None:
            return payloads
        try:
            with self._link.speaking():
                self._over = self._gather(payloads)
        except SourceUnavailable as error:
            self._failure = error
        return payloads

    def _gather(self, payloads: list[bytes]) -> bool:
        """Add what has arrived to `payloads`. Returns whether the copy is over."""
        conn, size, dry = self._link.conn, 0, 0
        get, consume = conn.get_copy_data, conn.consume_input
        while len(payloads) < MOST_PAYLOADS and size < MOST_BYTES:
            length, data = get(1)
            if self._skipped:
                return True
            if length > 0:
                dry = 0
                if data[0] == _DATA:
                    payloads.append(bytes(data[_HEADER:]))
                    size += length
                elif data[0] == _KEEPALIVE:
                    end, _, wanted = _keepalive(data)
                    self._end = max(self._end, end)
                    self._answer |= bool(wanted)
            elif length < 0:
                return True
            elif dry == 3:  # with TLS, what has arrived may take several reads, see `Link.result`
                return False
            else:
                dry += 1
                consume()
        return False

    def _noticed(self, notice: PGresult) -> None:
        """Handle a notice. From PostgreSQL 18 on a server skips changes while their publication is
        missing, with only a warning.
        """
        if message_of(notice).sqlstate == _PREREQUISITE:
            self._skipped = message_of(notice).told

    async def _last_words(self) -> HeadraceError:
        """Return the error that explains why the copy is over."""
        if self._skipped:
            return _missing(self._publication, self._skipped)
        try:
            with self._link.speaking():
                while (result := await self._link.result()) is not None:
                    if failed(result):
                        error = self._link.refusal(result)
                        if self._streaming and isinstance(error, SourceRefused) and error.sqlstate == _INTERNAL:
                            return StreamingFailed(f"The server fails at a transaction in pieces: {error.told}.")
                        return _ended(error, self._slot, self._publication)
        except SourceUnavailable as error:
            return error
        return SourceUnavailable(
            f"The server of the captured database {self._link.place} ended the replication: it shuts down."
        )

    # --- what is sent

    def _say(self) -> None:
        """Queue a status, and send what can be sent without waiting. `keep` sends the rest."""
        now = int((time.time() - _EPOCH) * 1_000_000)
        try:
            with self._link.speaking():
                self._link.conn.put_copy_data(
                    _status(b"r", max(self._end, self._confirmed), self._confirmed, self._confirmed, now, 0)
                )
                self._link.conn.flush()
        except SourceUnavailable as error:
            self._failure = self._failure or error
        self._told, self._told_at, self._answer = self._confirmed, time.monotonic(), False

    async def _part(self) -> None:
        if self._over or self._failure is not None:
            return
        self._say()
        with self._link.speaking():
            self._link.conn.put_copy_end()
            await self._link.flush()
            # Read and discard what is still arriving. If it were left unread, the operating system
            # would drop the last status when it closes the socket.
            while not self._over:
                self._over = self._gather([])
                if not self._over:
                    await self._link.readable()


def _statement(slot: str, publication: str, position: int, version: int, streaming: bool) -> str:
    # 2 (PostgreSQL 14) has streamed transactions, 3 (15) prepared ones, 4 (16) streamed ones for
    # parallel apply.
    protocol = min(max(version // 10_000 - 12, 2), 4)
    names_ = '"' + publication.replace('"', '""') + '"'
    options = {
        "proto_version": str(protocol),
        "publication_names": names_,
        "messages": "true",
        "streaming": "on" if streaming else "off",
    }
    told = ", ".join(f"{name} '{_literal(value)}'" for name, value in options.items())
    return f"START_REPLICATION SLOT {table_names.quoted(slot)} LOGICAL {positions.text(position)} ({told})"


def _literal(text: str) -> str:
    return text.replace("'", "''")


def _not_begun(error: SourceRefused, slot: str) -> HeadraceError:
    """Return the error for a replication that did not start."""
    if error.sqlstate == "42704":
        return SlotLost(
            f"The replication slot {slot} is gone ({error.told}), and with it changes that were not captured."
        )
    if error.sqlstate == "55006":
        return SourceStopped(
            f"The replication slot {slot} is in use by someone else ({error.told}): a slot serves one reader; stop the other one."
        )
    return _ended(error, slot, None)


def _ended(error: HeadraceError, slot: str, publication: str | None) -> HeadraceError:
    """Return the error for a replication that ended."""
    if not isinstance(error, SourceRefused):
        return error
    if error.sqlstate == "42704" and publication is not None:
        return _missing(publication, error.told)
    lost = (
        error.sqlstate == _PREREQUISITE
        and not server_errors.about_wal_level(error)
        and not server_errors.about_slots(error)
    )
    if lost or error.sqlstate == "58P01":
        hint = f"; {server_errors.words(error.hint)}" if error.hint else ""
        return SlotLost(f"The replication slot {slot} is lost ({error.told}{hint}): WAL that it needs is gone.")
    return server_errors.mended(error)


def _missing(publication: str, told: str) -> SlotLost:
    # The server looks the publication up as of the change. Recreating it does not help with changes
    # that were made without it.
    return SlotLost(
        f"The publication {publication} was missing when something changed ({told}): that change can't be captured any more."
    )
