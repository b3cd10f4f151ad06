"""The application of the mixed-version run. It works with the code of any revision."""

from __future__ import annotations

from headrace import App, Message, Transaction

app = App(max_connections=8, shutdown_timeout="5s")


@app.consumer(
    "orders", name="work", ack_wait="2s", max_deliver=-1, backoff=["5ms", "50ms"], concurrency=16, transactional=True
)
async def handle(message: Message, tx: Transaction) -> None:
    """Write a receipt, in the transaction of the ack."""
    await tx.fetchval("select take_receipt($1, $2, $3)", message.seq, message.key, message.data["id"])
