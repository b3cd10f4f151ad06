"""Every error that Headrace raises deliberately.

Each message is one sentence that says what is wrong and what would be right. `exit_code` is the exit status
of the command line, by the conventions of BSD's `sysexits.h`.

`public` is the sentence for a caller over HTTP, for errors whose message contains what only an operator may
read: the address of the database, or the database's own words.
"""

from __future__ import annotations

from typing import Self


class HeadraceError(Exception):
    """Base of all errors raised by Headrace."""

    exit_code = 1
    public: str | None = None
    """The sentence for a caller over HTTP. None for the message itself."""

    def with_public(self, sentence: str) -> Self:
        """Set `public`. Returns the error."""
        self.public = sentence
        return self


class InvalidInput(HeadraceError, ValueError):
    """An argument is invalid: a key, a filter, data or a setting."""

    exit_code = 65  # EX_DATAERR


class InvalidKey(InvalidInput):
    """A key that breaks the key grammar, see `headrace.model.keys`."""


class InvalidFilter(InvalidInput):
    """A filter that breaks the filter grammar, see `headrace.model.keys`."""


class FilterTooSlow(InvalidInput):
    """Evaluating a condition on messages exceeded its time limit. Some regular expressions do that."""


class InvalidData(InvalidInput):
    """A payload or headers that are not JSON that Postgres accepts."""


class ConfigurationError(HeadraceError):
    """The application is misconfigured: two handlers of one name, an impossible annotation, a wrong DSN."""

    exit_code = 78  # EX_CONFIG


class DatabaseRefused(ConfigurationError):
    """The database refuses the user, the password or the database's name, or the user lacks a privilege."""

    public: str | None = "The database refuses this server's access. The server's log says why."


class UnknownStream(HeadraceError, LookupError):
    """There is no stream of that name."""

    exit_code = 66  # EX_NOINPUT


class UnknownConsumer(HeadraceError, LookupError):
    """There is no consumer of that name on the stream."""

    exit_code = 66


class ConsumersDeleted(HeadraceError):
    """Every consumer that the process runs was deleted meanwhile. Restart the process to declare them again."""

    exit_code = 75  # EX_TEMPFAIL


class UnknownSource(HeadraceError, LookupError):
    """There is no source of that name."""

    exit_code = 66


class SchemaError(HeadraceError):
    """The database's schema is missing, or newer than this code."""

    public: str | None = "The database's schema doesn't fit this server. The server's log says what to do."
    exit_code = 78


class NotConnected(ConfigurationError):
    """Raised when the app is not connected to its database."""


class StoreUnavailable(HeadraceError):
    """The database can't be reached, or it dropped the connection. Trying again may succeed."""

    public: str | None = "The database is not available now. Try again in a moment."
    exit_code = 69  # EX_UNAVAILABLE


class StoreFull(StoreUnavailable):
    """The database's disk or quota is full. Nothing was written. Writing succeeds again once there is room."""

    public: str | None = "The disk of the database is full. Nothing was written. Try again once there is room."
    exit_code = 74  # EX_IOERR


class StoreError(StoreUnavailable):
    """The database returned an error that Headrace doesn't know. Nothing was done. Trying again may succeed
    once the cause is fixed.
    """

    public: str | None = "The database returned an error that Headrace doesn't know. The server's log has it."


class SequenceBehind(StoreUnavailable):
    """A sequence of the database is behind the numbers that it already gave out. Nothing was done. Run `select
    headrace.mend_sequences()`, and processing continues automatically.
    """

    public: str | None = "A sequence of the database is behind its table. The server's log says what to do."


class InDoubt(StoreUnavailable):
    """The connection broke at the commit, or before the server's answer. The work may or may not be done."""

    public: str | None = (
        "The connection to the database broke before it confirmed the commit. The work may or may not be done."
    )


class StreamFull(StoreFull):
    """The stream has reached its `max_storage`, and its policy allows no message to be removed. Nothing was
    written. Publishing succeeds again automatically once there is room.
    """

    public = None  # the message is from Headrace's own SQL, and names the stream alone


class StagedRowsGone(HeadraceError):
    """Some of the rows that were staged for a write are gone. Nothing was published, and the write has to be
    repeated.
    """

    exit_code = 75  # EX_TEMPFAIL


class InUse(HeadraceError):
    """The object to delete is in use by workers. Stop them, or force the deletion."""

    exit_code = 75  # EX_TEMPFAIL


class EmbeddedPostgresError(HeadraceError):
    """The embedded Postgres can't be found, started or stopped."""

    exit_code = 69


class TimelineChanged(HeadraceError):
    """The database crashed, failed over or was restored, so earlier leases are void. Nothing was changed."""


class LeaseLost(HeadraceError):
    """The lease that the settle named is no longer held. It expired, or the consumer was moved."""
