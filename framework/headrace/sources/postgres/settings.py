"""The settings of sources that capture tables, as `headrace.model.settings` describes them. `spec` checks them.

This module imports no driver, so that the command line can import it quickly.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec

from headrace.model.conditions.tree import MAX_JSON_BYTES
from headrace.model.settings import Setting
from headrace.model.sources import SourceSpec
from headrace.sources.templates import MAX_TEMPLATE_BYTES

Mode = Literal["changes", "rows"]
Action = Literal["insert", "update", "delete", "truncate"]
Deletes = Literal["ignore", "tombstone"]
Numeric = Literal["string", "number"]

MOST_TABLES = 1000
MOST_COLUMNS = 1600  # Postgres's limit
MOST_GROUP = 8
LONGEST_NAME = 63  # bytes, Postgres's limit

ACTIONS: tuple[Action, ...] = get_args(Action)


class PostgresSettings(SourceSpec, frozen=True, kw_only=True):
    """The settings of a source that captures tables.

    Args:
        tables: The captured tables, each as `schema.table`. Write double quotes around names that are not plain
            lower case.
        mode: `changes` publishes a message for each change. `rows` publishes the latest version of each row, to
            a stream with `one_message_per_key`.
        database: The Postgres URL of the captured database. Answers show `…` for its password.
        columns: The only columns that are captured, by table. All columns of other tables are captured.
        actions: Which kinds of changes become messages.
        where: Which changes become messages: a condition on the message before `transform`.
        group: Columns that make up the key. Rows with the same values in them are ordered together.
        key: A template of the keys.
        sort: In mode `rows`, a column that grows with every insert and update of a row. A backfill reads in its
            order.
        deletes: In mode `rows`, the effect of a row that is deleted, or no longer meets `where`. `ignore` keeps
            its last version, and `tombstone` publishes a tombstone.
        numeric: The JSON form of `numeric` values: a `string`, which no parser rounds, or a `number`.
        transform: A function decorated with `@headrace.transform`, as `module:name`. It makes the published
            data from a message's data.
        backfill: Whether the existing rows of a table are published when it is captured for the first time.
        rate: The maximum number of rows that a backfill reads.
        verify_every: The time after which each table is compared with the stream again. Differences are
            reported.
        slot: An existing replication slot to use.
        shared_slot: The name of a replication slot that all sources with this name share. Headrace creates it,
            and drops it with the last of them.
        publication: An existing publication to use.
        heartbeat: The time without changes after which a heartbeat is written to the captured database, so that
            the slot advances.
        alarm: The size of the WAL held back by the slot at which an alarm begins.
    """

    tables: Annotated[tuple[str, ...], Setting(length=(1, MOST_TABLES), example="public.orders")]
    mode: Annotated[Mode, Setting(fixed=True)] = "changes"
    database: Annotated[str | None, Setting(otherwise="the database of Headrace itself")] = None
    columns: Annotated[dict[str, tuple[str, ...]], Setting(otherwise="all", example="public.orders=id,status")] = (
        msgspec.field(default_factory=dict)
    )
    actions: Annotated[
        tuple[Action, ...], Setting(length=(1, len(ACTIONS)), otherwise="all", example="insert,update")
    ] = ACTIONS
    where: Annotated[
        Any | None, Setting(length=(1, MAX_JSON_BYTES), otherwise="all", example="data.record.total > 100")
    ] = None
    group: Annotated[
        tuple[str, ...] | None, Setting(length=(1, MOST_GROUP), otherwise="the primary key", example="a,b")
    ] = None
    key: Annotated[
        str | None,
        Setting(
            length=(1, MAX_TEMPLATE_BYTES),
            otherwise="`{schema}.{table}.` and the values of `group`",
            example="orders.{record.region}.{record.id}",
        ),
    ] = None
    sort: Annotated[str | None, Setting(otherwise="the primary key", example="updated_at")] = None
    deletes: Annotated[Deletes, Setting()] = "ignore"
    numeric: Annotated[Numeric, Setting()] = "string"
    transform: Annotated[str | None, Setting(otherwise="none", example="shop.capture:slim")] = None
    backfill: Annotated[bool, Setting()] = True
    rate: Annotated[
        int | None, Setting(unit="rows per second", limits=(1, 10_000_000), otherwise="no limit", example="5000")
    ] = None
    verify_every: Annotated[
        float | None, Setting(unit="seconds", limits=(60, 31_536_000), otherwise="never", example="1d")
    ] = None
    slot: Annotated[
        str | None, Setting(length=(1, LONGEST_NAME), otherwise="the source creates its own", fixed=True)
    ] = None
    shared_slot: Annotated[
        str | None,
        Setting(length=(1, LONGEST_NAME), otherwise="the source creates its own", example="shop", fixed=True),
    ] = None
    publication: Annotated[
        str | None, Setting(length=(1, LONGEST_NAME), otherwise="the source creates its own", fixed=True)
    ] = None
    heartbeat: Annotated[float | None, Setting(unit="seconds", limits=(1, 86400), otherwise="never", example="30s")] = (
        None
    )
    alarm: Annotated[int, Setting(unit="bytes", limits=(1, 2**62), example="5GB")] = 1_000_000_000
