"""API types of consumers in requests. A setting may have any of the names that it has had."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.admin.validation import changed
from headrace.model import conditions
from headrace.model.durations import rate, seconds
from headrace.model.push import Push
from headrace.model.specs import Backoff, ConsumerSpec, DeliverPolicy, OnExhausted
from headrace.server.errors import Problem
from headrace.server.wire.common import given
from headrace.server.wire.filters import condition_of
from headrace.store.catalog.states import HIDDEN

_Filter = str | list[str]

BEGINS = ("deliver_policy", "start_seq", "start_time")
"""Names of the settings for a new consumer's start position, which can't be changed."""


class PushSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """The URL to which a push consumer's messages are sent, and how. Settings that are left out stay."""

    url: Annotated[str | UnsetType, Meta(examples=["https://example.com/hook"])] = UNSET
    headers: Annotated[dict[str, str] | UnsetType, Meta(description="Sent along with each request.")] = UNSET
    secret: Annotated[
        str | UnsetType | None, Meta(description='What requests are signed with: `whsec_` and base64. Told as "…".')
    ] = UNSET
    timeout_ms: Annotated[float | UnsetType, Meta(description="How long an answer may take.")] = UNSET
    batch_size: Annotated[
        int | UnsetType | None, Meta(description="At most so many messages in one request; null for one by itself.")
    ] = UNSET
    concurrency: Annotated[
        tuple[int, int] | UnsetType, Meta(description="Requests under way at a time, at least and at most.")
    ] = UNSET

    def push(self, before: Push | None) -> Push:
        """Return the settings, applied to the previous ones. Raises `Problem` without a URL, and
        `ConfigurationError`."""
        found = given(self)
        if "timeout_ms" in found:
            found["timeout"] = found.pop("timeout_ms") / 1000
        if "batch_size" in found:
            found["batch"] = found.pop("batch_size")
        if found.get("secret") == HIDDEN:  # sent back as it was shown
            del found["secret"]
        if before is not None:
            return msgspec.structs.replace(before, **found)
        if "url" not in found:
            raise _invalid("push", 'a push consumer needs a URL: "push": {"url": "https://…"}')
        return Push(**found)


class ConsumerSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """A consumer's settings. When a consumer is changed, settings that are left out stay. A new
    consumer gets their defaults."""

    name: Annotated[str | UnsetType, Meta(description="It can't be changed.", examples=["us_orders"])] = UNSET
    filter: Annotated[
        _Filter | UnsetType,
        Meta(description="Which keys: `*` is one token, `>` all the rest; of several, any.", examples=["orders.us.>"]),
    ] = UNSET
    filter_key_pattern: Annotated[_Filter | UnsetType, Meta(description="The same as `filter`.")] = UNSET
    filters: Annotated[
        _Filter | dict[str, Any] | UnsetType,
        Meta(description="The same as `filter`; or an object of top-level fields of the data and their values."),
    ] = UNSET
    where: Annotated[
        str | dict[str, Any] | UnsetType | None,
        Meta(description="A condition on the content.", examples=["data.total > 100"]),
    ] = UNSET
    kind: Annotated[Literal["pull", "push"] | UnsetType, Meta(description="`push` needs `push` or `url`.")] = UNSET
    push: PushSettings | UnsetType | None = UNSET
    url: Annotated[str | UnsetType, Meta(description="The same as `push.url`.")] = UNSET
    ordered: Annotated[bool | UnsetType, Meta(description="Keep strict order per key.")] = UNSET
    ack_wait_ms: Annotated[
        float | UnsetType, Meta(description="The visibility timeout, in milliseconds.", examples=[30000])
    ] = UNSET
    ack_wait: Annotated[float | str | UnsetType, Meta(description='The same, in seconds or as "30s".')] = UNSET
    max_ack_pending: Annotated[int | UnsetType, Meta(examples=[1000])] = UNSET
    max_deliver: Annotated[int | UnsetType, Meta(description="Attempts; -1 for no limit.", examples=[10])] = UNSET
    max_waiting: Annotated[int | UnsetType, Meta(description="Requests that may wait at a time.", examples=[20])] = (
        UNSET
    )
    backoff_ms: Annotated[
        float | list[float] | UnsetType | None,
        Meta(description="Milliseconds before the next attempt, or a list of them; null for the default, exponential."),
    ] = UNSET
    backoff: Annotated[
        Backoff | float | str | list[float | str] | UnsetType | None,
        Meta(description="The same, in seconds or as text, or all of an exponential one."),
    ] = UNSET
    on_exhausted: OnExhausted | UnsetType = UNSET
    rate_limit: Annotated[
        float | str | UnsetType | None, Meta(description='Messages a second, or text such as "500/m".')
    ] = UNSET
    rate_burst: int | UnsetType | None = UNSET
    deliver_policy: Annotated[DeliverPolicy | UnsetType, Meta(description="Where a new consumer begins.")] = UNSET
    start_seq: int | UnsetType | None = UNSET
    start_time: datetime | UnsetType | None = UNSET


class NewConsumer(ConsumerSettings, kw_only=True, forbid_unknown_fields=True):
    """A consumer to be created."""

    name: Annotated[str, Meta(description="Unique on its stream.", examples=["us_orders"])]

    def spec(self, stream: str) -> ConsumerSpec:
        """Return the checked settings. Raises `Problem`, `InvalidInput` or `ConfigurationError`."""
        check_name(self.name)
        settings = changes(self, None)
        begins = {name: settings.pop(name) for name in ("name", *BEGINS) if name in settings}
        at = begins.get("start_time")
        if isinstance(at, datetime) and at.tzinfo is None:
            begins["start_time"] = at.replace(tzinfo=UTC)
        return changed(ConsumerSpec(stream=stream, **begins), settings, fixed=("stream", "name", *BEGINS))


def check_name(name: str) -> None:
    """Raise a `Problem` for a name that doesn't fit into a path or a table."""
    if not 1 <= len(name) <= 200 or not name.isprintable() or "\0" in name:
        raise _invalid("name", "a consumer's name is 1 to 200 printable characters")


def sent_filters(settings: ConsumerSettings) -> dict[str, Any] | None:
    """Return the filters as they were sent, if they were an object."""
    return settings.filters if isinstance(settings.filters, dict) else None


def changes(settings: ConsumerSettings, before: ConsumerSpec | None) -> dict[str, Any]:
    """Return the settings to change, under the names of `ConsumerSpec`.

    Args:
        before: the current settings. None for a new consumer.
    """
    found = given(settings)
    _filters(found)
    if "ack_wait_ms" in found:
        _alias(found, "ack_wait", found.pop("ack_wait_ms") / 1000)
    if "backoff_ms" in found:
        _alias(found, "backoff", _delays(found.pop("backoff_ms")))
    if "rate_limit" in found:
        found["rate_limit"] = rate(found["rate_limit"])
    _push(found, settings, None if before is None else before.push)
    if before is not None:
        _drop_unchanged(found, before)
    return found


def _filters(found: dict[str, Any]) -> None:
    fields = found.pop("filters") if isinstance(found.get("filters"), dict) else None
    for name in ("filter_key_pattern", "filters"):
        if name in found:
            _alias(found, "filter", found.pop(name))
    if fields is None:
        return
    condition = condition_of(fields)
    where = found.get("where")
    if where is not None and condition is not None:
        condition = conditions.parse(where) & condition
    if condition is not None or "where" not in found:
        found["where"] = condition


def _alias(found: dict[str, Any], name: str, value: Any) -> None:
    """Set a value that came under another name. Both names may be given if their values are equal."""
    if name in found and _comparable(name, found[name]) != _comparable(name, value):
        raise _invalid(name, f"it is given twice, as {found[name]!r} and as {value!r}: give it once")
    found[name] = value


def _comparable(name: str, value: Any) -> Any:
    if name == "ack_wait":
        return round(seconds(value, name), 6)
    if name == "backoff":
        return Backoff.of(value)
    return [value] if isinstance(value, str) else value


def _delays(given_ms: float | list[float] | None) -> float | list[float] | None:
    if isinstance(given_ms, list):
        return [delay / 1000 for delay in given_ms]
    return None if given_ms is None else given_ms / 1000


def _push(found: dict[str, Any], settings: ConsumerSettings, before: Push | None) -> None:
    kind, url = found.pop("kind", None), found.pop("url", None)
    wanted = found.pop("push", None)
    if kind == "pull" and (wanted is not None or url is not None):
        raise _invalid(
            "kind", "a pull consumer has no push URL: leave `push` and `url` out, or make it a push consumer"
        )
    if kind == "pull" or (settings.push is None and kind is None and url is None):
        found["push"] = None
    elif kind == "push" or wanted is not None or url is not None:
        wanted = wanted or PushSettings()
        if url is not None:
            if wanted.url not in (UNSET, url):
                raise _invalid("url", "it is given twice, and differs from push.url: give it once")
            wanted.url = url
        found["push"] = wanted.push(before)


def _drop_unchanged(found: dict[str, Any], before: ConsumerSpec) -> None:
    """Remove fixed settings that are unchanged, so that a client may send back all that it received."""
    for name in ("name", *BEGINS):
        if name in found and found[name] == getattr(before, name):
            del found[name]


def _invalid(field: str, sentence: str) -> Problem:
    return Problem(422, "invalid", f"{field} can't be so: {sentence}.", validation_errors={field: [f"{sentence}."]})
