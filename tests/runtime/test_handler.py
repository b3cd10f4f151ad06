"""Handler parameters: each argument follows from its annotation, at any position."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Optional

import msgspec
import pytest

from headrace import App, Batch, ConfigurationError, Depends, Message
from headrace.runtime.handlers.handler import Handler
from headrace.runtime.messages.transaction import Transaction

if TYPE_CHECKING:
    from decimal import Decimal  # only for the type checker


class Order(msgspec.Struct):
    id: int


class Pool: ...


class Special(Message): ...


ORDER, POOL = Order(7), Pool()
DELIVERY: Any = SimpleNamespace(transaction=object())


def given(function: Callable[..., Any], *, batch: bool = False, transactional: bool = True) -> Any:
    """Returns what the handler returns when it is called with the order, the delivery, and the pool
    for each dependency."""
    handler = Handler(function, batch=batch, transactional=transactional)
    result = handler.apply(ORDER, DELIVERY, **dict.fromkeys(handler.dependencies, POOL))
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


# --- roles, at any position


def test_parameters_receive_their_annotated_types_in_any_order() -> None:
    def usual(order: Order, message: Message) -> Any:
        return order, message

    def turned(message: Message, order: Order) -> Any:
        return order, message

    def by_name(order: Order, *, message: Message) -> Any:
        return order, message

    def only_by_place(message: Message, order: Order, /) -> Any:
        return order, message

    def optional(order: Order, message: Message | None = None) -> Any:
        return order, message

    def optional_of_old(order: Order, message: Optional[Message] = None) -> Any:  # noqa: UP045
        return order, message

    def subclass(order: Order, message: Special) -> Any:
        return order, message

    def noted(order: Annotated[Order, "a note"], message: Message) -> Any:
        return order, message

    def others(order: Order, message: Message, *more: int, **named: int) -> Any:
        assert (more, named) == ((), {})
        return order, message

    for function in (
        usual, turned, by_name, only_by_place, optional, optional_of_old, subclass, noted, others,
    ):  # fmt: skip
        assert given(function) == (ORDER, DELIVERY), function.__name__


def test_dependencies_and_the_transaction_may_stand_anywhere() -> None:
    def first(pool: Depends[Pool], tx: Transaction, order: Order, message: Message) -> Any:
        return order, message, pool, tx

    def last(order: Order, message: Message, pool: Depends[Pool], tx: Transaction) -> Any:
        return order, message, pool, tx

    def named(*, message: Message, tx: Transaction, pool: Depends[Pool], order: Order = ORDER) -> Any:
        return order, message, pool, tx

    def defaulted(order: Order, tx: Transaction | None = None, pool: Depends[Pool] = POOL, *, message: Message) -> Any:
        return order, message, pool, tx

    for function in (first, last, named, defaulted):
        assert given(function) == (ORDER, DELIVERY, POOL, DELIVERY.transaction), function.__name__


def test_a_parameter_with_a_default_in_between_keeps_it() -> None:
    def between(order: Order, verbose: bool = False, message: Message | None = None) -> Any:
        return order, verbose, message

    def before(order: Order, also: Order = ORDER, *, strict: bool = True, pool: Depends[Pool]) -> Any:
        return order, also, strict, pool

    def unreachable(order: Order, verbose: bool = False, message: Message | None = None, /) -> Any: ...

    assert given(between) == (ORDER, False, DELIVERY)
    assert given(before) == (ORDER, ORDER, True, POOL)
    with pytest.raises(
        ConfigurationError, match="the positional-only parameter 'message' behind one that keeps its default"
    ):
        Handler(unreachable)


def test_a_batch_handler_takes_a_list_or_the_batch() -> None:
    def items(orders: list[Order], batch: Batch) -> Any:
        return orders, batch

    def sequence(batch: Batch, orders: Sequence[Order]) -> Any:
        return orders, batch

    for function in (items, sequence):
        assert given(function, batch=True) == (ORDER, DELIVERY)
        assert Handler(function, batch=True).decode('{"id":1}') == Order(1)


# --- functions of every kind


def test_a_partial_has_some_parameters_bound_already() -> None:
    def ship(pool: Pool, order: Order, message: Message, limit: int) -> Any:
        return order, message, pool, limit

    def store(order: Order, message: Message, pool: Depends[Pool]) -> Any:
        return order, message, pool

    handler = functools.partial(functools.partial(ship, POOL), limit=3)
    assert given(handler) == (ORDER, DELIVERY, POOL, 3)
    assert Handler(handler).name == "ship"
    mine = Pool()
    assert given(functools.partial(store, pool=mine)) == (ORDER, DELIVERY, mine)
    assert Handler(functools.partial(store, pool=mine)).dependencies == {}


def test_objects_methods_and_decorated_functions_are_read_through() -> None:
    class Shipping:
        def __call__(self, message: Message, order: Order) -> Any:
            return order, message

        async def ship(self, message: Message, order: Order) -> Any:
            return order, message

        @classmethod
        def of_class(cls, message: Message, order: Order) -> Any:
            return order, message

        @staticmethod
        def of_none(message: Message, order: Order) -> Any:
            return order, message

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return wrapper

    shipping = Shipping()
    for function, name, is_async in (
        (shipping, "Shipping", False),
        (shipping.ship, "ship", True),
        (Shipping.of_class, "of_class", False),
        (Shipping.of_none, "of_none", False),
        (decorated(decorated(shipping.ship)), "ship", True),
        (functools.partial(shipping.ship), "ship", True),
    ):
        assert given(function) == (ORDER, DELIVERY)
        assert (Handler(function).name, Handler(function).is_async) == (name, is_async)


def test_an_object_with_an_async_call_is_async() -> None:
    class Shipping:
        async def __call__(self, order: Order) -> Any:
            return order

    assert Handler(Shipping()).is_async
    assert given(Shipping()) == ORDER


def test_a_handler_that_could_never_run_is_refused() -> None:
    class Shipping:
        def __init__(self, order: Order) -> None: ...

    async def endless(order: Order) -> AsyncIterator[int]:
        yield 1

    def plain(order: Order) -> Iterator[int]:
        yield 1

    with pytest.raises(ConfigurationError, match=r"not the class 'Shipping': hand in an object of it, Shipping\(…\)"):
        Handler(Shipping)
    for function in (endless, plain):
        with pytest.raises(
            ConfigurationError, match=f"The handler '{function.__name__}' is a generator, and would never run"
        ):
            Handler(function)


def test_the_wrapper_of_a_decorator_that_hides_the_parameters_is_refused() -> None:
    def retried(function: Any) -> Any:
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return wrapper

    async def ship(order: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"'wrapper' takes \*args, which are passed nothing.*functools\.wraps"):
        Handler(retried(ship))
    assert len(Handler(functools.wraps(ship)(retried(ship))).parameters) == 1


# --- annotations


def test_return_annotations_need_not_be_resolved_and_parameter_annotations_must() -> None:
    def returns(order: Order) -> Decimal: ...  # type: ignore[empty-body]
    def takes(order: Order, message: Message, price: Decimal = 0) -> None: ...  # type: ignore[assignment]
    def attribute(order: msgspec.Nothing) -> None: ...  # type: ignore[name-defined]

    Handler(returns)
    with pytest.raises(
        ConfigurationError,
        match=r"'takes' has an annotation that can't be resolved: name 'Decimal' is not defined \(of 'price'\)",
    ):
        Handler(takes)
    with pytest.raises(ConfigurationError, match=r"'attribute' has an annotation that can't be resolved: .*Nothing"):
        Handler(attribute)


def test_an_annotation_that_is_invalid_python_is_reported() -> None:
    def broken(order) -> None: ...  # type: ignore[no-untyped-def]

    broken.__annotations__["order"] = "list["
    with pytest.raises(ConfigurationError, match=r"can't be resolved: Forward reference must be an expression"):
        Handler(broken)


def test_a_dependency_that_is_not_marked_is_refused_with_how_to_mark_it() -> None:
    def unmarked(order: Order, pool: Pool) -> None: ...
    def required(order: Order, *, pool: Pool) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"\('pool' is one too many\).*dependencies are annotated as Depends\[…\]"
    ):
        Handler(unmarked)
    with pytest.raises(ConfigurationError, match=r"keyword-only parameter 'pool'.*as a dependency, Depends\[…\]"):
        Handler(required)


def test_a_delivery_of_the_other_kind_and_a_transaction_without_a_setting_are_refused() -> None:
    app = App("postgresql://nowhere")

    def batch(batch: Batch) -> None: ...
    def message(message: Message) -> None: ...
    def writes(order: Order, tx: Transaction) -> None: ...
    def single(order: Order, batch: Batch) -> None: ...

    with pytest.raises(ConfigurationError, match=r"takes a Batch \('batch'\), and is given a Message: pass batch=100"):
        app.consumer("orders")(batch)
    with pytest.raises(
        ConfigurationError, match=r"takes a Message \('message'\), and is given a Batch: leave batch=… out"
    ):
        app.consumer("orders", batch=10)(message)
    with pytest.raises(ConfigurationError, match=r"takes a Transaction \('tx'\): pass transactional=True"):
        app.consumer("orders")(writes)
    with pytest.raises(
        ConfigurationError, match=r"its payload is .*Order.*: annotate it as a list, such as list\[Order\]"
    ):
        app.consumer("orders", batch=10)(single)
