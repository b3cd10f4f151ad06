"""A database for Spark to write to, for a test that is not asynchronous."""

from __future__ import annotations

from typing import Any

from headrace import store
from headrace.model.specs import StreamSpec
from headrace_spark.source.connection import Place, connect, fetch
from tests.support import servers


class Written:
    """Streams, and the messages that were published into them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.place = Place(url)

    def create(self, name: str, **policy: Any) -> None:
        async def create() -> None:
            database = store.Database(self.url)
            await database.open()
            try:
                await store.create_stream(database, StreamSpec(name=name, **policy))
            finally:
                await database.close()

        servers.run(create())

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        connection = connect(self.place)
        try:
            return fetch(connection, self.place, sql)
        finally:
            connection.close()

    def messages(self, stream: str = "orders") -> list[tuple[str, str]]:
        """Return the key and data of each message, in order."""
        return self.fetch(f'select key, data::text from headrace_streams."{stream}" order by seq')  # type: ignore[return-value]

    def keys(self, stream: str = "orders") -> list[str]:
        return [key for key, _ in self.messages(stream)]

    def staged(self) -> int:
        """Return the number of rows in staging tables."""
        tables = [
            row[0] for row in self.fetch("select tablename::text from pg_tables where schemaname = 'headrace_staging'")
        ]
        return sum(int(self.fetch(f'select count(*) from headrace_staging."{table}"')[0][0]) for table in tables)

    def writes(self) -> list[tuple[Any, ...]]:
        """Return the last committed batch of each write, and the number of its messages over all batches."""
        return self.fetch("select batch, messages from headrace_internal.writes order by begun_at")
