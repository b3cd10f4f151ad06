"""Every error that Headrace raises deliberately.

Each message is one sentence that says what is wrong and what would be right. `exit_code` is the exit status
of the command line, by the conventions of BSD's `sysexits.h`.

`public` is the sentence for a caller over HTTP, for errors whose message contains what only an operator may
read: the address of the database, or the database's own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self


class HeadraceError(Exception):
    """Base of all errors raised by Headrace."""

    exit_code = 1
    public: str | None = None
    """The sentence for a caller over HTTP. None for the message itself."""

    def with_public(self, sentence: str) -> Self:
        """Set `public` to a sentence. Returns the error."""
        self.public = sentence
        return self


class InvalidInput(HeadraceError, ValueError):
    """An argument is invalid: a key, a filter, data or a setting.

    Attributes:
        field: the name of the argument, if it is known.
    """

    exit_code = 65  # EX_DATAERR

    def __init__(self, *args: object, field: str | None = None) -> None:
        super().__init__(*args)
        self.field = field


class InvalidKey(InvalidInput):
    """A key that breaks the key grammar, see `headrace.model.keys`."""


class InvalidFilter(InvalidInput):
    """A filter that breaks the filter grammar, see `headrace.model.keys`."""


class FilterTooSlow(InvalidInput):
    """Evaluating a condition on messages exceeded its time limit. Some regular expressions do that."""


class InvalidData(InvalidInput):
    """A payload or headers that are not JSON that Postgres accepts."""


class ConfigurationError(HeadraceError):
    """The application is misconfigured: two handlers of one name, an impossible annotation, a wrong DSN.

    Attributes:
        field: the name of the setting, if it is known.
    """

    exit_code = 78  # EX_CONFIG

    def __init__(self, *args: object, field: str | None = None) -> None:
        super().__init__(*args)
        self.field = field


class AlreadyExists(InvalidInput):
    """The object to create exists already.

    Attributes:
        differing: the names of the settings in which the existing one differs. Empty if none does.
    """

    def __init__(self, *args: object, differing: Sequence[str] = ()) -> None:
        super().__init__(*args)
        self.differing = tuple(differing)

    @classmethod
    def with_settings(cls, what: str, differing: Mapping[str, tuple[Any, Any]]) -> Self:
        """Return the error for an object with other settings, given as {setting: (existing, wanted)}."""
        settings = ", ".join(f"{name} is {old!r} and not {new!r}" for name, (old, new) in differing.items())
        return cls(
            f"{what} exists with other settings ({settings}). Edit it, or choose another name.",
            differing=tuple(differing),
        )


class DatabaseRefused(ConfigurationError):
    """The database refuses the user, the password or the database's name, or the user lacks a privilege."""

    public: str | None = "The database refuses this server's access. The server's log says why."


class NotGranted(DatabaseRefused):
    """The database role has no grant for this. The message names the command that gives it one."""

    public: str | None = "The server's database role may not do this. The server's log says how to allow it."


class UnknownStream(HeadraceError, LookupError):
    """There is no stream of that name."""

    exit_code = 66  # EX_NOINPUT


class UnknownConsumer(HeadraceError, LookupError):
    """There is no consumer of that name on the stream."""

    exit_code = 66

    @classmethod
    def named(cls, stream: str, name: str) -> Self:
        """Return the error for a consumer by its names."""
        return cls(f"The consumer {name!r} of the stream {stream!r} does not exist.")


class ConsumersDeleted(HeadraceError):
    """Every consumer that the process runs was deleted meanwhile. Restart the process to declare them again."""

    exit_code = 75  # EX_TEMPFAIL


class UnknownSource(HeadraceError, LookupError):
    """There is no source of that name."""

    exit_code = 66


class UnknownSchedule(HeadraceError, LookupError):
    """There is no schedule of that name."""

    exit_code = 66


class UnknownJob(HeadraceError, LookupError):
    """There is no job of that id."""

    exit_code = 66


class SchemaError(HeadraceError):
    """The database's schema is missing, or newer than this code."""

    public: str | None = "The database's schema doesn't fit this server. The server's log says what to do."
    exit_code = 78


class NotConnected(ConfigurationError):
    """Raised when the app is not connected to its database."""

    public: str | None = "The server is not connected to its database, because it starts or stops. Try again."


class StoreUnavailable(HeadraceError):
    """The database can't be reached, or it dropped the connection. Trying again may succeed."""

    public: str | None = "The database is not available now. Try again in a moment."
    exit_code = 69  # EX_UNAVAILABLE


class StoreBusy(StoreUnavailable):
    """As many calls that examine messages are running as the process allows. Nothing was done. Trying again later
    may succeed."""


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


class BackfillExists(AlreadyExists, InUse):
    """A table to backfill has a backfill that is queued or running."""

    exit_code = 75  # EX_TEMPFAIL


class EmbeddedPostgresError(HeadraceError):
    """The embedded Postgres can't be found, started or stopped."""

    exit_code = 69


class TimelineChanged(HeadraceError):
    """The database crashed, failed over or was restored, so earlier leases are void. Nothing was changed."""


class LeaseLost(HeadraceError):
    """The lease that the settle named is no longer held. It expired, or the consumer was moved."""


class SlotRemains(InUse):
    """The source can't be removed, because its replication slot or publication at the captured database can't
    be dropped.
    """


class SourceFailed(HeadraceError):
    """A source can't do what was asked, because of its settings or of the captured database."""

    exit_code = 78  # EX_CONFIG


class Unauthorized(HeadraceError):
    """The call has no token, or its token is not valid."""

    exit_code = 78  # EX_CONFIG, like all errors about tokens


class Forbidden(HeadraceError):
    """The token is valid, but lacks the scope that the call requires."""

    exit_code = 78


class UnknownToken(HeadraceError, LookupError):
    """There is no token with that id or name."""

    exit_code = 66  # EX_NOINPUT


class UnknownDatabase(HeadraceError, LookupError):
    """There is no database of that name behind the server."""

    exit_code = 66


UNEXPECTED = "The server failed unexpectedly. Its log has the error."
"""What callers read of an error that is not one of Headrace."""


def public_text(error: BaseException) -> str:
    """Return what callers may read of an error, in answers and in states that are stored. It never has the address, the user
    or the words of a database. Log the error itself."""
    if isinstance(error, HeadraceError):
        return str(error) if error.public is None else error.public
    return UNEXPECTED


class ErrorCode(NamedTuple):
    """The description of an error code of the HTTP API, by which programs tell errors apart.

    A code is part of the API's contract and independent of the names of the classes. Servers derive statuses
    from the table of codes, clients derive exceptions, and the API's description and `docs/http.md` list it.

    Args:
        status: the HTTP status of its errors.
        meaning: what is wrong, as a sentence.
        kind: the exception that it stands for. None if only servers raise it.
    """

    status: int
    meaning: str
    kind: type[HeadraceError] | None = None


ERROR_CODES: Mapping[str, ErrorCode] = {
    "malformed": ErrorCode(400, "The body is not JSON, or the request is not HTTP."),
    "incomplete": ErrorCode(400, "The client disconnected before the end of the body."),
    "unauthorized": ErrorCode(401, "The token is missing, unknown, revoked or expired.", Unauthorized),
    "invalid_signature": ErrorCode(401, "The signature of a webhook's delivery is missing or invalid."),
    "forbidden": ErrorCode(403, "The token lacks the scope, or what it names does not exist.", Forbidden),
    "host_not_allowed": ErrorCode(403, "Without tokens, the request must name a host that is allowed."),
    "cross_origin": ErrorCode(403, "Without tokens, pages of other origins may send nothing."),
    "not_found": ErrorCode(404, "The API has no such path."),
    "unknown_stream": ErrorCode(404, "The stream does not exist.", UnknownStream),
    "unknown_consumer": ErrorCode(404, "The consumer does not exist.", UnknownConsumer),
    "unknown_source": ErrorCode(404, "The source does not exist.", UnknownSource),
    "unknown_schedule": ErrorCode(404, "The schedule does not exist.", UnknownSchedule),
    "unknown_message": ErrorCode(404, "Nothing is left of the message, or there never was one of this seq."),
    "unknown_job": ErrorCode(404, "The job does not exist, or ended more than a week ago.", UnknownJob),
    "unknown_token": ErrorCode(404, "The token does not exist.", UnknownToken),
    "unknown_database": ErrorCode(404, "The server has no database of this name.", UnknownDatabase),
    "unknown_key": ErrorCode(404, "The stream has no message with this key."),
    "unknown_dead_letter": ErrorCode(404, "The consumer has no such dead letter."),
    "method_not_allowed": ErrorCode(405, "The path does not support this method."),
    "too_slow": ErrorCode(408, "The headers or the body arrived too slowly."),
    "exists": ErrorCode(409, "The object to create exists already.", AlreadyExists),
    "ambiguous": ErrorCode(409, "Several streams have a consumer of this name, or several databases a schedule."),
    "not_reached": ErrorCode(409, "A search for a key took too long, and continues before the seq `before`."),
    "in_use": ErrorCode(409, "The object to delete is in use.", InUse),
    "slot_remains": ErrorCode(409, "The replication slot of the source to delete can't be dropped.", SlotRemains),
    "lease_lost": ErrorCode(409, "A strict settle has ack ids with lost leases.", LeaseLost),
    "timeline_changed": ErrorCode(
        409, "The database was restarted, failed over or was restored, so leases have to be verified.", TimelineChanged
    ),
    "too_large": ErrorCode(413, "The body is too large."),
    "unsupported_media_type": ErrorCode(
        415, "The body must not be compressed, nor, without tokens, have a content type of forms."
    ),
    "invalid": ErrorCode(422, "A field or a parameter is invalid.", InvalidInput),
    "invalid_settings": ErrorCode(422, "The settings contradict each other, or are out of range.", ConfigurationError),
    "source_failed": ErrorCode(422, "The source's settings or its captured database don't allow this.", SourceFailed),
    "invalid_key": ErrorCode(422, "A key breaks the grammar of keys.", InvalidKey),
    "invalid_filter": ErrorCode(422, "A filter or a condition can't be parsed.", InvalidFilter),
    "invalid_data": ErrorCode(422, "Data or headers are not JSON that Postgres can store.", InvalidData),
    "filter_too_slow": ErrorCode(422, "Evaluating a condition took too long.", FilterTooSlow),
    "too_many_requests_of_token": ErrorCode(429, "The token has as many requests under way as it may have."),
    "too_much_of_token": ErrorCode(
        429, "The bodies of the token's requests under way have as many bytes as they may have."
    ),
    "too_many_attempts": ErrorCode(429, "Too many attempts to sign in from the caller's address have failed."),
    "too_many_screens": ErrorCode(429, "Too many screens of the console are open. This one is refreshed later."),
    "max_waiting": ErrorCode(429, "As many requests wait for messages as the consumer's `max_waiting` allows."),
    "headers_too_large": ErrorCode(431, "The headers are too many or too large."),
    "internal": ErrorCode(500, UNEXPECTED),
    "store_error": ErrorCode(500, "The database returned an unknown error. The server's log has it.", StoreError),
    "store_unavailable": ErrorCode(503, "The database can't be reached.", StoreUnavailable),
    "store_busy": ErrorCode(503, "Too many calls examine messages. The call got no place in time.", StoreBusy),
    "database_refused": ErrorCode(503, "The database refuses the server's access.", DatabaseRefused),
    "not_granted": ErrorCode(503, "The server's database role has no grant for this.", NotGranted),
    "store_full": ErrorCode(503, "The database's disk or quota is full.", StoreFull),
    "stream_full": ErrorCode(503, "The stream has reached its `max_storage`.", StreamFull),
    "in_doubt": ErrorCode(503, "The connection to the database broke at the commit.", InDoubt),
    "sequence_behind": ErrorCode(503, "A sequence of the database is behind its table.", SequenceBehind),
    "schema_error": ErrorCode(503, "The database's schema is missing or newer than the server.", SchemaError),
    "too_many_connections": ErrorCode(503, "The server has reached its limit of connections."),
    "too_many_requests_under_way": ErrorCode(503, "The server has reached its limit of requests."),
    "too_much_under_way": ErrorCode(503, "The server has reached its limit of memory for bodies."),
}
"""All codes of the HTTP API, by status."""

_BY_KIND = {code.kind: name for name, code in ERROR_CODES.items() if code.kind is not None}


def code_of(error: HeadraceError) -> str:
    """Return the code of an exception, which is that of its nearest class with a code. `internal` if none has one."""
    return next((_BY_KIND[kind] for kind in type(error).__mro__ if kind in _BY_KIND), "internal")
