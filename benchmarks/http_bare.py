"""The raw limit of `http`: the same web server with an application that answers each call at once with the same bytes.

`python -m benchmarks.http_bare --port N --batch N --note N`
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
import uvicorn
import uvloop

from benchmarks import payloads

Event = MutableMapping[str, Any]

_MESSAGE = (
    b'{"ack_id":"%b","message":{"key":"orders.eu.1","data":%b,"seq":1,"stream_id":"%b","headers":null,'
    b'"inserted_at":"2026-01-01T00:00:00.000000Z","attempt":1}}'
)


def answers(batch: int, note: int) -> dict[str, bytes]:
    """The answer to each kind of call, by the last part of its path."""
    message = _MESSAGE % (b"a" * 48, msgspec.json.encode(payloads.order(1, note)), b"s" * 36)
    return {
        "messages": b'{"data":{"published":%d}}' % batch,
        "receive": b'{"data":[%b]}' % b",".join([message] * batch),
        "ack": b'{"success":true}',
        "ready": b"{}",
    }


def application(known: dict[str, bytes]) -> Any:
    """An ASGI application that reads the body, and answers."""

    async def answer(
        scope: Event, receive: Callable[[], Awaitable[Event]], send: Callable[[Event], Awaitable[None]]
    ) -> None:
        while (await receive()).get("more_body"):
            pass
        body = known[scope["path"].rpartition("/")[2]]
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--port", "--batch", "--note"):
        parser.add_argument(name, type=int, required=True)
    asked = parser.parse_args()
    config = uvicorn.Config(
        application(answers(asked.batch, asked.note)), port=asked.port, http="httptools", ws="none", lifespan="off",
        log_config=None, access_log=False, server_header=False,
    )  # fmt: skip
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main()
