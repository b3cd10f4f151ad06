"""Keys and filters, with the grammar of NATS subjects, and names that look like ids.

A key consists of tokens separated by dots, such as `orders.us.42`. No token is empty, and no token is
exactly `*` or `>`. Inside a longer token these are ordinary characters. Neither blanks nor control
characters are part of a key. A filter looks like a key, but a token `*` matches any one token, and a last
token `>` matches one or more. See https://docs.nats.io/nats-concepts/subjects.

The database applies the same grammar: `headrace_streams.is_message`, which the constraint of each table of messages
calls, and `headrace_internal.check_filters`.

The HTTP API takes an id wherever it takes a name, so no name of a stream or a consumer may look like an id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from uuid import UUID

from headrace.model.errors import InvalidFilter, InvalidKey

MAX_KEY_BYTES = 1024

REFUSED = r"\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""The characters that no key and no filter has, as the inside of a regular expression's brackets: the control
characters (C0, DEL and C1) and all white space of Unicode."""

_ID_PREFIX = re.compile(r"urn:|uuid:")
_ID_PUNCTUATION = re.compile(r"[{}()_+\s-]")
_ID_DIGITS = re.compile(r"[0-9a-f]{32}")

MAX_FILTERS = 100
"""The most filters of a consumer or of a search. Each of them is judged for every message."""

_PLAIN = bytes(code for code in range(0x21, 0x7F) if chr(code) not in "*>")
"""The characters of keys that need no second look."""

_BAD_TOKEN = re.compile(r"(?:\A|\.)([*>])(?:\.|\Z)")
_BAD_CHARACTER = re.compile(f"[{REFUSED}]")


def check_key(key: str) -> str:
    """Return `key` unchanged. Raises `InvalidKey`, which explains the grammar, if it is not a key."""
    if not isinstance(key, str):
        raise InvalidKey(f"A key is a string such as 'orders.us.42', not {type(key).__name__}.")
    _check_text(key, "key", InvalidKey)
    bad = _BAD_TOKEN.search(key)
    if bad:
        raise InvalidKey(
            f"The key {_shown(key)} has a token that is exactly {bad[1]!r}: that is a filter's wildcard, write the real token."
        )
    return key


def are_plain(keys: Sequence[str]) -> bool:
    """Whether these are certainly keys, by one test for all, which costs little. If not, `check_key` can tell.

    Keys that are joined by a dot have the tokens that they have alone. Raises `TypeError` if not all are texts.
    """
    joined = ".".join(keys)
    return (
        joined.isascii()
        and not joined.encode().translate(None, _PLAIN)
        and ".." not in f".{joined}."
        and max(map(len, keys)) <= MAX_KEY_BYTES
    )


def check_filter(text: str) -> str:
    """Return the filter unchanged. Raises `InvalidFilter`, which explains the grammar, if it is not a filter."""
    if not isinstance(text, str):
        raise InvalidFilter(f"A filter is a string such as 'orders.us.>', not {type(text).__name__}.")
    _check_text(text, "filter", InvalidFilter)
    if ">" in text.split(".")[:-1]:
        raise InvalidFilter(
            f"The filter {_shown(text)} has '>' in the middle: it stands for all the rest, so it can only be the last token;"
            " write '*' for a single token."
        )
    return text


def check_filters(filters: str | Iterable[str]) -> tuple[str, ...]:
    """Return one filter or several as a tuple. A message has to match any of them. Raises `InvalidFilter`."""
    found = (filters,) if isinstance(filters, str) else tuple(islice(filters, MAX_FILTERS + 1))
    if len(found) > MAX_FILTERS:
        raise InvalidFilter(
            f"There are more than {MAX_FILTERS} filters. Use fewer with wildcards, such as 'orders.us.>', or a condition such as"
            " `key in ('orders.1', 'orders.2')`."
        )
    if not found:
        raise InvalidFilter("A consumer needs a filter; '>' takes every message.")
    return tuple(check_filter(text) for text in found)


def has_partial_wildcard(filter_: str) -> bool:
    """Whether a token holds a wildcard beside other characters, such as `eu*`. There it is an ordinary character."""
    return any(len(token) > 1 and ("*" in token or ">" in token) for token in filter_.split("."))


def matches(filter_: str, key: str) -> bool:
    """Whether `key` matches one filter. The database applies the same rules. This function is for tests and tools."""
    wanted, tokens = filter_.split("."), key.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(w in ("*", t) for w, t in zip(wanted, tokens, strict=True))


def looks_like_id(name: str) -> bool:
    """Return whether a name is a UUID in any spelling that Postgres or Python reads: with or without
    dashes, braces and `urn:uuid:`, in upper or lower case. `headrace_internal.looks_like_id` in SQL agrees.
    """
    if _ID_DIGITS.fullmatch(_ID_PUNCTUATION.sub("", _ID_PREFIX.sub("", name.lower()))):
        return True
    try:
        UUID(name)
    except ValueError:
        return False
    return True


def _check_text(text: str, kind: str, error: type[InvalidKey] | type[InvalidFilter]) -> None:
    if not text:
        raise error(f"The {kind} is empty: it needs at least one token, such as 'orders'.")
    if len(text) > MAX_KEY_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise error(f"The {kind} {_shown(text)} is longer than {MAX_KEY_BYTES} bytes of UTF-8.")
    if text[0] == "." or text[-1] == "." or ".." in text:
        raise error(
            f"The {kind} {_shown(text)} has an empty token: dots part tokens, so none may lead, trail or repeat."
        )
    if "\0" in text:
        raise error(f"The {kind} {_shown(text)} holds a NUL character, which Postgres can't store: leave it out.")
    bad = _BAD_CHARACTER.search(text)
    if bad:
        escaped = "".join(f"%{byte:02X}" for byte in bad[0].encode())
        raise error(
            f"The {kind} {_shown(text)} has the character U+{ord(bad[0]):04X}: blanks and control characters are no part of"
            f" a {kind}, write '_' or {escaped!r} instead."
        )
    if any("\ud800" <= char <= "\udfff" for char in text) if not text.isascii() else False:
        raise error(f"The {kind} {_shown(text)} holds half of a surrogate pair, which is not text: fix its encoding.")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")
