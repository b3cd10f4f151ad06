"""Context variables: what a handler sets, such as the tenant of its message, reaches neither the next message nor
another one, whatever the handler takes and wherever it runs."""

from __future__ import annotations

import decimal
from collections.abc import AsyncIterator
from contextvars import ContextVar
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from headrace import App, Depends, Message, Next, Transaction
from headrace.sources.postgres.rules.transforms import transformed
from tests.runtime import worker_functions
from tests.runtime.running import Seen, work_off

tenant: ContextVar[str | None] = ContextVar("tenant", default=None)

MESSAGES = 30
BACKLOG = [(f"k{number % 3}", number) for number in range(MESSAGES)]


class Session:
    def __init__(self, found: str | None) -> None:
        self.found = found


def enter(number: int) -> str | None:
    """The work of a service at the beginning of a message. Returns the tenant that it finds."""
    found = tenant.get()
    tenant.set(f"tenant {number}")
    return found


def declare(app: App, seen: Seen, kind: str) -> None:
    """Declare a consumer of this kind, whose handler notes the tenant of before, and its own one after a while."""
    options: dict[str, Any] = {"concurrency": 2}

    def note(number: int, found: str | None) -> None:
        seen.note((found, tenant.get() == f"tenant {number}"))

    if kind == "plain, never waits":

        @app.consumer("orders", **options)
        async def ship(number: int) -> None:
            note(number, enter(number))

    elif kind == "plain":

        @app.consumer("orders", **options)
        async def ship_after_a_while(number: int) -> None:
            found = enter(number)
            await anyio.lowlevel.checkpoint()
            note(number, found)

    elif kind in ("message", "timeout"):

        @app.consumer("orders", **options, **({"timeout": "1h"} if kind == "timeout" else {}))
        async def ship_message(number: int, message: Message) -> None:
            found = enter(number)
            await message.extend()
            note(number, found)

    elif kind == "raises":

        @app.consumer("orders", **options, max_deliver=2, backoff=0)
        async def ship_in_vain(number: int, message: Message) -> None:
            note(number, enter(number))
            if message.attempt == 1:
                raise RuntimeError("once more")

    elif kind == "transactional":

        @app.consumer("orders", **options, transactional=True)
        async def ship_in_transaction(number: int, tx: Transaction) -> None:
            found = enter(number)
            await tx.execute("select 1")
            note(number, found)

    elif kind == "dependency":

        @app.provide
        async def session(message: Message) -> AsyncIterator[Session]:
            session = Session(tenant.get())
            token = tenant.set(f"tenant {message.data}")
            yield session
            assert tenant.get() == "changed"
            tenant.reset(token)  # which only the context where it was set allows

        @app.consumer("orders", **options)
        async def ship_in_session(number: int, session: Depends[Session]) -> None:
            note(number, session.found)
            tenant.set("changed")

    elif kind == "middleware":

        @app.middleware
        async def in_tenant(delivery: Message, call_next: Next) -> Any:
            found = enter(delivery.data)
            result = await call_next()
            note(delivery.data, found)
            return result

        @app.consumer("orders", **options)
        async def ship_under(number: int) -> None:
            assert tenant.get() == f"tenant {number}"

    elif kind == "thread":

        @app.consumer("orders", **options)
        def ship_in_thread(number: int) -> None:
            note(number, enter(number))

    else:

        @app.consumer("orders", **options, batch=4, group_by_key=kind == "key")
        async def ship_many(numbers: list[int]) -> None:
            found = enter(numbers[0])
            await anyio.lowlevel.checkpoint()
            for _ in numbers:
                note(numbers[0], found)


KINDS = [
    *("plain, never waits", "plain", "message", "timeout", "raises", "transactional"),
    *("dependency", "middleware", "thread", "batch", "key"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_handler_sets_no_other_message_finds(app: App, seen: Seen, kind: str) -> None:
    declare(app, seen, kind)
    await work_off(app, *BACKLOG)
    assert set(seen.notes) == {(None, True)}
    assert len(seen.notes) == MESSAGES * (2 if kind == "raises" else 1)
    assert tenant.get() is None


class Odd:
    """Something that can't be compared, as an array of numpy."""

    def __eq__(self, _: object) -> bool:
        raise ValueError("The truth value is ambiguous.")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.asyncio
async def test_a_value_that_can_not_be_compared_counts_as_changed(app: App, seen: Seen) -> None:
    """It is in the context of the service, and in that of a message."""

    @app.consumer("orders", concurrency=1)
    async def ship(number: int) -> None:
        seen.note(anything.get() is of_service)
        anything.set(Odd())

    anything: ContextVar[Odd] = ContextVar("anything")
    of_service = Odd()
    anything.set(of_service)
    await work_off(app, *BACKLOG)
    assert seen.notes == [True] * MESSAGES


@pytest.mark.asyncio
async def test_the_precision_that_a_handler_computes_with_is_its_own(app: App, seen: Seen) -> None:
    @app.consumer("orders", concurrency=1)
    async def ship(number: int) -> None:
        seen.note(str(Decimal(1) / 3))
        decimal.setcontext(decimal.Context(prec=number % 5 + 1))

    await work_off(app, *BACKLOG)
    assert set(seen.notes) == {"0." + "3" * 28}


@pytest.mark.asyncio
async def test_what_a_lifespan_sets_every_handler_finds(app: App, seen: Seen) -> None:
    @app.lifespan
    async def service(_: App) -> AsyncIterator[None]:
        tenant.set("of the service")
        yield

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(tenant.get())
        tenant.set("changed")

    await work_off(app, *BACKLOG)
    assert set(seen.notes) == {"of the service"}


@pytest.mark.asyncio
async def test_what_a_hook_sets_the_next_one_does_not_find(app: App, seen: Seen) -> None:
    @app.on_dead_letter
    async def alert(message: Message, error: BaseException) -> None:
        found = enter(message.data)
        await anyio.lowlevel.checkpoint()
        seen.note((found, tenant.get() == f"tenant {message.data}"))

    @app.consumer("orders", max_deliver=1)
    async def ship(number: int) -> None:
        raise RuntimeError("never")

    await work_off(app, *BACKLOG)
    assert seen.notes == [(None, True)] * MESSAGES


@pytest.mark.asyncio
async def test_in_a_process_what_a_handler_sets_the_next_message_does_not_find(app: App, tmp_path: Path) -> None:
    app.consumer("orders", runner="process", concurrency=1)(worker_functions.enter)
    await work_off(app, *((key, {"numbers": [number], "into": str(tmp_path / "notes")}) for key, number in BACKLOG))
    assert (tmp_path / "notes").read_text().splitlines() == ["None"] * MESSAGES


def test_what_a_transform_sets_the_next_one_does_not_find() -> None:
    def spoilt(message: dict[str, Any]) -> Any:
        return enter(message["number"])

    assert [transformed(spoilt, b'{"number":%d}' % number) for number in range(3)] == [None] * 3
    assert tenant.get() is None
