"""A connection to the captured database, through libpq in text format, so that values have the same
form as in replication.

It runs one statement at a time, has no pool, and never blocks the process. Of the capture's
modules only this one imports psycopg.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.lowlevel

from headrace.model.errors import ConfigurationError, HeadraceError
from headrace.sources.postgres.connection import addresses, server_errors
from headrace.sources.postgres.errors import SourceStopped, SourceUnavailable

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

CONNECT_TIMEOUT = 10.0
"""Connect timeout in seconds, for each address."""

CANCEL_TIMEOUT = 2.0
"""Timeout in seconds for the request to cancel a statement."""

# TCP settings that detect a vanished server within half a minute. A timeout for answers would not
# do, since a server that decodes a large transaction is silent for long. The database URL may
# override each setting.
_LIVELY = {
    "keepalives_idle": "10",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

# A role's own timeouts are meant for other work.
_UNLIMITED = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")

_ENVIRONMENT = {"host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT"}


class Link:
    """One connection. Concurrent callers take turns. Cancelling a statement closes the connection.

    Attributes:
        version: the server's version, such as 180004.
        place: which database this is, for people.
        server_encoding: the database's encoding, such as `UTF8`.
    """

    def __init__(self, conn: PGconn, place: str) -> None:
        self._conn = conn
        self._socket = conn.socket
        self._turn = anyio.Lock()
        self._open = True
        self.place = place
        self.version = conn.server_version
        self.server_encoding = (conn.parameter_status(b"server_encoding") or b"UTF8").decode()

    @classmethod
    async def connect(cls, dsn: str, *, application_name: str, replication: bool = False) -> Link:
        """Connect, and set the session's text formats.

        Args:
            dsn: a Postgres URL or `key=value` words, in libpq's format. libpq's defaults apply to
                what is missing.
            application_name: the connection's name in `pg_stat_activity`.
            replication: whether the connection can stream changes. Its statements then take no
                parameters.

        Raises:
            SourceUnavailable: no server answers, or it accepts no connections for now.
            SourceStopped: a wrong password, an unknown role or database, or another problem that
                has to be corrected.
            ConfigurationError: psycopg is missing.
        """
        parameters = _read(dsn) | {"application_name": application_name, "client_encoding": "UTF8"}
        if replication:
            parameters["replication"] = "database"
        link = await cls._first(parameters)
        try:
            await link.query(_settings(link.version, link.server_encoding))
        except BaseException:
            await link.close()
            raise
        return link

    @classmethod
    async def _first(cls, parameters: addresses.Parameters) -> Link:
        """Return a connection to the first address that accepts one."""
        failures: list[HeadraceError] = []
        for attempt in await addresses.attempts(parameters):
            place = addresses.shown(attempt)
            try:
                with anyio.fail_after(CONNECT_TIMEOUT):
                    return cls(await _connection(attempt, place), place)
            except TimeoutError:
                failures.append(
                    SourceUnavailable(f"The captured database {place} gave no answer within {CONNECT_TIMEOUT:g} s.")
                )
            except HeadraceError as error:
                failures.append(error)
        raise next((error for error in failures if isinstance(error, SourceStopped)), failures[-1])

    async def query(self, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
        """Run a statement, or several without parameters. Returns the rows of the last one. Each value
        is text, in which U+FFFD replaces invalid UTF-8.

        Raises:
            SourceRefused: the server refuses the statement. The connection stays usable.
            SourceUnavailable: the connection is lost, or the server can't run the statement for
                now.
        """
        return [
            tuple(None if value is None else value.decode(errors="replace") for value in row)
            for row in await self.rows(sql, *params)
        ]

    async def rows(self, sql: str, *params: str | None) -> list[list[bytes | None]]:
        """Like `query`, with values as bytes. They are in UTF-8, or unconverted if the database is in
        SQL_ASCII.

        `value.decode(errors="surrogateescape")` makes a parameter of such a value.
        """
        async with self._turn:
            result = await self._run(sql, params)
        if result is None:
            return []
        value, columns = result.get_value, range(result.nfields)
        return [[value(row, column) for column in columns] for row in range(result.ntuples)]

    async def close(self) -> None:
        """Close the connection. A caller that waits for an answer gets `SourceUnavailable`."""
        self.hang_up()

    async def __aenter__(self) -> Link:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- for the feed, which takes the connection over after its copy has begun

    @property
    def conn(self) -> PGconn:
        """The connection of libpq. Raises `SourceUnavailable` when it is closed."""
        if not self._open:
            raise SourceUnavailable(f"The connection to the captured database {self.place} is closed.")
        return self._conn

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Context for calls to libpq, in which a lost connection raises `SourceUnavailable`."""
        try:
            yield
        except _psycopg().Error as error:
            self.hang_up()
            told = server_errors.words(str(error).partition("\n")[0])
            raise SourceUnavailable(f"The connection to the captured database {self.place} is lost: {told}.") from error

    async def readable(self) -> None:
        """Wait until something arrives."""
        await self._wait(anyio.wait_readable)

    async def flush(self) -> None:
        """Wait until everything is sent."""
        while self.conn.flush():
            await self._wait(anyio.wait_writable)

    async def result(self) -> PGresult | None:
        """Wait for the next result. Returns None if there are no more. Call it inside `speaking`."""
        conn = self.conn
        while conn.is_busy():
            await self.readable()
            # With TLS, a part of what has arrived may be inside the library, and the socket does
            # not become readable for it.
            for _ in range(3):
                conn.consume_input()
        return conn.get_result()

    def hang_up(self) -> None:
        """Close the connection at once."""
        if self._open:
            self._open = False
            anyio.notify_closing(self._socket)
            self._conn.finish()

    async def _wait(self, until: Any) -> None:
        try:
            await until(self._socket)
        except (anyio.ClosedResourceError, OSError) as error:
            raise SourceUnavailable(f"The connection to the captured database {self.place} is lost.") from error

    # --- statements

    async def _run(self, sql: str, params: tuple[str | None, ...]) -> PGresult | None:
        finished = False
        try:
            with self.speaking():
                if params:
                    self.conn.send_query_params(
                        sql.encode(),
                        [None if value is None else value.encode(errors="surrogateescape") for value in params],
                    )
                else:
                    self.conn.send_query(sql.encode())
                await self.flush()
                results, refused = await self._answers()
            finished = True
        finally:
            if not finished:
                await self._give_up()
        if refused is not None:
            raise self.refusal(refused)
        return results

    async def _answers(self) -> tuple[PGresult | None, PGresult | None]:
        """Return the last result, and the first that is an error."""
        last = refused = None
        while True:
            try:
                result = await self.result()
            except (_psycopg().Error, SourceUnavailable):
                if refused is None:  # otherwise the server's last error says more
                    raise
                return last, refused
            if result is None:
                return last, refused
            last = result
            if refused is None and failed(result):
                refused = result
            if result.status == _COPY_BOTH:
                return last, refused

    def refusal(self, result: PGresult) -> HeadraceError:
        """Return the error for a failed result, see `failed`."""
        said = message_of(result)
        if not self._open or self._conn.status != _CONNECTION_OK:
            self.hang_up()
            return SourceUnavailable(f"The captured database {self.place} ended the connection: {said.told}.")
        if not said.sqlstate:
            return SourceUnavailable(f"The captured database {self.place} gave no proper answer: {said.told}.")
        return server_errors.refusal(said.sqlstate, said.told, said.hint or said.detail)

    async def _give_up(self) -> None:
        """Cancel the abandoned statement on the server, and close the connection."""
        if not self._open:
            return
        with anyio.move_on_after(CANCEL_TIMEOUT, shield=True), suppress(_psycopg().Error, OSError):
            await _cancel(self._conn)
        self.hang_up()


async def _connection(parameters: Mapping[str, str], place: str) -> PGconn:
    from psycopg import conninfo, pq

    conn = pq.PGconn.connect_start(conninfo.make_conninfo("", **parameters).encode())
    try:
        while (state := _poll(conn)) != pq.PollingStatus.OK:
            if state == pq.PollingStatus.FAILED:
                raise server_errors.connecting(conn.error_message.decode(errors="replace"), place)
            await (anyio.wait_readable if state == pq.PollingStatus.READING else anyio.wait_writable)(conn.socket)
    except BaseException:
        conn.finish()
        raise
    conn.nonblocking = 1
    return conn


def _poll(conn: PGconn) -> int:
    from psycopg import pq

    return pq.PollingStatus.FAILED if conn.status == pq.ConnStatus.BAD else conn.connect_poll()


async def _cancel(conn: PGconn) -> None:
    from psycopg import pq

    if pq.version() < 170000:  # older versions could only block, so the server notices when it sends something
        return
    request = conn.cancel_conn()
    try:
        request.start()
        while (state := request.poll()) not in (pq.PollingStatus.OK, pq.PollingStatus.FAILED):
            await (anyio.wait_readable if state == pq.PollingStatus.READING else anyio.wait_writable)(request.socket)
    finally:
        request.finish()


def _read(dsn: str) -> addresses.Parameters:
    """Return a DSN's parameters, with the environment's defaults for the host and the port."""
    _psycopg()
    from psycopg import conninfo

    try:
        given = {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items() if value}
    except (_psycopg().Error, UnicodeError) as error:
        raise _unread(server_errors.words(str(error)) if 'parameter: "' in str(error) else "", dsn) from None
    if not set(given.get("port", "")) <= set("0123456789,"):
        raise _unread("its port is not a number; in a password / is written %2F, and @ is written %40", dsn)
    if "service" not in given and "host" not in given and "hostaddr" not in given:
        given = {key: os.environ[name] for key, name in _ENVIRONMENT.items() if os.environ.get(name)} | given
    return _LIVELY | given


def _unread(why: str, dsn: str) -> SourceStopped:
    # libpq quotes parts of the DSN. After a question mark there is no password, unless an @
    # follows.
    told = f" ({why})" if why and "@" not in dsn.partition("?")[2] else ""
    return SourceStopped(
        f"The source's database URL can't be read{told}. Write postgresql://user:password@host:5432/database."
    )


def _settings(version: int, server_encoding: str) -> str:
    from headrace.sources.postgres.values import settings

    wanted = settings(server_encoding) | dict.fromkeys(_UNLIMITED, "0")
    if version >= 170000:
        wanted["transaction_timeout"] = "0"
    return "; ".join(f"set {name} = '{value}'" for name, value in wanted.items())


def _psycopg() -> Any:
    """Return the module psycopg, which only captures need."""
    try:
        import psycopg
    except ImportError as error:
        raise ConfigurationError(
            "To capture tables Headrace needs psycopg: pip install 'headrace[capture]'."
        ) from error
    return psycopg


# Constants of libpq's headers, repeated here so that this file can be imported without psycopg.
_CONNECTION_OK = 0
_FATAL_ERROR = 7
_COPY_BOTH = 8
_SQLSTATE, _MESSAGE, _DETAIL, _HINT = (ord(letter) for letter in "CMDH")


class Message(NamedTuple):
    """A server's error message or warning. Missing fields are empty."""

    sqlstate: str
    told: str
    detail: str
    hint: str


def message_of(result: PGresult) -> Message:
    """Return the message in a result that is an error or a notice."""

    def field(code: int) -> str:
        return server_errors.words((result.error_field(code) or b"").decode(errors="replace"))

    told = field(_MESSAGE) or server_errors.words(result.error_message.decode(errors="replace"))
    return Message(field(_SQLSTATE), told, field(_DETAIL), field(_HINT))


def failed(result: PGresult) -> bool:
    """Whether a result is an error."""
    return bool(result.status == _FATAL_ERROR)
