"""The service of `start`. It handles one message, says so on standard output, and waits to be stopped."""

from __future__ import annotations

from headrace import App

app = App()


@app.consumer("orders")  # `harness.STREAM`, which is dear to import
async def first(number: int) -> None:
    print(number, flush=True)
