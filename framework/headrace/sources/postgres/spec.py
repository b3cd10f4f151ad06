"""Sources that capture tables: what is set of each, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from headrace.model import conditions
from headrace.model.conditions import Condition

Mode = Literal["changes", "rows"]
Action = Literal["insert", "update", "delete", "truncate"]
Deletes = Literal["ignore", "tombstone"]
Numeric = Literal["string", "number"]

ACTIONS: tuple[Action, ...] = get_args(Action)


class PostgresSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a source that captures tables.

    Args:
        name: 1 to 48 lower-case letters, digits, `-` and `_`.
        stream: where messages are published.
        tables: each as `schema.table`, in double quotes what is not plain lower case: `public.orders`, `public."Odd.Name"`.
        mode: `changes`, a message for each change; or `rows`, of each row the latest version, under its primary key, in a stream with
            `one_message_per_key`.
        database: a Postgres URL; None for the database that Headrace itself is in.
        columns: of a table, the only columns that are captured; of tables that are not named here, all.
        actions: which kinds of changes.
        where: which changes become messages: a condition on the message that they would be, such as `data.record.total > 100`.
        group: columns by whose values messages are ordered and kept apart; None for the primary key.
        key: a template of the keys, such as `orders.{record.region}.{record.id}`; None for `{schema}.{table}.` and the values of `group`.
        sort: in `rows`, a column that grows with every insert and update of a row: the order in which a backfill reads.
        deletes: in `rows`, what becomes of a row that is deleted, or that no longer meets `where`: `ignore`, its last version stays; or
            `tombstone`, a message whose record is null takes its place.
        numeric: how `numeric` values stand in JSON: as a `string`, which nobody rounds, or as a `number`.
        transform: a function `module:name`, decorated with `@headrace.transform`, that makes of each message's data what is published.
        backfill: whether tables are read from their first row on, when they are captured for the first time.
        rate: rows a second that a backfill reads at most; None for as many as go.
        slot: an existing replication slot to use; None for one of our own.
        publication: an existing publication to use; None for one of our own.
        heartbeat: seconds after which something is written where nothing else is, so that the slot moves on; None for never.
        alarm: bytes of WAL held back by the slot from which on that is told as an alarm.

    Raises:
        ConfigurationError: settings that can't be, or contradict each other.
    """

    name: str
    stream: str
    tables: tuple[str, ...]
    mode: Mode = "changes"
    database: str | None = None
    columns: dict[str, tuple[str, ...]] = {}
    actions: tuple[Action, ...] = ACTIONS
    where: Any = None
    group: tuple[str, ...] | None = None
    key: str | None = None
    sort: str | None = None
    deletes: Deletes = "ignore"
    numeric: Numeric = "string"
    transform: str | None = None
    backfill: bool = True
    rate: int | None = None
    slot: str | None = None
    publication: str | None = None
    heartbeat: float | None = None
    alarm: int = 1_000_000_000

    @property
    def condition(self) -> Condition | None:
        """`where`, read."""
        return None if self.where is None else conditions.parse(self.where)

    def settings(self) -> dict[str, Any]:
        """What is stored beside name and stream."""
        settings: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        del settings["name"], settings["stream"]
        return settings

    def given(self) -> dict[str, Any]:
        """Those of its settings that are not the default."""
        plain = {field.name: field.default for field in msgspec.structs.fields(self)}
        return {name: value for name, value in self.settings().items() if getattr(self, name) != plain[name]}

    @staticmethod
    def shown(settings: Mapping[str, Any]) -> dict[str, Any]:
        """All settings but name and stream, of those that were stored, perhaps before there were others. Nothing is checked."""
        return {**_DEFAULTS, **settings}

    @classmethod
    def stored(cls, name: str, stream: str, settings: Mapping[str, Any]) -> PostgresSpec:
        """The settings as the store has them."""
        return msgspec.convert({**settings, "name": name, "stream": stream}, cls)


_DEFAULTS = PostgresSpec(name="any", stream="any", tables=("any.any",)).settings()
