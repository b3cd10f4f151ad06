"""Key templates: how a delivery's key is made, such as `stripe.{body.type}.{body.id}`.

A field in braces is one of these:

- `body.path.to.field` is a value in a body that is JSON or a form. A number picks from a list.
- `header.x-github-event` is a header of the request.
- `query.name` is a parameter of the URL.
- `name` is the source's name.
- `sha256` is the SHA-256 of the body, as upper-case hexadecimal digits.

A field's value becomes one token of the key, or a part of one. Dots, spaces, `*`, `>` and
unprintable characters become `_`. A value that is missing, empty, null, a list or an object also
becomes `_`. A value longer than 96 bytes is replaced by its SHA-256. A template thus makes a valid key for any
delivery.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from headrace.model.errors import ConfigurationError, InvalidKey
from headrace.model.keys import MAX_KEY_BYTES, check_key

DEFAULT = "{name}.{sha256}"

MAX_VALUE_BYTES = 96  # bytes
MAX_FIELDS = 8
MAX_TEMPLATE_BYTES = MAX_KEY_BYTES - MAX_FIELDS * MAX_VALUE_BYTES

_FIELD = re.compile(r"\{([^{}]*)\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_EMPTY_TOKEN = "_"


class DeliveryValues(Protocol):
    """The values that a key may be made of."""

    @property
    def name(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def document(self) -> Any: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def query(self) -> Mapping[str, str]: ...


class Template:
    """Text with fields in braces. Each field becomes one token of a key, or a part of one.

    Args:
        text: the template.

    Raises:
        ConfigurationError: the template is invalid, or makes no valid keys.

    Attributes:
        literals: the text before, between and after the fields.
        fields: the text in each pair of braces. There is one fewer than `literals`.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text.encode("utf-8", "surrogatepass")) > MAX_TEMPLATE_BYTES:
            raise ConfigurationError(f"The key template {text[:60]!r}… is longer than {MAX_TEMPLATE_BYTES} bytes.")
        # `split` returns literals and fields in turn.
        pieces = _FIELD.split(text)
        self.literals = pieces[::2]
        self.fields = pieces[1::2]
        if any("{" in literal or "}" in literal for literal in self.literals):
            raise ConfigurationError(f"The key template {text!r} has an unmatched brace.")
        if len(self.fields) > MAX_FIELDS:
            raise ConfigurationError(f"The key template {text!r} has more than {MAX_FIELDS} fields.")
        try:
            check_key(self.join("x" for _ in self.fields))
        except InvalidKey as error:
            raise ConfigurationError(f"The key template {text!r} does not make valid keys. {error}") from error

    def join(self, tokens: Iterable[str]) -> str:
        """Return the key, given one token for each field."""
        first, *rest = self.literals
        return first + "".join(token + literal for token, literal in zip(tokens, rest, strict=True))


class KeyTemplate(Template):
    """A parsed template of a webhook's keys.

    Args:
        text: as described above.

    Raises:
        ConfigurationError: the template is invalid, or makes no valid keys.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._readers = [_reader(field, text) for field in self.fields]

    def render(self, delivery: DeliveryValues) -> str:
        """Return a delivery's key."""
        return self.join(token(read(delivery)) for read in self._readers)


def token(value: Any) -> str:
    """Return a value as one token of a key."""
    if value is True or value is False:
        return "true" if value else "false"
    if not isinstance(value, (str, int)) or value == "":
        return _EMPTY_TOKEN
    text = str(value)
    if len(text) > MAX_VALUE_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_VALUE_BYTES:
        return sha256(text.encode("utf-8", "surrogatepass"))
    return "".join(_EMPTY_TOKEN if char in ".*> " or not char.isprintable() else char for char in text)


def sha256(text: bytes) -> str:
    """Return the SHA-256 as upper-case hexadecimal digits."""
    return hashlib.sha256(text).hexdigest().upper()


_Reader = Callable[[DeliveryValues], Any]


def _reader(field: str, template: str) -> _Reader:
    """Return a function that reads a field's value."""
    kind, dot, rest = field.partition(".")
    match kind:
        case "name" if not dot:
            return lambda delivery: delivery.name
        case "sha256" if not dot:
            return lambda delivery: delivery.sha256
        case "header" if _HEADER_NAME.fullmatch(rest):
            name = rest.lower()
            return lambda delivery: delivery.headers.get(name)
        case "query" if rest:
            return lambda delivery: delivery.query.get(rest)
        case "body" if rest and all(path := rest.split(".")):
            return lambda delivery: value_at(delivery.document, path)
    raise ConfigurationError(
        f"The key template {template!r} has the unknown field {{{field}}}. Use {{body.path.to.field}}, {{header.name}},"
        " {query.name}, {name} or {sha256}."
    )


def value_at(document: Any, path: Sequence[str]) -> Any:
    """Return the value at a path, or None if there is none."""
    for step in path:
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and step.isdecimal() and len(step) <= 9 and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document
