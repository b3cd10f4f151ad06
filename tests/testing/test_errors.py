"""Errors of handlers that a test asks to see."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace import App, Reject, Retry
from headrace.model.errors import InvalidData
from headrace.testing import Harness

pytestmark = pytest.mark.asyncio

Start = Callable[..., Harness]


async def test_an_error_of_a_handler_is_raised_unchanged_on_request(app: App, harness: Start) -> None:
    error = KeyError("oops")

    @app.consumer("orders")
    async def ship() -> None:
        raise error

    async with harness(app) as h:
        await h.publish("orders", "a", 1)
        with pytest.raises(KeyError) as caught:
            await h.drain(raise_errors=True)
        assert caught.value is error
        assert any(entry.name == "ship" for entry in caught.traceback)
        await h.drain(raise_errors=True)


async def test_several_errors_are_raised_together(app: App, harness: Start) -> None:
    @app.consumer("orders")
    def ship(order: int) -> None:
        raise [KeyError, IndexError][order]

    async with harness(app) as h:
        await h.publish_many("orders", [("a", 0), ("b", 1), ("c", "nonsense")])
        with pytest.raises(ExceptionGroup) as caught:
            await h.drain(raise_errors=True)
        assert {type(error) for error in caught.value.exceptions} == {KeyError, IndexError, InvalidData}


async def test_retry_and_reject_are_no_errors(app: App, harness: Start) -> None:
    @app.consumer("orders")
    async def ship(order: int) -> Retry:
        if order:
            raise Reject
        return Retry(after="1s")

    async with harness(app) as h:
        await h.publish_many("orders", [("a", 0), ("b", 1)])
        await h.drain(raise_errors=True)
        assert sorted(h.kinds(ship)) == ["rejected", "retried"]


async def test_errors_of_the_test_itself_are_raised_unchanged(app: App, harness: Start) -> None:
    with pytest.raises(AssertionError, match="mine"):
        async with harness(app):
            raise AssertionError("mine")
    with pytest.raises(pytest.skip.Exception):
        async with harness(app):
            pytest.skip("mine, too")
