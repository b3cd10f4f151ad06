"""An app for `headrace run` with handlers that run in processes for a very long time."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from headrace import App
from tests.runtime import worker_functions

app = App(streams=["orders"])
app.consumer("orders", filter="spin", runner="process", concurrency=1)(worker_functions.spin)
app.consumer("orders", filter="wait", runner="process", concurrency=1)(worker_functions.wait)
app.consumer("orders", filter="start_another", runner="process", concurrency=1)(worker_functions.start_another)


@app.lifespan
async def publish_one(app: App) -> AsyncIterator[None]:
    await app.publish("orders", os.environ["KEY"], {"into": os.environ["NOTES"], "pipe": os.environ.get("PIPE")})
    yield
