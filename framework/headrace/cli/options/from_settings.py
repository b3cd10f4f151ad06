"""Options that are made of the settings of a spec, see `headrace.model.settings`.

A decorated class gets an option for each setting that it doesn't declare itself. An option that isn't
given is None, so that a setting is not changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_origin

from cyclopts import Parameter
from msgspec import Struct

from headrace.cli.errors import UnreadableInput, UsageError
from headrace.cli.options.sizes import size_in_bytes
from headrace.cli.options.times import NO_VALUE, duration
from headrace.model.durations import rate
from headrace.model.errors import ConfigurationError
from headrace.model.settings import Setting, settings_of

Parse = Callable[[Any, str], Any]
"""Makes a setting of an option's value. It also gets the option's name, for errors."""

T = TypeVar("T", bound="Options")

_STDIN = "-"

_SWITCHES = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings given as options."""

    _parsers: ClassVar[Mapping[str, tuple[str, Parse]]] = {}
    _spec: ClassVar[type[Struct]]
    _environment: ClassVar[str | None] = None

    def given(self) -> dict[str, Any]:
        """The given settings, with the names and types of the spec. Raises `UsageError`, `UnreadableInput`,
        `ConfigurationError`.
        """
        found = {}
        for name, (option, parse) in self._parsers.items():
            if (value := getattr(self, name)) is not None:
                found[name] = parse(value, option)
            elif text := os.environ.get(self.variable(name) or "", ""):
                found[name] = _of_text(settings_of(self._spec)[name], text, parse, self.variable(name) or "")
        return found

    @classmethod
    def variable(cls, name: str) -> str | None:
        """The environment variable of a setting, if it has one."""
        return None if cls._environment is None else cls._environment + name.upper()

    @classmethod
    def variables(cls) -> list[str]:
        """The environment variables of all settings."""
        return [variable for name in cls._parsers if (variable := cls.variable(name)) is not None]

    @classmethod
    def as_words(cls, values: Struct) -> list[str]:
        """Return the words of a command line that gives all settings the values that they have in `values`."""
        return [word for name, (option, _) in cls._parsers.items() for word in _words_of(option, getattr(values, name))]

    @classmethod
    def table(cls) -> str:
        """Render the options as the rows of a Markdown table. For the documentation."""
        rows = [["option", "environment", "default", "description"], ["---"] * 4]
        for name, (option, _) in cls._parsers.items():
            setting = settings_of(cls._spec)[name]
            option = _words_of(option, not setting.default)[0] if setting.kind is bool else option
            rows.append([f"`{option}`", f"`{cls.variable(name)}`", setting.default_text, setting.details])
        return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


VISIBLE = "Other users of the machine can see it while the command runs."
"""A sentence about an option whose value is a secret."""


class Special(NamedTuple):
    """How an option differs from what its setting's name and type say.

    Args:
        name: its name.
        parse: how to parse it.
        more: a sentence that follows the description.
        negative: the negative form of a flag, if it doesn't begin with `--no-`.
        joined: whether a list is one value, separated by commas.
    """

    name: str | None = None
    parse: Parse | None = None
    more: str | None = None
    negative: str | None = None
    joined: bool = False


def from_settings(
    spec: type[Struct],
    *,
    only: Collection[str] = (),
    omit: Collection[str] = (),
    prefix: str = "--",
    environment: str | None = None,
    heading: str | None = None,
    **special: Special,
) -> Callable[[type[T]], type[T]]:
    """Add the settings of `spec` as options.

    Args:
        only: the settings that become options. By default all that can be changed later.
        omit: settings that don't.
        prefix: what the options begin with.
        environment: what environment variables begin with that set the same. None if there are none.
        heading: the heading of the options in the help.
        special: options that differ from what their settings say.
    """
    fields, parsers = [], {}
    for setting in settings_of(spec).values():
        if setting.name in omit or (setting.name not in only if only else setting.fixed):
            continue
        how = special.get(setting.name, Special())
        name = how.name or f"{prefix}{setting.name.replace('_', '-')}"
        kind = str if how.joined else _kind(setting)
        parse = how.parse or (words if how.joined else _parser(setting))
        parsers[setting.name] = (name, _optional(parse) if setting.optional and not setting.fixed else parse)
        text = _help(setting, kind, how.more)
        more = {} if heading is None else {"group": heading}
        declared = option(name, text, negative=how.negative if setting.kind is bool else "", **more)
        fields.append((setting.name, Annotated[kind | None, declared], field(default=None)))

    def add(cls: type[T]) -> type[T]:
        namespace = {
            "__doc__": cls.__doc__,
            "__module__": cls.__module__,
            "_parsers": parsers,
            "_spec": spec,
            "_environment": environment,
        }
        made = make_dataclass(cls.__name__, fields, bases=(cls,), frozen=True, kw_only=True, namespace=namespace)
        return Parameter(name="*")(made)

    return add


def _of_text(setting: Setting, text: str, parse: Parse, variable: str) -> Any:
    """Parse the text of an environment variable. A list is separated by commas."""
    if setting.many:
        return parse([one for one in words(text, variable) if one], variable)
    if setting.kind is bool:
        found = _SWITCHES.get(text.strip().lower())
        if found is None:
            raise ConfigurationError(f"{variable}={text!r:.60} is invalid. It must be true or false.")
        return found
    if setting.kind is int and parse is _unchanged:
        return number(text, variable)
    return parse(text, variable)


def _words_of(option: str, value: Any) -> list[str]:
    match value:
        case bool():
            return [option if value else f"--no-{option.removeprefix('--')}"]
        case tuple() if value:
            return [word for one in value for word in (option, one)]
        case None | ():
            return [option, "none"]
        case float():
            return [option, f"{Decimal(repr(value)):f}"]  # without an exponent
    return [option, str(value)]


def option(name: str, text: str, **more: Any) -> Parameter:
    """Declare an option without a default."""
    return Parameter(name=name, help=text, show_default=False, **({"negative": ""} | more))


def _help(setting: Setting, kind: Any, more: str | None) -> str:
    sentences = [setting.details]
    if setting.example is not None:
        sentences.append(f"For example {setting.example}.")
    if kind == list[str]:
        sentences.append("It may be given several times.")
    removable = (setting.optional and not setting.fixed) or setting.default in ((), {})
    default = setting.default_text.strip('`"')
    if setting.default is True:
        sentences.append("This is the default.")
    elif default == "none" and removable:
        sentences.append("By default none.")
    elif default not in ("", "none", "false"):
        sentences.append(f"By default{', or with none' if removable else ''}: {default}.")
    if more is not None:
        sentences.append(more)
    return " ".join(sentences).replace("`", "")


def _kind(setting: Setting) -> Any:
    if setting.choices:
        return Literal[(*setting.choices, "none")] if setting.optional else setting.kind
    if setting.many or get_origin(setting.kind) is dict:
        return list[str]
    texts = setting.unit is not None or (setting.optional and not setting.fixed)  # such as 10GB or none
    return setting.kind if setting.kind in (bool, int) and not texts else str


def _parser(setting: Setting) -> Parse:
    if setting.many:
        return _several if setting.default == () else texts
    match setting.unit:
        case "seconds":
            return duration
        case "bytes":
            return size_in_bytes
        case "messages per second":
            return _rate
    return number if setting.kind is int and setting.optional and not setting.fixed else _unchanged


def _optional(parse: Parse) -> Parse:
    """Also parse `none` and `off`, as None."""
    return lambda value, name: None if value.lower() in NO_VALUE else parse(value, name)


def words(text: str, _: str) -> list[str]:
    """Parse words that are separated by commas."""
    return [word.strip() for word in text.split(",")]


def _unchanged(value: Any, _: str) -> Any:
    return value


def texts(values: list[str], _: str) -> tuple[str, ...]:
    """Parse texts, of which none has a special meaning."""
    return tuple(values)


def _several(values: list[str], _: str) -> tuple[str, ...]:
    return () if nothing(values) else tuple(values)


def nothing(values: list[str]) -> bool:
    """Whether the values of an option are `none`."""
    return len(values) == 1 and values[0].lower() in NO_VALUE


def _rate(text: str, name: str) -> float | None:
    try:
        return rate(text)
    except ConfigurationError:
        raise UsageError(
            f"{name} {text!r} is not a rate: write '100/s', '500/m', '1000/h', or messages per second."
        ) from None


def number(text: str, name: str) -> int:
    """Parse a number. Raises `UsageError`."""
    if not (text.isascii() and text.isdigit() and len(text) < 11):
        raise UsageError(f"{name} {text!r} is not a number: write one such as 1000.")
    return int(text)


def lines_of(file: str, what: str) -> list[str]:
    """Read the lines of a file, or of standard input for `-`. Raises `UnreadableInput`."""
    try:
        text = sys.stdin.read() if file == _STDIN else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableInput(f"The file {file!r} with {what} can't be read: {error}.") from error
    return [line.strip() for line in text.splitlines() if line.strip()]
