"""The app: declarations, connecting, running and stopping."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

import anyio
import pytest

from headrace import App, Backoff, ConfigurationError, InvalidFilter, InvalidInput, StoreUnavailable, store
from tests.runtime.running import WITHIN, Gate, Seen, consumer, eventually, numbered, parked, running
from tests.support.logs import logged


@pytest.fixture
def app(dsn: str) -> App:
    return App(dsn)


async def nothing() -> None: ...


# --- declarations


def test_two_handlers_of_a_stream_may_not_share_a_name() -> None:
    app = App("postgresql://nowhere")

    @app.consumer("orders")
    async def ship() -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"Two handlers of 'orders' are both called 'ship'.*pass name=… to one"
    ):

        @app.consumer("orders", name="ship")
        async def other() -> None: ...

    app.consumer("returns", name="ship")(nothing)
    app.consumer("orders", name="ship-2")(nothing)
    assert [(made.spec.stream, made.spec.name) for made in app.consumers] == [
        ("orders", "ship"),
        ("returns", "ship"),
        ("orders", "ship-2"),
    ]


def test_the_decorator_gives_the_function_back() -> None:
    assert App("postgresql://nowhere").consumer("orders")(nothing) is nothing


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"name": "a b"}, "The consumer name 'a b' can't be used"),
        ({"concurrency": 0}, r"concurrency=\(0, 0\) must be a number from 1 to 10,000"),
        ({"concurrency": (4, 2)}, r"concurrency=\(4, 2\)"),
        ({"concurrency": "many"}, "concurrency='many' must be a number such as 16"),
        ({"concurrency": 1.5}, "concurrency=1.5"),
        (
            {"max_deliver": 0},
            "`max_deliver` of the consumer 'nothing' must be from 1 to 1,000,000, or -1 for no limit, not 0",
        ),
        ({"ack_wait": "10ms"}, "`ack_wait` of the consumer 'nothing' must be from 0.1 seconds to 1 day, not 0.01"),
        ({"ack_wait": "soon"}, "ack_wait='soon' is not a duration"),
        ({"max_ack_pending": 0}, "`max_ack_pending` of the consumer"),
        ({"backoff": []}, r"backoff=\[\] is empty"),
        ({"backoff": "-1s"}, "backoff='-1s'"),
        ({"on_exhausted": "forget"}, "`on_exhausted` .*not 'forget'"),
        ({"timeout": 0}, "timeout=0 leaves no time at all"),
    ],
)
def test_an_invalid_setting_is_refused_by_its_name(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        App("postgresql://nowhere").consumer("orders", **settings)(nothing)


def test_filters_are_checked_where_they_are_written() -> None:
    with pytest.raises(InvalidFilter, match="'>' in the middle"):
        App("postgresql://nowhere").consumer("orders", filter="a.>.b")(nothing)
    with pytest.raises(InvalidFilter, match="A consumer needs a filter"):
        App("postgresql://nowhere").consumer("orders", filter=[])(nothing)


def test_a_wildcard_inside_a_token_warns(caplog: pytest.LogCaptureFixture) -> None:
    app = App("postgresql://nowhere")
    app.consumer("orders", filter=["orders.*.new", "orders.>", ">"])(nothing)
    assert not caplog.records
    app.consumer("orders", filter="orders.eu*", name="europe")(nothing)
    assert logged(caplog, "a wildcard inside a token is an ordinary character", consumer="europe", filter="orders.eu*")


@pytest.mark.parametrize(
    ("declare", "given", "hint"),
    [
        ("consumer", {"retries": 3}, " Did you mean max_deliver, the number of attempts including the first?"),
        ("consumer", {"max_delivery": 3}, " Did you mean max_deliver?"),
        ("consumer", {"queue": "orders"}, " Did you mean stream?"),
        ("consumer", {"zzz": 3}, ""),
        ("stream", {"name": "orders", "ttl": "7d"}, " Did you mean retain_up_to?"),
        ("every", {"tz": "Europe/Berlin"}, " Did you mean zone?"),
        ("capture", {"to": "orders"}, " Did you mean into?"),
    ],
)
def test_an_unknown_argument_is_named_with_the_one_that_is_meant(
    declare: str, given: dict[str, Any], hint: str
) -> None:
    name = list(given)[-1]
    with pytest.raises(ConfigurationError) as refused:
        getattr(App("postgresql://nowhere"), declare)(**given)
    assert str(refused.value) == f"{declare}() has no argument {name!r}.{hint}"


def test_a_decorator_without_its_stream_and_other_slips_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"Write @app\.consumer\('orders'\)"):
        App("postgresql://nowhere").consumer(nothing)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"streams='orders' is a string\. Pass a list, such as \['orders'\]"):
        App(streams="orders")
    with pytest.raises(ConfigurationError, match=r"max_connections=1 is invalid\. It must be a number from 2 to 1000"):
        App(max_connections=1)
    with pytest.raises(ConfigurationError, match="shutdown_timeout"):
        App(shutdown_timeout="later")


# --- connecting


@pytest.mark.asyncio
async def test_declared_streams_are_created_at_start(dsn: str) -> None:
    app = App(dsn, streams=["orders"])
    assert app.stream("returns") == "returns"
    for _ in range(2):
        async with app:
            assert [stream.name for stream in await store.streams(app.database)] == ["orders", "returns"]


@pytest.mark.asyncio
async def test_the_schema_is_brought_up_to_date_at_start(empty_dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace")
    async with App(empty_dsn, streams=["orders"]) as app:
        await app.publish("orders", "a", 1)
    assert logged(caplog, "schema updated", steps="applied migration 1 (headrace), installed the server functions")


@pytest.mark.asyncio
async def test_an_invalid_stream_name_is_refused_at_start(dsn: str) -> None:
    with pytest.raises(InvalidInput, match="The stream name 'My Orders' can't be used"):
        async with App(dsn, streams=["My Orders"]):
            pass


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("dsn", "error", "reason"),
    [
        ("nonsense", ConfigurationError, "The database URL 'nonsense' can't be parsed"),
        ("postgresql://me:secret@127.0.0.1:port/db", ConfigurationError, "postgresql://me:…@127.0.0.1:port/db"),
        (
            "postgresql://me:secret@127.0.0.1:1/db",
            StoreUnavailable,
            "postgresql://me:…@127.0.0.1:1/db can't be reached",
        ),
    ],
)
async def test_a_wrong_database_url_is_explained_without_its_password(
    dsn: str, error: type[Exception], reason: str
) -> None:
    app = App(dsn)
    for _ in range(2):  # a failed start leaves no connection or lock behind
        with pytest.raises(error) as caught:
            async with app:
                pass
        assert reason in str(caught.value)
        assert "secret" not in str(caught.value)


@pytest.mark.asyncio
async def test_a_missing_database_is_a_configuration_error(dsn: str) -> None:
    missing = dsn.replace("headrace_test_", "no_such_")
    with pytest.raises(ConfigurationError, match=r"does not exist\. Correct the database URL"):
        async with App(missing):
            pass


@pytest.mark.asyncio
async def test_the_environment_may_name_the_database(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DATABASE", dsn)
    async with App(streams=["orders"]) as app:
        assert app.database.dsn == dsn


@pytest.mark.asyncio
async def test_an_app_may_be_entered_again_inside_itself_and_by_several_tasks(dsn: str) -> None:
    app = App(dsn, streams=["orders"])

    async def use() -> None:
        async with app:
            await app.publish("orders", "a", 1)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(use)
    async with app:
        async with app:
            await use()
        await app.publish("orders", "a", 1)
        assert (await store.stream(app.database, "orders")).messages == 5
    with pytest.raises(ConfigurationError, match="The app is not connected"):
        _ = app.database


# --- running


@pytest.mark.asyncio
async def test_calls_that_need_a_running_app_report_that(app: App) -> None:
    app.stop()
    assert app.statistics() == {}
    with pytest.raises(ConfigurationError, match="The app is not running"):
        await app.idle()
    with pytest.raises(ConfigurationError, match=r"The app has no consumer\. Decorate a function with @app\.consumer"):
        await app.run()


@pytest.mark.asyncio
async def test_an_app_runs_once_at_a_time(app: App) -> None:
    app.consumer("orders")(nothing)
    async with running(app):
        for again in (app.run(), app.running().__aenter__()):
            with pytest.raises(ConfigurationError, match="The app is already running in this process"):
                await again
        await app.publish("orders", "a", 1)
        await app.idle()
    async with running(app):  # it can run again afterwards
        await app.idle()


@pytest.mark.asyncio
async def test_several_apps_may_run_in_one_process(dsn: str) -> None:
    outer, inner = App(dsn), App(dsn)
    seen: list[str] = []
    for app, name in ((outer, "outer"), (inner, "inner")):
        app.consumer("orders", name=name)(noting(seen, name))
    async with running(outer), running(inner):
        await inner.publish("orders", "a", 1)
        await inner.idle()
        await outer.idle()
    assert sorted(seen) == ["inner", "outer"]


@pytest.mark.parametrize("settings", [{}, {"timeout": 60}, {"batch": 10}, {"transactional": True}], ids=str)
@pytest.mark.asyncio
async def test_a_handler_that_waits_until_its_app_is_idle_is_told_that_it_would_wait_for_itself(
    dsn: str, settings: dict[str, Any]
) -> None:
    app, other = App(dsn), App(dsn)
    refused: list[str] = []

    async def wait(payload: Any) -> None:
        await other.idle()  # of another app, a handler may wait
        with pytest.raises(ConfigurationError) as raised:
            await app.idle()
        refused.append(str(raised.value))

    app.consumer("orders", name="ship", **settings)(wait)
    other.consumer("orders", name="bill")(nothing)
    async with running(app), running(other):
        await app.publish("orders", "a", 1)
        await app.idle()
    assert refused == [  # once, and its message was acked
        "A handler of the consumer 'ship' calls idle(), and would wait for its own message. Call idle() outside of handlers,"
        " such as in a test."
    ]


def noting(seen: list[str], name: str) -> Any:
    async def handler() -> None:
        seen.append(name)

    return handler


@pytest.mark.asyncio
async def test_a_consumer_s_filter_chooses_and_each_consumer_has_its_own_place(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", filter="orders.us.>")
    async def american(number: int) -> None:
        seen.note(("american", number))

    @app.consumer("orders", filter=["orders.*.1", "returns"])
    async def mixed(number: int) -> None:
        seen.note(("mixed", number))

    async with running(app):
        await app.publish_many(
            "orders", numbered(["orders.us.1", "orders.eu.1", "orders.us.2.x", "returns", "orders.us"])
        )
        await app.idle()
    assert sorted(seen.notes) == [("american", 1), ("american", 3), ("mixed", 1), ("mixed", 2), ("mixed", 4)]


@pytest.mark.asyncio
async def test_a_new_consumer_begins_at_the_start_and_an_old_one_where_it_was(dsn: str) -> None:
    seen: list[tuple[str, int]] = []

    first, second = App(dsn, streams=["orders"]), App(dsn)
    first.consumer("orders", name="old")(recording(seen, "old"))
    second.consumer("orders", name="old")(recording(seen, "old"))
    second.consumer("orders", name="new")(recording(seen, "new"))
    async with running(first):
        await first.publish("orders", "a", 1)
        await first.idle()
    async with running(second):
        await second.publish("orders", "a", 2)
        await second.idle()
    assert sorted(seen) == [("new", 1), ("new", 2), ("old", 1), ("old", 2)]


def recording(seen: list[tuple[str, int]], name: str) -> Any:
    async def handler(number: int) -> None:
        seen.append((name, number))

    return handler


@pytest.mark.asyncio
async def test_changed_settings_are_applied_at_start_and_logged(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace")
    before, after = App(dsn), App(dsn)
    before.consumer("orders", name="ship")(nothing)
    after.consumer(
        "orders", name="ship", filter="a.>", max_deliver=3, ack_wait="1m", backoff=["1s", "5s"], on_exhausted="block"
    )(nothing)

    async with running(before):
        assert logged(caplog, "consumer created", consumer="ship", stream="orders", deliver_policy="all")
    caplog.clear()
    async with running(before):
        assert caplog.messages == []
    async with running(after):
        settings = (await consumer(after, "ship")).settings
        changes: Any = logged(caplog, "consumer setting changed", consumer="ship", stream="orders")
        assert len(changes) == len(caplog.records)
        assert sorted((record.setting, record.before, record.now) for record in changes) == [
            ("ack_wait", "30", "60.0"),
            ("backoff", "{}", "{'delays': [1.0, 5.0]}"),
            ("filters", "['>']", "['a.>']"),
            ("max_deliver", "10", "3"),
            ("on_exhausted", "'dead_letter'", "'block'"),
        ]
    assert (settings["ack_wait"], settings["max_deliver"], settings["on_exhausted"]) == (60, 3, "block")
    assert settings["filters"] == ["a.>"]


@pytest.mark.asyncio
async def test_a_backoff_changed_and_changed_back_is_the_same(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace")
    for backoff in (Backoff(base=2), Backoff(base=2), "1s", ["1s"]):
        app = App(dsn)
        app.consumer("orders", name="ship", backoff=backoff)(nothing)
        async with running(app):
            pass
    assert len(logged(caplog, "consumer setting changed")) == 1


@pytest.mark.asyncio
async def test_statistics_show_the_state_of_every_consumer(app: App) -> None:
    gate = Gate()

    @app.consumer("orders", concurrency=2)
    async def ship() -> None:
        await gate.wait()

    async with running(app):
        await app.publish_many("orders", numbered("aab"))
        await gate.until(2)
        found = app.statistics()
        ship_ = found["consumers"]["orders:ship"]
        assert (ship_["actors"], ship_["busy"], ship_["waiting"], ship_["held"], ship_["leased"]) == (2, 2, 1, 3, 3)
        assert 1 <= found["connections"]["open"] <= found["connections"]["max"] == 10
        gate.open()
        await app.idle()
        ship_ = app.statistics()["consumers"]["orders:ship"]
        assert (ship_["busy"], ship_["held"], ship_["acked"], ship_["leased"]) == (0, 0, 3, 3)


# --- signals


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_a_second_one_stops_at_once(
    app: App, caplog: pytest.LogCaptureFixture, number: signal.Signals
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    gate = Gate()

    @app.consumer("orders", concurrency=1)
    async def ship() -> None:
        await gate.wait()

    async def given_back(count: int) -> bool:
        return len(await parked(app)) == count

    async with app:
        await store.create_stream(app.database, "orders")
        await app.publish_many("orders", numbered("aa"))
        with anyio.fail_after(WITHIN):
            async with anyio.create_task_group() as group:
                group.start_soon(app.run)
                await gate.until(1)
                os.kill(os.getpid(), number)
                await eventually(lambda: given_back(1))
                assert gate.inside == 1
                os.kill(os.getpid(), number)
        assert await given_back(2)
    assert logged(caplog, "draining", signal=number.name)
    assert logged(caplog, "stopping immediately", signal=number.name)


@pytest.mark.asyncio
async def test_a_handler_may_stop_the_app_it_runs_in(app: App) -> None:
    @app.consumer("orders")
    async def ship() -> None:
        app.stop()

    async with app:
        await store.create_stream(app.database, "orders")
        await app.publish("orders", "a", 1)
        with anyio.fail_after(WITHIN):
            await app.run(signals=False)
        assert (await consumer(app, "ship")).in_flight == 0


@pytest.mark.asyncio
async def test_an_error_of_another_task_is_raised_unchanged_once_handlers_have_finished(app: App) -> None:
    started, may_end = anyio.Event(), anyio.Event()

    @app.consumer("orders")
    async def ship() -> None:
        started.set()
        await may_end.wait()

    async def fail() -> None:
        async with app.running():
            await app.publish("orders", "a", 1)
            await started.wait()
            may_end.set()
            raise ZeroDivisionError

    async with app:
        with pytest.raises(ZeroDivisionError):
            await fail()
        left = await consumer(app, "ship")
        assert (left.lag, left.in_flight, left.parked) == (0, 0, 0)
