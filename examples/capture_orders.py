"""Orders that another program writes into a table are shipped once they are paid: `headrace run examples.capture_orders:app`.

    create table orders (id bigint primary key, status text not null, total numeric not null, email text);

What the transform leaves out never comes into the stream.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from headrace import App, transform

app = App()


@transform
def without_email(message: dict[str, Any]) -> dict[str, Any]:
    for values in (message["record"], message["changes"]):
        if values is not None:
            values.pop("email", None)
    return message


class Order(msgspec.Struct):
    id: int
    status: str
    total: Decimal


class Change(msgspec.Struct):
    record: Order
    action: str
    changes: dict[str, Any] | None


app.capture("public.orders", into="orders", transform=without_email)


@app.consumer("orders", where="data.record.status = 'paid'")
async def ship(change: Change) -> None:
    print(f"shipped order {change.record.id} for {change.record.total}, after its {change.action}", flush=True)
