"""References to the URL of a database: `env:NAME`, an environment variable, or `file:/path`, a file. Only the reference
of a database is stored, so that no dump and no answer contains a password."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from headrace.model.database_url import is_url
from headrace.model.errors import ConfigurationError, InvalidInput

MAX_REFERENCE = 500
"""The largest number of characters of a reference."""

_MAX_FILE = 10_000
"""The largest size in bytes of a file with a URL."""

_FORM = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/[^\x00-\x1f]+")
REFERENCE = rf"^({_FORM.pattern})$"
"""The pattern of a reference."""


def is_reference(text: str) -> bool:
    """Return whether a text is a reference to the URL of a database."""
    return len(text) <= MAX_REFERENCE and _FORM.fullmatch(text) is not None


def check_reference(reference: str) -> str:
    """Return a reference to the URL of a database. Raises `InvalidInput` if it is none."""
    if not is_reference(reference):
        hint = " A URL itself may contain a password." if "://" in reference else ""
        shown = "The reference" if "://" in reference else f"The reference {reference:.80}"
        raise InvalidInput(
            f"{shown} names no place of a URL.{hint} Give env:NAME for an environment variable, or file:/path for a file.",
            field="url_from",
        )
    return reference


def is_allowed(reference: str, allowed: Iterable[str]) -> bool:
    """Return whether an operator allows a reference: it is one of these, or begins with one that ends in `*`."""
    if ".." in PurePath(reference.removeprefix("file:")).parts:
        return False
    return any(reference == one or (one.endswith("*") and reference.startswith(one[:-1])) for one in allowed)


def resolve(reference: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL that a reference names. Raises `ConfigurationError` if there is none, or if it is no URL of Postgres."""
    kind, _, place = check_reference(reference).partition(":")
    url = environment.get(place, "") if kind == "env" else _content(place)
    if not url:
        missing = f"the environment variable {place} is not set" if kind == "env" else f"the file {place} is empty"
        raise ConfigurationError(
            f"The URL of the database can't be read from {reference}: {missing}. Set it where this server or command runs."
        )
    if not is_url(url):
        raise ConfigurationError(
            f"The content of {reference} is not a Postgres URL. Put one there, such as postgresql://user:password@host:5432/database."
        )
    return url


def _content(path: str) -> str:
    try:
        text = _read(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not text"
        raise ConfigurationError(
            f"The URL of the database can't be read from file:{path}: {reason}. Let the user of this server or command read it."
        ) from error
    if text is None:
        raise ConfigurationError(
            f"The URL of the database can't be read from file:{path}, which is not a regular file of at most {_MAX_FILE:,} bytes."
            " Name a file that contains the URL alone."
        )
    return text.strip()


def _read(path: str) -> str | None:
    """Read a file. None for one that is too large, or no regular one. Servers read these files in their event loop, which a
    pipe or a device could block, also while it is opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        found = os.read(descriptor, _MAX_FILE + 1) if regular else b""
    finally:
        os.close(descriptor)
    return found.decode() if regular and len(found) <= _MAX_FILE else None
