"""Finds reference cycles, which keep what they hold until the garbage collector's next run."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def no_cycles() -> Iterator[None]:
    """Check that the code in this context leaves no objects and frames of Headrace to the garbage collector, nor
    objects of its web server."""
    gc.collect()
    existing = [one for one in gc.get_objects() if not isinstance(one, tuple)]  # a tuple may be in the making
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
        existing.clear()  # here, since what was left by others must not count
    assert not found, found


def _described(one: object) -> str | None:
    if isinstance(one, FrameType):
        return one.f_code.co_qualname if "/headrace/" in one.f_code.co_filename else None
    cls = type(one)
    return cls.__qualname__ if cls.__module__.startswith(("headrace.", "uvicorn.")) else None
