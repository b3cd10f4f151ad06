"""Translates the errors of any driver to Headrace's, also when a library has wrapped them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg

from headrace.model.errors import HeadraceError
from headrace.store.database.errors import translate

_WHERE = "the given connection"


@contextmanager
def translated() -> Iterator[None]:
    """Raise Headrace's error in place of the driver's. Unknown errors pass unchanged."""
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
    """Return the server's error inside, as the asyncpg class that `store.translate` expects."""
    for inner in _layers(error):
        if isinstance(inner, (asyncpg.PostgresError, asyncpg.InternalClientError)):
            return inner
        state = getattr(inner, "sqlstate", None)
        said: Any = getattr(inner, "diag", None)
        if state and said is not None:  # psycopg
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
    """Yield the error and its causes. SQLAlchemy keeps the cause in `orig`, Django and Python in
    `__cause__`.
    """
    seen: set[int] = set()
    inner: BaseException | None = error
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        yield inner
        inner = getattr(inner, "orig", None) or inner.__cause__
