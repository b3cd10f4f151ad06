"""Errors as text that Postgres can store."""

from __future__ import annotations

import sys
import traceback

from headrace.model.outcomes import Reject, Retry

MAX_ERROR = 2_000
MAX_TRACEBACK = 16_000
"""Largest number of characters kept of an error and of its traceback."""

MAX_TYPE = 500
"""Largest number of characters kept of an error's type. An index of Postgres takes no text above 2,700 bytes."""


def error_text(error: BaseException) -> tuple[str, str | None]:
    """Return the error as text, and its traceback if it has one, both bounded and storable."""
    text = text_of(error)
    if not isinstance(error, (Retry, Reject)):
        text = f"{type(error).__name__}: {text}"
    if error.__traceback__ is None:
        return storable(text), None
    trace = "".join(traceback.format_exception(error))
    return storable(text), storable(trace[-MAX_TRACEBACK:], MAX_TRACEBACK)


def given_error(text: str | None) -> str | None:
    """The error that a client gives, as it is stored, so that dead letters can be selected by it. None if it is empty."""
    return text[:MAX_ERROR] if text else None


def error_type(error: BaseException) -> str:
    """The qualified name of an exception's class, with the module unless the class is built in. Headrace's own are named
    as they are imported: `headrace.Reject`."""
    kind = type(error)
    package = str(kind.__module__)  # code of users may set anything
    if package.startswith("headrace.") and kind.__name__ in getattr(sys.modules["headrace"], "__all__", ()):
        package = "headrace"
    return storable(kind.__qualname__ if package == "builtins" else f"{package}.{kind.__qualname__}", MAX_TYPE)


def text_of(thing: object) -> str:
    """`str(thing)`, also for an exception with a failing `__str__`, which must not break anything else."""
    try:
        return str(thing)
    except BaseException:  # code of users may raise anything
        return f"<a {type(thing).__name__} that can't be shown>"


def storable(text: str, limit: int = MAX_ERROR) -> str:
    """Return text that Postgres accepts, without NUL and without lone surrogates."""
    return text[:limit].replace("\0", "\\0").encode("utf-8", "replace").decode()
