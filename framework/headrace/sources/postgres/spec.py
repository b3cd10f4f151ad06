"""The validated settings of sources that capture tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import force_setattr

from headrace.model import conditions
from headrace.model.conditions import Condition
from headrace.model.errors import ConfigurationError, InvalidFilter
from headrace.sources.postgres.database import table_names
from headrace.sources.postgres.shaping import transforms
from headrace.sources.postgres.shaping.conditions import SourceCondition
from headrace.sources.postgres.shaping.keys import RowKeyTemplate
from headrace.sources.webhook import NAME
from headrace.store.database.errors import without_password

Mode = Literal["changes", "rows"]
Action = Literal["insert", "update", "delete", "truncate"]
Deletes = Literal["ignore", "tombstone"]
Numeric = Literal["string", "number"]

ACTIONS: tuple[Action, ...] = get_args(Action)

MOST_TABLES = 1000
MOST_COLUMNS = 1600  # Postgres's limit
MOST_GROUP = 8
FASTEST_RATE = 10_000_000
LONGEST_HEARTBEAT = 86_400.0

_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_DSN = re.compile(r"postgres(?:ql)?://\S*|\s*\w+\s*=.*", re.DOTALL)


class PostgresSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a source that captures tables.

    Args:
        name: 1 to 48 lower-case letters, digits, `-` and `_`.
        stream: the stream to which messages are published.
        tables: each as `schema.table`. Double quotes are needed around names that are not plain
            lower case: `public.orders`, `public."Odd.Name"`.
        mode: `changes` publishes a message for each change. `rows` publishes the latest version of
            each row, under its primary key, to a stream with `one_message_per_key`.
        database: a Postgres URL. None means the database of Headrace itself.
        columns: the only columns to capture, by table. All columns of other tables are captured.
        actions: the kinds of changes to capture.
        where: a condition that selects changes, such as `data.record.total > 100`. It is evaluated
            on the message before `transform`. It is stored as text.
        group: columns that make up the key, so that messages of one group are in order.
            None means the primary key.
        key: a template of the keys, such as `orders.{record.region}.{record.id}`. None means
            `{schema}.{table}.` and the values of `group`.
        sort: in mode `rows`, a column that grows with every insert and update of a row. A backfill
            reads in its order.
        deletes: in mode `rows`, the effect of a row that is deleted, or no longer meets `where`.
            With `ignore` its last version stays in the stream. With `tombstone` a message with
            a null record replaces it.
        numeric: the JSON form of `numeric` values, `string` or `number`. Many JSON parsers
            round numbers.
        transform: a function `module:name`, decorated with `@headrace.transform`. It maps each
            message's data to the data that is published.
        backfill: whether to publish the existing rows of tables that are captured for the first
            time.
        rate: largest number of rows per second that a backfill reads. None means no limit.
        slot: an existing replication slot to use. With None the source creates its own.
        publication: an existing publication to use. With None the source creates its own.
        heartbeat: seconds without changes after which a heartbeat is written to the captured
            database's WAL, so that the slot advances. None means never.
        alarm: bytes of WAL held back by the slot at which an alarm begins.

    Raises:
        ConfigurationError: a setting is invalid, or settings contradict each other.
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

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"The source name {self.name!r:.80} can't be used: take 1 to 48 lower-case letters, digits, '-' and '_', the first"
                " one a letter or digit."
            )
        self._settle_tables()
        self._settle_columns()
        self._check_choices()
        self._check_database()
        self._settle_where()
        self._settle_group()
        self._check_key()
        if self.mode == "rows":
            self._check_rows()
        elif self.sort is not None or self.deletes != "ignore":
            setting = "sort" if self.sort is not None else "deletes"
            raise ConfigurationError(
                f"{setting} of {self._who} is of mode='rows' only: leave it out, or take mode='rows'."
            )
        self._check_numbers()
        self._check_names()

    def _settle_tables(self) -> None:
        found = self._texts("tables", self.tables)
        if not 1 <= len(found) <= MOST_TABLES:
            raise ConfigurationError(
                f"tables of {self._who} has {len(found):,} tables: name from 1 to {MOST_TABLES:,}, such as public.orders."
            )
        tables = tuple(self._table(name) for name in found)
        for place, name in enumerate(tables):
            if name in tables[:place]:
                raise ConfigurationError(f"tables of {self._who} names {name} twice: leave one out.")
        force_setattr(self, "tables", tables)

    def _settle_columns(self) -> None:
        if not isinstance(self.columns, Mapping):
            raise ConfigurationError(
                f"columns of {self._who} must be a mapping from tables to their columns: {{'{self.tables[0]}': ['id', 'status']}}."
            )
        settled: dict[str, tuple[str, ...]] = {}
        for table, columns in self.columns.items():
            name = self._table(table)
            if name not in self.tables:
                raise ConfigurationError(
                    f"columns of {self._who} has {name}, which is none of its tables: {', '.join(self.tables[:5])}."
                )
            settled[name] = self._distinct(f"columns of {name}", columns, MOST_COLUMNS)
        force_setattr(self, "columns", settled)

    def _check_choices(self) -> None:
        for setting, choices in (("mode", Mode), ("deletes", Deletes), ("numeric", Numeric)):
            value = getattr(self, setting)
            if value not in get_args(choices):
                raise ConfigurationError(
                    f"{setting}={value!r:.60} of {self._who} must be {' or '.join(map(repr, get_args(choices)))}."
                )
        actions = self._distinct("actions", self.actions, len(ACTIONS))
        for action in actions:
            if action not in ACTIONS:
                raise ConfigurationError(
                    f"actions of {self._who} has {action!r:.60}: there are {', '.join(map(repr, ACTIONS))}."
                )
        force_setattr(self, "actions", tuple(action for action in ACTIONS if action in actions))

    def _check_database(self) -> None:
        if self.database is not None and not (isinstance(self.database, str) and _DSN.fullmatch(self.database)):
            raise ConfigurationError(
                f"database of {self._who} must be a Postgres URL: postgresql://user:password@host:5432/database."
            )

    def _settle_where(self) -> None:
        if self.where is None:
            return
        try:
            condition = conditions.parse(self.where)
        except InvalidFilter as error:
            raise ConfigurationError(f"where of {self._who} can't be read. {error}") from error
        wrong = SourceCondition(condition).wrong(self.mode, [self.columns.get(table) for table in self.tables])
        if wrong:
            raise ConfigurationError(f"where of {self._who} {wrong}.")
        force_setattr(self, "where", conditions.describe(condition))

    def _settle_group(self) -> None:
        if self.group is None:
            return
        force_setattr(self, "group", self._distinct("group", self.group, MOST_GROUP))
        if self.mode == "rows":
            raise ConfigurationError(
                f"group of {self._who} can't be with mode='rows', where each row is under its primary key: leave it out."
            )

    def _check_key(self) -> None:
        if self.key is None:
            return
        template = RowKeyTemplate(self.key)
        if self.group is not None and set(self.group) != set(template.columns):
            raise ConfigurationError(
                f"group and key of {self._who} contradict each other: what is in the key says what is kept apart and in order;"
                " leave group out."
            )

    def _check_rows(self) -> None:
        if self.actions != ACTIONS:
            raise ConfigurationError(
                f"actions of {self._who} can't be with mode='rows', which tells of rows and not of what happened to them: leave it"
                " out, or take mode='changes'."
            )
        if self.sort is not None and (not isinstance(self.sort, str) or not self.sort):
            raise ConfigurationError(f"sort of {self._who} must be a column's name, such as 'updated_at'.")
        if self.key is None:
            return
        template = RowKeyTemplate(self.key)
        if not template.columns:
            raise ConfigurationError(
                f"The key template {self.key!r} of {self._who} has no column of the row: with mode='rows' each row needs a key of its"
                " own, such as orders.{record.id}."
            )
        if len(self.tables) > 1 and not template.of_table:
            raise ConfigurationError(
                f"The key template {self.key!r} of {self._who} gives rows of several tables the same keys: put {{table}} into it."
            )

    def _check_numbers(self) -> None:
        self._check_number("rate", self.rate, int, FASTEST_RATE, "rows a second")
        self._check_number("heartbeat", self.heartbeat, (int, float), LONGEST_HEARTBEAT, "seconds")
        self._check_number("alarm", self.alarm, int, 2**62, "bytes")
        if self.alarm is None or not isinstance(self.backfill, bool):
            raise ConfigurationError(f"alarm and backfill of {self._who} must be a number of bytes, and true or false.")

    def _check_number(self, setting: str, value: object, kind: type | tuple[type, ...], most: float, unit: str) -> None:
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, kind) or not 1 <= value <= most:  # type: ignore[operator]
            raise ConfigurationError(f"{setting}={value!r:.60} of {self._who} must be from 1 to {most:,.0f} {unit}.")

    def _check_names(self) -> None:
        if self.transform is not None and not (
            isinstance(self.transform, str) and transforms.NAME.fullmatch(self.transform)
        ):
            raise ConfigurationError(
                f"transform={self.transform!r:.80} of {self._who} must name a function as module:name, such as shop.capture:clean."
            )
        if self.slot is not None and not (isinstance(self.slot, str) and _SLOT.fullmatch(self.slot)):
            raise ConfigurationError(
                f"slot={self.slot!r:.80} of {self._who} is no replication slot's name: it has 1 to 63 lower-case letters, digits and '_'."
            )
        if self.publication is not None and not (
            isinstance(self.publication, str)
            and self.publication.isprintable()
            and 1 <= len(self.publication.encode()) <= 63
        ):
            raise ConfigurationError(
                f"publication={self.publication!r:.80} of {self._who} is no publication's name: it has 1 to 63 bytes of printable text."
            )

    def _table(self, name: object) -> str:
        try:
            return table_names.canonical(name)  # type: ignore[arg-type]
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._who} can't be. {error}") from None

    def _distinct(self, what: str, values: object, most: int) -> tuple[str, ...]:
        """Return the names. Raises `ConfigurationError` if one occurs twice, or there are too few or
        too many.
        """
        found = self._texts(what, values)
        if not 1 <= len(found) <= most:
            raise ConfigurationError(f"{what} of {self._who} must name from 1 to {most:,}, not {len(found):,}.")
        for place, name in enumerate(found):
            if name in found[:place]:
                raise ConfigurationError(f"{what} of {self._who} names {name!r} twice: leave one out.")
        return found

    def _texts(self, what: str, values: object) -> tuple[str, ...]:
        found = tuple(values) if isinstance(values, Iterable) and not isinstance(values, (str, bytes)) else ()
        if (
            not isinstance(values, Iterable)
            or isinstance(values, (str, bytes))
            or not all(isinstance(value, str) and value and "\0" not in value for value in found)
        ):
            raise ConfigurationError(f"{what} of {self._who} must be a list of names, not {values!r:.80}.")
        return found

    @property
    def _who(self) -> str:
        return f"the source {self.name!r}"

    def __repr__(self) -> str:
        # Without the password, since a repr ends up in logs and tracebacks.
        given = self.given() | ({} if self.database is None else {"database": without_password(self.database)})
        shown = "".join(f", {name}={value!r}" for name, value in given.items())
        return f"PostgresSpec(name={self.name!r}, stream={self.stream!r}{shown})"

    @property
    def condition(self) -> Condition | None:
        """The parsed `where`."""
        return None if self.where is None else conditions.parse(self.where)

    def settings(self) -> dict[str, Any]:
        """Return the settings to store, without name and stream."""
        settings: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        del settings["name"], settings["stream"]
        return settings

    def given(self) -> dict[str, Any]:
        """Return the settings that differ from the default."""
        return {
            name: value for name, value in self.settings().items() if value != _DEFAULTS.get(name, msgspec.NODEFAULT)
        }

    @staticmethod
    def shown(settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings but name and stream, with defaults for those that were not stored yet.
        Nothing is checked.
        """
        return {**_DEFAULTS, **settings}

    @classmethod
    def stored(cls, name: str, stream: str, settings: Mapping[str, Any]) -> PostgresSpec:
        """Return the spec for stored settings."""
        return msgspec.convert({**settings, "name": name, "stream": stream}, cls)


_DEFAULTS = PostgresSpec(name="some", stream="some", tables=("public.some_table",)).settings()
del _DEFAULTS["tables"]
