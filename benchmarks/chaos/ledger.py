"""Judges what consumers handled against what was published. Plain computation.

Each key has messages numbered from 1, published one after the other: the next one only after the last one was confirmed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec


class Judgement(msgspec.Struct, frozen=True):
    """The outcomes of a consumer's messages, in numbers of messages.

    Attributes:
        handled: different messages that were handled.
        lost: confirmed to the publisher, and never handled.
        doubled: effects beyond the first one of a message, where each must happen once.
        out_of_order: handled for the first time before an earlier message of their key.
        repeated: handled again, where that may happen after a fault.
    """

    handled: int
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    repeated: int = 0

    @property
    def broken(self) -> list[str]:
        """The broken promises, in words."""
        counts = {"lost": self.lost, "doubled": self.doubled, "out of order": self.out_of_order}
        return [f"{count} {what}" for what, count in counts.items() if count]


def judge(confirmed: Mapping[str, int], handled: Iterable[tuple[str, int]], *, once: bool) -> Judgement:
    """Judge one consumer.

    Args:
        confirmed: the number of messages of each key whose publish returned.
        handled: keys and numbers in the order in which they were handled, repetitions included.
        once: whether each message may have one effect only.
    """
    times: Counter[tuple[str, int]] = Counter()
    out_of_order = 0
    for key, number in handled:
        times[key, number] += 1
        out_of_order += times[key, number] == 1 and number > 1 and (key, number - 1) not in times
    lost = sum((key, number) not in times for key, count in confirmed.items() for number in range(1, count + 1))
    again = times.total() - len(times)
    return Judgement(len(times), lost, again if once else 0, out_of_order, 0 if once else again)
