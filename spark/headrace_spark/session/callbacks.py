"""Wraps functions that Spark calls with each batch, so that their errors do not end its stream thread.

When a query is stopped, Spark looks for an interruption in the error of the function, with a regular
expression that calls itself for each character behind the words of `_MARKER`. The text of an error
from Java has thousands of characters there. The thread then dies of a StackOverflowError, and the
query's own error is lost. Errors are therefore raised without these words, or with little behind them.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.model.errors import HeadraceError
from headrace.model.log import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = Log("headrace.spark")

_MARKER = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_INTERRUPTION = re.compile(
    r"java\.lang\.InterruptedException|java\.io\.InterruptedIOException|java\.nio\.channels\.ClosedByInterruptException"
)
"""The words that Spark takes for an interruption, if they are behind the marker."""


class JavaFailed(Exception):
    """Java raised an error in a call of the function. The text is Java's."""


JavaFailed.__module__ = "builtins"  # Headrace's own errors are recognized by the module in a traceback


class BatchCallback:
    """A function for `foreachBatch` whose errors Spark can read. It can be pickled if the function can be."""

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function = function

    def __call__(self, batch: DataFrame, number: int) -> None:
        try:
            self._function(batch, number)
        except HeadraceError as error:
            log.debug("batch failed", batch=number, error=error)
            raise error from None  # its cause would be printed with it
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            if _MARKER not in text:
                raise
            raise JavaFailed(readable(text)) from None


def is_interruption(text: str) -> bool:
    """Return whether the text of an error from Java is that of a thread which was interrupted, as when a query is
    stopped."""
    return _INTERRUPTION.search(text) is not None


def readable(text: str) -> str:
    """The text of an error without the marker. If it was an interruption, a short marker at the end says so."""
    interruption = _INTERRUPTION.search(text, text.find(_MARKER))
    plain = text.replace(_MARKER, "An error occurred while calling")
    return plain if interruption is None else f"{plain} ({_MARKER} {interruption[0]})"
