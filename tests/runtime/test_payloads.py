"""Payloads: what a handler receives, and what happens to a payload that can't be decoded."""

from __future__ import annotations

import datetime
import threading
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec
import pytest

from headrace import App, ConfigurationError, Message
from tests.runtime.fitting import check_that_handlers_take, taking
from tests.runtime.running import Seen, consumer, dead_letters, running, work_off

if TYPE_CHECKING:
    from decimal import Decimal  # only for the type checker: a handler can't be run with it


class Order(msgspec.Struct):
    id: int
    items: list[str] = []


@dataclass
class Point:
    x: int
    y: float = 0.5


class Name(TypedDict):
    first: str
    last: str


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    name: str


class Picky(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise KeyError("a KeyError is none that msgspec expects")
        if self.n > 9:
            raise ValueError("too large")


class Custom:
    """A class that has no known JSON form."""


FITS: list[tuple[Any, Any, Any]] = [
    (Order, {"id": 7, "items": ["nut"]}, Order(7, ["nut"])),
    (Point, {"x": 1}, Point(1)),
    (Name, {"first": "Ada", "last": "L"}, {"first": "Ada", "last": "L"}),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (list[Point], [{"x": 1}, {"x": 2}], [Point(1), Point(2)]),
    (int | None, None, None),
    (Cat | Dog, {"type": "dog", "name": "Rex"}, Dog("Rex")),
    (datetime.datetime, "2026-01-02T03:04:05Z", datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)),
    (str, "héron 🦦", "héron 🦦"),
    (Any, [1, {"a": None}], [1, {"a": None}]),
]


@pytest.mark.asyncio
async def test_the_payload_is_decoded_into_the_annotated_type(dsn: str) -> None:
    await check_that_handlers_take(dsn, FITS)


@pytest.mark.asyncio
async def test_a_handler_may_take_payload_and_message_in_either_order_one_of_them_or_nothing(dsn: str) -> None:
    app = App(dsn)
    seen = Seen()

    @app.consumer("orders")
    async def both(order: Order, message: Message) -> None:
        seen.note(("both", order, message.seq, message.data is order))

    @app.consumer("orders")
    async def message_first(message: Message, order: Order) -> None:
        seen.note(("message first", order, message.seq, message.data is order))

    @app.consumer("orders")
    async def message_only(message: Message) -> None:
        seen.note(("message only", message.data))

    @app.consumer("orders")
    async def optional_message(order: Order, message: Message | None = None) -> None:
        seen.note(("optional", message is not None))

    @app.consumer("orders")
    async def payload_only(order: Order) -> None:
        seen.note(("payload only", order))

    @app.consumer("orders")
    async def without_annotation(order, *_, more: int = 1, **__) -> None:  # type: ignore[no-untyped-def]
        seen.note(("without annotation", order))

    @app.consumer("orders")
    async def nothing() -> None:
        seen.note(("nothing",))

    class Callable_:  # noqa: N801
        async def __call__(self, order: Order) -> None:
            seen.note(("object", order))

        async def method(self, order: Order, message: Message) -> None:
            seen.note(("method", order, message.seq))

    app.consumer("orders")(Callable_())
    app.consumer("orders")(Callable_().method)

    await work_off(app, ("a", {"id": 7}))
    assert sorted(seen.notes, key=str) == sorted(
        [
            ("both", Order(7), 1, True), ("message first", Order(7), 1, True), ("message only", {"id": 7}), ("optional", True),
            ("payload only", Order(7)), ("without annotation", {"id": 7}), ("nothing",), ("object", Order(7)),
            ("method", Order(7), 1),
        ],
        key=str,
    )  # fmt: skip


@pytest.mark.asyncio
async def test_a_message_has_its_stream_key_and_metadata(dsn: str) -> None:
    app = App(dsn)
    seen: list[Message] = []

    @app.consumer("orders", name="ship")
    async def handler(message: Message) -> None:
        seen.append(message)

    async with running(app):
        before = datetime.datetime.now(datetime.UTC)
        await app.publish("orders", "orders.us.1", {"b": 1, "a": [1.50]}, headers={"trace": "x", "n": 1})
        await app.publish("orders", "orders.us.1", None)
        await app.idle()
    first, second = seen
    assert (first.stream, first.consumer, first.key, first.seq, first.attempt) == (
        "orders",
        "ship",
        "orders.us.1",
        1,
        1,
    )
    assert abs((first.created_at - before).total_seconds()) < 60
    assert first.raw == '{"b":1,"a":[1.5]}'
    assert first.data == {"b": 1, "a": [1.5]}
    assert first.headers == {"trace": "x", "n": 1}
    assert second.data is None
    assert second.headers == {}


MISFITS: list[tuple[Any, Any, str]] = [
    (Order, {"id": 1, "items": ["a", 2]}, "Expected `str`, got `int` - at `$.items[1]`"),
    (Order, {"items": []}, "missing required field `id`"),
    (Point, {"x": "one"}, "Expected `int`, got `str` - at `$.x`"),
    (Name, {"first": "Ada"}, "missing required field `last`"),
    (int, 1.5, "Expected `int`, got `float`"),
    (Literal["a", "b"], "c", "Invalid enum value 'c'"),
    (Picky, {"n": 10}, "too large"),
]


@pytest.mark.asyncio
async def test_a_payload_that_does_not_fit_is_a_dead_letter_at_once_and_says_where(dsn: str) -> None:
    app = App(dsn)
    called: list[Any] = []
    for place, (annotation, _, _) in enumerate(MISFITS):
        app.consumer("orders", name=f"c{place}", filter=f"k{place}", backoff="1h")(taking(annotation, called.append))
    async with running(app):
        await app.publish_many("orders", ((f"k{place}", data) for place, (_, data, _) in enumerate(MISFITS)))
        await app.idle()
        for place, (_, data, error) in enumerate(MISFITS):
            (letter,) = await dead_letters(app, f"c{place}")
            assert (letter.reason, letter.attempts, letter.data) == ("invalid", 1, data)
            assert letter.error is not None
            assert letter.error.startswith("The payload does not fit: ")
            assert error in letter.error
    assert called == []


@pytest.mark.asyncio
async def test_messages_after_a_payload_that_does_not_fit_go_on(dsn: str) -> None:
    app = App(dsn)
    seen: list[int] = []

    @app.consumer("orders")
    async def handler(number: int) -> None:
        seen.append(number)

    await work_off(app, *(("a", data) for data in (1, "two", 3, None, 5)))
    assert seen == [1, 3, 5]


@pytest.mark.asyncio
async def test_a_payload_deeper_than_any_stack_is_a_dead_letter(dsn: str) -> None:
    app = App(dsn)
    seen: list[Any] = []

    @app.consumer("orders", name="it")
    async def handler(payload: Any) -> None:
        seen.append(payload)

    deep = b"[" * 12_000 + b"]" * 12_000  # Postgres takes no more than a little deeper
    try:
        msgspec.json.decode(deep)
    except RecursionError:
        reasons, count = ["invalid"], 0
    else:  # Python 3.14 and newer use the whole stack of the machine
        reasons, count = [], 1
    async with running(app):
        await app.publish("orders", "a", msgspec.Raw(deep))
        await app.idle()
        letters = await app.database.fetch("select reason from headrace_internal.dead_letters")
    assert [letter["reason"] for letter in letters] == reasons
    assert len(seen) == count


@pytest.mark.asyncio
async def test_half_a_surrogate_pair_that_json_takes_is_a_dead_letter(dsn: str) -> None:
    app = App(dsn)

    @app.consumer("orders", name="it")
    async def handler(payload: str) -> None: ...

    async with running(app):
        await app.database.fetchval("select headrace.publish('orders', 'a', $1)", '"\\ud800"')
        await app.idle()
        (letter,) = await app.database.fetch("select reason from headrace_internal.dead_letters")
    assert letter["reason"] == "invalid"


@pytest.mark.asyncio
async def test_an_unexpected_error_while_a_payload_is_made_is_a_failure_like_any_other(dsn: str) -> None:
    app = App(dsn)
    seen: list[int] = []

    @app.consumer("orders", name="it", max_deliver=2, backoff=0)
    async def handler(payload: Picky) -> None:
        seen.append(payload.n)

    async with running(app):
        await app.publish("orders", "a", {"n": -1})
        await app.publish("orders", "b", {"n": 1})
        await app.idle()
        (letter,) = await dead_letters(app, "it")
    assert seen == [1]
    assert (letter.reason, letter.attempts) == ("exhausted", 2)
    assert letter.error is not None
    assert letter.error.startswith("KeyError: ")


def refused(function: Any) -> str:
    app = App("postgresql://nowhere")
    with pytest.raises(ConfigurationError) as caught:
        app.consumer("orders")(function)
    assert app.consumers == []
    return str(caught.value)


def test_annotations_that_can_not_be_decoded_are_refused_with_what_would_be_right() -> None:
    async def custom(order: Custom) -> None: ...
    async def inside(orders: dict[str, list[Custom | None]]) -> None: ...
    async def ambiguous(order: Order | Point) -> None: ...
    async def unresolved(order: Decimal) -> None: ...

    for function in (custom, inside):
        assert refused(function) == (
            f"The handler '{function.__name__}' takes 'Custom', which can't be decoded from JSON: make it a msgspec.Struct,"
            " a pydantic model, a dataclass, a TypedDict, or a built-in type."
        )
    assert "which can't be decoded from JSON: Type unions may not contain more than one" in refused(ambiguous)
    assert "an annotation that can't be resolved: name 'Decimal' is not defined" in refused(unresolved)


def test_functions_that_can_not_take_a_message_are_refused() -> None:
    async def two(order: Order, name: Name) -> None: ...
    async def keyword(order: Order, *, name: str) -> None: ...

    assert "takes more than a payload and a message ('name' is one too many)" in refused(two)
    assert "has a keyword-only parameter 'name': give it a default" in refused(keyword)
    assert refused("text") == "A handler is a function, not str."


# --- functions that block


@pytest.mark.asyncio
async def test_a_plain_function_runs_in_a_thread_with_payload_and_message(dsn: str) -> None:
    app = App(dsn)
    seen: list[Any] = []

    @app.consumer("orders")
    def handler(order: Order, message: Message) -> None:
        seen.append((order, message.seq, threading.current_thread() is threading.main_thread()))

    await work_off(app, ("a", {"id": 1}))
    assert seen == [(Order(1), 1, False)]


@pytest.mark.asyncio
async def test_plain_functions_run_side_by_side_as_many_as_the_concurrency_says(dsn: str) -> None:
    app = App(dsn)
    batch_acknowledger = threading.Barrier(3, timeout=20)

    @app.consumer("orders", concurrency=3, max_deliver=1)
    def handler(number: int) -> None:
        batch_acknowledger.wait()

    async with running(app):
        await app.publish_many("orders", [(f"k{n}", n) for n in range(9)])
        await app.idle()
        assert (await consumer(app, "handler")).dead_letters == 0


@pytest.mark.asyncio
async def test_an_exception_of_a_plain_function_is_a_failure(dsn: str) -> None:
    app = App(dsn)

    @app.consumer("orders", max_deliver=1)
    def handler(number: int) -> None:
        raise StopIteration("even this")

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        (letter,) = await dead_letters(app, "handler")
    assert letter.reason == "exhausted"
    assert "StopIteration" in str(letter.error) + str(letter.traceback)


@pytest.mark.asyncio
async def test_a_plain_function_around_an_async_one_is_done_when_that_is(dsn: str) -> None:
    app = App(dsn)
    seen: list[int] = []

    async def inner(number: int) -> None:
        seen.append(number)
        if number == 2:
            raise ValueError("the inner one failed")

    @app.consumer("orders", name="wrapped", max_deliver=1)
    @wraps(inner)
    def outer(number: int) -> Any:
        return inner(number)

    async with running(app):
        await app.publish_many("orders", [("a", 1), ("a", 2)])
        await app.idle()
        (letter,) = await dead_letters(app, "wrapped")
    assert seen == [1, 2]
    assert letter.error == "ValueError: the inner one failed"
