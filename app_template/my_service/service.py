"""The service: its streams, and the functions that handle their messages.

    headrace run my_service.service:app

Each function gets one message at a time. Messages of one key come strictly in order, those of
different keys in parallel. When the function returns, the message is acked. When it raises, the
message is delivered again later.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import msgspec
from headrace import App, Message, Reject, Retry, Transaction

from . import carrier, tallies
from .settings import from_environment

logger = logging.getLogger("my_service")
settings = from_environment()

app = App(streams=["orders", "parcels"], shutdown_timeout=settings.shutdown_timeout)


class Order(msgspec.Struct):
    """A message of the stream `orders`, with the key `orders.<region>.<id>`. Invalid ones become dead letters."""

    id: int
    items: list[str]


class Parcel(msgspec.Struct):
    """A message of the stream `parcels`, with the key `parcels.<region>.<order>`."""

    order: int
    tracking: str


@app.lifespan
async def tables(app: App) -> AsyncIterator[None]:
    """The service's own table, in the same database, so that a handler's writes can commit together with its ack."""
    async with app.transaction() as tx:
        await tx.execute(
            "select pg_advisory_xact_lock(hashtext('my_service'))"
        )  # processes that start at the same time take turns
        await tx.execute("create table if not exists deliveries (order_id bigint, tracking text)")
    yield


@app.consumer(
    "orders", filter=f"orders.{settings.region}.>", concurrency=(1, settings.most_at_once), publishes="parcels"
)
async def ship(order: Order, message: Message) -> tuple[str, Parcel]:
    """Book a parcel for each order of our region. The return value is published to `parcels`."""
    if not order.items:
        raise Reject(f"order {order.id} has no items, and no further attempt will find any")
    try:
        tracking = await carrier.book(order.id, order.items)
    except carrier.Busy as error:
        logger.info("order %d waits for the carrier, attempt %d", order.id, message.attempt)
        raise Retry("the carrier is busy", after=settings.retry_after) from error
    return f"parcels.{settings.region}.{order.id}", Parcel(order.id, tracking)


@app.consumer("parcels", transactional=True, concurrency=8)
async def enter(parcel: Parcel, tx: Transaction) -> None:
    """Enter the delivery into our books, exactly once per parcel, since the ack is in the same transaction."""
    await tx.execute("insert into deliveries values ($1, $2)", parcel.order, parcel.tracking)
    logger.info("order %d is on its way: %s", parcel.order, parcel.tracking)


if settings.spark:
    tallies.declare(app, settings)
