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

from headrace.model.database_url import UrlError, read
from headrace.model.errors import ConfigurationError, HeadraceError
from headrace.sources.postgres.connection import addresses, server_errors
from headrace.sources.postgres.connection.untrusted import SourceDatabase, UntrustedDatabase, check_address, explicit
from headrace.sources.postgres.errors import SourceStopped, SourceUnavailable
from headrace.store.connections.driver_parameters import CONNECT_TIMEOUT, connect_timeout
from headrace.store.connections.forks import give_up_in_children

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

CANCEL_TIMEOUT = 2.0
"""Timeout in seconds for the request to cancel a statement."""

# TCP settings that detect a vanished server within half a minute. A timeout for answers would not
# do, since a server that decodes a large transaction is silent for long. The database URL may
# override each setting.
_KEEPALIVE_SETTINGS = {
    "keepalives_idle": "10",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

# A role's own timeouts are meant for other work.
_DISABLED_TIMEOUTS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
)

_ENVIRONMENT_DEFAULTS = {"host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT"}


class SourceConnection:
    """One connection. Concurrent callers take turns. Cancelling a statement closes the connection.

    Attributes:
        version: the server's version, such as 180004.
        label: which database this is, for people.
        server_encoding: the database's encoding, such as `UTF8`.
    """

    def __init__(self, conn: PGconn, label: str) -> None:
        self._conn = conn
        self._socket = conn.socket
        self._query_lock = anyio.Lock()
        self._is_open = True
        give_up_in_children(self)
        self.label = label
        self.version = conn.server_version
        self.server_encoding = (conn.parameter_status(b"server_encoding") or b"UTF8").decode()

    @property
    def descriptor(self) -> int | None:
        """The number of its socket, None if that is closed."""
        return self._socket if self._is_open and self._conn.status == _CONNECTION_OK else None

    @classmethod
    async def connect(
        cls,
        database: SourceDatabase,
        *,
        application_name: str,
        replication: bool = False,
        timeout: float | None = None,
    ) -> SourceConnection:
        """Connect, and set the session's text formats.

        Args:
            database: a Postgres URL, see `headrace.model.database_url`. libpq's defaults apply
                to what is missing. For a URL of a user of the API they don't, see `untrusted`.
            application_name: the connection's name in `pg_stat_activity`.
            replication: whether the connection can stream changes. Its statements then take no
                parameters.
            timeout: connect timeout in seconds, for each address. None takes the URL's, or else 10 s.

        Raises:
            SourceUnavailable: no server answers, or it accepts no connections for now.
            SourceStopped: a wrong password, an unknown role or database, an address that is not
                allowed, or another problem that has to be corrected.
            ConfigurationError: psycopg is missing.
        """
        untrusted = None if isinstance(database, str) else database
        parameters = _parameters(database) if isinstance(database, str) else _untrusted_parameters(database)
        parameters |= {"application_name": application_name, "client_encoding": "UTF8"}
        if replication:
            parameters["replication"] = "database"
        given = connect_timeout(parameters)
        # A stranger's request does not wait for longer than the default.
        limit = given if untrusted is None else min(given, CONNECT_TIMEOUT)
        connection = await cls._connect_to_any(parameters, timeout or limit, untrusted)
        try:
            await connection.query(_settings(connection.version, connection.server_encoding))
        except BaseException:
            await connection.close()
            raise
        return connection

    @classmethod
    async def _connect_to_any(
        cls, parameters: addresses.Parameters, timeout: float, untrusted: UntrustedDatabase | None
    ) -> SourceConnection:
        """Return a connection to the first address that accepts one."""
        failures: list[HeadraceError] = []
        for attempt in await addresses.per_address(parameters):
            label = addresses.describe(attempt)
            try:
                if untrusted is not None:
                    check_address(attempt.get("hostaddr", ""), untrusted.refusal)
                with anyio.fail_after(timeout):
                    return cls(await _connect(attempt, label), label)
            except TimeoutError:
                failures.append(
                    SourceUnavailable(f"The captured database {label} did not answer within {timeout:g} s.")
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
        async with self._query_lock:
            result = await self._run(sql, params)
        if result is None:
            return []
        value, columns = result.get_value, range(result.nfields)
        return [[value(row, column) for column in columns] for row in range(result.ntuples)]

    async def close(self) -> None:
        """Close the connection. A caller that waits for an answer gets `SourceUnavailable`."""
        self.close_now()

    async def __aenter__(self) -> SourceConnection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- for the replication stream, which takes the connection over after its copy has begun

    @property
    def conn(self) -> PGconn:
        """The connection of libpq. Raises `SourceUnavailable` when it is closed."""
        if not self._is_open:
            raise SourceUnavailable(f"The connection to the captured database {self.label} is closed.")
        return self._conn

    @contextmanager
    def translating_errors(self) -> Iterator[None]:
        """Context for calls to libpq, in which a lost connection raises `SourceUnavailable`."""
        try:
            yield
        except _psycopg().Error as error:
            self.close_now()
            text = server_errors.one_line(str(error).partition("\n")[0])
            raise SourceUnavailable(f"The connection to the captured database {self.label} is lost: {text}.") from error

    async def wait_readable(self) -> None:
        """Wait until something arrives."""
        await self._wait(anyio.wait_readable)

    async def flush(self) -> None:
        """Wait until everything is sent."""
        while self.conn.flush():
            await self._wait(anyio.wait_writable)

    async def result(self) -> PGresult | None:
        """Wait for the next result. Returns None if there are no more. Call it inside `translating_errors`."""
        conn = self.conn
        while conn.is_busy():
            await self.wait_readable()
            # With TLS, a part of what has arrived may be inside the library, and the socket does
            # not become readable for it.
            for _ in range(3):
                conn.consume_input()
        return conn.get_result()

    def close_now(self) -> None:
        """Close the connection immediately."""
        if self._is_open:
            self._is_open = False
            anyio.notify_closing(self._socket)
            self._conn.finish()

    async def _wait(self, until: Any) -> None:
        try:
            await until(self._socket)
        except (anyio.ClosedResourceError, OSError) as error:
            raise SourceUnavailable(f"The connection to the captured database {self.label} is lost.") from error

    # --- statements

    async def _run(self, sql: str, params: tuple[str | None, ...]) -> PGresult | None:
        finished = False
        try:
            with self.translating_errors():
                if params:
                    self.conn.send_query_params(
                        sql.encode(),
                        [None if value is None else value.encode(errors="surrogateescape") for value in params],
                    )
                else:
                    self.conn.send_query(sql.encode())
                await self.flush()
                results, error = await self._results()
            finished = True
        finally:
            if not finished:
                await self._cancel_and_close()
        if error is not None:
            raise self.error_of(error)
        return results

    async def _results(self) -> tuple[PGresult | None, PGresult | None]:
        """Return the last result, and the first that is an error."""
        last = error = None
        while True:
            try:
                result = await self.result()
            except (_psycopg().Error, SourceUnavailable):
                if error is None:  # otherwise the server's last error says more
                    raise
                return last, error
            if result is None:
                return last, error
            last = result
            if error is None and is_error(result):
                error = result
            if result.status == _COPY_BOTH:
                return last, error

    def error_of(self, result: PGresult) -> HeadraceError:
        """Return the error for a failed result, see `is_error`."""
        message = server_message(result)
        if not self._is_open or self._conn.status != _CONNECTION_OK:
            self.close_now()
            return SourceUnavailable(f"The captured database {self.label} ended the connection: {message.text}.")
        if not message.sqlstate:
            return SourceUnavailable(f"The captured database {self.label} sent an invalid answer: {message.text}.")
        return server_errors.statement_error(message.sqlstate, message.text, message.hint or message.detail)

    async def _cancel_and_close(self) -> None:
        """Cancel the abandoned statement on the server, and close the connection."""
        if not self._is_open:
            return
        with anyio.move_on_after(CANCEL_TIMEOUT, shield=True), suppress(_psycopg().Error, OSError):
            await _cancel(self._conn)
        self.close_now()


async def _connect(parameters: Mapping[str, str], label: str) -> PGconn:
    from psycopg import conninfo, pq

    conn = pq.PGconn.connect_start(conninfo.make_conninfo("", **parameters).encode())
    try:
        while (status := _poll(conn)) != pq.PollingStatus.OK:
            if status == pq.PollingStatus.FAILED:
                raise server_errors.connection_error(conn.error_message.decode(errors="replace"), label)
            await (anyio.wait_readable if status == pq.PollingStatus.READING else anyio.wait_writable)(conn.socket)
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
        while (status := request.poll()) not in (pq.PollingStatus.OK, pq.PollingStatus.FAILED):
            await (anyio.wait_readable if status == pq.PollingStatus.READING else anyio.wait_writable)(request.socket)
    finally:
        request.finish()


def _parameters(dsn: str) -> addresses.Parameters:
    """Return a DSN's parameters, with the environment's defaults for the host and the port."""
    parameters = _parsed(dsn)
    if "service" not in parameters and "host" not in parameters and "hostaddr" not in parameters:
        parameters = {
            key: os.environ[name] for key, name in _ENVIRONMENT_DEFAULTS.items() if os.environ.get(name)
        } | parameters
    return _KEEPALIVE_SETTINGS | parameters


def _untrusted_parameters(database: UntrustedDatabase) -> addresses.Parameters:
    """Return all parameters for the URL of a user of the API."""
    parsed = _parsed(database.url)
    from psycopg import pq

    return _KEEPALIVE_SETTINGS | explicit(parsed, pq.Conninfo.get_defaults())


def _parsed(dsn: str) -> addresses.Parameters:
    _psycopg()
    try:
        return read(dsn)
    except UrlError as error:
        raise SourceStopped(f"The source's database URL {error}") from None


def _settings(version: int, server_encoding: str) -> str:
    from headrace.sources.postgres.values import settings

    values = settings(server_encoding) | dict.fromkeys(_DISABLED_TIMEOUTS, "0")
    values["jit"] = "off"  # queries of the catalog look dear to the planner
    if version >= 170000:
        values["transaction_timeout"] = "0"
    return "; ".join(f"set {name} = '{value}'" for name, value in values.items())


def _psycopg() -> Any:
    """Return the module psycopg, which only captures need."""
    try:
        import psycopg
    except ImportError as error:
        raise ConfigurationError(
            "Capturing tables needs psycopg. Install it: pip install 'headrace[capture]'."
        ) from error
    return psycopg


# Constants of libpq's headers, repeated here so that this file can be imported without psycopg.
_CONNECTION_OK = 0
_FATAL_ERROR = 7
_COPY_BOTH = 8
_SQLSTATE, _MESSAGE, _DETAIL, _HINT = (ord(letter) for letter in "CMDH")


class ServerMessage(NamedTuple):
    """A server's error message or warning. Missing fields are empty."""

    sqlstate: str
    text: str
    detail: str
    hint: str


def server_message(result: PGresult) -> ServerMessage:
    """Return the message in a result that is an error or a notice."""

    def field(code: int) -> str:
        return server_errors.one_line((result.error_field(code) or b"").decode(errors="replace"))

    text = field(_MESSAGE) or server_errors.one_line(result.error_message.decode(errors="replace"))
    return ServerMessage(field(_SQLSTATE), text, field(_DETAIL), field(_HINT))


def is_error(result: PGresult) -> bool:
    """Whether a result is an error."""
    return bool(result.status == _FATAL_ERROR)
