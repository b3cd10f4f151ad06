"""The messages of all peers: an order as JSON, and a key that follows from its number."""

from __future__ import annotations

import random
import string
from typing import Any, NamedTuple

_SCATTER = 7919
"""A prime above every number of keys but 100,000, which it doesn't divide: each block of `keys` numbers has each key once."""

_TEXT = "".join(random.Random(1).choices(string.ascii_letters, k=1 << 16))


def key_of(number: int, keys: int) -> int:
    """The place of a message's key."""
    return number * _SCATTER % keys


class Message(NamedTuple):
    number: int
    key: str
    order: dict[str, Any]


def message(number: int, keys: int, note: int, at: int = 0) -> Message:
    """A message.

    Args:
        number: counts from 0 through the run.
        keys: how many keys there are.
        note: characters of the note, random letters: 60 make an order of 200 bytes.
        at: CLOCK_MONOTONIC in nanoseconds, which all processes of a machine share.
    """
    start = number * 31 % (len(_TEXT) - note)
    lines = [
        {"sku": f"sku-{number % 997:05}", "quantity": 1 + number % 9, "cents": 1999},
        {"sku": f"sku-{number % 991:05}", "quantity": 1, "cents": 450},
    ]
    key = key_of(number, keys)
    order = {"number": number, "at": at, "key": key, "lines": lines, "note": _TEXT[start : start + note]}
    return Message(number, f"orders.{key}", order)
