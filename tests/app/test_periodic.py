"""Periodic messages: one for each due time, whatever the number of processes, and what happens to missed ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest

from headrace import AesGcm, App, ConfigurationError, Router, store
from headrace.app.periodic.runner import Periodic, declare
from headrace.model.errors import InvalidInput
from headrace.runtime.messages.publisher import Publisher
from tests.support.logs import logged

START = datetime(2026, 3, 2, 8, 30, tzinfo=UTC)  # a Monday


class Processes:
    """Processes that declare schedules, with a clock in the test's hands."""

    def __init__(self, database: store.Database) -> None:
        self.database = database
        self.now = START
        self.shared: Any = SimpleNamespace(database=database, publisher=self.publisher({}))

    def publisher(self, formats: Any) -> Publisher:
        """The publisher of an app with these formats."""
        return Publisher(lambda: self.database, lambda *_: None, lambda: self.now, formats)

    async def start(self, declare: Callable[[App], Any]) -> Periodic:
        """Start a process: it declares its schedules, and computes the first due times."""
        app = App()
        declare(app)
        for schedule in app.schedules:
            await store.create_stream(self.database, schedule.spec.stream)
            await store.declare_schedule(self.database, schedule.spec, self.now)
        process = Periodic(app.schedules)
        await process.tick(self.shared, self.now)
        return process

    async def at(self, hours: float, *processes: Periodic) -> int:
        """Let processes look at the schedules all at once, at a time. Returns how many messages they published."""
        self.now = START + timedelta(hours=hours)
        published = []

        async def look(process: Periodic) -> None:
            published.append(await process.tick(self.shared, self.now))

        async with anyio.create_task_group() as group:
            for process in processes:
                group.start_soon(look, process)
        return sum(published)

    async def through(self, minutes: float, *processes: Periodic) -> None:
        """Let processes look every 15 seconds."""
        for step in range(int(minutes * 4)):
            await self.at((step + 1) / 240, *processes)

    async def due(self, stream: str = "reports") -> list[str]:
        """The due times of the messages of a stream, in their order."""
        rows = await self.database.fetch(
            f"select headers ->> 'headrace-due-at' as at from headrace_streams.{stream} order by seq"
        )
        return [f"{datetime.fromisoformat(row['at']):%d %H:%M}" for row in rows]


@pytest.fixture
def processes(database: store.Database) -> Processes:
    return Processes(database)


def hourly(app: App, **settings: Any) -> None:
    app.every("@hourly", "reports", **settings)


@pytest.mark.asyncio
async def test_many_processes_publish_one_message_for_each_due_time(processes: Processes) -> None:
    crowd = [await processes.start(hourly) for _ in range(6)]
    for quarter in range(1, 14):
        await processes.at(quarter / 4, *crowd)
    assert await processes.due() == ["02 09:00", "02 10:00", "02 11:00"]


@pytest.mark.asyncio
async def test_a_due_time_is_taken_by_those_who_are_left(processes: Processes) -> None:
    first, second = [await processes.start(hourly) for _ in range(2)]
    assert await processes.at(0.5, first) == 1
    assert await processes.at(0.5, second) == 0
    assert await processes.at(1.5, second) == 1
    assert await processes.due() == ["02 09:00", "02 10:00"]


@pytest.mark.asyncio
async def test_a_publish_that_rolls_back_leaves_the_due_time_to_the_next(processes: Processes) -> None:
    process = await processes.start(hourly)
    await processes.database.fetchval(
        "update headrace_internal.streams set full_until = 'infinity', max_storage = 1 where name = 'reports'"
    )
    assert await processes.at(0.5, process) == 0
    await processes.database.fetchval("update headrace_internal.streams set full_until = null")
    assert await processes.at(0.5, process) == 0  # it waits a little after a failure
    assert await processes.at(0.51, process) == 1
    assert await processes.due() == ["02 09:00"]


@pytest.mark.asyncio
async def test_missed_due_times_become_one_message_for_the_latest(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    await processes.start(hourly)
    process = await processes.start(hourly)
    assert await processes.at(5.75, process) == 1
    assert await processes.due() == ["02 14:00"]
    assert logged(caplog, "missed due times skipped")
    assert await processes.at(6.5, process) == 1


@pytest.mark.asyncio
async def test_missed_due_times_are_caught_up_with_in_order_and_within_bounds(processes: Processes) -> None:
    process = await processes.start(lambda app: hourly(app, missed="catch_up", max_missed=3))
    assert await processes.at(2.5, process) == 3
    assert await processes.at(24.5, process) == 3
    assert await processes.due() == ["02 09:00", "02 10:00", "02 11:00", "03 07:00", "03 08:00", "03 09:00"]


@pytest.mark.asyncio
async def test_nothing_is_published_while_a_message_of_the_unique_key_is_pending(processes: Processes) -> None:
    process = await processes.start(lambda app: hourly(app, missed="catch_up", unique_key="report"))
    assert await processes.at(2.5, process) == 1
    assert await processes.at(3.5, process) == 0
    await processes.database.fetch("delete from headrace_streams.reports")
    assert await processes.at(3.6, process) == 0, "not due"
    assert await processes.at(4.5, process) == 1
    assert await processes.due() == ["02 13:00"]


def test_settings_without_a_unique_key_have_the_digest_of_older_versions() -> None:
    app = App()
    app.every("@daily", "reports")
    assert "unique_key" not in app.schedules[0].spec.settings()


@pytest.mark.asyncio
async def test_functions_make_key_and_data_of_the_local_due_time(processes: Processes) -> None:
    async def data(due: datetime) -> dict[str, str]:
        return {"local": due.isoformat()}

    process = await processes.start(
        lambda app: app.every("0 10 * * *", "reports", zone="Europe/Berlin", key=lambda due: f"day.{due:%d}", data=data)
    )
    assert await processes.at(0.5, process) == 1
    row = await processes.database.fetchrow(
        "select key, data ->> 'local' as local, headers from headrace_streams.reports"
    )
    assert (row["key"], row["local"]) == ("day.02", "2026-03-02T10:00:00+01:00")


@pytest.mark.asyncio
async def test_a_function_that_fails_is_called_again_and_holds_up_no_other_schedule(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    broken = [True]

    def data(_: datetime) -> str:
        if broken[0]:
            raise ValueError("no figures yet")
        return "fine"

    def declare(app: App) -> None:
        app.every("@hourly", "reports", data=data)
        app.every("@hourly", "others")

    process = await processes.start(declare)
    assert await processes.at(0.5, process) == 1
    assert logged(caplog, "schedule failed")
    broken[0] = False
    assert await processes.at(0.52, process) == 1
    assert await processes.due() == ["02 09:00"]


@pytest.mark.asyncio
async def test_a_data_that_cannot_be_stored_keeps_the_due_time(processes: Processes) -> None:
    bad: list[Any] = [object()]
    process = await processes.start(lambda app: hourly(app, data=lambda _: bad[0]))
    assert await processes.at(0.5, process) == 0
    bad[0] = 1
    assert await processes.at(0.6, process) == 1


@pytest.mark.asyncio
async def test_an_old_and_a_new_deployment_side_by_side_take_no_turns(processes: Processes) -> None:
    old = await processes.start(lambda app: app.every("*/2 * * * *", "reports"))
    new = await processes.start(lambda app: app.every("1-59/2 * * * *", "reports"))
    await processes.through(4.5, old, new)
    assert await processes.due() == ["02 08:31", "02 08:33"]


@pytest.mark.asyncio
async def test_after_an_outage_the_last_declared_settings_still_count(processes: Processes) -> None:
    old = await processes.start(lambda app: hourly(app, data="old"))
    new = await processes.start(lambda app: hourly(app, data="new"))
    await processes.through(2, old, new)
    await processes.at(0.5, old)
    await processes.at(0.5, new)
    assert (await store.schedule(processes.database, "reports")).settings["data"] == "new"
    assert await processes.due() == ["02 09:00"]


@pytest.mark.asyncio
async def test_the_rest_of_a_deployment_takes_over_when_the_last_declared_settings_have_no_process(
    processes: Processes,
) -> None:
    new = await processes.start(lambda app: hourly(app, data="new"))
    await processes.start(lambda app: hourly(app, data="old"))  # restarted in the middle of a rollout, and then gone
    await processes.through(1, new)
    assert (await store.schedule(processes.database, "reports")).settings["data"] == "old"
    await processes.through(3, new)
    assert (await store.schedule(processes.database, "reports")).settings["data"] == "new"
    assert await processes.at(0.5, new) == 1
    assert await processes.due() == ["02 09:00"]


@pytest.mark.asyncio
async def test_a_change_of_the_data_keeps_the_due_time_and_a_change_of_the_times_does_not(processes: Processes) -> None:
    await processes.start(hourly)
    process = await processes.start(lambda app: hourly(app, data=1))
    assert (await store.schedule(processes.database, "reports")).next_at == START + timedelta(hours=0.5)
    process = await processes.start(lambda app: app.every("10m", "reports", data=1))
    assert await processes.at(0.2, process) == 1
    assert await processes.due() == ["02 08:40"]


@pytest.mark.asyncio
async def test_a_paused_schedule_publishes_nothing_and_goes_on_from_then(processes: Processes) -> None:
    process = await processes.start(lambda app: hourly(app, missed="catch_up"))
    await store.pause_schedule(processes.database, "reports", paused=True)
    assert await processes.at(3.5, process) == 0
    assert not await store.request_schedule(processes.database, "reports")
    await store.pause_schedule(processes.database, "reports", paused=False)
    assert await processes.at(3.6, process) == 0
    assert await processes.at(4.5, process) == 1
    assert await processes.due() == ["02 13:00"]


@pytest.mark.asyncio
async def test_a_message_on_request_changes_no_due_time_and_is_published_once(processes: Processes) -> None:
    crowd = [await processes.start(hourly) for _ in range(3)]
    for _ in range(2):
        assert await store.request_schedule(processes.database, "reports")
    assert await processes.at(0.1, *crowd) == 1
    assert await processes.at(0.5, *crowd) == 1
    info = await store.schedule(processes.database, "reports")
    assert (info.messages, info.requested_at) == (2, None)


@pytest.mark.asyncio
async def test_a_removed_schedule_is_not_run_until_a_start_declares_it(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    process = await processes.start(hourly)
    await store.delete_schedule(processes.database, "reports")
    assert await processes.at(1, process) == 0
    assert logged(caplog, "schedule removed")
    process = await processes.start(hourly)
    assert await processes.at(1.5, process) == 1


@pytest.mark.asyncio
async def test_a_schedule_goes_with_its_stream_and_keeps_to_it(processes: Processes) -> None:
    await processes.start(hourly)
    with pytest.raises(InvalidInput, match="can't be changed"):
        await processes.start(lambda app: app.every("@hourly", "others", name="reports"))
    await store.delete_stream(processes.database, "reports")
    assert await store.schedules(processes.database) == []


@pytest.mark.asyncio
async def test_a_start_refuses_a_schedule_that_has_moved_to_another_stream(processes: Processes) -> None:
    async def start(stream: str) -> None:
        app = App()
        app.every("@hourly", stream, name="daily")
        await declare(processes.database, app.schedules)

    await start("reports")
    with pytest.raises(InvalidInput, match="can't be changed"):
        await start("others")


@pytest.mark.asyncio
async def test_a_schedule_that_cannot_be_taken_over_holds_up_no_other(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    def declared(app: App, stream: str) -> None:
        app.every("@hourly", stream, name="moved")
        app.every("@hourly", "others")

    process = await processes.start(lambda app: declared(app, "reports"))
    await store.delete_schedule(processes.database, "moved")
    await processes.start(lambda app: declared(app, "elsewhere"))  # and then gone
    await processes.through(4, process)
    assert len(logged(caplog, "schedule not taken over")) == 3, "each minute from 1:30 on"
    assert await processes.at(0.5, process) == 1
    assert await processes.due("others") == ["02 09:00"]


@pytest.mark.asyncio
async def test_a_stale_claim_publishes_nothing(processes: Processes) -> None:
    """A process that froze between its look and its publish."""
    frozen, other = [await processes.start(hourly) for _ in range(2)]
    now = START + timedelta(hours=0.5)
    due, _ = await frozen._poll(processes.database, now)
    assert await processes.at(0.5, other) == 1
    assert await frozen._run_one(processes.shared, due[0], now) == 0
    assert await processes.due() == ["02 09:00"]


@pytest.mark.asyncio
async def test_an_app_runs_its_schedules_beside_its_consumers(dsn: str) -> None:
    app, seen, done = App(dsn), [], anyio.Event()
    router = Router()
    router.every("1s", "ticks", data={"n": 1})
    app.include(router)

    @app.consumer("ticks")
    async def tick(data: dict[str, int]) -> None:
        seen.append(data)
        done.set()

    with anyio.fail_after(30):
        async with app.running():
            await done.wait()
    assert seen[0] == {"n": 1}


class Tick(msgspec.Struct):
    number: int


@pytest.mark.asyncio
async def test_messages_of_a_schedule_are_stored_as_the_format_of_their_stream_says(dsn: str) -> None:
    app, seen, done = App(dsn), list[Tick](), anyio.Event()
    secret = app.stream("secret", Tick, codec=AesGcm({"k1": AesGcm.new_key()}))
    versioned = app.stream("versioned", Tick)
    app.every("1s", secret, data=lambda _: Tick(1))
    app.every("1s", versioned, data=Tick(2))

    @versioned.upcaster(from_version=1)
    def upcast(data: dict[str, int]) -> dict[str, int]:
        raise AssertionError("it has the present version")

    async def note(tick: Tick) -> None:
        seen.append(tick)
        if {one.number for one in seen} == {1, 2}:
            done.set()

    secret.consumer(name="a", max_deliver=1)(note)
    versioned.consumer(name="b", max_deliver=1)(note)
    with anyio.fail_after(30):
        async with app.running():
            await done.wait()
            assert (
                await app.database.fetchval(
                    "select count(*) from headrace_streams.secret where data::text like '%number%'"
                )
                == 0
            )


@pytest.mark.parametrize("last", [0, 1])
def test_fixed_data_would_be_stored_as_it_is_beside_a_stream_with_a_codec(last: int) -> None:
    app, codec = App(), AesGcm({"k1": AesGcm.new_key()})
    declare = [
        lambda: app.every("@daily", "secret", data={"number": 1}),
        lambda: app.stream("secret", Tick, codec=codec),
    ]
    declare[1 - last]()
    with pytest.raises(ConfigurationError, match="pass a function"):
        declare[last]()


@pytest.mark.asyncio
async def test_an_app_that_only_publishes_periodically_runs(
    dsn: str, database: store.Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    app = App(dsn)
    app.every("@yearly", "reports")
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: app.run(signals=False))
            while not (found := await store.schedules(database)) or found[0].next_at is None:
                await anyio.lowlevel.checkpoint()
            app.stop()
    assert logged(caplog, "schedule created")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"name": "Reports"}, "schedule name"), ({"missed": "all"}, "'skip' or 'catch_up'"), ({"max_missed": 0}, "from 1 to 1,000"),
        ({"max_missed": True}, "from 1 to 1,000"), ({"key": "a b"}, "key of the schedule"), ({"data": object()}, "data of the schedule"),
        ({"data": "x" * 100_000}, "Pass a function"), ({"zone": "Mars"}, "time zone"), ({"headers": {"a": {1j}}}, "headers of the schedule"),
        ({"unique_key": ""}, "1 to 256 bytes"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_refused_at_once(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        App().every("@daily", "reports", **settings)


def test_two_schedules_of_a_stream_need_names() -> None:
    app = App()
    app.every("@daily", "reports")
    with pytest.raises(ConfigurationError, match="pass name="):
        app.every("@hourly", "reports")
    assert app.every("@hourly", "reports", name="hourly") == "hourly"


def test_the_number_of_schedules_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.app.declaring.base.MAX_SCHEDULES", 1)
    app = App()
    app.every("@daily", "a")
    with pytest.raises(ConfigurationError, match="at most 1 schedules"):
        app.every("@daily", "b")


class Report(msgspec.Struct):
    kind: str


class Reversed:
    """A codec that doesn't hide much."""

    def encode(self, data: bytes, associated: bytes) -> tuple[bytes, dict[str, str]]:
        return data[::-1], {"alg": "reversed"}

    def decode(self, data: bytes, about: Any, associated: bytes) -> bytes:
        return data[::-1]


@pytest.mark.asyncio
async def test_periodic_data_is_stored_as_its_stream_stores_all_data(processes: Processes) -> None:
    app = App()
    reports = app.stream("reports", Report, codec=Reversed())
    reports.upcaster(from_version=1)(lambda data: data)
    processes.shared.publisher = processes.publisher(app._formats)
    process = await processes.start(lambda app: hourly(app, data=lambda due: Report("secret")))
    await processes.at(1, process)
    (message,) = await store.messages(processes.database, "reports")
    assert message.headers is not None
    assert message.headers["headrace-version"] == 2
    assert message.data != {"kind": "secret"}
    assert reports.decoded(message) == Report("secret")


@pytest.mark.asyncio
async def test_fixed_periodic_data_of_a_typed_stream_is_checked_and_published(processes: Processes) -> None:
    app = App()
    reports = app.stream("reports", Report)
    app.every("@hourly", reports, data=Report("daily"))
    app.schedules[0].check_format(app._formats["reports"])
    processes.shared.publisher = processes.publisher(app._formats)
    await processes.at(1, await processes.start(lambda app: hourly(app, data={"kind": "daily"})))
    (message,) = await store.messages(processes.database, "reports")
    assert reports.decoded(message) == Report("daily")


@pytest.mark.parametrize(
    ("codec", "data", "why"),
    [(Reversed(), {"kind": "secret"}, "pass a function of the due time"), (None, {"size": 1}, "does not fit"), (None, None, "does not fit")],
)  # fmt: skip
def test_fixed_data_that_a_stream_cannot_take_is_refused_when_it_is_declared(codec: Any, data: Any, why: str) -> None:
    app = App()
    app.every("@hourly", "reports", data=data)
    with pytest.raises(ConfigurationError, match=why) as caught:
        app.stream("reports", Report, codec=codec)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("every", "back", "again"),
    [("@hourly", 1.0, 1), ("10m", 1.0, 6), ("0 9 * * *", 2.9, 0), ("0 9 * * *", 24.9, 1), ("@yearly", 24 * 365, 0)],
)
@pytest.mark.asyncio
async def test_after_the_clock_was_set_back_a_schedule_goes_by_it(
    processes: Processes, every: str, back: float, again: int
) -> None:
    """A due time that is fixed is repeated only if the clock was set back by more than three hours."""
    process = await processes.start(lambda app: app.every(every, "reports"))
    await processes.at(1, process)
    before = await processes.due()
    await processes.at(1 - back, process)
    for step in range(1, 361):
        await processes.at(1 - back + step / 360, process)
    assert len(await processes.due()) == len(before) + again
    await processes.at(24 * 366 + 1, process)
    assert len(await processes.due()) > len(before) + again


@pytest.mark.asyncio
async def test_a_failed_schedule_is_tried_again_after_the_clock_was_set_back(processes: Processes) -> None:
    fails = [True]

    def data(due: datetime) -> int:
        if fails[0]:
            raise ValueError("not yet")
        return 1

    process = await processes.start(lambda app: app.every("10m", "reports", data=data))
    await processes.at(0.5, process)
    assert await processes.due() == []
    fails[0] = False
    assert await processes.at(0.5 - 60 / 3600, process) == 1
