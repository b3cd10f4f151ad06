"""Names for the parameters in the paths of the API's description, for tests that call every route."""

from __future__ import annotations

import re

NAMES = {
    "stream": "orders",
    "source": "hook",
    "token": "spare",
    "schedule": "daily",
    "database": "eu",
    "consumer": "ship",
    "key": "a",
    "seq": "1",
    "job": "6a7d0c56-3b8f-4a54-9f0e-1d9d2c7e5a10",
}
"""A name for each parameter. A new parameter gets a row here. The object that a path is about comes before what is in it."""


def filled(path: str, **names: str) -> str:
    """Return a described path with a name for each parameter: one of `names`, or else of `NAMES`."""

    def name_of(place: re.Match[str]) -> str:
        known = {**NAMES, **names}
        assert place[1] in known, f"{path} has a parameter that `tests/support/paths.py` has no name for: {place[1]}"
        return known[place[1]]

    return re.sub(r"\{(\w+)\}", name_of, path)
