"""The messages that benchmarks send: an order of about 200 bytes of JSON, or one with a note of 10 kB."""

from __future__ import annotations

import random
import string
import zlib
from collections.abc import Iterator

import msgspec

# Random letters, so that no compression makes a payload smaller than it claims to be.
_ALPHABET = string.ascii_letters + string.digits + "    "
_TEXT = "".join(random.Random(1).choices(_ALPHABET, k=1 << 20))

SMALL_NOTE = 36
LARGE_NOTE = 10_000


class Line(msgspec.Struct, gc=False):
    sku: str
    quantity: int
    cents: int


class Order(msgspec.Struct, gc=False):
    """The payload. `number` counts from 0 through the benchmark.

    `at` is CLOCK_MONOTONIC when it was published, or 0 where that is not needed. That clock is the
    machine's, not the process's, so a worker on the same machine can subtract it.
    """

    number: int
    at: int
    customer: str
    lines: list[Line]
    note: str


class Keys(msgspec.Struct, frozen=True):
    """The key of a message, by its number: spread over `count` keys, or every second one on the `hot` key 0."""

    count: int
    hot: bool = False

    def place(self, number: int) -> int:
        if self.hot:
            return 0 if number % 2 == 0 else 1 + _scattered(number, self.count - 1)
        return _scattered(number, self.count)

    def key(self, number: int) -> str:
        return f"orders.eu.{self.place(number)}"


class Batch(msgspec.Struct, gc=False):
    """Messages as the store takes them: JSON texts."""

    keys: list[str]
    texts: list[str]


def order(number: int, note: int = SMALL_NOTE, at: int = 0) -> Order:
    start = _scattered(number, len(_TEXT) - note)
    lines = [Line(f"sku-{number % 997:05}", 1 + number % 9, 1999), Line(f"sku-{number % 991:05}", 1, 450)]
    return Order(number, at, f"customer-{number % 9973:06}", lines, _TEXT[start : start + note])


def orders(keys: Keys, numbers: range, note: int = SMALL_NOTE) -> list[tuple[str, Order]]:
    """Messages as `App.publish_many` takes them."""
    return [(keys.key(number), order(number, note)) for number in numbers]


def batches(keys: Keys, count: int, size: int, note: int = SMALL_NOTE) -> Iterator[Batch]:
    """`count` messages in batches of `size`, encoded."""
    encoder = msgspec.json.Encoder()
    for numbers in slices(count, size):
        yield Batch(
            [keys.key(number) for number in numbers],
            [encoder.encode(order(number, note)).decode() for number in numbers],
        )


def slices(count: int, size: int) -> Iterator[range]:
    """The numbers from 0 to `count`, `size` at a time."""
    for start in range(0, count, size):
        yield range(start, min(start + size, count))


def bytes_of(note: int) -> int:
    """The approximate size of a message's JSON."""
    return len(msgspec.json.encode(order(12_345, note)))


def _scattered(number: int, below: int) -> int:
    return zlib.crc32(number.to_bytes(8, "little")) % below
