"""A plain asyncio program: it works off what it publishes, and ends.

python -m examples.embedding.asyncio_program
"""

from __future__ import annotations

import asyncio

import msgspec

from headrace import App

app = App(streams=["orders"])


class Order(msgspec.Struct):
    id: int


@app.consumer("orders")
async def ship(order: Order) -> None:
    print(f"shipped order {order.id}", flush=True)


async def main() -> None:
    async with app.running():
        for number in range(1, 4):
            await app.publish("orders", f"orders.{number}", Order(number))
        await app.idle()


if __name__ == "__main__":
    asyncio.run(main())
