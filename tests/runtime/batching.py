"""Message types and helpers for the tests of batches."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.runtime.running import numbered


class Order(msgspec.Struct):
    number: int


def orders(keys: str) -> list[tuple[str, Any]]:
    return [(key, {"number": number}) for key, number in numbered(keys)]
