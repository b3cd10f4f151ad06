"""The options of publish, described once. From here to the store they travel as one `PublishOptions`.

A new option is a field of it, a key of `PublishKeywords` or `PublishManyKeywords` for type checkers, and its meaning in
`sql/functions/messages/publish.sql`. The HTTP API, the client and the command line follow from the description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict, Unpack, get_args

import msgspec
from msgspec.structs import replace

from headrace.model.durations import Duration, when
from headrace.model.errors import InvalidInput
from headrace.model.messages.payloads import MAX_EXPIRES_IN, MIN_EXPIRES_IN, RESERVED_MESSAGE_IDS, with_expiry
from headrace.model.settings import Setting

MAX_MESSAGE_ID_BYTES = 256
"""Largest size of a message id in bytes of UTF-8."""

MAX_UNIQUE_KEY_BYTES = 256
"""Largest size of a unique key in bytes of UTF-8."""

MAX_DELAY = 365 * 86400
"""Longest delay of a message over HTTP, in seconds."""

UniqueWhile = Literal["pending", "waiting"]
"""How long a message keeps others with its unique key from being published: until all consumers are done with it, or
until they have it in flight.
"""


_STATES = get_args(UniqueWhile)
_OPTIONAL: Any = {"otherwise": "none", "fixed": True}


class PublishOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of a message to publish.

    Raises:
        InvalidInput: with its `field`.
    """

    message_id: Annotated[
        str | None,
        Setting(
            "An id for deduplication. Publishing it again within the stream's dedupe window changes nothing. At most"
            f" {MAX_MESSAGE_ID_BYTES} bytes of UTF-8, and over HTTP not beginning with `{RESERVED_MESSAGE_IDS}`.",
            length=(1, MAX_MESSAGE_ID_BYTES),
            **_OPTIONAL,
        ),
    ] = None
    delay: Annotated[
        Duration | None,
        Setting(
            "Publish the message after this time.",
            unit="seconds",
            limits=(0, MAX_DELAY),
            names=("delay_ms",),
            **_OPTIONAL,
        ),
    ] = None
    deliver_at: Annotated[
        datetime | None, Setting("Publish the message at this time, instead of after a delay.", **_OPTIONAL)
    ] = None
    expires_in: Annotated[
        Duration | None,
        Setting(
            "Time to live, from the publication. No consumer gets the message after it.",
            unit="seconds",
            limits=(MIN_EXPIRES_IN, MAX_EXPIRES_IN),
            names=("expires_in_ms",),
            **_OPTIONAL,
        ),
    ] = None
    unique_key: Annotated[
        str | None,
        Setting(
            "Publish nothing while the last message with the same unique key is pending. At most"
            f" {MAX_UNIQUE_KEY_BYTES} bytes of UTF-8. Not together with a message id.",
            length=(1, MAX_UNIQUE_KEY_BYTES),
            example="invoice-17",
            **_OPTIONAL,
        ),
    ] = None
    unique_while: Annotated[
        UniqueWhile,
        Setting("Use `waiting` to publish it also while that message is in flight. Needs a unique key.", fixed=True),
    ] = "pending"

    def __post_init__(self) -> None:
        if self.message_id is not None:
            _check_text(self.message_id, "message_id", MAX_MESSAGE_ID_BYTES)
        if self.unique_key is None:
            if self.unique_while == "pending":  # as mostly
                return
        else:
            _check_text(self.unique_key, "unique_key", MAX_UNIQUE_KEY_BYTES)
        if self.unique_key is not None and self.message_id is not None:
            raise InvalidInput(
                "A message can't have both a unique key and a message id. Pass one of the two.", field="unique_key"
            )
        if self.unique_while not in _STATES:
            raise InvalidInput(
                f"unique_while can't be {self.unique_while!r:.80}. Use 'pending', or 'waiting' to publish while a message of"
                " the unique key is in flight.",
                field="unique_while",
            )
        if self.unique_while != "pending" and self.unique_key is None:
            raise InvalidInput(
                f"unique_while={self.unique_while!r} needs a unique key. Pass both.", field="unique_while"
            )

    @classmethod
    def of(cls, now: datetime | None = None, /, **options: Unpack[PublishKeywords]) -> PublishOptions:
        """Collect the options of one message.

        Args:
            now: the time from which a delay counts. None for the clock of the machine.
            options: as `App.publish` takes them.

        Raises:
            ConfigurationError: a delay is no duration, or is given with a time.
            InvalidInput: with its `field`.
        """
        if not options:
            return PLAIN
        found = cls(**options)
        if found.delay is None and found.deliver_at is None:
            return found
        due = when(found.delay, found.deliver_at, now)
        return replace(found, delay=None, deliver_at=due)

    @classmethod
    def of_many(
        cls, count: int, now: datetime | None = None, /, **options: Unpack[PublishManyKeywords]
    ) -> PublishOptions | list[PublishOptions]:
        """Collect the options of `count` messages: one `PublishOptions` for all, or one for each. See `of`."""
        shared: dict[str, Any] = dict(options)
        lists = {name: values for name in _LISTS if (values := shared.pop(name, None)) is not None}
        _check_lengths(count, lists)
        lists = {name: values for name, values in lists.items() if any(value is not None for value in values)}
        if not lists:
            return cls.of(now, **shared)
        deliver_at = when(shared.pop("delay", None), shared.pop("deliver_at", None), now)
        unique_while = (
            {"unique_while": shared.pop("unique_while")} if "unique_keys" in lists and "unique_while" in shared else {}
        )
        rest = cls(deliver_at=deliver_at, **shared)
        names = [_LISTS[name] for name in lists]
        rows: list[PublishOptions] = []
        for values in zip(*lists.values(), strict=True):
            own = {name: value for name, value in zip(names, values, strict=True) if value is not None}
            rows.append(replace(rest, **own, **(unique_while if "unique_key" in own else {})) if own else rest)
        return rows

    def given(self) -> dict[str, Any]:
        """The options that are not their defaults, by name."""
        return {
            name: value for name in self.__struct_fields__ if (value := getattr(self, name)) != getattr(PLAIN, name)
        }

    def in_headers(self, headers: str | None) -> tuple[str | None, PublishOptions]:
        """Move the time to live into encoded headers, where it is stored. Returns them and the other options. Raises as
        `with_expiry` does."""
        if self.expires_in is None:
            return headers, self
        rest = replace(self, expires_in=None)
        return with_expiry(headers, self.expires_in), PLAIN if rest == PLAIN else rest


class _SharedKeywords(TypedDict, total=False):
    delay: Duration | None
    deliver_at: datetime | None
    expires_in: Duration | None
    unique_while: UniqueWhile


class PublishKeywords(_SharedKeywords, total=False):
    """The fields of `PublishOptions` as keyword arguments. See `App.publish`."""

    message_id: str | None
    unique_key: str | None


class PublishManyKeywords(_SharedKeywords, total=False):
    """The same for many messages. Options that differ between them are lists. See `App.publish_many`."""

    message_ids: Sequence[str | None] | None
    unique_keys: Sequence[str | None] | None


_LISTS = {"message_ids": "message_id", "unique_keys": "unique_key"}


def encoded(options: PublishOptions | Sequence[PublishOptions]) -> str | None:
    """The options as the JSON that the store takes. None if it has to do with none of them."""
    if isinstance(options, PublishOptions):
        return None if options is PLAIN or options == PLAIN else msgspec.json.encode(options).decode()
    return None if all(one is PLAIN or one == PLAIN for one in options) else msgspec.json.encode(options).decode()


def due(options: PublishOptions | Sequence[PublishOptions]) -> datetime | None:
    """When the last scheduled message is to be delivered."""
    each = [options] if isinstance(options, PublishOptions) else options
    return max((one.deliver_at for one in each if one.deliver_at is not None), default=None)


def _check_text(value: Any, name: str, most: int) -> None:
    if not (isinstance(value, str) and 1 <= _size(value) <= most):
        raise InvalidInput(
            f"The {name.replace('_', ' ')} {value!r:.80} is invalid. It must have 1 to {most} bytes of UTF-8, and no NUL.",
            field=name,
        )


def _size(text: str) -> int:
    """The bytes of a text in UTF-8, or 0 for one that Postgres can't hold."""
    try:
        return 0 if "\0" in text else len(text.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return 0


def _check_lengths(count: int, lists: Mapping[str, Sequence[Any]]) -> None:
    for name, values in lists.items():
        if len(values) != count:
            raise InvalidInput(
                f"There are {count} messages and {len(values)} {name}. Pass one, or None, for each message.", field=name
            )


PLAIN = PublishOptions()
"""No options."""
