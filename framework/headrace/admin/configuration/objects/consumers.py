"""Consumers of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace import store
from headrace.admin.configuration.declared import Desired
from headrace.admin.configuration.fields import field_name, written
from headrace.admin.configuration.steps import Step, alteration, creation
from headrace.admin.validation import changed, pushed
from headrace.model.errors import ConfigurationError, InvalidInput, UnknownConsumer
from headrace.model.push import Push
from headrace.model.settings import settings_of
from headrace.model.specs import ConsumerSpec
from headrace.model.text.masking import HIDDEN, masked_push
from headrace.store import Executor

_STARTS = ("deliver_policy", "start_seq", "start_time")


async def present(executor: Executor, stream: str, name: str) -> ConsumerSpec | None:
    """The settings of a consumer, or None if it doesn't exist."""
    try:
        spec, _ = await store.consumer_spec(executor, await store.consumer_id(executor, stream, name))
    except UnknownConsumer:
        return None
    return spec


async def step(executor: Executor, desired: Desired) -> Step | None:
    """The step that makes a consumer as it is declared, or None.

    Raises:
        InvalidInput, ConfigurationError: a setting is invalid, or can't be changed.
    """
    before = await present(executor, *desired.object)
    after = _wanted(before, desired)

    async def declare(connection: Executor) -> None:
        await store.declare_consumer(connection, after)

    if before is None:
        names = [setting for setting in settings_of(ConsumerSpec).values() if setting.name in desired.settings]
        given = {field_name(one): _shown(one.name, getattr(after, one.name)) for one in names}
        return creation("consumer", desired.object, given, declare)
    return alteration("consumer", desired.object, _differing(before, after), declare)


def _wanted(before: ConsumerSpec | None, desired: Desired) -> ConsumerSpec:
    """The settings that a consumer should have."""
    stream, name = desired.object
    starts = {setting: desired.settings[setting] for setting in _STARTS if setting in desired.settings}
    try:
        start = msgspec.convert({"stream": stream, "name": name, **starts}, ConsumerSpec)
    except msgspec.ValidationError as error:
        field = next((one for one in starts if one in str(error)), None)
        raise InvalidInput(f"A setting is not valid: {error}.", field=field) from None
    for setting in starts if before is not None else ():
        if getattr(start, setting) != getattr(before, setting):
            raise InvalidInput(
                f"`{setting}` counts only when the consumer {name!r} is created, and it was created with"
                f" {written(getattr(before, setting))!r}. Leave it as it was, and move the consumer with `headrace consumer seek`.",
                field=setting,
            )
    settings = {setting: value for setting, value in desired.settings.items() if setting not in _STARTS}
    if isinstance(settings.get("push"), Mapping):
        settings["push"] = _push(None if before is None else before.push, settings["push"])
    if settings.get("rate_limit", ...) is None:  # without a rate there is no burst
        settings = {"rate_burst": None, **settings}
    return changed(before or start, settings)


def _push(before: Push | None, given: Mapping[str, Any]) -> Push:
    try:
        return pushed(before, given)
    except (ConfigurationError, InvalidInput) as error:
        error.field = "push"
        raise


def _differing(before: ConsumerSpec, after: ConsumerSpec) -> dict[str, tuple[Any, Any]]:
    found = {}
    for setting in settings_of(ConsumerSpec).values():
        old, new = getattr(before, setting.name), getattr(after, setting.name)
        if old == new:
            continue
        if setting.name == "push" and old is not None and new is not None:
            found.update(_push_differing(old, new))
        else:
            found[field_name(setting)] = _shown(setting.name, old), _shown(setting.name, new)
    return found


def _push_differing(before: Push, after: Push) -> dict[str, tuple[Any, Any]]:
    """The settings of `push` that differ. Those that look the same because they are masked are marked."""
    shown_before, shown_after = _shown("push", before), _shown("push", after)
    found = {}
    for name in Push.__struct_fields__:
        if getattr(before, name) != getattr(after, name):
            old, new = shown_before.get(name), shown_after.get(name)
            found[f"push.{name}"] = (old, new if old != new else f"another, {HIDDEN}")
    return found


def _shown(name: str, value: Any) -> Any:
    """A setting without its secrets."""
    plain = written(value)
    return masked_push(plain) if name == "push" and plain else plain
