"""Fields of API types that are made of the settings of a spec, see `headrace.model.settings`.

A decorated class gets the fields that it doesn't declare itself. A field that it declares keeps its type,
and gets the description of its setting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import FunctionType
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.model.durations import seconds
from headrace.model.settings import OlderName, Setting, settings_of
from headrace.model.specs import Backoff
from headrace.server.errors import Problem, invalid
from headrace.server.wire.common import milliseconds

T = TypeVar("T", bound=Struct)

_MS = "_ms"
_METHODS = (FunctionType, classmethod, staticmethod, property)


def request(spec: type[Struct], *, omit: Collection[str] = ()) -> Callable[[type[T]], type[T]]:
    """Add the settings of `spec` as optional fields to the type of a request body."""

    def field(setting: Setting, name: str, own: Any) -> tuple[str, Any, Any]:
        kind = own or _sent(setting, name) | UnsetType | (None if setting.optional else UnsetType)
        return name, _described(setting, name, kind, sent=True), UNSET

    def older(setting: Setting, older: OlderName) -> tuple[str, Any, Any]:
        kind = older.kind | UnsetType | (None if setting.optional else UnsetType)
        return older.name, Annotated[kind, Meta(description=_older_text(older), extra_json_schema=older.bounds)], UNSET

    return lambda cls: _completed(cls, spec, omit, None, field, older)


def answer(spec: type[Struct], *, before: str | None, omit: Collection[str] = ()) -> Callable[[type[T]], type[T]]:
    """Add the settings of `spec` as fields to the type of an answer, before the field `before` or at the end."""

    def field(setting: Setting, name: str, own: Any) -> tuple[str, Any]:
        kind = (int | float) if name.endswith(_MS) else _plain(setting)
        return name, _described(setting, name, own or (kind | None if setting.optional else kind), sent=False)

    def older(setting: Setting, older: OlderName) -> tuple[str, Any]:
        kind = older.kind | None if setting.optional else older.kind
        return older.name, Annotated[kind, Meta(description=_older_text(older))]

    return lambda cls: _completed(cls, spec, omit, before, field, older)


def described(spec: type[Struct], name: str, **schema: Any) -> Meta:
    """Return the description of a setting, for a field of the same name. `schema` is added to its JSON Schema."""
    setting = settings_of(spec)[name]
    return Meta(
        description=setting.details, examples=_examples(setting, name, setting.kind), extra_json_schema=dict(schema)
    )


def values(spec: type[Struct], settings: Mapping[str, Any], *, omit: Collection[str] = ()) -> dict[str, Any]:
    """Return settings under all names that they have in the API."""
    found = {
        name: milliseconds(settings[setting.name]) if name.endswith(_MS) else settings[setting.name]
        for setting, name in _names(spec, omit)
    }
    for setting, older in _older_names(spec, omit):
        found[older.name] = _in_older(older, settings[setting.name])
    return found


def _in_older(older: OlderName, value: Any) -> Any:
    return None if value is None else older.write(value)


def renamed(spec: type[Struct], sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return sent fields under the names of the spec, in its units. Fields that are no settings stay.

    Raises a `Problem` if a setting is sent under two names with different values.
    """
    found = dict(sent)
    known: dict[str, Any] = {}
    for setting, name in _names(spec, ()):
        if name not in found:
            continue
        value = found.pop(name)
        value = _seconds(value) if name.endswith(_MS) else value
        if setting.name in known and _comparable(setting, known[setting.name]) != _comparable(setting, value):
            raise invalid_field(
                setting.names[0].removesuffix(_MS),
                f"it is given twice, as {known[setting.name]!r} and as {value!r}: give it once",
            )
        known[setting.name] = value
    for setting, older in _older_names(spec, ()):
        if older.name in found:
            value = found.pop(older.name)
            if setting.name not in known:
                known[setting.name] = None if value is None else older.read(value)
            elif value != _in_older(older, known[setting.name]):
                raise invalid_field(older.name, f"it is the older name of `{setting.names[0]}`: give one of them")
    return found | known


def invalid_field(field: str, sentence: str) -> Problem:
    """Return the error for an invalid field of a request."""
    return invalid(f"{field} is invalid: {sentence}.", field, f"{sentence}.")


def _seconds(sent: Any) -> Any:
    if isinstance(sent, list):
        return [_seconds(one) for one in sent]
    return None if sent is None else sent / 1000


def _comparable(setting: Setting, value: Any) -> Any:
    if setting.kind is Backoff:
        return Backoff.of(value)
    if setting.unit == "seconds":
        return round(seconds(value, setting.name), 6)
    return [value] if isinstance(value, str) else value


def _names(spec: type[Struct], omit: Collection[str]) -> Iterator[tuple[Setting, str]]:
    for setting in settings_of(spec).values():
        if setting.name not in omit:
            for name in setting.names:
                yield setting, name


def _older_names(spec: type[Struct], omit: Collection[str]) -> Iterator[tuple[Setting, OlderName]]:
    for setting in settings_of(spec).values():
        if setting.name not in omit and setting.older is not None:
            yield setting, setting.older


def _older_text(older: OlderName) -> str:
    return f"For older clients. {older.description}"


def _completed(
    cls: type[T],
    spec: type[Struct],
    omit: Collection[str],
    before: str | None,
    field: Callable[..., Any],
    older: Callable[..., Any],
) -> type[T]:
    hints = get_type_hints(cls, include_extras=True)
    known = [one for one in msgspec.structs.fields(cls) if one.name in cls.__annotations__]
    own = {one.name: (one.name, hints[one.name], one.default) for one in known}
    fields: list[Any] = [field(setting, name, hints.get(name)) for setting, name in _names(spec, omit)]
    fields += [older(setting, name) for setting, name in _older_names(spec, omit)]
    names = {one[0] for one in fields}
    others = [one if one[2] is not msgspec.NODEFAULT else one[:2] for one in own.values() if one[0] not in names]
    place = len(others) if before is None else [one[0] for one in others].index(before)
    return msgspec.defstruct(  # type: ignore[return-value]
        cls.__name__,
        [*others[:place], *fields, *others[place:]],
        bases=cls.__bases__,
        module=cls.__module__,
        namespace={
            name: value for name, value in vars(cls).items() if name == "__doc__" or isinstance(value, _METHODS)
        },
        kw_only=True,
        forbid_unknown_fields=cls.__struct_config__.forbid_unknown_fields,
    )


def _plain(setting: Setting) -> Any:
    return list[get_args(setting.kind)[0]] if setting.many else setting.kind  # type: ignore[misc]


def _sent(setting: Setting, name: str) -> Any:
    """The type in a request."""
    if name.endswith(_MS):
        return float
    return float | str if setting.unit in ("seconds", "messages per second") else _plain(setting)


def _described(setting: Setting, name: str, kind: Any, *, sent: bool) -> Any:
    """Add the description to a type."""
    if any(isinstance(one, Meta) and one.description for one in get_args(kind)[1:]):
        return kind
    text = setting.details if name == setting.names[0] else f"The same as `{setting.names[0]}`."
    if name.endswith(_MS):
        text += " In milliseconds."
    elif setting.unit == "seconds":
        text += ' Seconds, or text such as "30s".' if str in get_args(kind) else " In seconds."
    elif setting.unit == "messages per second" and sent:
        text += ' A number, or text such as "500/m".'
    if setting.optional and setting.otherwise not in (None, "none"):
        text += f" `null`: {setting.otherwise}."
    if not sent:
        return Annotated[kind, Meta(description=text)]
    bounds = setting.bounds(1000 if name.endswith(_MS) else 1)
    return Annotated[kind, Meta(description=text, examples=_examples(setting, name, kind), extra_json_schema=bounds)]


def _examples(setting: Setting, name: str, kind: Any) -> list[Any] | None:
    if setting.kind is int and setting.unit is None and not setting.optional:
        return [setting.default]
    if setting.example is None or name.endswith(_MS) or setting.kind is int:
        return None
    if setting.kind is float and str not in get_args(kind):
        return None
    if setting.many:
        return [setting.example.split(",")]
    return None if setting.kind is Backoff or get_args(setting.kind) else [setting.example]
