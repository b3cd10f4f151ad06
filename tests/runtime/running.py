"""Helpers for a running app in a test: run it with a time limit, record what its handlers receive,
and query the database beside it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from headrace import App, Message, store
from headrace.model.records import ConsumerInfo, DeadLetter
from headrace.runtime.pipeline.pipeline import Pipeline

WITHIN = 60.0
"""The time limit in seconds after which a test counts as hung. Everything here takes far less."""


@asynccontextmanager
async def running(app: App, *, within: float = WITHIN) -> AsyncIterator[App]:
    """Run the app in the block and drain it at the end. Raises a `TimeoutError` if that takes too long."""
    with anyio.fail_after(within):
        async with app.running():
            yield app


async def work_off(app: App, *messages: tuple[str, Any], stream: str = "orders") -> None:
    """Publish (key, data) messages, and run the app until no message is left."""
    async with running(app):
        await app.publish_many(stream, messages)
        await app.idle()


class Seen:
    """The records of handlers, in order, with a way to wait for them."""

    def __init__(self) -> None:
        self.notes: list[Any] = []
        self._news = anyio.Event()

    def note(self, what: Any) -> None:
        self.notes.append(what)
        self._news.set()
        self._news = anyio.Event()

    async def until(self, count: int) -> list[Any]:
        """Wait until there are this many notes. Returns them."""
        with anyio.fail_after(WITHIN):
            while len(self.notes) < count:
                await self._news.wait()
        return self.notes


class Gate:
    """A point where handlers wait until the test opens it. It counts the handlers that wait."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self._news = anyio.Event()
        self._open = anyio.Event()

    async def wait(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self._news.set()
        self._news = anyio.Event()
        try:
            await self._open.wait()
        finally:
            self.inside -= 1
            self._news.set()
            self._news = anyio.Event()

    async def until(self, count: int) -> None:
        """Wait until this many handlers wait here."""
        with anyio.fail_after(WITHIN):
            while self.inside != count:
                await self._news.wait()

    @property
    def passed(self) -> bool:
        """Whether the gate is open."""
        return self._open.is_set()

    def open(self) -> None:
        self._open.set()


def pipeline_of(app: App) -> Pipeline:
    """Return the only pipeline of a running app."""
    (pipeline,) = app._service.pipelines
    return pipeline


async def eventually(question: Callable[[], Awaitable[Any]]) -> Any:
    """Query the database repeatedly until the answer is true. Returns the answer."""
    with anyio.fail_after(WITHIN):
        while not (answer := await question()):
            await anyio.lowlevel.checkpoint()
    return answer


async def consumer(app: App, name: str, stream: str = "orders") -> ConsumerInfo:
    return await store.consumer(app.database, stream, name)


async def dead_letters(app: App, name: str, stream: str = "orders") -> list[DeadLetter]:
    return await store.dead_letters(app.database, await store.consumer_id(app.database, stream, name))


async def seek(app: App, name: str, position: int | None = 0, stream: str = "orders") -> None:
    await store.seek(app.database, await store.consumer_id(app.database, stream, name), position)


async def parked(app: App) -> list[Any]:
    """The parked messages: seq, attempts, and seconds until they are due. None means that they are due now."""
    return await app.database.fetch(
        """select seq, attempts, case when isfinite(due_at) then extract(epoch from due_at - clock_timestamp())::float8 end as due_in
           from headrace_internal.parked order by seq"""
    )


async def make_due(app: App) -> None:
    """Make every parked message due now."""
    await app.database.fetchval(
        "update headrace_internal.parked set due_at = clock_timestamp() where due_at > clock_timestamp()"
    )


def numbered(keys: Iterable[str]) -> list[tuple[str, Any]]:
    """One message for each key. Its data is its number, from 1."""
    return [(key, number) for number, key in enumerate(keys, 1)]


def raw(message: Message) -> Any:
    return json.loads(message.raw)
