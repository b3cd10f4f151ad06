"""The last step of shaping: checks a message against the source's condition, transforms it, and adds
it to a batch. If that fails, the message is kept as a failure.

A failure's data is the message before its transform. The last member of its metadata,
`message_key`, holds its key. It can thus be retried even when nothing else is known of its table any more. A message
that is too large or unreadable is kept without its record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from headrace.model.errors import HeadraceError, InvalidData
from headrace.model.text.error_text import error_text, storable, text_of
from headrace.runtime.user_code import interrupts
from headrace.sources.postgres.rules import transforms
from headrace.sources.postgres.rules.conditions import SourceCondition
from headrace.sources.postgres.rules.keys import full_identity
from headrace.sources.postgres.rules.transform_watchdog import TransformStuck
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store import CaptureFailure

MAX_MESSAGE_BYTES = 200_000_000
"""Limit of a message in bytes. The server accepts somewhat more in one value, but not for several
values together.
"""

_METADATA = b',"metadata":{'
_KEY = ',"message_key":'
_ESCAPE = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\(u[dD][89a-fA-F]..)|\\.")


class UndecidedCondition(HeadraceError):
    """Raised when a condition depends on values that the WAL does not contain."""


class MessageBuilder:
    """Publishes the messages of one source.

    Args:
        spec: its settings.
        transform: its transform, if it has one.
        max_bytes: the largest size of a message.
    """

    def __init__(
        self, spec: PostgresSpec, transform: Callable[..., Any] | None, max_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        condition = spec.condition
        self._where = None if condition is None else SourceCondition(condition)
        self._transform = transform
        self._max_bytes = max_bytes
        self.plain = condition is None and transform is None

    def add(self, key: str, data: bytes, into: ShapedChanges, missing: Collection[str] = (), table: str = "") -> int:
        """Add a message, unless it does not meet the condition.

        Args:
            missing: names of columns with unknown values.
            table: the name of their table.

        Returns:
            How many messages and failures were added: one or none.
        """
        if not self.plain:
            meets = self.meets(key, data, missing, table)
            if meets is False:
                return 0
            if meets is not True:
                return self.add_failure(key, data, meets, into)
            if self._transform is not None:
                return self.add_transformed(key, data, into)
        return self.append(key, data, into)

    def meets(self, key: str, data: bytes, missing: Collection[str] = (), table: str = "") -> bool | Exception:
        """Return whether a message meets the condition, or the error that prevents an answer."""
        if self._where is None:
            return True
        try:
            result = self._where.evaluate(key, data, missing)
        except Exception as error:  # such as JSON that is nested too deep
            return error
        if result is not None:
            return result
        names = ", ".join(sorted(self._where.columns & set(missing)))
        return UndecidedCondition(
            f"The condition depends on {names}, which is not in the WAL for this change. Let the server write it from now on:"
            f" {full_identity(table)}"
        )

    def add_transformed(self, key: str, data: bytes, into: ShapedChanges) -> int:
        """Transform a message and add the result."""
        result: bytes | None = data
        if self._transform is not None:
            try:
                result = transforms.transformed(self._transform, data)
            except TransformStuck:
                raise
            except BaseException as error:  # the code of users may raise anything, such as SystemExit
                if interrupts(error):
                    raise
                return self.add_failure(key, data, error, into)
        return 0 if result is None else self.append(key, result, into, data)

    def append(self, key: str, data: bytes, into: ShapedChanges, before: bytes | None = None) -> int:
        """Add a message without a look at the condition.

        Args:
            before: the message before its transform.
        """
        # The search for one byte takes a fifth of the time.
        if (b"\\" in data and b"\\u0000" in data) or len(data) > self._max_bytes:
            try:
                _check(data, self._max_bytes)
            except InvalidData as error:
                return self.add_failure(key, before or data, error, into)
        into.keys.append(key)
        into.data.append(data.decode("utf-8", "replace"))
        return 1

    def add_failure(self, key: str | None, data: bytes, error: BaseException, into: ShapedChanges) -> int:
        """Keep a message as a failure. Returns 1, the number of failures added."""
        readable = _readable(data) if len(data) <= self._max_bytes else None
        if readable is None:  # unreadable or too large. Without its key it is not retried
            start = data.rfind(_METADATA)
            text = '{"record":null' + (data[start:] if start >= 0 else _METADATA + b"}}").decode("utf-8", "replace")
        elif key is None:
            text = readable.decode("utf-8", "replace")
        else:
            text = readable[:-2].decode("utf-8", "replace") + _KEY + msgspec.json.encode(key).decode() + "}}"
        reason = storable(text_of(error)) if isinstance(error, HeadraceError) else error_text(error)[0]
        into.failures.append(CaptureFailure(key=key, data=text, error=reason, index=len(into.keys)))
        return 1

    def retry(self, data: str, into: ShapedChanges) -> str | None:
        """Retry a failure. Returns the error if it fails again. Otherwise returns None, and the
        message was added or no longer meets the condition.
        """
        start = data.rfind(_KEY)
        if start < 0:
            return "The failure has no complete message with a key, so it can't be retried. Drop it after you have read it."
        try:
            key = msgspec.json.decode(data[start + len(_KEY) : -2], type=str)
            message = (data[:start] + "}}").encode()
            record = msgspec.json.decode(message, type=_Recorded).record
        except msgspec.DecodeError as error:
            return f"The failure can't be read: {error}."
        missing = set() if self._where is None or record is None else self._where.columns - record.keys()
        attempt = ShapedChanges()
        self.add(key, message, attempt, missing)
        if attempt.failures:
            return attempt.failures[0].error
        into.keys += attempt.keys
        into.data += attempt.data
        return None


class _Recorded(msgspec.Struct):
    record: dict[str, msgspec.Raw] | None


def _check(data: bytes, max_bytes: int) -> None:
    """Raise `InvalidData` for data that the stream can't hold."""
    if len(data) > max_bytes:
        raise InvalidData(f"The message has {len(data):,} bytes. At most {max_bytes:,} are allowed.")
    transforms.check_stored(data)


def _readable(data: bytes) -> bytes | None:
    """Return the JSON in a form that every parser accepts, or None. Halves of surrogate pairs become U+FFFD."""
    for candidate in (data, _ESCAPE.sub(lambda escape: rb"\ufffd" if escape[1] else escape[0], data)):
        try:
            msgspec.json.decode(candidate)
        except (ValueError, RecursionError):
            continue
        return candidate
    return None
