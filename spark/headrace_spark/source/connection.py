"""Connections to Headrace's database, from whichever process Spark calls: the planner's on the driver, or a task's on an executor.

They are ADBC's, which hands over what it reads as Arrow and takes Arrow to write, without a Python object for a row.
"""

from __future__ import annotations

import atexit
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

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

if TYPE_CHECKING:
    from adbc_driver_postgresql.dbapi import Connection  # type: ignore[import-untyped]

    from headrace.embedded import Tenancy

APPLICATION_NAME = "headrace spark"
CONNECT_TIMEOUT = 10
"""Seconds that connecting may take."""

LIVELY = {
    "connect_timeout": str(CONNECT_TIMEOUT),
    "keepalives_idle": "10",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""So that a server that vanished without a word is noticed within half a minute, by the system. A query itself may take long."""


class Place(msgspec.Struct, frozen=True):
    """Where the database is.

    Attributes:
        url: as libpq takes it.
        embedded: the data directory, if it is the embedded Postgres. Whoever connects then keeps it running while he lives.
    """

    url: str
    embedded: str | None = None


def find(database: str | None) -> Place:
    """The database of that URL; or else, of this process's settings; or else the embedded Postgres, which is started.

    Raises:
        ConfigurationError: a setting can't be.
        EmbeddedPostgresError: the embedded Postgres can't be started.
    """
    from headrace.app import settings

    found = settings.read({"database": database or None})
    if found.database is not None:
        return Place(found.database)
    from headrace.embedded import EmbeddedPostgres

    directory = str(EmbeddedPostgres(found.data).data_dir)
    return Place(_hold(directory), directory)


def connect(place: Place | str, *, autocommit: bool = True) -> Connection:
    """A connection, closed by the caller; errors of its statements are for `translated`.

    Args:
        place: a database, or its URL.
        autocommit: whether each statement is a transaction of its own.

    Raises:
        StoreUnavailable: the database can't be reached.
        ConfigurationError: the URL can't be read, or can't ever work; or the driver is not installed.
    """
    place = Place(place) if isinstance(place, str) else place
    try:
        from adbc_driver_postgresql import dbapi  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigurationError(
            "Spark reads Postgres through ADBC, which is not installed here: pip install 'headrace[spark]'."
        ) from error
    if place.embedded is not None:
        _hold(place.embedded)
    url = completed(place.url)
    with translated(place.url):
        return dbapi.connect(url, autocommit=autocommit)


def ask(connection: Connection, place: Place | str, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
    """The rows of a short query. Raises Headrace's own errors, as its other clients do."""
    with translated(place if isinstance(place, str) else place.url), connection.cursor() as cursor:
        cursor.execute(sql, arguments or None)
        return list(cursor.fetchall())


_held: dict[str, Tenancy] = {}
_holding = threading.Lock()


def _hold(directory: str) -> str:
    """The URL of the embedded Postgres there, which runs until this process ends. (If the process is killed, the kernel tells.)"""
    from headrace.embedded import EmbeddedPostgres

    with _holding:
        if directory not in _held:
            _held[directory] = tenancy = EmbeddedPostgres(directory).acquire()
            atexit.register(tenancy.release)
        return _held[directory].url


def completed(url: str) -> str:
    """The URL, with our name and our patience unless it has its own. (A name in it, or in the environment, counts before a fallback.)"""
    if "://" not in url and "=" in url:
        # Of words that are given twice the later one counts.
        return " ".join([*(f"{name}={value}" for name, value in LIVELY.items()), url])
    found = re.fullmatch(r"(postgres(?:ql)?://)([^/?#]*)([^?]*)\??(.*)", url)
    if found is None:
        # Without repeating it: who can say where its password is?
        raise ConfigurationError(
            "The database URL can't be read: write postgresql://user:password@host:5432/database, or pairs such as host=… dbname=…"
        )
    scheme, authority, rest, query = found.groups()
    user, at, hosts = authority.rpartition("@")
    given = {name for name, _ in parse_qsl(query)}
    ours = {"fallback_application_name": APPLICATION_NAME.replace(" ", "%20"), **LIVELY}
    added = [f"{name}={value}" for name, value in ours.items() if name not in given]
    # An @ in a password is a host's beginning to libpq, and not so to Headrace's other driver.
    return f"{scheme}{user.replace('@', '%40')}{at}{hosts}{rest}?{'&'.join(filter(None, [query, *added]))}"


_OURS: dict[str, type[HeadraceError]] = {
    "HR001": UnknownStream,
    "HR002": UnknownConsumer,
    "HR003": ConfigurationError,
    "HR004": InvalidInput,
    "HR005": StreamFull,
    "HR006": InUse,
    "HR009": StagedRowsGone,
}

_REFUSALS = re.compile(
    r"does not exist|authentication failed|no password supplied|missing \"=\"|invalid (URI|port|connection option|integer|percent)|no pg_hba"
)


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Raise Headrace's errors for the driver's, each one sentence. What it can't explain passes as it is."""
    from adbc_driver_manager import Error

    try:
        yield
    except Error as error:
        ours = _translate(error, without_password(url))
        if ours is None:
            raise
        # Of a URL that it can't read libpq repeats parts, and a traceback would show them.
        raise ours from (error if error.sqlstate else None)


def _translate(error: Any, url: str) -> HeadraceError | None:
    state, said = error.sqlstate, _said(error)
    if state is None and error.status_code.name not in ("IO", "TIMEOUT", "CANCELLED"):
        return None
    if state is None:
        # Before there is a session there is no code either, only libpq's words.
        if _REFUSALS.search(said):
            return ConfigurationError(f"The database at {url} refuses: {said}. Mend the database URL.")
        return StoreUnavailable(f"The database at {url} can't be reached: {said}.")
    if state in _OURS:
        return _OURS[state](said if said.endswith(".") else f"{said}.")
    if state in ("3F000", "42P01", "42883", "42704", "42703"):
        return SchemaError(
            f"The database lacks Headrace's schema, or has an older one ({said}): run `headrace migrate`."
        )
    if state == "42501":
        return ConfigurationError(f"The database user lacks a privilege: {said}. Grant it, or take another user.")
    if state == "53100":
        return StoreFull(f"The disk of the database at {url} is full ({said}): nothing was written; make room.")
    if state == "23514":
        return InvalidKey(f"The database refuses a message: {said}.") if "valid_key" in said else _refused(said)
    if state[:2] in ("22", "54"):  # 54: nested too deeply, or too large
        return _refused(said)
    if state[:2] in ("08", "53", "58", "40", "55") or state[:3] == "57P" or state in ("57014", "25006", "XX000"):
        return StoreUnavailable(f"The database at {url} could not do it now: {said}.")
    return None


def _refused(said: str) -> InvalidData:
    return InvalidData(f"The database can't take that value: {said}.")


def _said(error: Any) -> str:
    """What the server said, in one line; else what the driver did."""
    for name, value in error.details or ():
        if _text(name) == "PG_DIAG_MESSAGE_PRIMARY":
            return _text(value).strip().rstrip(".")
    said = re.sub(r"^[A-Z_]+: (\[libpq\] )?(Failed to connect: )?", "", " ".join(str(error).split()))
    said = re.sub(r"(percent-encoded token): .*", r"\1", said)  # which may be of a password
    return without_password(said).rstrip(". ")


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def without_password(url: str) -> str:
    """The URL as it may be told."""
    url = re.sub(r"(://[^:/@]*):.*@", r"\1:…@", url)
    return re.sub(r"(\b(?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^&\s]*)", r"\1…", url, flags=re.IGNORECASE)
