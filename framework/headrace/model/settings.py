"""The one description of each setting of streams, consumers, push consumers and sources.

A setting is a field of a spec, such as `ConsumerSpec`. The field has the type and the default, and the
`Setting` in its annotation has the rest: what the setting means, its unit, its limits and its names. What it
means may stand in the `Args` of the spec's docstring instead.

    max_waiting: Annotated[int, Setting("The maximum number of …", limits=(1, 100_000))] = 20

Everything else follows from it: the checks of the spec (`check`), the options of the command line with
their help, the fields of the HTTP API with their descriptions, and the tables in the documentation
(`table`).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from headrace.model.errors import ConfigurationError

Unit = Literal["seconds", "bytes", "messages", "messages per second", "rows per second"]

_UNBOUNDED = 2**60
"""A limit from here on only keeps a number within what Postgres can store. Texts don't mention it."""

_SCALES: Mapping[Unit, Any] = {
    "seconds": ((365 * 86400, "year"), (86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")),
    "bytes": ((10**9, "GB"), (10**6, "MB"), (1, "byte")),
}
"""The names of multiples of a unit, the largest first."""


class OlderName(msgspec.Struct, frozen=True):
    """A name that a setting had in the HTTP API when its values meant something else.

    Older clients send it and read it. It can't be sent together with another value of the setting itself.

    Args:
        name: the name.
        description: what its value means, in sentences of Markdown.
        kind: the type of its value.
        read: returns the setting for a value.
        write: returns the value for a setting.
        limits: the lowest and the highest value.
    """

    name: str
    description: str
    kind: Any
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    limits: tuple[float, float] | None = None

    @property
    def bounds(self) -> dict[str, Any]:
        """The limits as JSON Schema."""
        return {} if self.limits is None else {"minimum": self.limits[0], "maximum": self.limits[1]}


class Setting(msgspec.Struct, frozen=True):
    """The description of a setting.

    Args:
        description: what it means, in sentences of Markdown. By default the text of the spec's docstring.
        unit: the unit of its number.
        limits: the lowest and the highest number that it can be.
        exclusive: whether the lowest limit itself is excluded.
        length: the lowest and the highest number of characters of a text, or of elements of a list or a
            mapping. The spec checks it.
        unlimited: a number outside of the limits that means no limit.
        otherwise: the default in words, where the value is not clear, such as None.
        example: an example, as text.
        names: its names in the HTTP API, if they differ from the field's. The first one is the current name. A
            name that ends in `_ms` has milliseconds.
        older: the name that it had when its values meant something else.
        fixed: whether it can't be changed after the creation.
        name: the field's name. This and the next ones are filled in by `settings_of`.
        kind: the field's type, without None.
        optional: whether it can be None.
        required: whether it has no default.
        default: the default value.
    """

    description: str = ""
    unit: Unit | None = None
    limits: tuple[float, float] | None = None
    exclusive: bool = False
    length: tuple[int, int] | None = None
    unlimited: int | None = None
    otherwise: str | None = None
    example: str | None = None
    names: tuple[str, ...] = ()
    older: OlderName | None = None
    fixed: bool = False
    name: str = ""
    kind: Any = None
    optional: bool = False
    required: bool = False
    default: Any = None

    @property
    def choices(self) -> tuple[str, ...]:
        """The possible values, if only a few are."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def many(self) -> bool:
        """Whether it is a list of texts."""
        return bool(get_args(self.kind)[1:] == (...,))

    @property
    def default_text(self) -> str:
        """The default in words, or as JSON."""
        if self.otherwise is not None or self.required:
            return self.otherwise or ""
        if self.unit is not None:
            return self._amount(self.default)
        return f"`{msgspec.json.encode(self.default).decode()}`"

    @property
    def details(self) -> str:
        """The description with the limits."""
        limits = "" if self.limits is None else f" {self.range[0].upper()}{self.range[1:]}."
        return self.description + limits

    @property
    def range(self) -> str:
        """The limits in words, such as "from 1 to 1,000 messages"."""
        assert self.limits is not None
        low, high = self.limits
        words = f"from {self._amount(low, high)} to {self._amount(high)}"
        if high >= _UNBOUNDED:
            words = f"at least {self._amount(low)}"
        elif self.exclusive:
            words = f"more than {self._amount(low, high)} and at most {self._amount(high)}"
        return words if self.unlimited is None else f"{words}, or {self.unlimited} for no limit"

    def _amount(self, number: float, until: float | None = None) -> str:
        """A number with its unit. The unit is left out if `until` has the same one."""
        if self.unit is not None and self.unit in _SCALES:
            return amount(number, self.unit)
        return f"{number:,}" if self.unit is None or until is not None else f"{number:,} {self.unit}"

    def bounds(self, scale: int = 1) -> dict[str, Any]:
        """The limits as JSON Schema, for a number in a unit that is `scale` times smaller."""
        if self.length is not None:
            mapping = (get_origin(self.kind) or self.kind) is dict
            what = "Properties" if mapping else "Items" if self.many else "Length"
            return {f"min{what}": self.length[0], f"max{what}": self.length[1]}
        if self.limits is None:
            return {}
        low, high = (number * scale for number in self.limits)
        found: dict[str, Any] = {"exclusiveMinimum" if self.exclusive else "minimum": low, "maximum": high}
        return found if self.unlimited is None else {"anyOf": [found, {"const": self.unlimited}]}

    def requirement(self, value: Any) -> str | None:
        """The requirement that an invalid value breaks."""
        if value is None and self.optional:
            return None
        if self.choices:
            *others, last = map(repr, self.choices)
            return None if value in self.choices else f"be {', '.join(others)} or {last}"
        if self.kind is bool:
            return None if isinstance(value, bool) else "be true or false"
        if self.limits is None or (value == self.unlimited and self.unlimited is not None):
            return None
        number = isinstance(value, int if self.kind is int else (int, float)) and not isinstance(value, bool)
        low, high = self.limits
        valid = number and low <= value <= high and not (self.exclusive and value == low)
        return None if valid else f"be {self.range}"


def amount(number: float, unit: Unit) -> str:
    """A number of seconds or bytes in the largest unit that divides it, such as "4 MB"."""
    scale = _SCALES[unit]
    size, name = next((one for one in scale if number and number % one[0] == 0), scale[-1])
    return f"{number / size:,g} {name}{'s' if number != size and name.islower() else ''}"


@cache
def settings_of(spec: type[msgspec.Struct]) -> Mapping[str, Setting]:
    """The settings of a spec by the names of their fields, in their order."""
    hints, texts = get_type_hints(spec, include_extras=True), _documented(spec)
    if sys.flags.optimize > 1:  # `python -OO` has no docstrings
        texts = dict.fromkeys(hints, "")
    found = {}
    for field in msgspec.structs.fields(spec):
        hint = hints[field.name]
        for setting in get_args(hint) if get_origin(hint) is Annotated else ():
            if isinstance(setting, Setting):
                kind, optional = without_none(get_args(hint)[0])
                found[field.name] = msgspec.structs.replace(
                    setting,
                    description=setting.description or texts[field.name],
                    name=field.name,
                    names=setting.names or (field.name,),
                    kind=kind,
                    optional=optional,
                    required=field.required,
                    default=None if field.required else _default(field),
                )
    return found


def _documented(spec: type[msgspec.Struct]) -> dict[str, str]:
    """The texts in the `Args` of the docstrings of a spec and its bases, by the names of their fields."""
    texts: dict[str, str] = {}
    for base in spec.__mro__:
        _, _, described = inspect.cleandoc(base.__dict__.get("__doc__") or "").partition("Args:\n")
        entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", described.partition("\n\n")[0], re.MULTILINE)
        texts |= {name: " ".join(text.split()) for name, text in entries if name not in texts}
    return texts


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def without_none(kind: Any) -> tuple[Any, bool]:
    """The type without None, and whether it had None."""
    if get_origin(kind) not in (Union, UnionType) or NoneType not in get_args(kind):
        return kind, False
    others = tuple(one for one in get_args(kind) if one is not NoneType)
    return Union[others], True  # noqa: UP007 - made of a tuple


def check(spec: msgspec.Struct, owner: str) -> None:
    """Check the choices and limits of all settings.

    Raises:
        ConfigurationError: a value is invalid. `owner` says of what, such as "the stream 'orders'".
    """
    for name, setting in settings_of(type(spec)).items():
        value = getattr(spec, name)
        requirement = setting.requirement(value)
        if requirement is not None:
            raise ConfigurationError(f"`{name}` of {owner} must {requirement}, not {value!r:.60}.", field=name)
