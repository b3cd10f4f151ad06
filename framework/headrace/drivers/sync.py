"""Publishing and acking from synchronous code, in the transaction of the user's own connection.

    from django.db import connection, transaction
    from headrace.drivers import sync

    with transaction.atomic():
        order.save()
        sync.publish(connection, "orders", f"orders.{order.id}", {"id": order.id})

The connection is one of psycopg 3, Django's `connection`, or a `Session` or `Connection` of
SQLAlchemy. A handler that is a plain function runs in a thread, and may call `ack` there in the
same way.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Protocol, TypeVar, Unpack

from headrace import store
from headrace.drivers.base import BaseExecutor, libraries, named
from headrace.drivers.errors import translated
from headrace.model.errors import ConfigurationError
from headrace.model.keys import check_key
from headrace.model.messages import payloads
from headrace.model.messages.publish_options import PublishKeywords, PublishManyKeywords, PublishOptions

T = TypeVar("T")


class Ackable(Protocol):
    """A `Message`."""

    async def ack(self, tx: Any = None) -> None: ...


def publish(
    connection: Any,
    stream: str,
    key: str,
    data: Any,
    *,
    headers: Mapping[str, Any] | None = None,
    **options: Unpack[PublishKeywords],
) -> int | None:
    """Append a message, in the connection's current transaction. Arguments, result and errors are
    those of `App.publish`.
    """
    check_key(key)
    text, header_text = payloads.encode(data), payloads.encode_headers(headers)
    return _run(store.publish(executor(connection), stream, key, text, header_text, PublishOptions.of(**options)))


def publish_many(
    connection: Any, stream: str, messages: Iterable[tuple[Any, ...]], **options: Unpack[PublishManyKeywords]
) -> int:
    """Append messages in order, in the connection's current transaction. See `App.publish_many`.

    Outside of a transaction each statement commits on its own. One statement takes about 1,000
    messages, and each such batch is all or nothing.
    """
    keys, data, headers = payloads.parallel(messages)
    for key in keys:
        check_key(key)
    chosen = PublishOptions.of_many(len(keys), **options)
    return _run(store.publish_many(executor(connection), stream, keys, data, headers, chosen))


def ack(connection: Any, message: Ackable) -> None:
    """Ack a message in the connection's current transaction, from a handler that is a plain function.
    See `Message.ack`.

    Raises:
        ConfigurationError: the connection is not inside a transaction.
        LeaseLost: another process may have the message by now. Roll the transaction back.
    """
    _run(message.ack(tx=executor(connection)))


class _OnPsycopg(BaseExecutor):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, query: str, /, *args: Any) -> list[Any]:
        import psycopg
        from psycopg.rows import tuple_row

        with translated(), psycopg.RawCursor(self._connection, row_factory=tuple_row) as cursor:
            return cursor.execute(query.encode(), args).fetchall()


class _OnDjango(BaseExecutor):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, query: str, /, *args: Any) -> list[Any]:
        with translated(), self._connection.cursor() as cursor:
            cursor.execute(*named(query, args))
            return list(cursor.fetchall())


class _OnSqlalchemy(BaseExecutor):
    """An executor. `source` is a `Connection`, or has one, as sessions do."""

    def __init__(self, source: Any) -> None:
        self._source = source

    async def fetch(self, query: str, /, *args: Any) -> list[Any]:
        with translated():
            connection = self._source if hasattr(self._source, "exec_driver_sql") else self._source.connection()
            return list(connection.exec_driver_sql(*named(query, args)).fetchall())


def executor(connection: Any) -> BaseExecutor:
    """Return an executor for a synchronous connection. Raises `ConfigurationError` if its type is not
    supported.
    """
    packages = libraries(connection)
    asynchronous = any(hasattr(connection, name) for name in ("run_sync", "__aenter__"))
    if not asynchronous:
        if "psycopg" in packages:
            return _OnPsycopg(connection)
        if "django" in packages:
            return _OnDjango(connection)
        if "sqlalchemy" in packages:
            return _OnSqlalchemy(connection)
    raise ConfigurationError(
        f"headrace.drivers.sync does not support a {type(connection).__module__}.{type(connection).__name__}. Pass a psycopg.Connection,"
        " Django's connection, or a Session or Connection of SQLAlchemy. Pass an asynchronous one to `app.publish(…, tx=connection)`."
    )


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the store to its end in one step. On these executors it never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as stopped:
        return stopped.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("A call of the store waited on a synchronous connection.")
