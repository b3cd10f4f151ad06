"""Errors that interrupt a capture.

There are two kinds. Temporary errors are retried. Errors that need a correction stop the source,
and no other source.
"""

from __future__ import annotations

from headrace.model.errors import SourceFailed, StoreUnavailable


class SourceUnavailable(StoreUnavailable):
    """The captured database can't be reached, or dropped the connection. Trying again may succeed."""

    public = "The captured database is not available now. The server's log says why. Try again in a moment."


class SourceLocked(SourceUnavailable):
    """Another session holds a lock for longer than the lock timeout."""


class StreamingFailed(SourceUnavailable):
    """The server can't stream a transaction while it is open, but probably can send it once it has
    ended.

    PostgreSQL (14 to 18) can't map a file to its table when it streams a transaction that altered
    the table within a savepoint, rolled that back, and altered it again. It fails each time, as
    long as streaming is requested.
    """


class SourceStopped(SourceFailed):
    """A source can't continue until something is corrected.

    Args:
        reason: a sentence that says what is wrong and what would be right.
        mend: the exact statement or command that corrects it, if there is one.
    """

    def __init__(self, reason: str, mend: str | None = None) -> None:
        super().__init__(reason if mend is None else f"{reason} To fix it: {mend}")
        self.reason = reason
        self.mend = mend


class SourceRefused(SourceFailed):
    """The captured server refused a statement. `sqlstate` is the error code, `server_message` the first line of
    the message, and `hint` its hint, if any.
    """

    exit_code = 69

    def __init__(self, sqlstate: str, server_message: str, hint: str | None = None) -> None:
        super().__init__(f"The captured server refused the statement: {server_message}." + (f" {hint}" if hint else ""))
        self.sqlstate = sqlstate
        self.server_message = server_message
        self.hint = hint


class SlotLost(SourceStopped):
    """The replication slot is gone, or the WAL that it needs is. Changes are missing, and only a fresh
    backfill makes up for them.
    """


class PublicationMissing(SlotLost):
    """A publication was missing while its tables changed. `publication` is its name."""

    def __init__(self, publication: str, reason: str) -> None:
        super().__init__(reason)
        self.publication = publication


class SlotInUse(SourceStopped):
    """Another client uses the replication slot."""


class NoFreeSlot(SourceStopped):
    """The captured server has no free replication slot."""
