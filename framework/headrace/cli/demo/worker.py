"""The service of the demo, in separate processes: `headrace run headrace.cli.demo.worker:app`.

Its handler is transactional: its writes and the acks of its batch commit together.
"""

from __future__ import annotations

import anyio

from headrace import App, Batch, Transaction
from headrace.cli.demo.books import Books
from headrace.cli.demo.git_log import Change
from headrace.cli.demo.worker_settings import ATTEMPTS, CONSUMER, WorkerSettings

app = App()
_settings = WorkerSettings.read()
_stream = app.stream(_settings.stream)
_books = Books(_settings.stream)


@app.consumer(
    _stream,
    name=CONSUMER,
    transactional=True,
    concurrency=_settings.actors,
    batch=16,
    on_batch_error="bisect",
    max_deliver=ATTEMPTS,
    backoff=0.5,
    ack_wait=_settings.ack_wait,
)
async def apply(changes: list[Change], batch: Batch, tx: Transaction) -> None:
    """Apply changes of files."""
    for change in changes:
        if change.old is None and change.new is None:
            raise ValueError(f"{change.path}: no such file before, and none after")
    await anyio.sleep(_settings.work)  # what a real handler would wait for
    await _books.enter(changes, batch, tx)
