"""A copy of a table is kept, of its first row and of its latest change: `headrace run examples.capture_rows:app`.

    create table products (id bigint primary key, title text not null, price numeric not null);
    create table catalogue (id bigint primary key, title text not null, price numeric not null);

The copy here is a table of the same database, so that a row's message and its place in the copy are settled together; it could as well be a
search index. A row that changes while it is waited for comes once, as it is at last. What is deleted comes as a tombstone.
"""

from __future__ import annotations

from decimal import Decimal

import msgspec

from headrace import App, Transaction

app = App()
app.capture("public.products", into="products", mode="rows", deletes="tombstone")


class Product(msgspec.Struct):
    id: int
    title: str
    price: Decimal


class Key(msgspec.Struct):
    id: int


class Metadata(msgspec.Struct):
    key: Key | None = None
    """Of a row that is gone, which one it was."""


class Row(msgspec.Struct):
    record: Product | None
    metadata: Metadata


@app.consumer("products", transactional=True)
async def keep(row: Row, tx: Transaction) -> None:
    if row.record is not None:
        product = row.record
        await tx.execute(
            "insert into catalogue (id, title, price) values ($1, $2, $3)"
            " on conflict (id) do update set title = excluded.title, price = excluded.price",
            product.id,
            product.title,
            product.price,
        )
    elif row.metadata.key is not None:
        await tx.execute("delete from catalogue where id = $1", row.metadata.key.id)
