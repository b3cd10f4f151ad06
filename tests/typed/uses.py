"""Right and wrong uses of typed streams, for type checkers. Lines that end in `# error` are wrong, and no others.

This module is never imported.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import BaseModel

from headrace import App, Batch, Depends, Message, Reject, Retry, Router, Stream, Transaction


class Order(msgspec.Struct, tag=True):
    id: int


class Refund(msgspec.Struct, tag=True):
    id: int


@dataclass
class Invoice:
    id: int


class Basket(BaseModel):
    id: int


class Pool: ...


app = App()
router = Router()
orders = app.stream("orders", Order, retain_up_to="7d")
invoices = app.stream("invoices", Invoice)
baskets = router.stream("baskets", Basket)
numbers = app.stream("numbers", int)
either: Stream[Order | Refund] = app.stream("either", Order | Refund)
name: str = app.stream("by_name", max_storage=10_000_000)


# --- right


@orders.consumer()
async def takes_the_payload(order: Order) -> None: ...


@orders.consumer(filter="a.>", concurrency=4)
async def takes_both(order: Order, message: Message) -> None: ...


@orders.consumer()
def takes_the_message(message: Message) -> None: ...


@orders.consumer()
async def takes_nothing() -> None: ...


@orders.consumer()
async def takes_a_dependency(order: Order, pool: Depends[Pool]) -> Retry | Reject | None: ...


@orders.consumer(batch=10, batch_timeout=1)
async def takes_batches(orders: list[Order], batch: Batch) -> None: ...


@orders.consumer(group_by_key=True)
async def takes_runs(batch: Batch) -> None: ...


@orders.consumer(transactional=True)
async def takes_a_transaction(order: Order, tx: Transaction) -> None: ...


@orders.consumer(transactional=True)
async def takes_a_transaction_first(tx: Transaction, order: Order) -> None: ...


@orders.consumer(batch=5, transactional=True)
async def takes_batches_in_transactions(orders: list[Order], tx: Transaction) -> None: ...


@orders.consumer(publishes=invoices)
async def publishes_one(order: Order) -> tuple[str, Invoice]:
    return "a", Invoice(order.id)


@orders.consumer(publishes=invoices)
def publishes_some(order: Order) -> list[tuple[str, Invoice]] | None:
    return None


@orders.consumer(publishes=invoices, transactional=True, batch=5)
async def publishes_with_headers(orders: list[Order], tx: Transaction) -> list[tuple[str, Invoice, dict[str, Any]]]:
    return []


@orders.consumer(publishes="anything")
async def publishes_to_a_name(order: Order) -> tuple[str, Refund]:
    return "a", Refund(order.id)


@orders.upcaster(from_version=1)
def renamed(data: dict[str, Any]) -> dict[str, Any]:
    return {"id": data["number"]}


@app.consumer(orders)
async def declared_on_the_app(order: Order) -> None: ...


@baskets.consumer()
async def takes_a_model(basket: Basket) -> None: ...


@either.consumer()
async def takes_a_union(event: Order | Refund) -> None: ...


async def right() -> None:
    await orders.publish(Order(1), key="a", delay="1m")
    await orders.publish_many([("a", Order(1))])
    await orders.publish_many([("a", Order(1), {"source": "web"})])
    await either.publish(Refund(1), key="a")
    await numbers.publish(1, key="a")
    await takes_the_payload(Order(1))
    await takes_a_dependency(Order(1), Pool())
    await app.publish(name, "a", {"anything": 1})


# --- wrong


@orders.consumer()  # error
async def takes_another_type(invoice: Invoice) -> None: ...


@orders.consumer(batch=10)  # error
async def takes_one_of_a_batch(order: Order) -> None: ...


@orders.consumer()  # error
async def takes_a_list(orders: list[Order]) -> None: ...


@orders.consumer(batch=3)  # error
async def takes_the_message_of_a_batch(message: Message) -> None: ...


@orders.consumer()  # error
async def takes_the_batch_without_one(batch: Batch) -> None: ...


@orders.consumer()  # error
async def takes_a_transaction_without_one(tx: Transaction, order: Order) -> None: ...


@orders.consumer(transactional=True)  # error
def is_not_async(order: Order) -> None: ...


@orders.consumer(publishes=invoices)  # error
async def publishes_another_type(order: Order) -> tuple[str, Order]:
    return "a", order


@orders.consumer(publishes=invoices)  # error
async def publishes_without_a_key(order: Order) -> Invoice:
    return Invoice(order.id)


@orders.consumer(filer="x")  # error
async def misspells_a_setting(order: Order) -> None: ...


@orders.consumer(batch_timeout=1)  # error
async def has_the_setting_of_a_batch(order: Order) -> None: ...


@orders.upcaster(from_version="1")  # error
def from_text(data: Any) -> Any:
    return data


async def wrong() -> None:
    await orders.publish(Invoice(1), key="a")  # error
    await orders.publish({"id": 1}, key="a")  # error
    await orders.publish(Order(1))  # error
    await orders.publish_many([("a", Invoice(1))])  # error
    await either.publish("text", key="a")  # error
    await numbers.publish("1", key="a")  # error
    await baskets.publish(Order(1), key="a")  # error
    await takes_the_payload(Invoice(1))  # error
    await app.publish(orders, "a", Order(1))  # error


app.stream("misspelt", Order, retain="7d")  # error
app.stream("no_codec", Order, codec="aes")  # error
