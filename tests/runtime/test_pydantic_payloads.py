"""Pydantic models as payloads: in handlers, in `publish`, and in what handlers return."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from typing_extensions import TypedDict

from headrace import App, ConfigurationError, InvalidData
from headrace.model.messages.payloads import encode
from tests.runtime.fitting import check_that_handlers_take
from tests.runtime.running import Seen, dead_letters, running


class Line(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    price: Decimal
    at: datetime


class Order(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId", gt=0)
    lines: list[Line] = []

    @pydantic.field_serializer("lines")
    def without_cents(self, lines: list[Line]) -> list[Any]:
        return [{**line.model_dump(mode="json"), "price": str(round(line.price, 2))} for line in lines]


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


Animal = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


@dataclasses.dataclass
class Pair:
    first: Cat
    second: Dog | None = None


class Named(TypedDict):
    cats: list[Cat]


@pydantic.dataclasses.dataclass
class Checked:
    n: Annotated[int, pydantic.Field(ge=0)]


class Point(msgspec.Struct):
    x: int


class Node(pydantic.BaseModel):
    children: list[Node] = []


LINE = {"price": "12.345678901234567890", "at": "2026-01-02T03:04:05Z"}
FITS: list[tuple[Any, Any, Any]] = [
    (Order, {"orderId": 7, "lines": [LINE]}, Order(orderId=7, lines=[Line.model_validate_json(encode(LINE))])),
    (Animal, {"kind": "dog", "name": "Rex"}, Dog(name="Rex")),
    (list[Cat], [{"lives": 9}], [Cat(lives=9)]),
    (Cat | None, None, None),
    (Pair, {"first": {"lives": 1}}, Pair(Cat(lives=1))),
    (Named, {"cats": [{"lives": 2}]}, {"cats": [Cat(lives=2)]}),
    (Checked, {"n": "3"}, Checked(3)),
    (Node, {"children": [{"children": []}]}, Node(children=[Node()])),
]


@pytest.mark.asyncio
async def test_handlers_take_models_and_what_contains_them(dsn: str) -> None:
    await check_that_handlers_take(dsn, FITS)


@pytest.mark.asyncio
async def test_what_is_published_is_what_the_handler_gets(dsn: str) -> None:
    app = App(dsn)
    seen = Seen()
    order = Order(
        orderId=3, lines=[Line(price=Decimal("1.005"), at=datetime.fromisoformat("2026-01-02T03:04:05+00:00"))]
    )

    @app.consumer("orders", publishes="parcels")
    async def ship(order: Order) -> tuple[str, Order]:
        return "c", order

    @app.consumer("parcels", batch=10)
    async def deliver(orders: list[Order]) -> None:
        for one in orders:
            seen.note(one)

    async with running(app):
        await app.publish("orders", "a", order)
        await app.publish_many("orders", [("b", order)])
        await seen.until(2)
    assert [(one.order_id, str(one.lines[0].price)) for one in seen.notes] == [(3, "1.00"), (3, "1.00")]


@pytest.mark.asyncio
async def test_a_payload_that_does_not_fit_is_a_dead_letter_that_says_why_without_its_values(dsn: str) -> None:
    app = App(dsn)

    @app.consumer("orders")
    async def ship(order: Order) -> None:
        raise AssertionError("never called")

    async with running(app):
        await app.publish("orders", "a", {"orderId": -1, "lines": [{"price": "secret", "at": 1}]})
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    assert letter.attempts == 1
    assert "greater than 0 - at `$.orderId`" in letter.error
    assert "valid decimal" in letter.error
    assert "at `$.lines.0.price`" in letter.error
    assert "secret" not in letter.error


def test_models_inside_of_other_payloads_are_encoded() -> None:
    class Parcel(msgspec.Struct):
        cat: Cat

    assert encode(Parcel(Cat(lives=1))) == '{"cat":{"kind":"cat","lives":1}}'
    assert encode([Pair(Cat(lives=2))]) == '[{"first":{"kind":"cat","lives":2},"second":null}]'


def test_models_that_can_not_be_written_as_json_are_refused() -> None:
    class Odd(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        it: object

    with pytest.raises(InvalidData, match="can't be written as JSON"):
        encode(Odd(it=object()))
    with pytest.raises(InvalidData, match="NUL"):
        encode(Dog(name="a\0b"))
    with pytest.raises(InvalidData, match="unsupported"):
        encode(object())


def test_a_type_that_mixes_models_and_structs_is_refused_with_the_reason() -> None:
    app = App("postgresql://nowhere")
    with pytest.raises(ConfigurationError, match=r"can't be decoded from JSON: pydantic refuses it: .*Point"):

        @app.consumer("orders")
        async def ship(order: Cat | Point) -> None: ...
