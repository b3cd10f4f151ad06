"""An application whose handler never ends, for `headrace run`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from headrace import App
from tests.runtime import errands

app = App(streams=["orders"])
app.consumer("orders", runner="process", concurrency=1, name="spin")(errands.spin)


@app.lifespan
async def publish_one(app: App) -> AsyncIterator[None]:
    await app.publish("orders", "a", {"into": os.environ["NOTES"]})
    yield
