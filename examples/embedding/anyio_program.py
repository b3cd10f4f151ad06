"""A plain anyio program, on uvloop: a task group with work of its own, and the consumers beside it.

python -m examples.embedding.anyio_program
"""

from __future__ import annotations

import anyio
import msgspec

from headrace import App

app = App(streams=["orders"])


class Order(msgspec.Struct):
    id: int


@app.consumer("orders")
async def ship(order: Order) -> None:
    print(f"shipped order {order.id}", flush=True)


async def sell(number: int) -> None:
    await app.publish("orders", f"orders.{number}", Order(number))


async def main() -> None:
    async with app.running():
        async with anyio.create_task_group() as group:
            for number in range(1, 4):
                group.start_soon(sell, number)
        await app.idle()


if __name__ == "__main__":
    anyio.run(main, backend_options={"use_uvloop": True})
