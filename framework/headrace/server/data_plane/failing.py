"""Failing of requests that wait together for the same result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from headrace.model.errors import StoreUnavailable


def fail(answers: Iterable[asyncio.Future[Any]], error: BaseException) -> None:
    """Raise the error in all requests that are not answered yet.

    A cancellation becomes `StoreUnavailable`, since nothing is known about how far the work came.
    """
    if not isinstance(error, Exception):
        error = StoreUnavailable("The server stops, and can't tell whether this was done. Try again.")
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
