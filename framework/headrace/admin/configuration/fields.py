"""The settings in configuration files: their names, and how their values are read and written.

The names and types follow from the `Setting`s of the specs, so that a new setting needs nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.model.conditions import Condition, describe
from headrace.model.errors import ConfigurationError
from headrace.model.push import Push
from headrace.model.settings import Setting, settings_of
from headrace.model.specs import Backoff, ConsumerSpec, StreamSpec
from headrace.model.text.sizes import parse_size
from headrace.sources.postgres.settings import PostgresSettings
from headrace.sources.webhook import WebhookSpec

Fields = Mapping[str, Setting]

SPECS: Mapping[str, type[msgspec.Struct]] = {
    "stream": StreamSpec,
    "consumer": ConsumerSpec,
    "push": Push,
    "webhook": WebhookSpec,
    "postgres": PostgresSettings,
}
"""The settings of streams, of consumers and their `push`, and of sources by their kind."""

_NAMES = ("name", "stream")


def fields_of(owner: str) -> dict[str, Setting]:
    """The fields of a stream, a consumer, `push`, or a source of a kind, by all names that they may have in a file.
    The first name of a setting is the one that `headrace export` writes.
    """
    found: dict[str, Setting] = {}
    for setting in settings_of(SPECS[owner]).values():
        if setting.name not in _NAMES:
            others = [name for name in setting.names if not name.endswith("_ms") and name != setting.name]
            for name in (field_name(setting), setting.name, *others):
                found.setdefault(name, setting)
    return found


def setting_of(kind: str, name: str) -> Setting | None:
    """The setting of a kind of object, or of one of the kinds of sources. None for a field that is no setting."""
    owners = ("webhook", "postgres") if kind == "source" else (kind,) if kind in SPECS else ()
    return next((fields_of(owner)[name] for owner in owners if name in fields_of(owner)), None)


def field_name(setting: Setting) -> str:
    """The name of a setting in a file, which is that of the Python declarations."""
    return "filter" if setting.name == "filters" else setting.name


def read_setting(setting: Setting, node: Any) -> Any:
    """Return the value of a setting, in the form that `parsed` takes. None resets a setting to its default.

    Raises:
        ConfigurationError: the value has the wrong type.
    """
    value = node.plain()
    if value is None and not setting.optional:
        if setting.required:
            raise ConfigurationError(f"`{setting.name}` needs a value.")
        return setting.default
    if setting.unit == "bytes" and isinstance(value, str):
        if (size := parse_size(value)) is None:
            raise ConfigurationError(
                f"`{setting.name}` is not a size. Write bytes, or text such as '500MB', '10GB' or '512MiB'."
            )
        return size
    if setting.kind is Backoff and isinstance(value, dict):
        return _converted(setting, value, Backoff)
    if setting.many and isinstance(value, str) and setting.name not in ("tables", "actions"):
        return [value]
    if (
        setting.kind in (int, float, bool)
        and setting.unit not in ("seconds", "messages per second")
        and isinstance(value, str)
    ):
        return _converted(setting, value, setting.kind, strict=False)  # of a variable, which is always text
    return value


def _converted(setting: Setting, value: Any, kind: Any, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"`{setting.name}` is not valid: {error}.") from None


_SECONDS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_BYTES = ((10**9, "GB"), (10**6, "MB"), (1000, "kB"))


def readable(setting: Setting, value: Any) -> Any:
    """The value of a setting as a person writes it into a file, such as `30d` or one filter."""
    plain = written(value)
    if setting.kind is Backoff and isinstance(plain, list):
        return [duration(one) for one in plain]
    if setting.name == "filters" and len(plain) == 1:
        return plain[0]
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        return plain
    return (
        duration(plain) if setting.unit == "seconds" else _multiple(plain, _BYTES) if setting.unit == "bytes" else plain
    )


def duration(seconds: float) -> Any:
    """Seconds in the largest unit that divides them, or the number."""
    return _multiple(seconds, _SECONDS)


def _multiple(number: float, units: tuple[tuple[int, str], ...]) -> Any:
    return next((f"{int(number // size)}{unit}" for size, unit in units if number and number % size == 0), number)


def written(value: Any) -> Any:
    """The value of a setting as a file has it."""
    if isinstance(value, Condition):
        return describe(value)
    if isinstance(value, Backoff):
        return list(value.delays) if value.delays else msgspec.structs.asdict(value)
    plain = msgspec.to_builtins(value)
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain
