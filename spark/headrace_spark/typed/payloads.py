"""Decodes the payloads of a task's messages into a typed column, and finds those that don't fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
from pyspark.sql.types import DataType

from headrace_spark.frames.columns import UNFIT
from headrace_spark.frames.incoming import DECODE_ERRORS, unfit
from headrace_spark.frames.schema import Decoder, decoder

Misfit = Callable[[int, Exception], None]
"""A callback that gets the index of each payload that doesn't fit, with the error."""


class Payloads:
    """Builds a column of one Spark type from JSON texts.

    Payloads are first decoded strictly and all together. Only where one does not fit, they are decoded one by one, and
    then a string takes any JSON value, as JSON text.

    Args:
        kind: the type of the column.

    Raises:
        ConfigurationError: the type has no JSON form.
    """

    def __init__(self, kind: DataType) -> None:
        self._strict = decoder(kind, any_as_text=False)
        self._lenient = decoder(kind, any_as_text=True)

    def build(self, texts: pa.Array, misfit: Misfit) -> pa.Array:
        """Build the column of these texts.

        Args:
            texts: valid JSON, none of them null.
            misfit: called for each text that doesn't fit. Its value is null.
        """
        found = texts.to_pylist()
        try:
            return self._strict.column.build(self._strict.many("[" + ",".join(found) + "]"))
        except (*DECODE_ERRORS, *UNFIT):
            return self._one_by_one(found, misfit)

    def _one_by_one(self, texts: list[str], misfit: Misfit) -> pa.Array:
        values: list[Any] = []
        for index, text in enumerate(texts):
            try:
                values.append(self._lenient.one(text))
            except DECODE_ERRORS as error:
                misfit(index, error)
                values.append(None)
        return _built(self._lenient, values, misfit)


def _built(by: Decoder, values: list[Any], misfit: Misfit) -> pa.Array:
    try:
        return by.column.build(values)
    except UNFIT:
        for index, problem in unfit(values, 0, by.column):
            misfit(index, problem)
            values[index] = None
    return by.column.build(values)


def reason(error: Exception) -> str:
    """Why a payload does not fit, in one line and without the payload itself."""
    text = str(error) if isinstance(error, msgspec.MsgspecError) else "a value is outside the range of its type"
    return text.strip().splitlines()[0].rstrip(".") if text.strip() else type(error).__name__
