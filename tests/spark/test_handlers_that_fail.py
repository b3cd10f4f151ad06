"""Spark handlers that fail before, during and after the job, on one message, on all of them, or because
Spark is gone.
"""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
import pytest

from headrace import App, Batch, Retry
from headrace.model.errors import InvalidData
from headrace.model.outcomes import Release
from headrace.runtime.slot import NEVER, ActorSlot, current_slot
from headrace_spark import SparkUnavailable, spark_consumer
from headrace_spark.handlers import failures, jobs, transform, warm_session
from headrace_spark.handlers.failures import Bisection
from headrace_spark.session import liveness
from tests.runtime.running import WITHIN, consumer, dead_letters, eventually, parked, running, seek
from tests.support.logs import logged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.asyncio

QUICK: Any = {"max_wait": "0.1s", "backoff": 0.0}


async def keys(app: App, stream: str) -> list[str]:
    """Return the published keys of the stream, sorted, so that duplicates are visible."""
    rows = await app.database.fetch(f'select key from headrace_streams."{stream}"')
    return sorted(row[0] for row in rows)


async def fill(app: App, count: int) -> list[str]:
    """Publish messages of as many keys before the app runs, so that they become one batch."""
    names = [f"k{n:02}" for n in range(count)]
    async with app:
        await app.publish_many("orders", [(name, {"n": n}) for n, name in enumerate(names)])
    return names


def poisoned(df: DataFrame, *bad: str) -> DataFrame:
    """A job in which a Python function raises at these keys."""

    def check(batches: Any) -> Any:
        for batch in batches:
            for key in batch.column("key").to_pylist():
                if key in bad:
                    raise ValueError(f"{key} is poison")
            yield batch

    return df.select("key", "data").mapInArrow(check, "key string, data string")


async def test_what_a_job_fails_at_stands_alone_in_the_dead_letters_and_all_else_is_published_once(
    spark: SparkSession, dsn: str
) -> None:
    app = App(dsn, streams=["orders"])
    sizes: list[int] = []

    @spark_consumer(app, "orders", publishes="copies", max_deliver=1, **QUICK)
    def copied(df: DataFrame, batch: Batch) -> DataFrame:
        sizes.append(len(batch))
        return poisoned(df, "k05")

    names = await fill(app, 8)
    async with running(app):
        await app.idle()
        assert await keys(app, "copies") == [name for name in names if name != "k05"]
        (letter,) = await dead_letters(app, "copied")
        assert (letter.key, letter.reason) == ("k05", "exhausted")
        assert letter.error == "SparkFailed: ValueError: k05 is poison (in a Python function of the Spark job)"
        assert sizes == [8, 4, 4, 2, 1, 1, 2]


async def test_wrong_columns_fail_the_batch_once_before_anything_runs(
    spark: SparkSession, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(dsn, streams=["orders"])
    calls: list[str] = []
    results: dict[str, Any] = {
        "columns": lambda df: df.select("data"),
        "no frame": lambda df: [1, 2],
        "unknown column": lambda df: df.select("key", "nonsense"),
        "too many": lambda df: df.crossJoin(df.select("seq")).select("key", "data"),
    }

    def declare(name: str, make_session: Any) -> None:
        @spark_consumer(
            app, "orders", name=name.replace(" ", "-"), publishes="copies", max_deliver=1, max_results=4, **QUICK
        )
        def copied(df: DataFrame) -> Any:
            calls.append(name)
            return make_session(df)

    for name, make_session in results.items():
        declare(name, make_session)

    @spark_consumer(app, "orders", name="silent", max_deliver=1, **QUICK)
    def silent(df: DataFrame) -> Any:
        return df

    await fill(app, 4)
    async with running(app):
        await app.idle()
        assert sorted(calls) == sorted(results)
        assert await keys(app, "copies") == []
        outcome = {}
        for name in (*(name.replace(" ", "-") for name in results), "silent"):
            letters = await dead_letters(app, name)
            assert len(letters) == 4
            (outcome[name],) = {letter.error for letter in letters}
            assert len(logged(caplog, "message dead-lettered", consumer=name)) == 1, "one event for an attempt"
    assert "has no string column `key`. Its columns are: data string" in outcome["columns"]
    assert "The Spark handler returned a list" in outcome["no-frame"]
    assert "nonsense" in outcome["unknown-column"]
    assert "returned more than max_results=4 rows" in outcome["too-many"]
    assert "Set publishes='a-stream', or return None" in outcome["silent"]


async def test_a_retry_counts_for_the_whole_batch_and_a_bug_is_not_looked_for_message_by_message(
    spark: SparkSession, dsn: str
) -> None:
    app = App(dsn, streams=["orders"])
    calls: dict[str, list[int]] = {"later": [], "bug": []}

    @spark_consumer(app, "orders", max_deliver=2, **QUICK)
    def later(df: DataFrame, batch: Batch) -> None:
        calls["later"].append(len(batch))
        raise Retry("the warehouse is closed", after=0)

    @spark_consumer(app, "orders", max_deliver=1, **QUICK)
    def bug(df: DataFrame, batch: Batch) -> None:
        calls["bug"].append(len(batch))
        raise TypeError("a bug")

    await fill(app, 64)
    async with running(app):
        await app.idle()
        assert {letter.error for letter in await dead_letters(app, "later")} == {"the warehouse is closed"}
        assert len(await dead_letters(app, "bug")) == 64
    assert calls["later"] == [64, 64]
    assert calls["bug"][:7] == [64, 32, 16, 8, 4, 2, 1]
    assert len(calls["bug"]) < 30  # and not 127


async def test_what_is_published_and_the_acks_are_in_one_transaction(spark: SparkSession, dsn: str) -> None:
    """A failure after the job. One row can't be published, so nothing of that call is, and its message
    is found by bisection.
    """
    app = App(dsn, streams=["orders"])

    @spark_consumer(app, "orders", publishes="copies", max_deliver=1, **QUICK)
    def copied(df: DataFrame) -> DataFrame:
        return df.selectExpr("key", "if(key = 'k02', 'no json', data) as data")

    names = await fill(app, 4)
    async with running(app):
        await app.idle()
        assert await keys(app, "copies") == [name for name in names if name != "k02"]
        (letter,) = await dead_letters(app, "copied")
        assert letter.key == "k02"
        assert (letter.error or "").startswith(InvalidData.__name__)


async def test_a_lease_that_is_lost_between_the_job_and_its_commit_publishes_nothing_twice(
    spark: SparkSession, dsn: str
) -> None:
    app = App(dsn, streams=["orders"])
    lost = anyio.Event()

    async def lose() -> None:
        if not lost.is_set():
            await seek(app, "copied")  # ends all leases, and everything is delivered again
            lost.set()

    @spark_consumer(app, "orders", publishes="copies", **QUICK)
    def copied(df: DataFrame) -> DataFrame:
        found = df.select("key", "data").localCheckpoint()
        anyio.from_thread.run(lose)
        return found

    names = await fill(app, 4)
    async with running(app):
        await app.idle()
        await eventually(lambda: _same(app, names))
        await app.idle()
        assert lost.is_set()
        assert await keys(app, "copies") == names


async def _same(app: App, names: list[str]) -> bool:
    return await keys(app, "copies") == names


class Stuck:
    """A job that doesn't end: one task that sleeps, and reports that it has started."""

    def __init__(self) -> None:
        self.calls = 0
        self.ended = threading.Event()

    def run(self, df: DataFrame) -> None:
        self.calls += 1

        def sleep(batches: Any) -> Any:
            import time

            for batch in batches:
                time.sleep(600)
                yield batch

        try:
            df.mapInArrow(sleep, df.schema).collect()
        finally:
            self.ended.set()


def active(spark: SparkSession) -> list[Any]:
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())


async def at_work(spark: SparkSession) -> None:
    """Wait until a task runs."""

    async def question() -> bool:
        tracker = spark.sparkContext.statusTracker()
        return any(
            stage is not None and stage.numActiveTasks
            for stage in map(tracker.getStageInfo, tracker.getActiveStageIds())
        )

    await eventually(question)


async def test_a_timeout_cancels_the_spark_job_and_the_attempt_counts(spark: SparkSession, dsn: str) -> None:
    app = App(dsn, streams=["orders"])
    stuck = Stuck()

    @spark_consumer(app, "orders", max_deliver=1, timeout="1s", **QUICK)
    def ship(df: DataFrame) -> None:
        stuck.run(df)

    await fill(app, 1)
    async with running(app):
        await app.idle()
        assert active(spark) == []
        (letter,) = await dead_letters(app, "ship")
        assert letter.error == "The handler took longer than its timeout of 1 s."
    assert stuck.calls == 1
    assert stuck.ended.is_set()


async def test_the_end_of_a_drain_cancels_the_spark_job_and_gives_the_batch_back_uncounted(
    spark: SparkSession, dsn: str
) -> None:
    app = App(dsn, streams=["orders"])
    stuck = Stuck()

    @spark_consumer(app, "orders", **QUICK)
    def ship(df: DataFrame) -> None:
        stuck.run(df)

    await fill(app, 2)
    with anyio.fail_after(WITHIN):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: app.run(signals=False))
            await at_work(spark)
            app.stop()
            app.stop()
    assert stuck.ended.is_set()
    assert active(spark) == []
    async with app:
        assert [(row["seq"], row["attempts"]) for row in await parked(app)] in ([], [(1, 0), (2, 0)])
        assert await app.database.fetchval("select count(*) from headrace_internal.leases") == 0


async def test_a_batch_is_given_back_at_the_end_of_a_drain_although_its_call_can_not_be_cancelled(
    spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jobs, "CANCEL_TIMEOUT", 0.1)
    app = App(dsn, streams=["orders"])
    held, begun = threading.Event(), threading.Event()

    @spark_consumer(app, "orders", publishes="copies", **QUICK)
    def ship(df: DataFrame) -> DataFrame:
        begun.set()
        held.wait(WITHIN)  # work of the driver, which no cancel reaches
        return df.select("key", "data")

    await fill(app, 2)
    try:
        with anyio.fail_after(WITHIN):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: app.run(signals=False))
                await anyio.to_thread.run_sync(begun.wait)
                app.stop()
                app.stop()
        async with app:
            assert {row["attempts"] for row in await parked(app)} <= {0}
            assert await app.database.fetchval("select count(*) from headrace_internal.leases") == 0
    finally:
        held.set()
    assert len(logged(caplog, "spark job not cancelled", consumer="orders:ship")) == 1
    async with app:
        assert await keys(app, "copies") == []


async def test_a_job_that_lost_its_lease_is_cancelled(
    spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PROGRESS_INTERVAL", 0.05)
    app = App(dsn, streams=["orders"])
    stuck = Stuck()

    @spark_consumer(app, "orders", ack_wait="1s", **QUICK)
    def ship(df: DataFrame) -> None:
        if stuck.calls == 0:
            stuck.run(df)

    await fill(app, 2)
    async with running(app):
        await at_work(spark)
        await seek(app, "ship")
        await app.idle()
        assert active(spark) == []
        assert await dead_letters(app, "ship") == []
        assert (await consumer(app, "ship")).num_ack_pending == 0
    assert stuck.calls == 1


async def test_a_session_that_dies_costs_no_attempt_and_ends_the_app_with_a_code_for_its_supervisor(
    spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The death is simulated. A real one would end the session of all other tests. See
    test_handlers_killed for that.
    """
    app = App(dsn, streams=["orders"])
    attempts: list[int] = []
    died: list[int] = []
    monkeypatch.setattr(liveness, "gone", lambda _: bool(died))
    monkeypatch.setattr(warm_session, "_WATCH_INTERVAL", WITHIN)  # so that the job notices it

    @spark_consumer(app, "orders", publishes="copies", max_deliver=1, **QUICK)
    def copied(df: DataFrame, batch: Batch) -> DataFrame:
        attempts.append(batch[0].attempt)
        if len(attempts) == 1:
            died.append(1)
            raise ConnectionRefusedError("Answer from Java side is empty")
        return df.select("key", "data")

    names = await fill(app, 4)
    with anyio.fail_after(WITHIN), pytest.raises(SparkUnavailable, match="was lost during a job") as ended:
        await app.run(signals=False)
    assert ended.value.exit_code == 69
    assert len(logged(caplog, "spark session lost")) == 1
    died.clear()
    async with running(app):  # the process that the supervisor starts
        await eventually(lambda: _same(app, names))
        assert await dead_letters(app, "copied") == []
    assert attempts == [1, 1]


async def test_a_session_that_dies_without_a_job_ends_the_app(
    spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The death is simulated. The first look that fails is an accident."""
    app = App(dsn, streams=["orders"])
    looks = [False, True, False, False, True, True]
    monkeypatch.setattr(liveness, "gone", lambda _: looks.pop(0))
    monkeypatch.setattr(warm_session, "_WATCH_INTERVAL", 0.01)

    @spark_consumer(app, "orders", **QUICK)
    def idle(df: DataFrame) -> None:
        raise AssertionError("there is no message")

    with anyio.fail_after(WITHIN), pytest.raises(SparkUnavailable, match="has ended") as ended:
        await app.run(signals=False)
    assert ended.value.exit_code == 69
    assert len(logged(caplog, "spark session lost")) == 1
    assert looks == []


async def test_a_connect_session_that_dies_costs_no_attempt_and_the_next_batch_gets_a_new_one(
    spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Objects of Spark Connect belong to no session, so the app goes on. The death is simulated."""
    monkeypatch.setattr(transform, "MIN_DELAY", 0.01)
    monkeypatch.setattr(warm_session, "is_connect", lambda _: True)
    died: list[int] = []
    attempts: list[int] = []
    monkeypatch.setattr(warm_session, "stop", lambda: died.append(1))
    monkeypatch.setattr(liveness, "gone", lambda _: len(died) < 2)
    app = App(dsn, streams=["orders"])

    @spark_consumer(app, "orders", publishes="copies", max_deliver=1, **QUICK)
    def copied(df: DataFrame, batch: Batch) -> DataFrame:
        attempts.append(batch[0].attempt)
        if len(attempts) < 3:
            raise RuntimeError("StatusCode.UNAVAILABLE")
        return df.select("key", "data")

    names = await fill(app, 4)
    async with running(app):
        await eventually(lambda: _same(app, names))
        await app.idle()
        assert await dead_letters(app, "copied") == []
    assert (attempts, len(died)) == ([1, 1, 1], 2)
    assert len(logged(caplog, "spark unavailable", consumer="orders:copied")) == 2


async def test_errors_of_the_gateway_are_never_the_message_s_fault(spark: SparkSession, dsn: str) -> None:
    """An object of a dead session, which a module has kept, fails in each call, although the session of now is well."""
    from py4j.java_gateway import GatewayParameters, JavaGateway  # type: ignore[import-untyped]

    app = App(dsn, streams=["orders"])
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = JavaGateway(gateway_parameters=GatewayParameters(address="127.0.0.1", port=closed.getsockname()[1]))

        @spark_consumer(app, "orders", max_deliver=1, **QUICK)
        def ship(df: DataFrame) -> None:
            try:
                dead.jvm.System.currentTimeMillis()
            except Exception as error:
                raise RuntimeError("The function can't be used.") from error

        await fill(app, 4)
        with anyio.fail_after(WITHIN), pytest.raises(SparkUnavailable, match="an object of a session that has ended"):
            await app.run(signals=False)
    async with app:
        assert await dead_letters(app, "ship") == []
        assert await app.database.fetchval("select count(*) from headrace_internal.leases") == 0
        assert {row["attempts"] for row in await parked(app)} <= {0}
    own = ConnectionRefusedError("The service of the handler's own does not answer.")
    assert failures.classified(own, spark) is own


async def test_while_there_is_no_spark_batches_are_given_back_and_nothing_starts_without_it(
    spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transform, "MIN_DELAY", 0.01)
    app = App(dsn, streams=["orders"])
    real = warm_session.obtain
    failures = [True]

    def obtain(settings: Any, conf: dict[str, str]) -> SparkSession:
        if failures.pop() if failures else False:
            raise SparkUnavailable("There is no Java.")
        return real(settings, conf)

    monkeypatch.setattr(warm_session, "obtain", obtain)

    @spark_consumer(app, "orders", publishes="copies", max_deliver=1, **QUICK)
    def copied(df: DataFrame) -> DataFrame:
        return df.select("key", "data")

    names = await fill(app, 4)
    with pytest.raises(SparkUnavailable, match=r"There is no Java\."):
        async with app.running():
            pass
    failures += [True, True, True, False]  # the last one is for the start
    async with running(app):
        await eventually(lambda: _same(app, names))
        await app.idle()
        assert await dead_letters(app, "copied") == []
    assert failures == []


class NoSpark(warm_session.WarmSession):
    """A Spark session that is not available."""

    def session(self) -> SparkSession:
        raise SparkUnavailable("There is no Java.")


async def test_the_timeout_of_a_handler_does_not_run_while_it_waits_for_a_spark_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A timeout would count an attempt."""
    monkeypatch.setattr(transform, "MIN_DELAY", 0.01)
    settings = transform.TransformSettings(
        name="orders:ship", function=lambda df, batch: df, source=None, publishes=None, max_results=1, database=str, log_every=1.0
    )  # fmt: skip
    waiting = transform.Transform(settings, NoSpark())
    slot = ActorSlot(anyio.CancelScope())
    slot.until = 1.0
    current_slot.set(slot)
    batch: Any = [Held(1)]
    with anyio.fail_after(WITHIN), pytest.raises(Release, match=r"There is no Java\."):
        await waiting.handle(batch)
    assert slot.until == NEVER


# --- bisection, without Spark


class Held(msgspec.Struct):
    seq: int

    class lease:  # noqa: N801
        id = 1


def calls_for(count: int, bad: set[int]) -> tuple[int, set[int]]:
    """Return the number of calls that bisect so many batches, of which some are bad, and the messages
    that are given up.
    """
    bisection = Bisection()
    batches = [list(range(count))]
    calls, given_up = 0, set()
    while batches:
        part = batches.pop()
        calls += 1
        batch: Any = [Held(seq) for seq in part]
        assert bisection.should_call(batch)
        if not bad & set(part):
            bisection.returned(batch)
        elif bisection.failed(batch) and len(part) > 1:
            middle = len(part) // 2
            batches += [part[middle:], part[:middle]]
        else:
            given_up |= set(part)
    return calls, given_up


async def test_bad_messages_among_many_are_found_by_halves_and_a_bug_is_not_looked_for() -> None:
    for bad in ({0}, {99_999}, {5, 70_000}, {50_000, 50_001}):
        assert calls_for(100_000, bad)[1] == bad
    calls, given_up = calls_for(100_000, set(range(100_000)))
    assert calls < 60
    assert len(given_up) == 100_000
    calls, given_up = calls_for(
        100_000, set(range(1000))
    )  # consecutive at the start. At least the good messages are not lost with them
    assert given_up >= set(range(1000))
    assert len(given_up) < 2_000


async def test_when_every_call_is_stopped_after_its_time_the_rest_of_the_batch_is_not_tried() -> None:
    bisection = Bisection()
    messages: list[Any] = [[Held(seq) for seq in range(1024)]]
    calls = 0
    while messages:
        part: Any = messages.pop()
        if not bisection.should_call(part):
            continue
        calls += 1
        bisection.stopped(part)
        if len(part) > 1:
            messages += [part[len(part) // 2 :], part[: len(part) // 2]]
    assert calls == 2 * 10 + 3
    fresh: Any = [Held(5000)]
    assert bisection.should_call(fresh)


@pytest.mark.parametrize("bad", [set(), {700}, set(range(1024))])
async def test_what_can_not_be_published_has_not_passed_and_is_found_by_halves_or_not_looked_for(bad: set[int]) -> None:
    bisection = Bisection()
    messages: list[Any] = [[Held(seq) for seq in range(1024)]]
    calls = 0
    given_up: set[int] = set()
    while messages:
        part: Any = messages.pop()
        seqs = {message.seq for message in part}
        if not bisection.should_call(part):
            given_up |= seqs
            continue
        calls += 1
        bisection.returned(part)
        if not bad & seqs:
            continue
        if len(part) > 1:
            messages += [part[len(part) // 2 :], part[: len(part) // 2]]
        else:
            given_up |= seqs
    assert given_up == bad
    assert calls <= 40, "singles are not looked at"
