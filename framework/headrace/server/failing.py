"""Telling requests that wait together that what they wait for has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from headrace.model.errors import StoreUnavailable


def fail(answers: Iterable[asyncio.Future[Any]], error: BaseException) -> None:
    """Have those that are not answered yet raise the error. When it is a cancellation, nobody can tell how far it came."""
    if not isinstance(error, Exception):
        error = StoreUnavailable("The server stops, and can't tell whether this was done. Try again.")
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
