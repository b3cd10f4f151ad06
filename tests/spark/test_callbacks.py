"""Errors of functions that Spark calls with each batch: its stream thread can read them, however long they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from headrace.model.errors import InvalidInput
from headrace_spark.session.callbacks import BatchCallback

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKER = "py4j.protocol.Py4JJavaError: An error occurred while calling"


class Py4JJavaError(Exception):
    __module__ = "py4j.protocol"


def raised(call: Callable[[], Any]) -> str:
    """The object that Spark gets: the traceback of what a callback raises."""
    import traceback

    try:
        BatchCallback(lambda batch, number: call())(None, 1)  # type: ignore[arg-type]
    except Exception as error:
        return "".join(traceback.format_exception(error))
    raise AssertionError("nothing was raised")


def failing(text: str) -> Callable[[], Any]:
    def call() -> None:
        raise Py4JJavaError(
            f"An error occurred while calling o5.save.\n: {text}\n" + "\tat some.Class.method(File.java:1)\n" * 500
        )

    return call


def test_an_error_from_java_keeps_its_text_and_does_not_overflow_the_stack(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    stream = getattr(getattr(jvm, "org.apache.spark.sql.execution.streaming.runtime.StreamExecution$"), "MODULE$")
    text = raised(failing("org.apache.spark.SparkException: no good"))
    assert "org.apache.spark.SparkException: no good" in text
    assert not stream.PROXY_ERROR().findFirstIn(text).isDefined()
    interrupted = raised(failing("java.lang.InterruptedException"))
    assert stream.PROXY_ERROR().findFirstIn(interrupted).isDefined(), "a query that is stopped ends without an error"


def test_an_error_with_java_in_its_causes_stands_alone() -> None:
    def call() -> None:
        try:
            failing("x")()
        except Py4JJavaError as error:
            raise InvalidInput("The key is wrong.") from error

    text = raised(call)
    assert text.endswith("headrace.model.errors.InvalidInput: The key is wrong.\n")
    assert MARKER not in text

    def of_user() -> None:
        try:
            failing("x")()
        except Py4JJavaError as error:
            raise ValueError("no") from error

    assert MARKER not in raised(of_user)
    assert "ValueError: no" in raised(of_user)


def test_other_errors_are_left_alone() -> None:
    def call() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        BatchCallback(lambda batch, number: call())(None, 1)  # type: ignore[arg-type]
