"""Handlers of many payload types, run and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace import App
from tests.runtime.running import work_off


def taking(annotation: Any, note: Callable[[Any], None]) -> Callable[[Any], Any]:
    """A handler that takes the payload as this type."""

    async def handler(payload) -> None:  # type: ignore[no-untyped-def]
        note(payload)

    handler.__annotations__["payload"] = annotation
    return handler


async def check_that_handlers_take(dsn: str, fits: Sequence[tuple[Any, Any, Any]]) -> None:
    """Publish the data of (type, data, payload) to a handler of each type, and compare what it gets with the payload."""
    app = App(dsn)
    seen: dict[int, Any] = {}
    for place, (annotation, _, _) in enumerate(fits):
        app.consumer("orders", name=f"c{place}", filter=f"k{place}")(
            taking(annotation, partial(seen.__setitem__, place))
        )
    await work_off(app, *((f"k{place}", data) for place, (_, data, _) in enumerate(fits)))
    for place, (annotation, _, expected) in enumerate(fits):
        assert seen[place] == expected, annotation
        assert type(seen[place]) is type(expected)
