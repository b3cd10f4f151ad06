"""What keeps a capture from going on.

Two kinds: what passes by itself, which is waited out, and what somebody has to mend, which stops the source, and no other one.
"""

from __future__ import annotations

from headrace.model.errors import HeadraceError, StoreUnavailable


class SourceUnavailable(StoreUnavailable):
    """The database that is captured can't be reached, or dropped the connection. Trying again may succeed."""


class StreamingFailed(SourceUnavailable):
    """The server can't send a transaction in pieces while it is under way, and may well be able to once it has ended.

    PostgreSQL (14 to 18) can't map a file to its table when a transaction is streamed that altered the table within a savepoint, rolled that
    back, and altered it again: it fails so each time, for as long as it is asked to stream.
    """


class SourceStopped(HeadraceError):
    """A source can't go on until something is mended.

    Args:
        reason: a sentence that says what is wrong and what would be right.
        mend: the exact statement or command that mends it, if one does.
    """

    exit_code = 78  # EX_CONFIG

    def __init__(self, reason: str, mend: str | None = None) -> None:
        super().__init__(reason if mend is None else f"{reason} Mend it with: {mend}")
        self.reason = reason
        self.mend = mend


class SourceRefused(HeadraceError):
    """The server that is captured refused a statement. `sqlstate` is its code; `told` its own first line; `hint` its hint, if any."""

    exit_code = 69

    def __init__(self, sqlstate: str, told: str, hint: str | None = None) -> None:
        super().__init__(f"The server refuses: {told}." + (f" {hint}" if hint else ""))
        self.sqlstate = sqlstate
        self.told = told
        self.hint = hint


class SlotLost(SourceStopped):
    """The replication slot is gone, or the WAL that it needs: changes are missing, and only a fresh backfill makes up for them."""
