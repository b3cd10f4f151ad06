"""API types of consumers in requests. A setting may have any of the names that it has had."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from headrace.admin.validation import argument, changed, pushed
from headrace.model import conditions
from headrace.model.clock import zoned
from headrace.model.conditions.selections import Filters
from headrace.model.conditions.selections import WhereJson as Where
from headrace.model.push import LONGEST_HEADER, Push
from headrace.model.settings import settings_of
from headrace.model.specs import Backoff, ConsumerSpec
from headrace.server.wire.common import given
from headrace.server.wire.filters import condition_of
from headrace.server.wire.settings import described, invalid_field, renamed, request

_Delay = Annotated[float, Meta(extra_json_schema={"minimum": 0})]
_SOME = Meta(extra_json_schema={"minItems": 1})

MAX_NAME = 200
"""Largest number of characters of a consumer's name."""

_FIXED = [name for name, setting in settings_of(ConsumerSpec).items() if setting.fixed]
"""Settings that can't be changed."""


@request(Push)
class PushSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """The URL to which a push consumer's messages are sent, and how. Settings that are left out stay."""

    url: str | UnsetType = UNSET
    headers: dict[str, Annotated[str, Meta(extra_json_schema={"maxLength": LONGEST_HEADER - 1})]] | UnsetType = UNSET

    def push(self, before: Push | None) -> Push:
        """Return the settings, applied to the previous ones. Raises `Problem` without a URL, and
        `ConfigurationError`."""
        found = renamed(Push, given(self))
        if before is None and "url" not in found:
            raise invalid_field("push", 'a push consumer needs a URL: "push": {"url": "https://…"}')
        return pushed(before, found)


@request(ConsumerSpec, omit=("stream",))
class ConsumerSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """A consumer's settings. When a consumer is changed, settings that are left out stay. A new
    consumer gets their defaults."""

    name: str | UnsetType = UNSET
    filter: Filters | UnsetType = UNSET
    filter_key_pattern: Filters | UnsetType = UNSET
    filters: Annotated[
        Filters | dict[str, Any] | UnsetType,
        Meta(description="The same as `filter`, or an object of top-level fields of the data and their values."),
    ] = UNSET
    where: Where | UnsetType | None = UNSET
    kind: Annotated[Literal["pull", "push"] | UnsetType, Meta(description="`push` needs `push` or `url`.")] = UNSET
    push: PushSettings | UnsetType | None = UNSET
    url: Annotated[
        str | UnsetType | None,
        Meta(description="The same as `push.url`.", extra_json_schema=settings_of(Push)["url"].bounds()),
    ] = UNSET
    backoff_ms: _Delay | Annotated[list[_Delay], _SOME] | UnsetType | None = UNSET
    backoff: Backoff | _Delay | str | Annotated[list[_Delay | str], _SOME] | UnsetType | None = UNSET


class NewConsumer(ConsumerSettings, kw_only=True, forbid_unknown_fields=True):
    """A consumer to be created."""

    name: Annotated[str, described(ConsumerSpec, "name", minLength=1, maxLength=MAX_NAME)]

    def spec(self, stream: str, *, records: bool = False, older: bool = False) -> ConsumerSpec:
        """Return the checked settings. Raises `Problem`, `InvalidInput` or `ConfigurationError`.

        Args:
            records: whether `filters` are about records of the consume API.
            older: whether it is created under `/api`, where captured changes are pushed in their own shape by default.
        """
        check_name(self.name)
        settings = changes(self, None, stream if records else None)
        push = settings.get("push")
        if older and push is not None and not (isinstance(self.push, PushSettings) and "shape" in given(self.push)):
            settings["push"] = replace(push, shape="change")
        begins = {name: settings.pop(name) for name in _FIXED if name in settings}
        at = begins.get("start_time")
        if isinstance(at, datetime):
            begins["start_time"] = zoned(at)
        return changed(ConsumerSpec(stream=stream, **begins), settings)


def check_name(name: str) -> None:
    """Raise a `Problem` for a name that doesn't fit into a path or a table."""
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise invalid_field("name", f"a consumer's name is 1 to {MAX_NAME} printable characters")


def changes(settings: ConsumerSettings, before: ConsumerSpec | None, records: str | None = None) -> dict[str, Any]:
    """Return the settings to change, under the names of `ConsumerSpec`.

    Args:
        before: the current settings. None for a new consumer.
        records: the stream, if `filters` are about records of the consume API.
    """
    found = given(settings)
    if "backoff" in found and found.get("backoff_ms", 0) is None:  # as in the answer for an exponential one
        del found["backoff_ms"]
    if isinstance(settings.filters, dict):
        with argument("filters"):
            _fields(found, records, before)
    found = renamed(ConsumerSpec, found)
    _push(found, settings, None if before is None else before.push)
    if before is not None:
        _drop_unchanged(found, before)
    return found


def _fields(found: dict[str, Any], records: str | None, before: ConsumerSpec | None) -> None:
    """Replace `filters`, sent as an object of fields, by a condition. A `where` that is the condition of these filters, or of
    those before, is of an answer that is sent back.
    """
    condition = condition_of(found.pop("filters"), records)
    where = None if found.get("where") is None else conditions.parse(found["where"])
    if where is not None and condition is not None and where not in (condition, before and before.where):
        condition = where & condition
    if condition is not None or "where" not in found:
        found["where"] = condition


def _push(found: dict[str, Any], settings: ConsumerSettings, before: Push | None) -> None:
    kind, url = found.pop("kind", None), found.pop("url", None)
    wanted = found.pop("push", None)
    if kind == "pull" and (wanted is not None or url is not None):
        raise invalid_field(
            "kind", "a pull consumer has no push URL: leave `push` and `url` out, or make it a push consumer"
        )
    if kind == "pull" or (settings.push is None and kind is None and url is None):
        found["push"] = None
    elif kind == "push" or wanted is not None or url is not None:
        wanted = wanted or PushSettings()
        if url is not None:
            if wanted.url not in (UNSET, url):
                raise invalid_field("url", "it is given twice, and differs from push.url: give it once")
            wanted.url = url
        found["push"] = wanted.push(before)


def _drop_unchanged(found: dict[str, Any], before: ConsumerSpec) -> None:
    """Remove fixed settings that are unchanged, so that a client may send back all that it received."""
    for name in _FIXED:
        if name in found and found[name] == getattr(before, name):
            del found[name]
