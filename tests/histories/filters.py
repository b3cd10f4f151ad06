"""Filters of keys: a dot separates words, `*` stands for one word, and `>` at the end for one or more."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


def matches(filters: Iterable[str], key: str) -> bool:
    """Whether one of the filters matches a key."""
    return any(_matches(one, key) for one in filters)


@lru_cache(maxsize=100_000)
def _matches(text: str, key: str) -> bool:
    if text == ">":
        return True
    wanted, words = text.split("."), key.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(words) <= len(wanted):
            return False
        words = words[: len(wanted)]
    return len(wanted) == len(words) and all(one in ("*", word) for one, word in zip(wanted, words, strict=True))
