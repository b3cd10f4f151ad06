"""Tables, relations and changes that need no server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from headrace.sources.postgres.pgoutput.messages import Column, Relation, Row
from headrace.sources.postgres.shaping.message_builder import MAX_MESSAGE_BYTES
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges, Transaction
from headrace.sources.postgres.shaping.shaper import Shaper
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table, TableColumn
from headrace.sources.postgres.values import TypeInfo

INT8, TEXT, NUMERIC, TIMESTAMPTZ, BOOL, JSON, JSONB = 20, 25, 1700, 1184, 16, 114, 3802

ORDERS = (("id", INT8), ("status", TEXT), ("total", NUMERIC), ("at", TIMESTAMPTZ))
TRANSACTION = Transaction(lsn=1000, at=750_000_000_000_001, xid=7)  # 2023-10-07T13:20:00.000001Z
METADATA = {
    "table_schema": "public", "table_name": "orders", "commit_timestamp": "2023-10-07T13:20:00.000001Z", "commit_lsn": 1000,
    "commit_idx": 0,
}  # fmt: skip


def spec(**settings: Any) -> PostgresSpec:
    return PostgresSpec(**{"name": "shop", "stream": "orders", "tables": ("public.orders",), **settings})


def table(
    columns: Sequence[tuple[str, int]] = ORDERS, key: Sequence[str] = ("id",), identity: str = "d", name: str = "orders"
) -> Table:
    return Table(
        oid=1, name=f"public.{name}", schema="public", relation=name, primary=bool(key), identity=identity,
        columns=tuple(TableColumn(column, oid, column in key) for column, oid in columns), key=tuple(key),
        identity_columns=tuple(key),
    )  # fmt: skip


def relation(
    columns: Sequence[tuple[str, int]] = ORDERS, key: Sequence[str] = ("id",), identity: str = "d", name: str = "orders",
    oid: int = 1,
) -> Relation:  # fmt: skip
    return Relation(
        oid, "public", name, identity,
        tuple(Column(column, type_oid, -1, identity == "f" or column in key) for column, type_oid in columns),
    )  # fmt: skip


class Shaped:
    """A shaper that knows one table, and its output."""

    def __init__(
        self, columns: Sequence[tuple[str, int]] = ORDERS, key: Sequence[str] = ("id",), identity: str = "d",
        types: dict[int, TypeInfo] | None = None, transform: Any = None, selected: Sequence[str] | None = None,
        key_template: str | None = None, max_message_bytes: int = MAX_MESSAGE_BYTES, **settings: Any,
    ) -> None:  # fmt: skip
        settings["key"] = key_template
        if selected is not None:
            settings["columns"] = {"public.orders": selected}
        self.shaper = Shaper(spec(**settings), transform, max_message_bytes=max_message_bytes)
        self.table = table(columns, key, identity)
        self.columns = [name for name, _ in columns]
        self.types = types or {}
        self.shaper.set_relation(relation(columns, key, identity), self.table, self.types)
        self.shaped_changes = ShapedChanges()

    def take(self, change: Any, idx: int = 0) -> int:
        return self.shaper.change(change, TRANSACTION, idx, self.shaped_changes)

    def read(self, *rows: Sequence[bytes | None]) -> int:
        return self.shaper.add_rows(self.table, self.types, list(rows), self.columns, TRANSACTION, self.shaped_changes)

    @property
    def keys(self) -> list[str]:
        return self.shaped_changes.keys

    @property
    def messages(self) -> list[Any]:
        return [json.loads(data) for data in self.shaped_changes.data]

    @property
    def message(self) -> Any:
        """Return the only message."""
        assert not self.shaped_changes.failures
        (data,) = self.shaped_changes.data
        return json.loads(data)

    @property
    def error(self) -> str:
        """Return the error of the only failure. There must be no other output."""
        assert self.shaped_changes.data == []
        (failure,) = self.shaped_changes.failures
        return failure.error


def order(
    number: bytes | None = b"3", status: Any = b"new", total: Any = b"1.50", at: Any = b"2023-10-07 13:20:00+00"
) -> Row:
    return [number, status, total, at]
