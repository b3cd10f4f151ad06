"""A session with the settings of capture, which returns values as the text that the server sends."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import pq

from headrace.sources.postgres import values
from headrace.sources.postgres.values import Converter, TypeInfo, converter, load_types
from tests.support import servers

DONE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Session:
    """A blocking session, for tests that are not async, such as properties."""

    def __init__(self, dsn: str) -> None:
        self._connection = pq.PGconn.connect(dsn.encode())
        if self._connection.status != pq.ConnStatus.OK:
            raise AssertionError(self._connection.error_message)
        encoding = self._connection.parameter_status(b"server_encoding")
        assert encoding is not None
        for name, value in values.settings(encoding.decode()).items():
            self.rows(f"set {name} to '{value}'")
        self._types: dict[int, TypeInfo] = {}

    @property
    def version(self) -> int:
        return self._connection.server_version // 10000

    @property
    def has_xml(self) -> bool:
        return self._connection.exec_(b"select '<a/>'::xml").status == pq.ExecStatus.TUPLES_OK

    def rows(self, sql: str, *params: str | None) -> list[list[bytes | None]]:
        given = [None if value is None else value.encode() for value in params]
        result = self._connection.exec_params(sql.encode(), given)
        if result.status not in DONE:
            raise AssertionError(result.error_message.decode(errors="replace"))
        return [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]

    def value(self, sql: str, *params: str | None) -> bytes:
        [[value]] = self.rows(sql, *params)
        assert value is not None
        return value

    async def query(self, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
        return [tuple(None if value is None else value.decode() for value in row) for row in self.rows(sql, *params)]

    def converter(self, type_name: str, **settings: str) -> Converter:
        """Return the converter of a type, given its name in SQL."""
        oid = int(self.value("select $1::regtype::oid", type_name))
        servers.run(load_types(self, [oid], self._types))
        return converter(oid, self._types, **settings)  # type: ignore[arg-type]

    def json(self, type_name: str, literals: Sequence[str], **settings: str) -> list[str]:
        """Return the JSON of literals of a type."""
        convert = self.converter(type_name, **settings)
        return [convert(self.value(f"select $1::{type_name}", literal)).decode() for literal in literals]

    def close(self) -> None:
        self._connection.finish()
