"""Your code may raise any exception. One that would end the process must not leave the call that
raised it, because the same message or source would end the next process, too.
"""

from __future__ import annotations

import signal
import sys
import traceback
from types import FrameType, TracebackType

from headrace.model.text.error_text import text_of

OURS = "headrace"
GLUE = frozenset({"anyio", "asyncio", "concurrent", "contextlib", "contextvars"})
"""Packages whose frames say nothing to you where they follow one of ours, which called your code through them."""


class CodeExited(Exception):
    """Your code raised an exception that ends a program or a task, such as `SystemExit`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"The code raised {type(error).__name__}: {text_of(error)}")


def interrupts(error: BaseException) -> bool:
    """Return whether an exception is a Ctrl-C that must end the program. While a program handles
    SIGINT in another way, only code can raise a `KeyboardInterrupt`.
    """
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def line_of(frame: FrameType | None) -> str | None:
    """Return where a thread is in your code, such as `service.py:14 in ship`: the innermost frame that is neither of the
    standard library nor of an installed package. Without one, it is the innermost of all."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    if not frames:
        return None
    yours = next((here for here in frames if is_yours(here)), frames[0])
    code = yours.f_code
    return f"{code.co_filename}:{yours.f_lineno} in {code.co_name}"


def is_yours(frame: FrameType) -> bool:
    """Return whether a frame is of your code: neither ours, nor of the standard library, nor of an installed package."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    is_installed = "site-packages" in frame.f_code.co_filename or package in sys.stdlib_module_names
    return package not in (OURS, "headrace_spark") and not is_installed


def import_problem(name: str, error: BaseException) -> str:
    """Return why a module of yours can't be imported, in a sentence."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    package = str(frames[-1].f_globals.get("__name__", "")).partition(".")[0] if frames else ""
    # Spark reports a missing session by an error of its own, and for columns by an assertion without a text
    if package == "pyspark" and isinstance(error, (AssertionError, RuntimeError)):
        yours = [frame for frame in frames if is_yours(frame)]
        at = f" (at {line_of(yours[-1])})" if yours else ""
        return (
            f"The module {name!r} uses Spark while it is imported, when there is no Spark session yet{at}. Make columns, windows"
            " and schemas inside the handler, and give functions a type such as LongType(), not its name."
        )
    return f"The module {name!r} can't be imported: {type(error).__name__}: {error}."


def leave_out_our_frames(error: BaseException) -> None:
    """Take Headrace's own frames out of the traceback of an exception of your code, and of those that led to it.
    A traceback of nothing else stays as it is.
    """
    known: set[int] = set()
    while id(error) not in known:
        known.add(id(error))
        BaseException.with_traceback(error, _yours(error.__traceback__))  # an error of a frozen class refuses to be set
        following = error.__context__ if error.__cause__ is None else error.__cause__
        if following is None:
            return
        error = following


def _yours(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    follows_ours, here = False, trace
    while here is not None:
        package = str(here.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        follows_ours = package == OURS or (follows_ours and package in GLUE)
        if not follows_ours:
            frames.append(here)
        here = here.tb_next
    found: TracebackType | None = None
    for frame in reversed(frames):
        found = TracebackType(found, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return found or trace
