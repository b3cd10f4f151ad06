"""The table of calls: for each method of `Admin` the request of the HTTP API that does the same.

The signatures and docstrings are those of `Admin`. Those of `headrace.admin.requests.operations` are made of its rows. Other calls
have a row here, and their route in `headrace.server.routes`. Calls that need more than one request have their
code in `headrace.client.remote`. `tests/client/test_remote.py` compares all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.admin.requests.operation import (
    CAPTURE_TIME,
    CONDITION_TIME,
    CONSUMER,
    DATABASE,
    SOURCE,
    STREAM,
    Operation,
)
from headrace.admin.requests.operations import OPERATIONS
from headrace.client import specs
from headrace.client.answers import (
    Data,
    DeadLetterAnswer,
    Delivery,
    Info,
    KeyStanding,
    Message,
    MessageJourney,
    Peeked,
    SearchAnswer,
    count,
    pages,
    record,
    records,
)
from headrace.client.call import REQUIRED, Argument, Body, Call, ListCall
from headrace.client.errors import NotFound, StaleAckIds
from headrace.client.request import Response
from headrace.model.capture import BackfillInfo, FailedChange, Finding
from headrace.model.conditions.selections import DeadLetterCriteria, DeathCriteria, described
from headrace.model.durations import Duration, check_wait, seconds
from headrace.model.errors import AlreadyExists, BackfillExists, HeadraceError
from headrace.model.messages.scheduled import ScheduledMessage
from headrace.model.records import (
    BlockedKey,
    ConsumerInfo,
    DatabaseInfo,
    DeadLetterGroup,
    Erasure,
    StreamInfo,
)
from headrace.model.schedules import ScheduleInfo
from headrace.model.sources import SourceInfo
from headrace.model.tokens import NewToken, TokenInfo
from headrace.model.watching.audit import AuditEntry
from headrace.model.watching.live import LiveSnapshot, ProcessRow
from headrace.model.watching.operations import Job, PushStatus, SeekPreview, WebhookDelivery
from headrace.model.watching.samples import Chart

# --- arguments that several calls have

FILTER = Argument("filter", None, convert=specs.filters)
WHERE = Argument("where", None, convert=specs.condition)
FORCE = Argument("force", False)
FORCED = Argument("force", False, convert=lambda force: "true" if force else "false")  # without it, it is deleted
DRY_RUN = Argument("dry_run", False)
ABOVE = Argument("above", 0, convert=lambda above: above or None)
AFTER = Argument("above", 0, sent_as="after", convert=lambda above: above or None)
RANGE = (
    FILTER, WHERE, Argument("start_seq", None), Argument("end_seq", None), Argument("start_time", None),
    Argument("end_time", None), DRY_RUN,
)  # fmt: skip
CONVERTED = {one.name: one for one in (FILTER, WHERE)}
DEATH, DEAD_LETTERS = (
    tuple(CONVERTED.get(one.name, Argument(one.name, None)) for one in described(criteria))
    for criteria in (DeathCriteria, DeadLetterCriteria)
)


def _limit(default: int | None) -> Argument:
    return Argument("limit", default)


def _milliseconds(duration: Duration | None) -> float | None:
    return None if duration is None else seconds(duration, "delay") * 1000


def _erased(response: Response) -> list[int]:
    return response.decode(Data[dict[str, list[int]]]).data["erased"]


def _lifetime(duration: Duration | None) -> int | None:
    return None if duration is None else round(seconds(duration, "expires_in") * 1000)


def _wait(wait: float) -> int | None:
    check_wait(wait)
    return round(wait * 1000) or None


def _any(ack_ids: Sequence[str]) -> list[str] | None:
    return list(ack_ids) or None


def _is_created(response: Response) -> bool:
    return response.status == 201


def _is_new(error: AlreadyExists) -> bool:
    """Return False for a source that exists with equal settings. Raises the error for other settings."""
    if error.differing:
        raise error
    return False


def _backfill_exists(error: AlreadyExists) -> None:
    raise BackfillExists(str(error))


# --- requests of calls that have their code in `Remote`

CREATE_STREAM = Call("POST", "/v1/streams", Body("spec", specs.new_stream), Argument("database", None))
CREATE_CONSUMER = Call("POST", "/v1/streams/{stream}/consumers", Body("spec", specs.new_consumer))
PUBLISH = Call("POST", STREAM + "/messages", Body("message", dict))
PUBLISH_MANY = Call("POST", STREAM + "/messages", Argument("messages"), answer=count("published"))
STANDING = Call(
    "GET", STREAM + "/messages/{key}/consumer_info",
    answer=record(Data[list[KeyStanding]]), on_error=(NotFound, lambda _: None),
)  # fmt: skip
CREATE_JOB = Call(
    "POST", "/v1/jobs", Argument("kind"), Argument("stream"), Argument("consumer"), Argument("selection"),
    answer=record(Data[Job]), extra_time=CONDITION_TIME,
)  # fmt: skip
PEEK = Call(
    "GET", CONSUMER + "/messages", _limit(10), AFTER, Argument("states", None),
    constants={"of_each": True}, answer=pages(Peeked),
)  # fmt: skip


class Calls:
    """The calls that are one request. Type checkers take `Admin` for this class, see `Remote`."""

    # --- streams

    streams = ListCall("/v1/streams", _limit(None), answer=pages(Info[StreamInfo]))
    stream = Call("GET", "/v1/streams/{name}", answer=record(Info[StreamInfo]))
    edit_stream = Call(
        "PATCH", "/v1/streams/{name}", Body("changes", dict), answer=record(Info[StreamInfo], specs.stream_spec)
    )
    delete_stream = Call("DELETE", "/v1/streams/{name}", FORCED)

    # --- messages

    messages = ListCall(
        STREAM + "/messages", _limit(10),
        Argument("newest", False, sent_as="sort", convert=lambda newest: "seq_desc" if newest else None),
        FILTER, WHERE, Argument("start_seq", None), Argument("key", None),
        answer=pages(Message), order=lambda message: message.seq, extra_time=CONDITION_TIME,
    )  # fmt: skip
    message = Call("GET", STREAM + "/messages/{key}", answer=record(Message), on_error=(NotFound, lambda _: None))
    republish = Call(
        "POST", STREAM + "/republish", Argument("target"), *RANGE,
        answer=count("published"), extra_time=CONDITION_TIME,
    )  # fmt: skip
    erase = Call("POST", STREAM + "/erasures", Argument("seqs"), Argument("reason", None), answer=_erased)
    erasures = ListCall(STREAM + "/erasures", AFTER, _limit(100), answer=pages(Erasure))
    scheduled_messages = ListCall(STREAM + "/scheduled", _limit(100), answer=pages(ScheduledMessage))
    search = Call(
        "GET", STREAM + "/search", FILTER, WHERE, Argument("after", None), Argument("before", None), Argument("since", None),
        Argument("until", None), _limit(50), answer=record(SearchAnswer), extra_time=CONDITION_TIME,
    )  # fmt: skip
    journey = Call(
        "GET", STREAM + "/journeys/{seq}", _limit(1000), Argument("after", None),
        answer=record(Data[MessageJourney], lambda found: found.record()), on_error=(NotFound, lambda _: None),
    )  # fmt: skip
    # --- consumers

    consumers = ListCall(
        "/v1/streams/{stream}/consumers",
        _limit(None),
        path_for_all="/v1/consumers",
        answer=pages(Info[ConsumerInfo]),
    )
    consumer = Call("GET", CONSUMER, answer=record(Info[ConsumerInfo]))
    edit_consumer = Call(
        "PATCH",
        CONSUMER,
        Body("changes", specs.consumer_changes),
        answer=record(Info[ConsumerInfo], specs.consumer_spec),
    )
    delete_consumer = Call("DELETE", CONSUMER, FORCED)
    seek = Call("POST", CONSUMER + "/seek", Argument("to"), answer=count("position"))
    seek_preview = Call(
        "POST", CONSUMER + "/seek", Argument("to"), constants={"dry_run": True}, answer=record(Data[SeekPreview]),
        extra_time=CONDITION_TIME,
    )  # fmt: skip
    push_status = Call("GET", CONSUMER + "/push", answer=record(Data[PushStatus]))
    blocked_keys = ListCall(
        CONSUMER + "/blocked_keys", _limit(100), AFTER,
        answer=pages(BlockedKey),
    )  # fmt: skip

    # --- dead letters

    dead_letters = ListCall(
        CONSUMER + "/dead_letters", ABOVE, _limit(100), *DEAD_LETTERS,
        answer=pages(DeadLetterAnswer), extra_time=CONDITION_TIME,
    )  # fmt: skip
    dead_letter_groups = Call(
        "GET", CONSUMER + "/dead_letters/groups", Argument("by", "type"), _limit(100), *DEATH,
        answer=records(DeadLetterGroup), extra_time=CONDITION_TIME,
    )  # fmt: skip
    dead_letter = Call("GET", CONSUMER + "/dead_letters/{seq}", answer=record(DeadLetterAnswer))

    # --- jobs

    jobs = Call("GET", "/v1/jobs", Argument("stream", None), _limit(100), answer=records(Job))
    job = Call("GET", "/v1/jobs/{id}", answer=record(Data[Job]))
    cancel_job = Call("POST", "/v1/jobs/{id}/cancel", answer=record(Data[Job]))

    # --- manual acknowledgement

    receive = Call(
        "POST", CONSUMER + "/receive", Argument("limit", 1, sent_as="batch_size"),
        Argument("wait", 0.0, sent_as="wait_for", convert=_wait), Argument("ack_ids", (), convert=_any),
        Argument("nack_ids", (), convert=_any), answer=records(Delivery), extra_time="wait",
    )  # fmt: skip
    ack = Call(
        "POST", CONSUMER + "/ack", Argument("ack_ids"), constants={"strict": True},
        answer=lambda _: [], on_error=(StaleAckIds, lambda error: error.stale),
    )  # fmt: skip
    nack = Call(
        "POST", CONSUMER + "/nack", Argument("ack_ids"),
        Argument("delay", None, sent_as="delay_ms", convert=_milliseconds), Argument("error", None),
        Argument("snooze", False, convert=lambda snooze: snooze or None),
        constants={"strict": True}, answer=lambda _: [], on_error=(StaleAckIds, lambda error: error.stale),
    )  # fmt: skip

    # --- sources

    sources = ListCall("/v1/sources", _limit(None), answer=pages(Info[SourceInfo]))
    source = Call("GET", SOURCE, answer=record(Info[SourceInfo]))
    deliveries = Call("GET", SOURCE + "/deliveries", _limit(50), answer=records(WebhookDelivery))
    create_source = Call(
        "POST",
        "/v1/sources",
        Body("spec", specs.new_source),
        Argument("into_existing", False),
        answer=_is_created,
        on_error=(AlreadyExists, _is_new),
    )
    edit_source = Call("PATCH", SOURCE, Body("changes", specs.source_changes), answer=record(Info[SourceInfo]))
    delete_source = Call(
        "DELETE", SOURCE, FORCE, answer=record(dict[str, object], lambda deleted: deleted.get("left")), extra_time=CAPTURE_TIME
    )  # fmt: skip

    # --- sources that capture tables

    check_spec = Call(
        "POST", "/v1/source-check", Body("spec", specs.new_source), answer=records(Finding), extra_time=CAPTURE_TIME
    )
    backfills = ListCall(SOURCE + "/backfills", _limit(100), path_for_all="/v1/backfills", answer=pages(BackfillInfo))
    failures = ListCall(SOURCE + "/failures", ABOVE, _limit(100), answer=pages(FailedChange))

    # --- schedules

    schedules = ListCall("/v1/schedules", _limit(None), answer=pages(ScheduleInfo))

    # --- further databases

    databases = Call("GET", "/v1/databases", answer=records(DatabaseInfo))
    add_database = Call(
        "POST", "/v1/databases", Argument("name"), Argument("url_from"), Argument("unchecked", False),
        answer=record(DatabaseInfo),
    )  # fmt: skip
    remove_database = Call("DELETE", DATABASE)

    # --- the audit log and samples

    audit = ListCall(
        "/v1/audit", Argument("stream", None), Argument("actor", None), Argument("action", None), Argument("since", None),
        Argument("until", None), _limit(100), answer=pages(AuditEntry),
    )  # fmt: skip

    samples = Call(
        "GET", "/v1/samples", Argument("kind", "total"), Argument("stream", None), Argument("consumer", None),
        Argument("since", None), Argument("until", None), Argument("points", 180), answer=record(Data[Chart]),
    )  # fmt: skip

    # --- the live state and tokens

    snapshot = Call("GET", "/v1/live/snapshot", answer=record(Data[LiveSnapshot]))
    processes = Call("GET", "/v1/live/processes", answer=records(ProcessRow))
    tokens = ListCall("/v1/tokens", _limit(None), answer=pages(TokenInfo))
    create_token = Call(
        "POST", "/v1/tokens", Argument("name"), Argument("scopes"),
        Argument("expires_in", None, sent_as="expires_in_ms", convert=_lifetime), answer=record(NewToken),
    )  # fmt: skip


# --- the calls of operations

FORMS: dict[type, Any] = {ConsumerInfo: Info[ConsumerInfo], SourceInfo: Info[SourceInfo]}
"""The form in answers of records that have another one there."""

ON_ERROR: dict[str, tuple[type[HeadraceError], Callable[[Any], Any]]] = {
    "start_backfill": (AlreadyExists, _backfill_exists),
    "verify_source": (AlreadyExists, _backfill_exists),
}
"""The errors of the server that mean something else for a call."""


def _call(name: str, operation: Operation) -> Call:
    fields = () if operation.body is None else msgspec.structs.fields(operation.body)
    arguments = (
        CONVERTED.get(field.name) or Argument(field.name, REQUIRED if field.required else field.default)
        for field in fields
    )
    nothing: Callable[[Response], Any] = lambda _: None  # noqa: E731 - typed
    answer = operation.by_answer(
        nothing,
        lambda counted: count(counted.field),
        lambda type_: records(FORMS.get(type_, type_)),
        lambda type_: record(FORMS.get(type_, type_)),
    )
    return Call(
        operation.method, operation.path, *arguments, answer=answer, extra_time=operation.extra_time,
        on_error=ON_ERROR.get(name),
    )  # fmt: skip


for _name, _operation in OPERATIONS.items():
    _made = _call(_name, _operation)
    _made.__set_name__(Calls, _name)
    setattr(Calls, _name, _made)
