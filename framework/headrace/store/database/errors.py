"""Translate the driver's errors into Headrace's, in one place."""

from __future__ import annotations

import ssl
from contextlib import suppress

import asyncpg

from headrace.model.database_url import UrlError, read
from headrace.model.errors import (
    ConfigurationError,
    DatabaseRefused,
    HeadraceError,
    InUse,
    InvalidData,
    InvalidInput,
    InvalidKey,
    LeaseLost,
    NotGranted,
    SchemaError,
    SequenceBehind,
    StagedRowsGone,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StreamFull,
    UnknownConsumer,
    UnknownDatabase,
    UnknownSource,
    UnknownStream,
)
from headrace.model.text.masking import masked

_CONSTRAINTS: dict[str, tuple[type[HeadraceError], str]] = {
    "valid_key": (
        InvalidKey,
        "The key is invalid. A key has 1 to 1024 bytes, and its tokens, separated by dots, are neither empty nor exactly '*' or '>'"
        " and have no blanks or control characters.",
    ),
    "no_nul": (
        InvalidData,
        "The data has a string with a NUL character, which Postgres can't return as text. Leave it out.",
    ),
    "valid_message_id": (InvalidInput, "The message id is invalid. It must have 1 to 256 bytes of UTF-8."),
    "valid_unique_key": (InvalidInput, "The unique key is invalid. It must have 1 to 256 bytes of UTF-8."),
    "message_size": (
        InvalidData,
        "The message is too large. A message, including its headers, has at most 200 MB. Store large data elsewhere, and publish its location.",
    ),
    "headers_are_objects": (InvalidData, 'Headers must be a JSON object, such as {"trace": "abc"}.'),
}

_INVALID_JSON = (
    "The data is not JSON that Postgres can store. It must be valid JSON in UTF-8, without \\u0000 and without halves of"
    " surrogate pairs."
)

_INVALID_VALUES = {
    "22001": "A text of the request is too long.",
    "22003": "A number of the request is out of range.",
    "22007": "A time of the request is invalid.",
    "22008": "A time of the request is out of range.",
    "22021": "A text of the request has a NUL character, or is not UTF-8.",
}
"""Sentences for callers over HTTP, by SQLSTATE."""

_OF_DRIVER = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""The errors that the driver raises."""

_NUMBERED = frozenset(
    f"{table}_pkey"
    for table in ("streams", "consumers", "sources", "backfills", "scheduled", "capture_positions", "capture_failures")
)
"""The primary keys that are numbered by a sequence."""


class translated:  # noqa: N801  # it is used like a function
    """Raise Headrace's errors for the driver's, as a context manager. A class costs a third of a generator, and each call of
    the store has one.

    Args:
        dsn: named in the message, with its secrets masked.
        ours: whether all the statements are Headrace's own. Then an unknown error of the server becomes a
            `StoreError`. Otherwise it passes unchanged, because the caller's own code may handle it.
    """

    __slots__ = ("_dsn", "_ours")

    def __init__(self, dsn: str, *, ours: bool = False) -> None:
        self._dsn = dsn
        self._ours = ours

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or not isinstance(error, _OF_DRIVER):
            return
        known = translate(error, self._dsn)
        if known is None and self._ours and isinstance(error, asyncpg.PostgresError):
            known = _unknown(error, self._dsn)
        if known is None:
            return
        raise known from error


def translate(error: Exception, dsn: str) -> HeadraceError | None:
    """Headrace's error for the driver's, or None if it is unknown."""
    if isinstance(error, HeadraceError):
        return None
    if isinstance(error, asyncpg.PostgresError):
        return _from_server(error, dsn)
    if isinstance(error, asyncpg.ClientConfigurationError):
        return DatabaseRefused(
            f"The database URL {masked(dsn)!r} can't be used: {first_line(error)}. Correct its parameters of TLS."
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreUnavailable(
            f"The certificate of the database at {masked(dsn)} can't be verified: {error.verify_message}. Name the authority that"
            " issued it as sslrootcert. `channel_binding=require` verifies it, too."
        )
    if isinstance(error, (OSError, TimeoutError, asyncpg.InterfaceError)):
        detail = str(error) or type(error).__name__
        return StoreUnavailable(f"The database at {masked(dsn)} can't be reached: {detail}.")
    if isinstance(error, asyncpg.InternalClientError):
        # The driver was still reading the server's last messages when it got a new statement.
        return StoreUnavailable(f"The connection to the database at {masked(dsn)} broke: {error}.")
    return None


def _from_server(error: asyncpg.PostgresError, dsn: str) -> HeadraceError | None:
    state = error.sqlstate or ""
    match state:
        case "HR001":
            return UnknownStream(str(error))
        case "HR002":
            return UnknownConsumer(str(error))
        case "HR003":
            return ConfigurationError(str(error))
        case "HR004":
            return InvalidInput(str(error), field=getattr(error, "column_name", None) or None)
        case "HR005":
            return StreamFull(str(error))
        case "HR006":
            return InUse(str(error))
        case "HR007":
            return LeaseLost(str(error))
        case "HR009":
            return StagedRowsGone(str(error))
        case "HR010":
            return SequenceBehind(str(error))
        case "23505":
            return _taken(error)
        case "53100":
            return StoreFull(
                f"The disk of the database at {masked(dsn)} is full ({first_line(error)}). Nothing was written. Free some space."
            )
        case "23514":
            constraint = getattr(error, "constraint_name", None)
            if constraint is None and getattr(error, "schema_name", None) == "headrace_streams":
                return _taken(error)  # no segment may have it
            made = _CONSTRAINTS.get(constraint or "")
            return None if made is None else made[0](made[1])  # a new one for each request, which names its field in it
        case "23503" if getattr(error, "schema_name", None) == "headrace_internal":
            return _deleted_meanwhile(error)
        case "23502" if getattr(error, "schema_name", None) == "headrace_streams":
            return InvalidData(
                f"A message has no {getattr(error, 'column_name', None) or 'value'}. It must have a key and data."
            )
        case "22021" if "0x00" in str(error):
            return InvalidData("A text has a NUL character, which Postgres can't store. Leave it out.")
        case "54001":
            return InvalidData(f"The data is nested too deeply for Postgres: {first_line(error)}.").with_public(
                "The data is nested too deeply."
            )
        case "22P02" | "22P05" | "22021":
            return InvalidData(f"The data is not JSON that Postgres can store: {first_line(error)}.").with_public(
                _INVALID_VALUES.get(state, _INVALID_JSON)
            )
        case "3D000" | "28P01" | "28000":
            return DatabaseRefused(
                f"The server at {masked(dsn)} refuses the connection: {first_line(error)}. Correct the database URL."
            )
        case "42501" if "headrace grant" in str(error):
            return NotGranted(f"{first_line(error)}.")
        case "42501" if "headrace" in str(error):
            return NotGranted(
                f"The database user {_user(dsn)!r} has no grant in Headrace's schema ({first_line(error)}). A member of the schema's"
                f" owner can give it one: headrace grant publish|consume|observe|admin {_user(dsn)} [--stream NAME]. If the setting role"
                " of the user or the database puts another role in its place, that one needs it: select session_user, current_user."
            )
        case "42501":
            return DatabaseRefused(
                f"The database user lacks a privilege: {first_line(error)}. Grant it, or use another user. If the setting role"
                " of the user or the database puts another role in its place, that one needs it: select session_user, current_user."
            )
        case "42P01" if "headrace_streams." in str(
            error
        ):  # in the caller's own transaction, otherwise the call is repeated
            return UnknownStream(
                f"The stream was just deleted ({first_line(error)}). Create it again, or correct the name."
            ).with_public("The stream was just deleted. Create it again, or correct the name.")
        case "42P01" | "42883" if "headrace_granted." in str(error):
            return NotGranted(f"This needs a member of the owner of Headrace's schema ({first_line(error)}).")
        case "3F000" | "42P01" | "42883" | "42704":
            return SchemaError(f"The database has no Headrace schema ({first_line(error)}). Run `headrace migrate`.")
        # A standby refuses unlogged tables and positions of the WAL with errors of other classes.
        case "25006" | "0A000" | "55000" if state == "25006" or "recovery" in str(error):
            return StoreUnavailable(
                f"The database at {masked(dsn)} is read-only ({first_line(error)}). It is a standby, or its setting"
                " default_transaction_read_only is on, as some providers set it when the disk is nearly full. Nothing was written."
            )
        case "40001" | "40P01" | "55P03" | "57014" | "XX000":
            return StoreUnavailable(f"The database at {masked(dsn)} could not run the statement: {first_line(error)}.")
    if state[:2] == "22":  # including the driver's own errors about arguments
        return InvalidData(f"The database can't store the value: {first_line(error)}.").with_public(
            _INVALID_VALUES.get(state, "The database can't store a value of the request.")
        )
    # Connections (08), resources (53), shutdowns (57P), I/O errors (58).
    if state[:2] in ("08", "53", "58") or state[:3] == "57P":
        return StoreUnavailable(f"The database at {masked(dsn)} is not available: {first_line(error)}.")
    return None


def _user(dsn: str) -> str:
    """The user of a URL, for commands in messages."""
    with suppress(UrlError):
        return read(dsn).get("user", "ROLE")
    return "ROLE"


def _unknown(error: asyncpg.PostgresError, dsn: str) -> StoreError:
    hint = f" The server's hint: {hint}" if (hint := getattr(error, "hint", None)) else ""
    return StoreError(
        f"The database at {masked(dsn)} rejected a statement of Headrace with an unknown error:"
        f" {first_line(error)} (SQLSTATE {error.sqlstate}).{hint}"
    )


def _deleted_meanwhile(error: asyncpg.PostgresError) -> HeadraceError:
    """The error for a row that refers to another one, which existed when the call began and was deleted before
    the row was written.
    """
    constraint = getattr(error, "constraint_name", None) or ""
    if "stream_id" in constraint:
        return UnknownStream("The stream was just deleted. Create it again, or check its name.")
    if "source_id" in constraint:
        return UnknownSource("The source was just deleted. Create it again, or check its name.")
    if getattr(error, "table_name", None) == "places":
        return UnknownDatabase("The database was just removed. `headrace database ls` lists the others.")
    return consumer_gone()


def consumer_gone() -> UnknownConsumer:
    """The error for a consumer that was deleted, in the words of `headrace_internal.raise_consumer_gone`."""
    return UnknownConsumer("The consumer no longer exists. Declare it again.")


def _taken(error: asyncpg.PostgresError) -> SequenceBehind | None:
    """The error for a sequence that drew a number twice, of a message or of another row of Headrace, or None."""
    table, constraint = getattr(error, "table_name", None), getattr(error, "constraint_name", None) or ""
    messages = getattr(error, "schema_name", None) == "headrace_streams" and not constraint.endswith(".key")
    if not messages and not (getattr(error, "schema_name", None) == "headrace_internal" and constraint in _NUMBERED):
        return None
    return SequenceBehind(
        f"The sequence of {table} returned a number that was used before ({first_line(error)}). It is behind its table, as after logical"
        " replication or a restore of the data alone. Run: select headrace.mend_sequences()."
    )


def sqlstate(error: BaseException) -> str | None:
    """The server's code of an error from any driver, also if SQLAlchemy or Django has wrapped it."""
    inner: BaseException | None = error
    while inner is not None:
        state = getattr(inner, "sqlstate", None)
        if state is not None:
            return str(state)
        inner = getattr(inner, "orig", None) or inner.__cause__
    return None


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".")
