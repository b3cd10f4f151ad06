"""Every error that Headrace raises on purpose.

Each says in one sentence what is wrong and what would be right. `exit_code` is what the command line
leaves with, after the conventions of BSD's `sysexits.h`.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of all errors raised by Headrace."""

    exit_code = 1


class InvalidInput(HeadraceError, ValueError):
    """Something that the caller gave can't be accepted: a key, a filter, data, a setting."""

    exit_code = 65  # EX_DATAERR


class InvalidKey(InvalidInput):
    """A key that breaks the key grammar; see `headrace.model.keys`."""


class InvalidFilter(InvalidInput):
    """A filter that breaks the filter grammar; see `headrace.model.keys`."""


class FilterTooSlow(InvalidInput):
    """Judging messages by a condition took longer than it may, as some regular expressions do."""


class InvalidData(InvalidInput):
    """A payload or headers that are not JSON as Postgres takes it."""


class ConfigurationError(HeadraceError):
    """The application is put together wrongly: two handlers of one name, an impossible annotation, a wrong DSN."""

    exit_code = 78  # EX_CONFIG


class UnknownStream(HeadraceError, LookupError):
    """There is no stream of that name."""

    exit_code = 66  # EX_NOINPUT


class UnknownConsumer(HeadraceError, LookupError):
    """There is no consumer of that name on the stream."""

    exit_code = 66


class ConsumersDeleted(HeadraceError):
    """Every consumer that the process runs was deleted meanwhile. Start it again, which declares them again."""

    exit_code = 75  # EX_TEMPFAIL


class UnknownSource(HeadraceError, LookupError):
    """There is no source of that name."""

    exit_code = 66


class SchemaError(HeadraceError):
    """The database's schema is missing, or newer than this code."""

    exit_code = 78


class StoreUnavailable(HeadraceError):
    """The database can't be reached, or dropped the connection. Trying again may succeed."""

    exit_code = 69  # EX_UNAVAILABLE


class StoreFull(StoreUnavailable):
    """The database's disk (or quota) is full. Nothing was written; it goes on once there is room."""

    exit_code = 74  # EX_IOERR


class StoreError(StoreUnavailable):
    """The database answered with an error that Headrace doesn't know. Nothing was done. Trying again may succeed once its cause is mended."""


class SequenceBehind(StoreUnavailable):
    """A sequence of the database stands behind the numbers that were given out. Nothing was done. It goes on by itself once `select
    headrace.mend_sequences()` has been run."""


class InDoubt(StoreUnavailable):
    """The connection broke at the commit, or before a server's answer: it may be done or not."""


class StreamFull(StoreFull):
    """The stream holds its `max_storage`, and its policy lets nothing go. Nothing was written; it goes on by itself."""


class StagedRowsGone(HeadraceError):
    """Not all that was staged for a write is there any more, and nothing was published: it has to be written again."""

    exit_code = 75  # EX_TEMPFAIL


class InUse(HeadraceError):
    """What is to be deleted has workers on it. Stop them, or insist."""

    exit_code = 75  # EX_TEMPFAIL


class EmbeddedPostgresError(HeadraceError):
    """The embedded Postgres can't be found, started or stopped."""

    exit_code = 69


class TimelineChanged(HeadraceError):
    """The database crashed, failed over or was restored: leases that were given before are void. Nothing was changed."""


class LeaseLost(HeadraceError):
    """The lease that a settle was for is no longer held: it expired, or the consumer was moved."""
