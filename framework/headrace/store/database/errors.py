"""Translate the driver's errors into Headrace's, in one place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from headrace.model.errors import (
    ConfigurationError,
    HeadraceError,
    InUse,
    InvalidData,
    InvalidInput,
    InvalidKey,
    LeaseLost,
    SchemaError,
    SequenceBehind,
    StagedRowsGone,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StreamFull,
    UnknownConsumer,
    UnknownSource,
    UnknownStream,
)

_CONSTRAINTS: dict[str, HeadraceError] = {
    "valid_key": InvalidKey(
        "The key is invalid. A key has 1 to 1024 bytes, and its tokens, separated by dots, are neither empty nor exactly '*' or '>'"
        " and have no blanks or control characters."
    ),
    "no_nul": InvalidData(
        "The data has a string with a NUL character, which Postgres can't return as text. Leave it out."
    ),
    "valid_message_id": InvalidInput("The message id is invalid. It must have 1 to 256 bytes of UTF-8."),
    "message_size": InvalidData(
        "The message is too large. A message, including its headers, has at most 200 MB. Store large data elsewhere, and publish its location."
    ),
    "headers_are_objects": InvalidData('Headers must be a JSON object, such as {"trace": "abc"}.'),
}

_NUMBERED = frozenset(
    f"{table}_pkey"
    for table in ("streams", "consumers", "sources", "backfills", "scheduled", "capture_positions", "capture_failures")
)
"""The primary keys that are numbered by a sequence."""


@contextmanager
def translated(dsn: str, *, ours: bool = False) -> Iterator[None]:
    """Raise Headrace's errors for the driver's.

    Args:
        dsn: named in the message, without its password.
        ours: whether all the statements are Headrace's own. Then an unknown error of the server becomes a
            `StoreError`. Otherwise it passes unchanged, because the caller's own code may handle it.
    """
    try:
        yield
    except (
        asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError, ValueError,
    ) as error:  # fmt: skip
        known = translate(error, dsn)
        if known is None and ours and isinstance(error, asyncpg.PostgresError):
            known = _unknown(error, dsn)
        if known is None:
            raise
        raise known from error


def translate(error: Exception, dsn: str) -> HeadraceError | None:
    """Headrace's error for the driver's, or None if it is unknown."""
    if isinstance(error, HeadraceError):
        return None
    if isinstance(error, asyncpg.PostgresError):
        return _from_server(error, dsn)
    if isinstance(error, asyncpg.ClientConfigurationError):
        return ConfigurationError(
            f"The database URL {safe(dsn)!r} can't be parsed ({error}). Write postgresql://user:password@host:5432/database."
        )
    if isinstance(error, (OSError, TimeoutError, asyncpg.InterfaceError)):
        detail = str(error) or type(error).__name__
        return StoreUnavailable(f"The database at {safe(dsn)} can't be reached: {detail}.")
    if isinstance(error, asyncpg.InternalClientError):
        # The driver was still reading the server's last messages when it got a new statement.
        return StoreUnavailable(f"The connection to the database at {safe(dsn)} broke: {error}.")
    if isinstance(error, ValueError) and "int()" in str(error):
        return ConfigurationError(
            f"The database URL {safe(dsn)!r} can't be parsed, since its port is not a number ({error})."
        )
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
            return InvalidInput(str(error))
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
                f"The disk of the database at {safe(dsn)} is full ({first_line(error)}). Nothing was written. Free some space."
            )
        case "23514":
            if "no partition of relation" in str(error) and getattr(error, "schema_name", None) == "headrace_streams":
                return _taken(error)
            return _CONSTRAINTS.get(getattr(error, "constraint_name", "") or "")
        case "23503" if getattr(error, "schema_name", None) == "headrace_internal":
            return _deleted_meanwhile(error)
        case "22P02" | "22P05" | "22021":
            return InvalidData(f"The data is not JSON that Postgres can store: {first_line(error)}.")
        case "3D000" | "28P01" | "28000":
            return ConfigurationError(
                f"The server at {safe(dsn)} refuses the connection: {first_line(error)}. Correct the database URL."
            )
        case "42501":
            return ConfigurationError(
                f"The database user lacks a privilege: {first_line(error)}. Grant it, or use another user."
            )
        case "42P01" if "headrace_streams." in str(
            error
        ):  # in the caller's own transaction, otherwise the call is repeated
            return UnknownStream(
                f"The stream was just deleted ({first_line(error)}). Create it again, or correct the name."
            )
        case "3F000" | "42P01" | "42883" | "42704":
            return SchemaError(f"The database has no Headrace schema ({first_line(error)}). Run `headrace migrate`.")
        case "25006" | "40001" | "40P01" | "55P03" | "57014" | "XX000":
            return StoreUnavailable(f"The database at {safe(dsn)} could not run the statement: {first_line(error)}.")
    if state[:2] == "22":  # including the driver's own errors about arguments
        return InvalidData(f"The database can't store the value: {first_line(error)}.")
    # Connections (08), resources (53), shutdowns (57P), I/O errors (58).
    if state[:2] in ("08", "53", "58") or state[:3] == "57P":
        return StoreUnavailable(f"The database at {safe(dsn)} is not available: {first_line(error)}.")
    return None


def _unknown(error: asyncpg.PostgresError, dsn: str) -> StoreError:
    hint = f" The server's hint: {hint}" if (hint := getattr(error, "hint", None)) else ""
    return StoreError(
        f"The database at {safe(dsn)} rejected a statement of Headrace with an unknown error:"
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


def safe(dsn: str) -> str:
    """The DSN without its password."""
    return re.sub(r"(://[^:/@]*):.*@", r"\1:…@", dsn)


def without_password(dsn: str) -> str:
    """As `safe`, also if the password is a parameter, or the DSN consists of `name=value` pairs."""
    dsn = re.sub(r"(\bpassword\s*=\s*)('(?:[^'\\]|\\.)*'|[^&\s]*)", r"\1…", safe(dsn), flags=re.IGNORECASE)
    return re.sub(r"(\bsslpassword\s*=\s*)('(?:[^'\\]|\\.)*'|[^&\s]*)", r"\1…", dsn, flags=re.IGNORECASE)


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".")
