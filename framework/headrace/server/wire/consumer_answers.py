"""API types of consumers in answers. Every setting appears under every name that it has had."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from headrace.model.push import Push
from headrace.model.records import ConsumerInfo
from headrace.model.settings import settings_of
from headrace.model.specs import Backoff, ConsumerSpec
from headrace.server.wire.common import ACCOUNT_ID, AccountId, milliseconds
from headrace.server.wire.filters import filters_of
from headrace.server.wire.settings import answer, values

Status = Literal["active", "paused"]

_OMITTED = ("stream", "name", "filters")


@answer(Push, before=None)
class PushAnswer(Struct, kw_only=True):
    """The URL to which a push consumer's messages are sent, and how."""

    @classmethod
    def of(cls, settings: dict[str, Any]) -> PushAnswer:
        """Convert the push settings of `ConsumerInfo`. Settings that it leaves out have their defaults."""
        defaults = {name: setting.default for name, setting in settings_of(Push).items()}
        return cls(**values(Push, defaults | settings))


class BackoffAnswer(Struct, kw_only=True):
    """Delay before a message's next attempt, in seconds. It is taken from `delays`. If that is
    empty, it grows exponentially."""

    delays: tuple[float, ...]
    base: float
    factor: float
    limit: float
    jitter: float


@answer(ConsumerSpec, before="url", omit=_OMITTED)
class _ConsumerFields(Struct, kw_only=True):
    """Fields that both consumer APIs return."""

    id: str
    name: str
    stream: Annotated[str, Meta(description="Its stream's name.")]
    stream_id: str
    kind: Literal["pull", "push"]
    status: Status
    filter: Annotated[str | list[str], Meta(description="Which keys; a list if there are several filters.")]
    filter_key_pattern: str | list[str]
    where: Annotated[str | None, Meta(description="The condition on the content, as text.")]
    backoff_ms: Annotated[
        int | float | list[int | float] | None, Meta(description="Null for an exponential one: see `backoff`.")
    ]
    backoff: BackoffAnswer
    push: PushAnswer | None
    url: Annotated[str | None, Meta(description="The same as `push.url`.")]
    paused_until: Annotated[
        datetime | None, Meta(description="The end of year 9999 stands for a pause without an end.")
    ]
    inserted_at: datetime
    updated_at: datetime
    info: Annotated[ConsumerInfo, Meta(description="All that is known of it.")]


class Consumer(_ConsumerFields, kw_only=True):
    """A consumer."""

    account_id: AccountId = ACCOUNT_ID
    filters: Annotated[list[str], Meta(description="Which keys. `where` has the fields of an object that was sent.")]

    @classmethod
    def of(cls, info: ConsumerInfo) -> Consumer:
        """Convert a consumer of the store."""
        return cls(filters=list(info.settings["filters"]), **_fields(info))


class HttpConsumer(_ConsumerFields, kw_only=True):
    """A consumer of the consume API."""

    filters: Annotated[
        dict[str, Any] | None,
        Meta(description="Top-level fields of the data and their values. Null if its condition is another one."),
    ]

    @classmethod
    def of(cls, info: ConsumerInfo) -> HttpConsumer:
        """Convert a consumer of the store."""
        return cls(filters=filters_of(info.settings["where"], info.stream), **_fields(info))


def _fields(info: ConsumerInfo) -> dict[str, Any]:
    settings = info.settings
    backoff = msgspec.convert(settings["backoff"], Backoff)
    filters = settings["filters"]
    keys = filters[0] if len(filters) == 1 else list(filters)
    push = None if settings["push"] is None else PushAnswer.of(settings["push"])
    return dict(
        id=info.id,
        name=info.name,
        stream=info.stream,
        stream_id=info.stream_id,
        kind="pull" if push is None else "push",
        status="active" if info.paused_until is None else "paused",
        filter=keys,
        filter_key_pattern=keys,
        **values(ConsumerSpec, settings, omit=(*_OMITTED, "backoff", "push", "start_time")),
        start_time=msgspec.convert(settings["start_time"], datetime | None),
        backoff_ms=_backoff_ms(backoff),
        backoff=BackoffAnswer(**msgspec.structs.asdict(backoff)),
        push=push,
        url=None if push is None else settings["push"]["url"],
        paused_until=info.paused_until,
        inserted_at=info.created_at,
        updated_at=info.updated_at,
        info=info,
    )


def _backoff_ms(backoff: Backoff) -> int | float | list[int | float] | None:
    delays = [milliseconds(delay) for delay in backoff.delays]
    if not delays:
        return None
    return delays[0] if len(delays) == 1 else delays
