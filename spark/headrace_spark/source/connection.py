"""Connections to Headrace's database, from the planner on the driver or from a task on an executor.

They use ADBC, which reads and writes Arrow without a Python object for each row.
"""

from __future__ import annotations

import atexit
import functools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.database_url import UrlError, read, write
from headrace.model.errors import (
    ConfigurationError,
    HeadraceError,
    InUse,
    InvalidData,
    InvalidInput,
    InvalidKey,
    SchemaError,
    StagedRowsGone,
    StoreFull,
    StoreUnavailable,
    StreamFull,
    UnknownConsumer,
    UnknownStream,
)
from headrace.model.text.masking import masked, masked_text
from headrace.model.text.sql import without_timeouts

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from adbc_driver_manager import AdbcDatabase
    from adbc_driver_manager.dbapi import Cursor
    from adbc_driver_postgresql.dbapi import Connection  # type: ignore[import-untyped]

    from headrace.embedded import ServerHandle

APPLICATION_NAME = "headrace spark"
CONNECT_TIMEOUT = 10
"""Connect timeout in seconds."""

KEEPALIVE = {
    "connect_timeout": str(CONNECT_TIMEOUT),
    "keepalives_idle": "10",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Connection parameters that detect a vanished server within half a minute, by TCP keep-alives.

A query itself may take longer.
"""


class Place(msgspec.Struct, frozen=True):
    """The location of the database.

    Attributes:
        url: a URL that libpq accepts.
        embedded: the data directory, if this is the embedded Postgres. A process that connects then
            keeps it running until the process ends.
    """

    url: str
    embedded: str | None = None

    def __repr__(self) -> str:
        """Without the password, since tracebacks and logs may show it."""
        return f"Place(url={masked(self.url)!r}, embedded={self.embedded!r})"


def find(database: str | None) -> Place:
    """Find the database: that of the URL, else that of this process's settings, else the embedded Postgres.

    The embedded Postgres is started if it does not run.

    Raises:
        ConfigurationError: a setting is invalid.
        EmbeddedPostgresError: the embedded Postgres can't be started.
    """
    from headrace.app import settings

    found = settings.read({"database": database or None})
    if found.database is not None:
        return Place(found.database)
    from headrace.embedded import EmbeddedPostgres

    directory = str(EmbeddedPostgres(found.data).data_dir)
    return Place(_keep_running(directory), directory)


def connect(place: Place | str, *, autocommit: bool = True) -> Connection:
    """Open a connection. The caller closes it, and wraps its statements in `translated` to translate their errors.

    Args:
        place: a database, or its URL.
        autocommit: whether each statement is a separate transaction.

    Raises:
        StoreUnavailable: the database can't be reached.
        ConfigurationError: the URL can't be parsed or can never work, or the driver is not
            installed.
    """
    place = Place(place) if isinstance(place, str) else place
    try:
        from adbc_driver_manager import AdbcConnection
    except ImportError as error:
        raise ConfigurationError(
            "The package adbc-driver-postgresql is not installed. Spark reads Postgres with it. Run pip install 'headrace[spark]'."
        ) from error
    if place.embedded is not None:
        _keep_running(place.embedded)
    url = with_defaults(place.url)
    with translated(place.url):
        database = _database(url)
        return _sharing_connection()(database, AdbcConnection(database.handle), autocommit=autocommit)


_MISCOUNTED = "Open connection count underflowed"


@functools.cache
def _sharing_connection() -> Any:
    """The driver's connection, of which several threads may open and close some to the same database.

    The driver counts the connections to a database without a lock (`PostgresDatabase::Disconnect`), so that it may miss one.
    Then it closes the last one, and says that there was none.
    """
    from adbc_driver_manager import InternalError, dbapi

    class SharingConnection(dbapi.Connection):
        def close(self) -> None:
            try:
                super().close()
            except InternalError as error:
                if _MISCOUNTED not in str(error):
                    raise
                self._closed = True

    return SharingConnection


class _Database:
    """A database of the driver that outlives the connections to it.

    To make one, the driver opens another connection and reads all types and all columns of all tables, which takes
    many times as long as to connect. It holds no connection afterwards, and types that are made later don't matter:
    only built-in ones are read.
    """

    def __init__(self, handle: AdbcDatabase) -> None:
        self.handle = handle

    def close(self) -> None:
        """Called when a connection is closed. The database stays."""


_MAX_DATABASES = 16
"""Maximum number of databases that a process keeps. Above it the oldest one is made again when it is needed."""

_databases: dict[str, _Database] = {}
_databases_lock = threading.Lock()


def _database(url: str) -> _Database:
    """The driver's database for a URL, made once in each process."""
    import adbc_driver_postgresql  # type: ignore[import-untyped]

    with _databases_lock:
        if url not in _databases:
            if len(_databases) >= _MAX_DATABASES:
                _databases.pop(next(iter(_databases)))
            _databases[url] = _Database(adbc_driver_postgresql.connect(url))
        return _databases[url]


LONG_TRANSACTION = without_timeouts(
    "statement_timeout", "transaction_timeout", "idle_in_transaction_session_timeout", keep_own=True
)
"""Lifts the timeouts of the role or the database for a transaction that lasts as long as Spark takes. Those in the
database URL stay."""


def batches(cursor: Cursor) -> Iterator[pa.RecordBatch]:
    """The batches of a cursor's result. Iterating raises the driver's errors, for `translated`.

    The reader that `fetch_record_batch` returns raises an OSError, which has no code of the server.
    """
    yield from cursor._results.reader  # type: ignore[union-attr]


def fetch(connection: Connection, place: Place | str, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a short query. Raises the same Headrace errors as Headrace's other clients."""
    with translated(place if isinstance(place, str) else place.url), connection.cursor() as cursor:
        cursor.execute(sql, arguments or None)
        return list(cursor.fetchall())


_server_handles: dict[str, ServerHandle] = {}
_server_handles_lock = threading.Lock()


def _keep_running(directory: str) -> str:
    """Return the URL of the embedded Postgres in the directory, which runs until this process ends.

    If the process is killed, the kernel releases the hold.
    """
    from headrace.embedded import EmbeddedPostgres

    with _server_handles_lock:
        if directory not in _server_handles:
            _server_handles[directory] = handle = EmbeddedPostgres(directory).acquire()
            atexit.register(handle.release)
        return _server_handles[directory].url


def with_defaults(url: str) -> str:
    """Add the application name and timeouts to a URL that does not set them.

    An application name in the URL or in the environment takes precedence over the fallback name.
    """
    try:
        given = read(url)
    except UrlError as error:
        raise ConfigurationError(f"The database URL {error}") from None
    return write({"fallback_application_name": APPLICATION_NAME, **KEEPALIVE, **given})


_ERRORS: dict[str, type[HeadraceError]] = {
    "HR001": UnknownStream,
    "HR002": UnknownConsumer,
    "HR003": ConfigurationError,
    "HR004": InvalidInput,
    "HR005": StreamFull,
    "HR006": InUse,
    "HR009": StagedRowsGone,
}

_PERMANENT_ERRORS = re.compile(
    r"does not exist|authentication failed|no password supplied|invalid connection option|no pg_hba"
)


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Translate the driver's errors into Headrace's, each with one sentence. An unknown error passes unchanged."""
    from adbc_driver_manager import Error

    try:
        yield
    except Error as error:
        headrace_error = _headrace_error(error, masked(url))
        if headrace_error is None:
            raise
        # libpq repeats parts of a URL that it can't parse, and a traceback would show them.
        raise headrace_error from (error if error.sqlstate else None)


def _headrace_error(error: Any, url: str) -> HeadraceError | None:
    state, text = error.sqlstate, _server_message(error)
    if state is None and error.status_code.name not in ("IO", "TIMEOUT", "CANCELLED"):
        return None
    if state is None:
        # Before a session exists there is no error code, only libpq's message.
        if _PERMANENT_ERRORS.search(text):
            return ConfigurationError(
                f"The database at {url} refuses the connection: {text}. Correct the database URL."
            )
        return StoreUnavailable(f"The database at {url} can't be reached: {text}.")
    if state in _ERRORS:
        return _ERRORS[state](text if text.endswith(".") else f"{text}.")
    if state in ("3F000", "42P01", "42883", "42704", "42703"):
        return SchemaError(f"The database has no Headrace schema, or an older one ({text}). Run `headrace migrate`.")
    if state == "42501":
        return ConfigurationError(f"The database user lacks a privilege: {text}. Grant it, or use another user.")
    if state == "2201B":
        return ConfigurationError(f"streamPattern is not a regular expression: {text}. Write one such as 'orders_.*'.")
    if state == "53100":
        return StoreFull(f"The disk of the database at {url} is full ({text}). Nothing was written. Free some space.")
    if state == "23514":
        return InvalidKey(f"The database rejects a message: {text}.") if "valid_key" in text else _invalid_data(text)
    if state[:2] in ("22", "54"):  # 54: nested too deeply, or too large
        return _invalid_data(text)
    if state == "55P03":
        return StoreUnavailable(
            f"Another transaction holds or awaits a lock on a table at {url}: {text}. Run it again after that one ends."
        )
    if state[:2] in ("08", "53", "58", "40", "55") or state[:3] == "57P" or state in ("57014", "25006", "XX000"):
        return StoreUnavailable(f"The database at {url} could not run the statement: {text}.")
    return None


def _invalid_data(text: str) -> InvalidData:
    return InvalidData(f"The database can't store the value: {text}.")


def _server_message(error: Any) -> str:
    """The server's error message in one line, or else the driver's."""
    for name, value in error.details or ():
        if _text(name) == "PG_DIAG_MESSAGE_PRIMARY":
            return _text(value).strip().rstrip(".")
    text = re.sub(r"^[A-Z_]+: (\[libpq\] )?(Failed to connect: )?", "", " ".join(str(error).split()))
    return masked_text(text).rstrip(". ")


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
