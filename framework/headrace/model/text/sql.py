"""Names and strings in the text of a statement, where they can't be arguments."""

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
