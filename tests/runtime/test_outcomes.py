"""Outcomes: how a message is settled by what its handler returns, raises, or calls."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import anyio
import anyio.from_thread
import msgspec
import pytest

from headrace import App, Backoff, Batch, Depends, LeaseLost, Message, Next, Reject, Retry, Snooze
from headrace.model.watching.processes import own_process_name
from tests.runtime.running import (
    Seen,
    consumer,
    dead_letters,
    eventually,
    make_due,
    numbered,
    parked,
    running,
    seek,
    work_off,
)

# --- raised and returned


@pytest.mark.asyncio
async def test_a_message_is_acked_when_its_handler_returns(app: App) -> None:
    seen: list[int] = []

    @app.consumer("orders")
    async def ship(number: int) -> str:
        seen.append(number)
        return "whatever is returned"

    async with running(app):
        await app.publish_many("orders", numbered("abca"))
        await app.idle()
        info = await consumer(app, "ship")
    assert sorted(seen) == [1, 2, 3, 4]
    assert (info.position, info.lag, info.in_flight, info.parked, info.dead_letters) == (4, 0, 0, 0, 0)


@pytest.mark.asyncio
async def test_a_message_comes_again_with_its_attempt_counted_when_its_handler_raises(app: App) -> None:
    seen: list[tuple[int, int]] = []

    @app.consumer("orders", backoff=0)
    async def ship(number: int, message: Message) -> None:
        seen.append((number, message.attempt))
        if message.attempt < 3:
            raise ValueError("not yet")

    await work_off(app, *numbered("aa"))
    assert seen == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]


@pytest.mark.asyncio
async def test_the_backoff_decides_when_it_comes_again(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", name="listed", backoff=["1m", "10m"])
    async def listed(number: int) -> None:
        seen.note(number)
        raise ValueError

    @app.consumer("orders", name="growing", filter="none", backoff=Backoff(base=100, factor=10, limit=500, jitter=0))
    async def growing() -> None: ...

    async def failed(times: int) -> Any:
        """The one parked message, once it has been tried this many times."""
        await seen.until(times)
        return (await eventually(lambda: parked(app)))[0]

    async with running(app):
        await app.publish("orders", "a", 1)
        for attempt, delay in ((1, 60), (2, 600), (3, 600)):
            row = await failed(attempt)
            assert row["attempts"] == attempt
            assert delay - 20 < row["due_in"] <= delay
            await make_due(app)
            await app.database.fetchval(
                "select pg_notify('headrace_' || id % 64, id::text) from headrace_internal.streams"
            )


@pytest.mark.asyncio
async def test_a_retry_sets_the_delay_and_counts_the_attempt(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", backoff="1s")
    async def ship(number: int) -> Retry | None:
        seen.note(number)
        match number:
            case 1:
                raise Retry("the warehouse is closed", after="1h")
            case 2:
                return Retry(after=7200)
            case 3:
                raise Retry(after=1e300)
        return None

    async with running(app):
        await app.publish_many("orders", numbered("abcd"))
        rows = await eventually(lambda: three_parked(app))
    assert [row["attempts"] for row in rows] == [1, 1, 1]
    assert 3500 < rows[0]["due_in"] <= 3600
    assert 7100 < rows[1]["due_in"] <= 7200
    assert rows[2]["due_in"] > 300 * 86400, "as late as Postgres can tell"


async def three_parked(app: App) -> Any:
    rows = await parked(app)
    return rows if len(rows) == 3 else None


@pytest.mark.asyncio
async def test_a_reject_raised_or_returned_is_a_dead_letter_at_once(app: App) -> None:
    @app.consumer("orders", backoff=0)
    async def ship(number: int) -> Reject:
        if number == 1:
            raise Reject("no such customer")
        return Reject()

    async with running(app):
        await app.publish_many("orders", numbered("ab"))
        await app.idle()
        first, second = await dead_letters(app, "ship")
    assert (first.reason, first.attempts, first.error) == ("rejected", 1, "no such customer")
    assert (second.reason, second.attempts, second.error) == ("rejected", 1, "the handler rejected the message")
    assert second.traceback is None


@pytest.mark.asyncio
async def test_after_max_deliver_attempts_it_is_a_dead_letter_with_error_and_traceback(app: App) -> None:
    @app.consumer("orders", max_deliver=3, backoff=0)
    async def ship(order: dict[str, int]) -> None:
        raise ZeroDivisionError("a division at sea")

    async with running(app):
        await app.publish("orders", "a.b", {"n": 1}, headers={"h": 1})
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    assert (letter.reason, letter.attempts, letter.key) == ("exhausted", 3, "a.b")
    assert (letter.data, letter.headers) == ({"n": 1}, {"h": 1})
    assert letter.error == "ZeroDivisionError: a division at sea"
    assert letter.traceback is not None
    assert 'raise ZeroDivisionError("a division at sea")' in letter.traceback


@pytest.mark.asyncio
async def test_an_exhausted_message_may_block_its_key_or_be_dropped(app: App) -> None:
    blocked, dropped = [], []

    @app.consumer("orders", name="blocks", max_deliver=1, on_exhausted="block")
    async def blocks(number: int) -> None:
        blocked.append(number)
        if number == 1:
            raise ValueError

    @app.consumer("orders", name="drops", max_deliver=1, on_exhausted="drop")
    async def drops(number: int) -> None:
        dropped.append(number)
        raise ValueError

    async with running(app):
        await app.publish_many("orders", numbered("aba"))
        await app.idle()
        assert (await consumer(app, "drops")).dead_letters == 0
        assert (await consumer(app, "blocks")).blocked == 2
        assert [letter.blocks for letter in await dead_letters(app, "blocks")] == [True]
    assert blocked == [1, 2]
    assert sorted(dropped) == [1, 2, 3]


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even this fails")


@pytest.mark.asyncio
async def test_no_error_text_breaks_other_settlements(app: App) -> None:
    errors: list[BaseException] = [
        ValueError("a NUL \0 in the text"),
        ValueError("half a pair \ud800"),
        ValueError("x" * 1_000_000),
        Unshowable(),
        ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
        Reject("rejected \0\udfff"),
        Retry("again \0\ud800", after=0),
    ]
    done: list[int] = []

    @app.consumer("orders", max_deliver=1)
    async def ship(number: int) -> None:
        if number <= len(errors):
            raise errors[number - 1]
        done.append(number)

    async with running(app):
        await app.publish_many("orders", [("a", number) for number in range(1, len(errors) + 2)])
        await app.idle()
        letters = await dead_letters(app, "ship")
    assert done == [len(errors) + 1]
    texts = [letter.error for letter in letters]
    assert texts[0] == "ValueError: a NUL \\0 in the text"
    assert texts[1] == "ValueError: half a pair ?"
    assert texts[2] is not None
    assert len(texts[2]) == 2000
    assert texts[3] == "Unshowable: <a Unshowable that can't be shown>"
    assert texts[4] == "ExceptionGroup: several (2 sub-exceptions)"
    assert texts[5] == "rejected \\0?"
    assert texts[6] == "again \\0?"
    assert all(len(letter.traceback or "") <= 16_000 for letter in letters)


@pytest.mark.asyncio
async def test_a_cancellation_that_the_handler_brought_on_itself_is_a_failure_and_costs_no_actor(app: App) -> None:
    """The handler awaited something that was cancelled. The handler itself was not cancelled."""
    seen: list[int] = []

    @app.consumer("orders", concurrency=2, max_deliver=1)
    async def ship(number: int) -> None:
        if number <= 4:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        seen.append(number)

    async with running(app):
        await app.publish_many("orders", numbered("abcdef"))
        await app.idle()
        assert app.statistics()["consumers"]["orders:ship"]["actors"] == 2
        letters = await dead_letters(app, "ship")
    assert sorted(seen) == [5, 6]
    assert [letter.seq for letter in letters] == [1, 2, 3, 4]
    assert letters[0].error is not None
    assert letters[0].error.startswith("CancelledError")


# --- settled by the handler itself


@pytest.mark.asyncio
async def test_an_ack_of_the_handler_s_own_is_in_the_store_when_it_returns(app: App) -> None:
    flights: list[int] = []

    @app.consumer("orders")
    async def ship(message: Message) -> NoReturn:
        await message.ack()
        flights.append((await consumer(app, "ship")).in_flight)
        await message.ack()  # a second ack does nothing
        await message.nack()
        raise ValueError("what happens after an ack no longer counts")

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        info = await consumer(app, "ship")
    assert flights == [0]
    assert (info.parked, info.dead_letters, info.in_flight) == (0, 0, 0)


@pytest.mark.asyncio
async def test_a_nack_takes_its_delay_or_else_the_backoff(app: App) -> None:
    @app.consumer("orders", backoff="10m")
    async def ship(number: int, message: Message) -> None:
        await message.nack(*{1: (), 2: ("1h",), 3: (1e300,)}[number])

    async with running(app):
        await app.publish_many("orders", numbered("abc"))
        rows = await eventually(lambda: three_parked(app))
    assert [row["attempts"] for row in rows] == [1, 1, 1]
    assert 580 < rows[0]["due_in"] <= 600
    assert 3580 < rows[1]["due_in"] <= 3600


@pytest.mark.asyncio
async def test_a_message_nacked_without_delay_comes_again_before_later_ones_of_its_key(app: App) -> None:
    seen: list[tuple[int, int]] = []

    @app.consumer("orders", backoff="1h")
    async def ship(number: int, message: Message) -> None:
        seen.append((number, message.attempt))
        if (number, message.attempt) in ((1, 1), (2, 1)):
            await message.nack(0)

    await work_off(app, *numbered("aaa"))
    assert seen == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]


@pytest.mark.asyncio
async def test_a_reject_of_the_handler_s_own_takes_any_reason(app: App) -> None:
    reasons: list[Any] = ["no \0 good \ud800", 42, "y" * 5000]

    @app.consumer("orders")
    async def ship(number: int, message: Message) -> None:
        if number <= len(reasons):
            await message.reject(reasons[number - 1])
        else:
            await message.reject()

    async with running(app):
        await app.publish_many("orders", numbered("abcd"))
        await app.idle()
        letters = await dead_letters(app, "ship")
    assert [letter.error for letter in letters] == ["no \\0 good ?", "42", "y" * 2000, "rejected by the handler"]
    assert {letter.reason for letter in letters} == {"rejected"}


@pytest.mark.asyncio
async def test_settling_a_message_after_its_handler_has_ended_does_nothing(app: App) -> None:
    kept: list[Message] = []

    @app.consumer("orders", max_deliver=1)
    async def ship(number: int, message: Message) -> None:
        kept.append(message)
        if number == 2:
            raise ValueError

    async with running(app):
        await app.publish_many("orders", numbered("abc"))
        await app.idle()
        for message in kept:
            await message.ack()
            await message.nack()
        await app.idle()
        statistics = app.statistics()["consumers"]["orders:ship"]
        assert len(await dead_letters(app, "ship")) == 1
    assert (statistics["acked"], statistics["failed"], statistics["lost"], statistics["held"]) == (2, 1, 0, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "extend"])
async def test_settling_or_extending_reports_that_the_lease_was_lost(app: App, verb: str) -> None:
    seen = Seen()

    @app.consumer("orders")
    async def ship(message: Message) -> None:
        if seen.notes:
            return
        await seek(app, "ship")  # the seek ends leases in flight
        with pytest.raises(LeaseLost, match="The lease of message 1 of 'orders' was lost") as caught:
            await getattr(message, verb)()
        seen.note(str(caught.value))

    async with running(app):
        await app.publish("orders", "a", 1)
        await seen.until(1)
        await app.idle()
        assert await dead_letters(app, "ship") == []
        assert await parked(app) == []


@pytest.mark.asyncio
async def test_an_extension_holds_the_lease_for_ack_wait_from_now(app: App) -> None:
    left: list[float] = []

    @app.consumer("orders", ack_wait="60s")
    async def ship(message: Message) -> None:
        await app.database.fetchval(
            "update headrace_internal.leases set expires_at = clock_timestamp() + interval '5 s'"
        )
        await message.extend()
        left.append(
            await app.database.fetchval(
                "select extract(epoch from expires_at - clock_timestamp())::float8 from headrace_internal.leases"
            )
        )

    await work_off(app, ("a", 1))
    assert 50 < left[0] <= 60


@pytest.mark.asyncio
async def test_a_plain_function_settles_through_the_event_loop(app: App) -> None:
    @app.consumer("orders")
    def ship(number: int, message: Message) -> None:
        if number == 1:
            anyio.from_thread.run(message.reject, "from a thread")
        else:
            anyio.from_thread.run(message.ack)

    async with running(app):
        await app.publish_many("orders", numbered("ab"))
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    assert letter.error == "from a thread"


class _Odd(BaseException):
    pass


@pytest.mark.asyncio
@pytest.mark.parametrize("runner", ["async", "thread"])
@pytest.mark.parametrize("batch", [None, 3])
async def test_whatever_a_handler_raises_costs_its_message_and_not_the_process(
    app: App, runner: Any, batch: int | None
) -> None:
    raised = [SystemExit(0), _Odd("odd"), GeneratorExit(), asyncio.CancelledError(), RecursionError(), MemoryError()]

    def fail(number: int) -> None:
        if number <= len(raised):
            raise raised[number - 1]

    async def ship(number: int) -> None:
        fail(number)

    def ship_in_thread(number: int) -> None:
        fail(number)

    async def ship_all(numbers: list[int]) -> None:
        for number in numbers:
            fail(number)

    def ship_all_in_thread(numbers: list[int]) -> None:
        for number in numbers:
            fail(number)

    handlers = {("async", None): ship, ("thread", None): ship_in_thread, ("async", 3): ship_all}
    handler = handlers.get((runner, batch), ship_all_in_thread)
    batching: dict[str, Any] = {} if batch is None else {"batch": batch, "on_batch_error": "bisect"}
    app.consumer("orders", name="ship", max_deliver=1, runner=runner, **batching)(handler)
    async with running(app):
        await app.publish_many("orders", numbered("a" * 8))
        await app.idle()
        info = await consumer(app, "ship")
    assert (info.lag, info.in_flight, info.dead_letters) == (0, 0, len(raised))


@pytest.mark.asyncio
@pytest.mark.parametrize("raised", [SystemExit(3), _Odd("odd"), GeneratorExit()])
@pytest.mark.parametrize("runner", ["async", "thread"])
async def test_the_dead_letter_names_what_a_handler_raised_wherever_it_ran(
    app: App, runner: Any, raised: BaseException
) -> None:
    async def ship(number: int) -> None:
        raise raised

    def ship_in_thread(number: int) -> None:
        raise raised

    app.consumer("orders", name="ship", max_deliver=1, runner=runner)(ship if runner == "async" else ship_in_thread)
    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    assert (letter.error_type or "").endswith(type(raised).__qualname__)
    assert "CodeExited" not in (letter.error or "")
    assert "runners.py" not in (letter.traceback or ""), "a traceback has the frames of your code only"


@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{}, {"transactional": True}, {"batch": 3}, {"batch": 3, "transactional": True}])
@pytest.mark.parametrize("outcome", [Retry, Snooze, Reject])
async def test_a_returned_class_of_an_outcome_is_an_error_and_no_ack(
    app: App, outcome: type[Exception], options: dict[str, Any]
) -> None:
    @app.consumer("orders", max_deliver=1, **options)
    async def ship(payload: Any) -> type[Exception]:
        return outcome

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    name = outcome.__name__
    assert f"The handler returned the class {name}. Return an object of it, {name}(…), or raise it." in letter.error


class _Order(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number == 1:
            raise SystemExit(0)


class _Stock:
    pass


@pytest.mark.asyncio
async def test_whatever_a_type_a_middleware_or_a_dependency_raises_costs_its_message(app: App) -> None:
    @app.provide
    def stock(message: Message) -> _Stock:
        if message.seq == 2:
            raise SystemExit(0)
        return _Stock()

    @app.middleware
    async def leaving(delivery: Message | Batch, call_next: Next) -> Any:
        if delivery.messages[0].seq == 3:
            raise SystemExit(0)
        return await call_next()

    @app.consumer("orders", max_deliver=1)
    async def ship(order: _Order, stock: Depends[_Stock]) -> None:
        pass

    async with running(app):
        await app.publish_many("orders", [("a", {"number": number}) for number in range(1, 6)])
        await app.idle()
        info = await consumer(app, "ship")
    assert (info.lag, info.in_flight, info.dead_letters) == (0, 0, 3)


@pytest.mark.asyncio
async def test_the_error_of_an_attempt_is_kept_with_the_message_that_waits_for_its_retry(app: App) -> None:
    @app.consumer("orders", backoff=3600)
    async def ship(order: int) -> None:
        raise ValueError(f"no stock for {order}")

    async with running(app):
        await app.publish("orders", "a", 7)
        await eventually(lambda: parked(app))
        [waiting] = await app.admin.peek("orders", "ship")
    assert (waiting.state, waiting.attempts, waiting.error_type) == ("parked", 1, "ValueError")
    assert (waiting.error, waiting.failed_by) == ("ValueError: no stock for 7", own_process_name())
    assert waiting.failed_at is not None
