"""The stream of a demo is dropped at the end, and the error of the demo is the one that is reported."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest

from headrace import App, StoreUnavailable, UnknownStream
from headrace.cli.demo.temporary_stream import drop_after

pytestmark = [pytest.mark.asyncio, pytest.mark.unit]


class Admin:
    """An admin that can't delete streams, and books that remember whether they were dropped."""

    def __init__(self, error: Exception) -> None:
        self.error, self.dropped = error, False

    async def delete_stream(self, name: str, *, force: bool) -> None:
        raise self.error

    async def drop(self, database: object) -> None:
        self.dropped = True


def app_with(admin: Admin) -> App:
    class Fake:
        database = None

    fake: Any = Fake()
    fake.admin = admin
    return cast("App", fake)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), UnknownStream("demo")], ids=lambda e: type(e).__name__)
async def test_the_error_of_the_demo_is_not_swallowed(error: Exception) -> None:
    admin = Admin(error)
    with pytest.raises(ZeroDivisionError):
        async with drop_after(app_with(admin), "demo", cast("Any", admin)):
            raise ZeroDivisionError
    assert admin.dropped == isinstance(error, UnknownStream)


async def test_a_cancellation_is_not_swallowed() -> None:
    ended = False
    with anyio.move_on_after(0) as scope:
        async with drop_after(app_with(Admin(StoreUnavailable("away"))), "demo"):
            await anyio.sleep_forever()
        ended = True
    assert scope.cancelled_caught
    assert not ended
