"""The validated settings of sources that capture tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Self

from msgspec.structs import force_setattr

from headrace.model import conditions
from headrace.model.conditions import Condition
from headrace.model.database_url import UrlError, read
from headrace.model.errors import ConfigurationError, InvalidFilter
from headrace.model.text.masking import masked
from headrace.sources.postgres import table_names
from headrace.sources.postgres.rules import transforms
from headrace.sources.postgres.rules.conditions import SourceCondition
from headrace.sources.postgres.rules.keys import RowKeyTemplate
from headrace.sources.postgres.settings import (
    ACTIONS,
    LONGEST_NAME,
    MOST_COLUMNS,
    MOST_GROUP,
    MOST_TABLES,
    PostgresSettings,
)

_SLOT = re.compile(rf"[a-z0-9_]{{1,{LONGEST_NAME}}}")


class PostgresSpec(PostgresSettings, frozen=True, kw_only=True):
    """The checked settings of a source that captures tables.

    Names of tables are stored in their canonical form, and `where` as text.

    Raises:
        ConfigurationError: a setting is invalid, or settings contradict each other.
    """

    def __post_init__(self) -> None:
        self._settle_tables()
        self._settle_columns()
        self.check()
        self._settle_actions()
        self._check_database()
        self.check_where()
        self._settle_group()
        self._check_key()
        if self.mode == "rows":
            self._check_rows()
        elif self.sort is not None or self.deletes != "ignore":
            setting = "sort" if self.sort is not None else "deletes"
            raise ConfigurationError(
                f"{setting} of {self.owner} is for mode='rows' only: leave it out, or use mode='rows'."
            )
        self._check_names()

    def _settle_tables(self) -> None:
        found = self._texts("tables", self.tables)
        if not 1 <= len(found) <= MOST_TABLES:
            raise ConfigurationError(
                f"tables of {self.owner} has {len(found):,} tables: name from 1 to {MOST_TABLES:,}, such as public.orders."
            )
        tables = tuple(self._table(name) for name in found)
        for place, name in enumerate(tables):
            if name in tables[:place]:
                raise ConfigurationError(f"tables of {self.owner} names {name} twice: leave one out.")
        force_setattr(self, "tables", tables)

    def _settle_columns(self) -> None:
        if not isinstance(self.columns, Mapping):
            raise ConfigurationError(
                f"columns of {self.owner} must be a mapping from tables to their columns: {{'{self.tables[0]}': ['id', 'status']}}."
            )
        settled: dict[str, tuple[str, ...]] = {}
        for table, columns in self.columns.items():
            name = self._table(table)
            if name not in self.tables:
                raise ConfigurationError(
                    f"columns of {self.owner} has {name}, which is not one of its tables: {', '.join(self.tables[:5])}."
                )
            settled[name] = self._distinct(f"columns of {name}", columns, MOST_COLUMNS)
        force_setattr(self, "columns", settled)

    def _settle_actions(self) -> None:
        actions = self._distinct("actions", self.actions, len(ACTIONS))
        for action in actions:
            if action not in ACTIONS:
                raise ConfigurationError(
                    f"actions of {self.owner} has {action!r:.60}: there are {', '.join(map(repr, ACTIONS))}."
                )
        force_setattr(self, "actions", tuple(action for action in ACTIONS if action in actions))

    def _check_database(self) -> None:
        if self.database is None:
            return
        try:
            read(str(self.database))
        except UrlError as error:
            raise ConfigurationError(f"database of {self.owner} {error}") from None

    def check_where(self) -> None:
        """Check the condition, and store it as text. Raises `ConfigurationError`."""
        if self.where is None:
            return
        try:
            condition = conditions.parse(self.where)
        except InvalidFilter as error:
            raise ConfigurationError(f"where of {self.owner} can't be read. {error}") from error
        wrong = SourceCondition(condition).wrong(self.mode, [self.columns.get(table) for table in self.tables])
        if wrong:
            raise ConfigurationError(f"where of {self.owner} {wrong}.")
        force_setattr(self, "where", conditions.describe(condition))

    def _settle_group(self) -> None:
        if self.group is None:
            return
        force_setattr(self, "group", self._distinct("group", self.group, MOST_GROUP))
        if self.mode == "rows":
            raise ConfigurationError(
                f"group of {self.owner} can't be used with mode='rows', where each row is under its primary key: leave it out."
            )

    def _check_key(self) -> None:
        if self.key is None:
            return
        template = RowKeyTemplate(self.key)
        if self.group is not None and set(self.group) != set(template.columns):
            raise ConfigurationError(
                f"group and key of {self.owner} contradict each other: the key alone decides which messages are in order. Leave group"
                " out."
            )

    def _check_rows(self) -> None:
        if self.actions != ACTIONS:
            raise ConfigurationError(
                f"actions of {self.owner} can't be used with mode='rows', which publishes rows and not their changes: leave it"
                " out, or use mode='changes'."
            )
        if self.sort is not None and (not isinstance(self.sort, str) or not self.sort):
            raise ConfigurationError(f"sort of {self.owner} must be a column's name, such as 'updated_at'.")
        if self.key is None:
            return
        template = RowKeyTemplate(self.key)
        if not template.columns:
            raise ConfigurationError(
                f"The key template {self.key!r} of {self.owner} has no column of the row: with mode='rows' each row needs its own"
                " key, such as orders.{record.id}."
            )
        if len(self.tables) > 1 and not template.of_table:
            raise ConfigurationError(
                f"The key template {self.key!r} of {self.owner} gives rows of several tables the same keys: put {{table}} into it."
            )

    def _check_names(self) -> None:
        if self.transform is not None and not (
            isinstance(self.transform, str) and transforms.NAME.fullmatch(self.transform)
        ):
            raise ConfigurationError(
                f"transform={self.transform!r:.80} of {self.owner} must name a function as module:name, such as shop.capture:clean."
            )
        for setting, name in (("slot", self.slot), ("shared_slot", self.shared_slot)):
            if name is not None and not (isinstance(name, str) and _SLOT.fullmatch(name)):
                raise ConfigurationError(
                    f"{setting}={name!r:.80} of {self.owner} is not the name of a replication slot: that has 1 to 63 lower-case letters, digits and '_'."
                )
        if self.shared_slot is not None and (self.slot is not None or self.publication is not None):
            setting = "publication" if self.slot is None else "slot"
            raise ConfigurationError(
                f"shared_slot of {self.owner} can't be used with {setting}: Headrace creates a shared slot and the publications of its"
                f" sources. Leave {setting} out."
            )
        if self.publication is not None and not (
            isinstance(self.publication, str)
            and self.publication.isprintable()
            and 1 <= len(self.publication.encode()) <= LONGEST_NAME
        ):
            raise ConfigurationError(
                f"publication={self.publication!r:.80} of {self.owner} is not the name of a publication: that has 1 to 63 bytes of printable text."
            )

    def _table(self, name: object) -> str:
        try:
            return table_names.canonical(name)  # type: ignore[arg-type]
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.owner} is invalid. {error}") from None

    def _distinct(self, what: str, values: object, most: int) -> tuple[str, ...]:
        """Return the names. Raises `ConfigurationError` if one occurs twice, or there are too few or
        too many.
        """
        found = self._texts(what, values)
        if not 1 <= len(found) <= most:
            raise ConfigurationError(f"{what} of {self.owner} must name from 1 to {most:,}, not {len(found):,}.")
        for place, name in enumerate(found):
            if name in found[:place]:
                raise ConfigurationError(f"{what} of {self.owner} names {name!r} twice: leave one out.")
        return found

    def _texts(self, what: str, values: object) -> tuple[str, ...]:
        found = tuple(values) if isinstance(values, Iterable) and not isinstance(values, (str, bytes)) else ()
        if (
            not isinstance(values, Iterable)
            or isinstance(values, (str, bytes))
            or not all(isinstance(value, str) and value and "\0" not in value for value in found)
        ):
            raise ConfigurationError(f"{what} of {self.owner} must be a list of names, not {values!r:.80}.")
        return found

    def __repr__(self) -> str:
        # Without the password, since a repr ends up in logs and tracebacks.
        given = self.given() | ({} if self.database is None else {"database": masked(self.database)})
        shown = "".join(f", {name}={value!r}" for name, value in given.items())
        return f"PostgresSpec(name={self.name!r}, stream={self.stream!r}{shown})"

    @classmethod
    def stored(cls, name: str, stream: str, settings: Mapping[str, Any]) -> Self:
        """Return the spec for stored settings. Its `where`, which an earlier version may have accepted, is not checked, so
        that such a source can be edited and deleted. See `check_where`.
        """
        spec = super().stored(name, stream, {**settings, "where": None})
        force_setattr(spec, "where", settings.get("where"))
        return spec

    @property
    def condition(self) -> Condition | None:
        """The parsed `where`. Raises `ConfigurationError` if it is invalid."""
        self.check_where()
        return None if self.where is None else conditions.parse(self.where)
