"""Typed streams: what a declaration refuses, what publish refuses, and what routers do."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

import attrs
import msgspec
import pydantic
import pytest

from headrace import (
    AesGcm,
    App,
    Batch,
    ConfigurationError,
    Depends,
    InvalidData,
    Message,
    Reject,
    Retry,
    Router,
    Stream,
    Transaction,
)
from headrace.app.declarations import Declarations
from headrace.app.streams.signatures import BatchOptions, ConsumerOptions, StreamOptions


class Event(msgspec.Struct):
    id: int


class Order(Event):
    total: float = 0.0


class Tagged(msgspec.Struct, tag=True):
    id: int


class OtherTagged(msgspec.Struct, tag=True):
    id: int


@dataclasses.dataclass
class Data:
    id: int


@attrs.define
class Attrs:
    id: int


class Model(pydantic.BaseModel):
    id: int


class Typed(TypedDict):
    id: int


class Pool: ...


def streams() -> tuple[App, Stream[Order], Stream[Data]]:
    app = App()
    return app, app.stream("orders", Order), app.stream("invoices", Data)


async def plain(order: Order) -> None: ...
async def both_ways(message: Message, order: Order) -> None: ...
async def base(order: Event) -> None: ...
async def unannotated(order) -> None: ...  # type: ignore[no-untyped-def]
async def union(order: Order | None) -> None: ...
async def dependent(pool: Depends[Pool], order: Order) -> None: ...
async def many(orders: list[Order], batch: Batch) -> None: ...
async def sequence(orders: Sequence[Order]) -> None: ...
async def other(order: Data) -> None: ...
async def one_of_many(order: list[Order]) -> None: ...
async def gives_one(order: Order) -> tuple[str, Data]: ...  # type: ignore[empty-body]
async def gives_some(order: Order) -> list[tuple[str, Data]] | Retry | Reject | None: ...
async def gives_headers(order: Order) -> Annotated[tuple[str, Data, dict[str, Any]], "x"]: ...  # type: ignore[empty-body]
async def gives_any(order: Order): ...  # type: ignore[no-untyped-def]
async def gives_other(order: Order) -> tuple[str, Order]: ...  # type: ignore[empty-body]
async def gives_no_key(order: Order) -> Data: ...  # type: ignore[empty-body]
async def gives_bare_list(order: Order) -> list[Data]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("handler", "settings"),
    [
        (plain, {}),
        (both_ways, {}),
        (base, {}),
        (unannotated, {}),
        (union, {}),
        (dependent, {}),
        (many, {"batch": 10}),
        (sequence, {"group_by_key": True}),
        (gives_one, {"publishes": "invoices"}),
        (gives_other, {"publishes": "by_name"}),
        (gives_some, {"publishes": "invoices"}),
        (gives_headers, {"publishes": "invoices"}),
        (gives_any, {"publishes": "invoices"}),
    ],
)
@pytest.mark.parametrize("on_the_app", [False, True])
def test_a_handler_of_the_streams_type_is_taken(
    handler: Callable[..., Any], settings: dict[str, Any], on_the_app: bool
) -> None:
    app, orders, invoices = streams()
    if settings.get("publishes") == "invoices":
        settings = {**settings, "publishes": invoices}
    decorate = app.consumer(orders, **settings) if on_the_app else orders.consumer(**settings)
    assert decorate(handler) is handler
    [consumer] = app.consumers
    assert consumer.spec.stream == "orders"
    assert consumer.handling.publishes in (None, "invoices", "by_name")
    assert consumer.handler.decode('{"id":1,"total":2}') == Order(1, 2)


@pytest.mark.parametrize(
    ("handler", "settings", "says"),
    [
        (other, {}, "takes Data, and the stream 'orders' carries Order: annotate its payload as Order"),
        (one_of_many, {}, "carries Order: annotate its payload as Order"),
        (other, {"batch": 5}, "annotate it as a list"),
        (gives_other, {"publishes": True}, r"return tuple\[str, Data\], which is a key and the data"),
        (gives_no_key, {"publishes": True}, "returns Data, and publishes to 'invoices'"),
        (gives_bare_list, {"publishes": True}, r"returns list\["),
        (plain, {"publishes": True}, "returns None, and publishes"),
        (lambda order, tx: None, {"transactional": True}, "takes more than a payload"),
    ],
)
def test_a_handler_of_another_type_is_refused(handler: Callable[..., Any], settings: dict[str, Any], says: str) -> None:
    _, orders, invoices = streams()
    if settings.get("publishes"):
        settings = {**settings, "publishes": invoices}
    with pytest.raises(ConfigurationError, match=says):
        orders.consumer(**settings)(handler)


def shrink(order: Event) -> None: ...


def test_a_handler_in_a_process_of_its_own_names_the_type_itself() -> None:
    _, orders, _ = streams()
    with pytest.raises(ConfigurationError, match="decodes by its annotation: annotate its payload as Order"):
        orders.consumer(runner="process")(shrink)


def test_a_transaction_needs_a_transactional_handler() -> None:
    async def takes(order: Order, tx: Transaction) -> None: ...

    _, orders, _ = streams()
    with pytest.raises(ConfigurationError, match="pass transactional=True"):
        orders.consumer()(takes)
    orders.consumer(transactional=True)(takes)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (Order, Order(1), Data(1)),
        (Data, Data(1), Order(1)),
        (Attrs, Attrs(1), {"id": 1}),
        (Model, Model(id=1), Order(1)),
        (int, 1, "1"),
        (float, 1, "1"),
        (dict, {"id": 1}, [1]),
        (Event, Order(1), None),
    ],
)
def test_publishing_a_value_of_another_type_is_refused(kind: Any, right: Any, wrong: Any) -> None:
    app = App()
    app.stream("orders", kind)
    stored_as = app._formats["orders"]
    assert stored_as.outgoing("k", right, None) == (right, None)
    assert stored_as.outgoing("k", msgspec.Raw(b"{}"), None)[0] == msgspec.Raw(b"{}")
    with pytest.raises(InvalidData, match="The stream 'orders' carries "):
        stored_as.outgoing("k", wrong, None)


@pytest.mark.parametrize("kind", [list[int], Typed, Tagged | OtherTagged, Any, Annotated[int, msgspec.Meta(gt=0)]])
def test_types_that_instances_cannot_tell_are_not_checked_at_publish(kind: Any) -> None:
    app = App()
    app.stream("orders", kind)
    assert app._formats["orders"].outgoing("k", object, None)[0] is object


def test_a_tombstone_is_published_as_it_is() -> None:
    app = App()
    app.stream("orders", Order, one_message_per_key=True, tombstones=True, codec=AesGcm({"k": AesGcm.new_key()}))
    stored_as = app._formats["orders"]
    assert stored_as.outgoing("k", None, None) == (None, None)
    assert stored_as.read("k", "null", None) == "null"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"type": Pool}, "The stream 'orders' carries 'Pool', which can't be decoded from JSON"),
        ({"type": Order | Data}, "The stream 'orders' carries .* which can't be decoded"),
        ({"type": Order, "codec": AesGcm}, "must have the methods encode and decode"),
        ({"type": Order, "codec": "aes"}, "must have the methods encode and decode"),
        ({"type": Order, "allow_plain": True}, "allow_plain=True and no codec"),
        ({"codec": AesGcm({"k": AesGcm.new_key()})}, "has a codec and no type"),
        (
            {"type": Order, "codec": AesGcm({"k": AesGcm.new_key()}), "dedupe": True, "one_message_per_key": True},
            "makes equal payloads different",
        ),
    ],
)
def test_a_stream_that_cannot_be_is_refused(arguments: dict[str, Any], says: str) -> None:
    app = App()
    with pytest.raises(ConfigurationError, match=says):
        app.stream("orders", **arguments)
    assert app._formats == {}
    assert app._streams == {}


def test_a_stream_by_name_stays_a_name() -> None:
    app = App()
    assert app.stream("orders", max_storage=10_000_000) == "orders"
    assert app._formats == {}


def test_a_typed_stream_is_declared_once() -> None:
    app, _, _ = streams()
    with pytest.raises(ConfigurationError, match="declared with a type twice"):
        app.stream("orders", Order)
    router = Router()
    router.stream("orders", Order)
    with pytest.raises(ConfigurationError, match="declared with a type twice"):
        app.include(router)


@pytest.mark.asyncio
async def test_a_stream_of_a_router_publishes_through_the_app_that_includes_it() -> None:
    router = Router()
    orders = router.stream("orders", Order)
    with pytest.raises(ConfigurationError, match="no apps include it"):
        await orders.publish(Order(1), key="k")
    first, second = App(), App()
    first.include(router)
    assert router._publishes("orders") is first._publisher
    second.include(router)
    with pytest.raises(ConfigurationError, match="2 apps include it, of which 0 are connected"):
        await orders.publish(Order(1), key="k")
    with pytest.raises(ConfigurationError, match="included already"):
        orders.upcaster(from_version=1)(lambda data: data)
    with pytest.raises(ConfigurationError, match="included already"):
        orders.consumer()(plain)


def test_type_checkers_know_the_settings_of_the_declarations() -> None:
    consumer = inspect.signature(Declarations.consumer).parameters
    typed = {"transactional", "publishes", "batch", "group_by_key"}
    assert {**ConsumerOptions.__annotations__, **BatchOptions.__annotations__}.keys() == consumer.keys() - typed - {
        "self",
        "stream",
    }
    for name, kind in {**ConsumerOptions.__annotations__, **BatchOptions.__annotations__}.items():
        assert kind.__forward_arg__ == consumer[name].annotation, name
    stream = inspect.signature(Declarations.stream).parameters
    assert StreamOptions.__annotations__.keys() == stream.keys() - {"self", "name", "type", "codec", "allow_plain"}
    for name, kind in StreamOptions.__annotations__.items():
        assert kind.__forward_arg__ == stream[name].annotation, name


def test_headers_of_a_received_message_are_not_published_again() -> None:
    app, _, _ = streams()
    received: Mapping[str, Any] = {"headrace-version": 7, "headrace-codec": {"kid": "x"}, "mine": 1}
    assert app._formats["orders"].outgoing("k", Order(1), received) == (Order(1), {"mine": 1})
