"""Converts a path in a repository to a key. `src/main.py` of `river` is `git.river.src/main%2Epy`, so
each file has its own key.
"""

from __future__ import annotations

import hashlib
import re

from headrace.model.keys import MAX_KEY_BYTES, REFUSED

# The escape character, the special characters of keys and filters, and those that keys can't have.
_SPECIAL = re.compile(f"[%.*>{REFUSED}]")


def key_of(repo: str, path: str) -> str:
    """Return the key of a file. Different paths have different keys. A path that is too long for a key is hashed."""
    repo = _escaped(repo)
    key = f"git.{repo}.{_escaped(path)}"
    if len(key.encode()) <= MAX_KEY_BYTES:
        return key
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()
    return f"git.{repo[:64]}.sha256%{digest}"


def printable_path(path: str) -> str:
    """Return the path as text that is valid in JSON. Bytes that are not UTF-8 are escaped."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _escaped(text: str) -> str:
    special = _SPECIAL.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), text)
    return "".join(_byte(char) if "\udc80" <= char <= "\udcff" else char for char in special)


def _byte(surrogate: str) -> str:
    """Escape a byte of a name that is not UTF-8. Python represents it as a lone surrogate."""
    return f"%{ord(surrogate) - 0xDC00:02X}"
