"""The declaration of captures and schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.app import capture
from headrace.app.declaring.base import Declaring, arguments, named_arguments
from headrace.app.periodic import schedule as periodic
from headrace.app.periodic.schedule import Made
from headrace.app.streams.stream import Stream, name_of_stream
from headrace.model.conditions import Condition
from headrace.model.durations import Duration
from headrace.model.schedules import Missed
from headrace.sources.postgres.settings import ACTIONS, Action, Deletes, Mode, Numeric


class Sources(Declaring):
    """Declares what feeds streams."""

    @named_arguments
    def capture(
        self,
        *tables: str,
        into: str,
        mode: Mode = "changes",
        name: str | None = None,
        database: str | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        actions: Sequence[Action] = ACTIONS,
        where: str | Mapping[str, Any] | Condition | None = None,
        group: Sequence[str] | None = None,
        key: str | None = None,
        sort: str | None = None,
        deletes: Deletes = "ignore",
        numeric: Numeric = "string",
        transform: str | Callable[..., Any] | None = None,
        backfill: bool = True,
        rate: int | None = None,
        verify_every: Duration | None = None,
        slot: str | None = None,
        shared_slot: str | None = None,
        publication: str | None = None,
        heartbeat: Duration | None = None,
        alarm: int = 1_000_000_000,
    ) -> str:
        """Declare that tables are captured into a stream: `app.capture("public.orders", into="orders")`.

        At start the stream is created if needed, and the source is created or changed to these
        settings. From then on one process captures: this one, another one of this app, or a
        `headrace serve`.

        Args:
            tables: the captured tables, each as `schema.table`. Write double quotes around names that
                are not plain lower case.
            into: the stream. In mode "rows" it has `one_message_per_key`.
            mode: `changes` publishes a message for each change. `rows` publishes the latest version of
                each row, to a stream with `one_message_per_key`.
            name: the source's name. The stream's name by default.
            database: the Postgres URL of the captured database. Answers show `…` for its password. By
                default the database of the app itself.
            columns: the only columns that are captured, by table. All columns of other tables are
                captured.
            actions: which kinds of changes become messages.
            where: which changes become messages: a condition on the message before `transform`. Such as
                "data.record.total > 100".
            group: columns that make up the key. Rows with the same values in them are ordered together.
            key: a template of the keys. Such as "orders.{record.region}.{record.id}".
            sort: in mode `rows`, a column that grows with every insert and update of a row. A backfill
                reads in its order.
            deletes: in mode `rows`, the effect of a row that is deleted, or no longer meets `where`.
                `ignore` keeps its last version, and `tombstone` publishes a tombstone.
            numeric: the JSON form of `numeric` values: a `string`, which no parser rounds, or a
                `number`.
            transform: a function decorated with `@headrace.transform`, as `module:name`. It makes the
                published data from a message's data. Pass the function, or its name.
            backfill: whether the existing rows of a table are published when it is captured for the
                first time.
            rate: the maximum number of rows that a backfill reads.
            verify_every: the time after which each table is compared with the stream again.
                Differences are reported. Never by default.
            slot: an existing replication slot to use. By default Headrace creates its own.
            shared_slot: the name of a replication slot that all sources with this name share. Headrace
                creates it, and drops it with the last of them. By default Headrace creates the
                source's own slot.
            publication: an existing publication to use. By default Headrace creates its own.
            heartbeat: the time without changes after which a heartbeat is written to the captured
                database, so that the slot advances. Never by default.
            alarm: the size of the WAL held back by the slot at which an alarm begins. In bytes.

        Returns:
            The stream's name. Raises `ConfigurationError` for settings that contradict each other,
            or a name that is taken.
        """
        self._add_capture(capture.define(**arguments(locals())))
        return into

    @named_arguments
    def every(
        self,
        every: Duration,
        stream: str | Stream[Any],
        *,
        zone: str | None = None,
        name: str | None = None,
        key: str | Made | None = None,
        data: Any = None,
        headers: Mapping[str, Any] | None = None,
        missed: Missed = "skip",
        max_missed: int = 100,
        unique_key: str | None = None,
    ) -> str:
        """Declare periodic messages: `app.every("0 9 * * 1-5", "reports", zone="Europe/Berlin", data={"kind": "daily"})`.

        Each due time becomes one message, however many processes run the app. The clock is that of the
        database. Messages are published while a process runs that declares them. The message has the headers
        `headrace-schedule` and `headrace-due-at`.

        Args:
            every: a cron expression of five fields, a name such as `@daily`, or an interval such as "15m", whose
                multiples count from 1970-01-01 00:00 UTC.
            stream: where the messages go, a name or a typed stream. It is created at start unless it exists.
            zone: the IANA name of the time zone of a cron expression. UTC by default. The rules at the changes of the
                clocks are those of Debian's cron, see `headrace.flow.due_times`.
            name: the schedule's name, unique in the database. The stream's name by default.
            key: the key of the messages, or a function of the due time that returns it. The schedule's name by
                default.
            data: the data of the messages, or a function of the due time that returns it. Several processes may call
                a function for a due time, and the result of one of them is published. A stream with a codec
                needs a function, since the settings of a schedule are stored as they are.
            headers: more headers.
            missed: what happens to due times that passed while no process ran. `skip` publishes one message, for the
                latest of them. `catch_up` publishes one for each, the oldest first.
            max_missed: the largest number of messages that `catch_up` publishes, for the latest due times. At most
                1,000.
            unique_key: publish nothing at a due time while a message with this unique key is pending, see
                `App.publish`.

        Returns:
            The schedule's name. Raises `ConfigurationError` for settings that can't be used, or a name that is
            taken.
        """
        given = arguments(locals())
        self._add_schedule(periodic.define(**{**given, "stream": name_of_stream(stream)}))
        return self.schedules[-1].spec.name
