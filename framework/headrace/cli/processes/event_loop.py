"""The event loop. It is uvloop if that is installed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


def run_async(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run an async function in a new event loop and return its result."""
    return anyio.run(function, *args, backend_options={"use_uvloop": find_spec("uvloop") is not None})
