"""Key templates: what the key of a delivery is made of, such as `stripe.{body.type}.{body.id}`.

Between the braces stands one of

- `body.path.to.field`: of a body that is JSON or a form; a number picks from a list;
- `header.x-github-event`: a header of the request;
- `query.name`: a parameter of the URL;
- `name`: the source's name;
- `sha256`: the SHA-256 of the body, as upper-case hexadecimal digits.

What it stands for becomes one token of the key, or a part of one: dots, spaces, `*`, `>` and what can't be printed become `_`; so does
a value that is missing, empty, null, a list or an object. One that is longer than 96 bytes is replaced by its SHA-256. So a
template makes a valid key of anything that a sender may send.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from headrace.model.errors import ConfigurationError, InvalidKey
from headrace.model.keys import MAX_KEY_BYTES, check_key

DEFAULT = "{name}.{sha256}"

LONGEST_VALUE = 96  # bytes
MOST_FIELDS = 8
LONGEST_TEMPLATE = MAX_KEY_BYTES - MOST_FIELDS * LONGEST_VALUE

_FIELD = re.compile(r"\{([^{}]*)\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOTHING = "_"


class Material(Protocol):
    """What a key may be made of."""

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
    """Text with fields between braces, each of which becomes one token of a key, or a part of one.

    Args:
        text: the template.

    Raises:
        ConfigurationError: it can't be, or makes no valid keys.

    Attributes:
        literals: what stands before, between and behind the fields ...
        fields: ... and what stands between the braces, one fewer.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text.encode("utf-8", "surrogatepass")) > LONGEST_TEMPLATE:
            raise ConfigurationError(f"The key template {text[:60]!r}… is longer than {LONGEST_TEMPLATE} bytes.")
        # Of what split gives, each second piece stood between braces.
        pieces = _FIELD.split(text)
        self.literals = pieces[::2]
        self.fields = pieces[1::2]
        if any("{" in literal or "}" in literal for literal in self.literals):
            raise ConfigurationError(f"The key template {text!r} has a brace without its other half.")
        if len(self.fields) > MOST_FIELDS:
            raise ConfigurationError(f"The key template {text!r} has more than {MOST_FIELDS} fields.")
        try:
            check_key(self.joined("x" for _ in self.fields))
        except InvalidKey as error:
            raise ConfigurationError(f"The key template {text!r} makes no valid keys. {error}") from error

    def joined(self, tokens: Iterable[str]) -> str:
        """The key, of a token for each field."""
        first, *rest = self.literals
        return first + "".join(token + literal for token, literal in zip(tokens, rest, strict=True))


class KeyTemplate(Template):
    """A template of a webhook's keys, read.

    Args:
        text: as described above.

    Raises:
        ConfigurationError: it can't be, or makes no valid keys.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._read = [_reader(field, text) for field in self.fields]

    def render(self, material: Material) -> str:
        """The key of a delivery."""
        return self.joined(token(read(material)) for read in self._read)


def token(value: Any) -> str:
    """A value as one token of a key."""
    if value is True or value is False:
        return "true" if value else "false"
    if not isinstance(value, (str, int)) or value == "":
        return _NOTHING
    text = str(value)
    if len(text) > LONGEST_VALUE or len(text.encode("utf-8", "surrogatepass")) > LONGEST_VALUE:
        return sha256(text.encode("utf-8", "surrogatepass"))
    return "".join(_NOTHING if char in ".*> " or not char.isprintable() else char for char in text)


def sha256(text: bytes) -> str:
    """The SHA-256 as upper-case hexadecimal digits."""
    return hashlib.sha256(text).hexdigest().upper()


_Reader = Callable[[Material], Any]


def _reader(field: str, template: str) -> _Reader:
    """What reads a field of a template."""
    kind, dot, rest = field.partition(".")
    match kind:
        case "name" if not dot:
            return lambda material: material.name
        case "sha256" if not dot:
            return lambda material: material.sha256
        case "header" if _HEADER_NAME.fullmatch(rest):
            name = rest.lower()
            return lambda material: material.headers.get(name)
        case "query" if rest:
            return lambda material: material.query.get(rest)
        case "body" if rest and all(path := rest.split(".")):
            return lambda material: at(material.document, path)
    raise ConfigurationError(
        f"The key template {template!r} has the field {{{field}}}: write {{body.path.to.field}}, {{header.name}},"
        " {query.name}, {name} or {sha256}."
    )


def at(document: Any, path: Sequence[str]) -> Any:
    """What lies at a path; None for nothing."""
    for step in path:
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and step.isdecimal() and len(step) <= 9 and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document
