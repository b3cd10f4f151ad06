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
        headrace_error = translate(_as_asyncpg(error), _WHERE)
        if headrace_error is None:
            raise
        raise headrace_error from error


def _as_asyncpg(error: Exception) -> Exception:
    """Return the server's error inside, as the asyncpg class that `store.translate` expects."""
    for layer in _layers(error):
        if isinstance(layer, (asyncpg.PostgresError, asyncpg.InternalClientError)):
            return layer
        state = getattr(layer, "sqlstate", None)
        diagnostics: Any = getattr(layer, "diag", None)
        if state and diagnostics is not None:  # psycopg
            fields = {
                "C": state,
                "M": diagnostics.message_primary or str(layer),
                "s": diagnostics.schema_name,
                "t": diagnostics.table_name,
                "c": diagnostics.column_name,
                "n": diagnostics.constraint_name,
            }
            return asyncpg.PostgresError.new({name: value for name, value in fields.items() if value})
    if any(type(layer).__name__ in ("OperationalError", "InterfaceError") for layer in _layers(error)):
        return ConnectionError(str(error).splitlines()[0])
    return error


def _layers(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes. SQLAlchemy keeps the cause in `orig`, Django and Python in
    `__cause__`.
    """
    seen: set[int] = set()
    layer: BaseException | None = error
    while layer is not None and id(layer) not in seen:
        seen.add(id(layer))
        yield layer
        layer = getattr(layer, "orig", None) or layer.__cause__
