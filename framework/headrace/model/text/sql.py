"""Text of statements: names and strings where they can't be arguments, and what several places send."""

from __future__ import annotations

from headrace.model.errors import InvalidInput


def quoted(name: str) -> str:
    """An identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string of SQL, whatever the settings of the session. Raises `InvalidInput` for a NUL character."""
    if "\0" in text:
        raise InvalidInput("A name has a NUL character, which Postgres can't store. Leave it out.")
    escaped = text.replace("'", "''")
    return f"'{escaped}'" if "\\" not in text else " E'" + escaped.replace("\\", "\\\\") + "'"


def without_timeouts(*names: str, session: bool = False, keep_own: bool = False) -> str:
    """SQL that lifts these timeouts of the server for the transaction or the session, as far as the server has them.

    PostgreSQL has `transaction_timeout` from version 17 on.

    Args:
        keep_own: whether those stay that the connection was opened with, as in the database URL.
    """
    listed = ", ".join(f"'{name}'" for name in names)
    of_others = " and source <> 'client'" if keep_own else ""
    # Counted, since a driver may take the first row only.
    lifted = f"pg_catalog.set_config(name, '0', {'false' if session else 'true'})"
    return f"select pg_catalog.count({lifted}) from pg_catalog.pg_settings where name in ({listed}){of_others}"
