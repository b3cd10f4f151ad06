"""Errors of any driver as ours, out of whatever libraries have wrapped around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg

from headrace.model.errors import HeadraceError
from headrace.store.translate import translate

_WHERE = "the given connection"


@contextmanager
def translated() -> Iterator[None]:
    """Raise ours for the driver's; what is none that we know of passes as it is."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        ours = translate(_as_asyncpg(error), _WHERE)
        if ours is None:
            raise
        raise ours from error


def _as_asyncpg(error: Exception) -> Exception:
    """The server's error inside, in the form in which the store knows them."""
    for inner in _layers(error):
        if isinstance(inner, (asyncpg.PostgresError, asyncpg.InternalClientError)):
            return inner
        state = getattr(inner, "sqlstate", None)
        said: Any = getattr(inner, "diag", None)
        if state and said is not None:  # psycopg's
            fields = {
                "C": state,
                "M": said.message_primary or str(inner),
                "s": said.schema_name,
                "n": said.constraint_name,
            }
            return asyncpg.PostgresError.new({name: value for name, value in fields.items() if value})
    if any(type(inner).__name__ in ("OperationalError", "InterfaceError") for inner in _layers(error)):
        return ConnectionError(str(error).splitlines()[0])
    return error


def _layers(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it was made from: SQLAlchemy has them as `orig`, Django and Python as the cause."""
    seen: set[int] = set()
    inner: BaseException | None = error
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        yield inner
        inner = getattr(inner, "orig", None) or inner.__cause__
