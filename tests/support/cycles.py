"""Finds reference cycles, which keep what they hold until the garbage collector's next run."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


@contextmanager
def no_cycles() -> Iterator[None]:
    """Check that the code in this context leaves no objects and frames of Headrace to the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(filter(None, map(_described, gc.garbage)))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not found, found


def _described(one: object) -> str | None:
    if isinstance(one, FrameType):
        return one.f_code.co_qualname if "/headrace/" in one.f_code.co_filename else None
    cls = type(one)
    return cls.__qualname__ if cls.__module__.startswith("headrace.") or cls is RequestResponseCycle else None
